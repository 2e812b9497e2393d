"""Certified static scales of 8-bit caches and layer inputs, over all inputs, from the weights alone.

    keys, values     as attention reads them: after rotary embedding and norms of keys
    layer inputs     behind a LayerNorm √(N − 1)·|g| + |b| in the worst channel; elsewhere what bounds them, if anything

The bounds hold in real arithmetic. Rounding errors of the model lose nothing: what is up to 3.5% above 448 scales is
still rounded to 448.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn
from torch.fx import Node

from normscope.models.batches import Inputs
from normscope.models.graph import Product
from normscope.models.graph_operations import handed_in, is_float
from normscope.models.subject import Subject, Text
from normscope.progress import Progress, silent
from normscope.results.layer_ranges import TYPES, Grade
from normscope.results.rows import NotCovered
from normscope.results.static_scales import Of, StaticScale, StaticScales, can_be_scaled
from normscope.studies.ranges import RangeSearch
from normscope.studies.rounding_cost import Cost, Seat, rounding_cost
from normscope.tensors.linear_rows import Linear
from normscope.tensors.values import Value
from normscope.tensors.walk import Walk

SUFFIX: dict[Of, str] = {"keys": "k_scale", "values": "v_scale", "input": "input_scale"}
STORED = ".weight"


def static_scales(
    model: nn.Module | str | Path,
    *,
    text: Text | None = None,
    inputs: Inputs | None = None,
    device: str = "cpu",
    dtype: str | None = None,
    progress: Progress = silent,
) -> StaticScales:
    """Certified scales of keys, values and inputs of linear layers for float8_e4m3, and what they cost on a text.

    Parameters
    ----------
    model
        A folder in Hugging Face format, a .gguf file, or a torch module.
    text, inputs
        Text or inputs to run the model on, twice: for the largest values there, and the errors of rounding them with
        certified scales and with scales from these values. Models of transformers need neither.
    device, dtype
        Device and floating-point type to run a folder in. Bounds are computed in float64.
    progress
        Called with the nodes of the graph and with the batches, and a description; see `normscope.progress`.

    Returns
    -------
    StaticScales
        `save_scales` writes them to a file, under the names that checkpoints use.

    >>> from torch import ones
    >>> model = nn.Sequential(nn.LayerNorm(5), nn.Linear(5, 1))
    >>> (scale,) = static_scales(model, inputs=ones(1, 5)).scales
    >>> scale.name, round(scale.amax, 6), round(scale.scale * 448, 6)  # √(5 − 1)·1 + 0
    ('1.input_scale', 2.0, 2.0)
    """
    subject = Subject(model, text=text, inputs=inputs, device=device, dtype=dtype)
    search = _Search(subject)
    search.walk(progress)
    scales, left_out = search.scales()
    if subject.runs:
        seats = {search.seats[name]: row.amax for name, row in scales.items() if name in search.seats}
        costs = rounding_cost(subject, seats, progress)
        scales = {
            name: _with_cost(row, costs.get(search.seats.get(name, Seat("", "")))) for name, row in scales.items()
        }
    path = None if subject.path is None else str(subject.path)
    return StaticScales(subject.name, path, tuple(scales.values()), left_out, subject.text)


def _with_cost(row: StaticScale, cost: Cost | None) -> StaticScale:
    if cost is None:
        return row
    return replace(
        row,
        observed=cost.observed,
        e4m3=cost.error("e4m3", True),
        e4m3_observed=cost.error("e4m3", False),
        int8=cost.error("int8", True),
        int8_observed=cost.error("int8", False),
    )


@dataclass(frozen=True)
class _Bound:
    """How large a tensor can get; infinite where it is not bounded, and `why` says because of what."""

    amax: float
    grade: Grade
    why: str | None

    @classmethod
    def of(cls, value: Value) -> "_Bound":
        low, high = value.hull()
        amax = max(abs(low), abs(high))
        grade: Grade = "exact" if isinstance(value.form, Linear) else "intervals"
        return cls(amax if np.isfinite(amax) else np.inf, grade, value.why)


UNKNOWN = _Bound(np.inf, "intervals", None)


class _Search:
    """One walk over the graph, with the bounds of all tensors that get a scale."""

    def __init__(self, subject: Subject) -> None:
        plain = subject.without_text()  # a short call is enough to trace
        self.ranges = RangeSearch(plain, "float32", TYPES["float32"])
        self.graph, self.given = self.ranges.graph, plain.input_ranges
        self.modules = dict(plain.traced.module.named_modules())
        self.seats: dict[str, Seat] = {}  # by the name of a scale, where its tensor is seen while the model runs
        self._left_out: dict[str, str] = {}
        self._names: dict[Node, list[tuple[str, Of]]] = {}
        self._bounds: dict[tuple[str, Of], list[_Bound]] = {}
        order = {node: place for place, node in enumerate(self.graph.nodes)}
        for node in sorted(self.ranges.roles, key=order.__getitem__):
            self._name_cache(node)
        for product in self.graph.products.values():
            self._name_input(product)
        for name in self.graph.other_layers():
            self._left_out[name] = "applies its weights in another way than a linear layer does"

    def walk(self, progress: Progress) -> None:
        """Bound every tensor that has a name."""
        walk = Walk(self.graph, self.ranges.stored, self.ranges.calls, self.given, sizes=self.ranges.sizes)
        for node, value in progress(_Steps(walk, len(self.graph.nodes)), "tensors"):
            if node in self._names and isinstance(value, Value) and is_float(node):
                for name, of in self._names[node]:
                    self._bounds.setdefault((name, of), []).append(_Bound.of(value))

    def scales(self) -> tuple[dict[str, StaticScale], tuple[NotCovered, ...]]:
        """The scales by name, the largest over all calls of a module; and what has none, with the reason."""
        found: dict[str, StaticScale] = {}
        for (module, of), bounds in self._bounds.items():
            needed = [*bounds, *self._beside(module, of)]
            missing = next((bound for bound in needed if not can_be_scaled(bound.amax)), None)
            if missing is not None:
                what = "reads a tensor" if of == "input" else "has keys or values"
                self._left_out.setdefault(module, f"{what} without a bound: {missing.why or 'it is not known'}")
                continue
            worst = max(bounds, key=lambda bound: bound.amax)
            name = _named(module, of)
            found[name] = StaticScale(name, of, worst.amax, worst.grade)
        return found, tuple(NotCovered(module, why) for module, why in self._left_out.items())

    def _beside(self, module: str, of: Of) -> list[_Bound]:
        """The bounds without which this scale would be wrong: loaders use a scale of keys alone for values too."""
        if of == "input":
            return []
        return self._bounds.get((module, "values" if of == "keys" else "keys"), [UNKNOWN])

    def _name_cache(self, node: Node) -> None:
        role = self.ranges.roles[node]
        if role.what not in ("keys", "values"):
            return
        of: Of = "keys" if role.what == "keys" else "values"
        module = self._with_weights(role.layer)
        if getattr(self.modules.get(module), "kv_lora_rank", None) is not None:
            self._left_out[module] = "caches a latent vector, not keys and values"
        elif node in self.graph.overwritten:
            self._left_out[module] = "changes keys or values in place"
        else:
            self._names.setdefault(node, []).append((module, of))
            self.seats[_named(module, of)] = Seat(module, of)

    def _with_weights(self, module: str) -> str:
        """The deepest module around this one, or itself, that holds parameters."""
        while module and (module not in self.modules or next(self.modules[module].parameters(), None) is None):
            module = module.rpartition(".")[0]
        return module

    def _name_input(self, product: Product) -> None:
        reader, value = product.reader, product.value
        if value in self.graph.overwritten:
            self._left_out[reader.label] = "reads a tensor that is changed in place"
            return
        module = reader.name if reader.alone else reader.weight_name.removesuffix(STORED)
        if module not in self.modules:
            self._left_out[reader.label] = "is no weight of a linear layer: checkpoints have no name for its scale"
            return
        self._names.setdefault(value, []).append((module, "input"))
        if reader.alone and self._is_first_input(module, value):
            self.seats[_named(module, "input")] = Seat(module, "input")

    def _is_first_input(self, module: str, value: Node) -> bool:
        """Whether a value is all that every call of a module reads, possibly moved."""
        calls = self.graph.calls_of(module)
        alone = all(len([each for each in self.graph.entering(module, call) if is_float(each)]) == 1 for call in calls)
        return alone and all(handed_in(value, call) for call in calls)


def _named(module: str, of: Of) -> str:
    """The name of a scale in checkpoints."""
    return f"{module}.{SUFFIX[of]}" if module else SUFFIX[of]


class _Steps:
    """The steps of a walk; knows how many, for progress bars."""

    def __init__(self, walk: Walk, total: int) -> None:
        self._walk, self._total = walk, total

    def __len__(self) -> int:
        return self._total

    def __iter__(self) -> Iterator[tuple[Node, Any]]:
        return self._walk.steps()
