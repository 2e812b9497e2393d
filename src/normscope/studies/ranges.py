"""Certified ranges: how far each output of a linear layer that reads a norm can go, from the weights alone.

    w·y + a   is between   a + w·b − ρ   and   a + w·b + ρ,     ρ = Σ √c·|Π G w| over the groups of c channels

The interval is exact over all inputs of the norm: nothing passes it, and the input x = t·Π G w (in each group) comes as
near to an end as one likes when t grows. That input is given for the worst output of every layer, and tried on the
model's own operations, as traced. All this is real arithmetic: a promise about floating-point outputs needs slack for
rounding on top, of the order of the number of channels times the precision times Σ|wₙ|·|yₙ|.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from normscope.checks import Floats, as_floats, frozen
from normscope.data import bundled_model
from normscope.models.find import find_traced
from normscope.models.float64_run import run_call
from normscope.models.found import FoundNorm
from normscope.models.graph import LinearReader, ModelGraph
from normscope.models.inputs import Inputs, first_batch
from normscope.models.load import load_model
from normscope.norm import Norm

if TYPE_CHECKING:
    from torch import Tensor, nn

SCHEMA_VERSION = 1
FLOAT16_MAX = 65504.0
BLOCK = 2**22  # weights held in float64 at a time: 32 MB
NEAR_ENOUGH = 1e-6  # relative gap between a bound and what its witness attains


@dataclass(frozen=True)
class Witness:
    """An input of the norm that drives the worst output of a layer to its bound, as tried in float64."""

    input: Floats = field(repr=False)
    attained: float  # the output of the model's own norm and layer
    gap: float  # |bound − attained| / |bound|; 0 where the difference is within rounding


@dataclass(frozen=True)
class LayerRange:
    """The range of a linear layer over all possible inputs of the norm that it reads.

    Of a norm that does not scale, outputs have no bound: low, high and what follows from them are None.
    """

    layer: str  # the module or, where it does more than multiply, the name of its matrix: the product is meant then
    weight: str
    norm: str
    outputs: int
    bounded: bool
    low: float | None  # no output is below this,
    high: float | None  # or above this
    worst_row: int | None  # the output with the largest bound in absolute value,
    worst_bound: float | None  # and that bound
    exceeds_float16: bool  # whether any bound is beyond ±65504
    rows_beyond_float16: int
    witness: Witness | None
    lows: Floats | None = field(default=None, repr=False, compare=False)  # of every output; not part of the JSON
    highs: Floats | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class NotCovered:
    """A layer whose outputs, or some of them, are not bounded here."""

    layer: str
    reason: str


@dataclass(frozen=True, repr=False)
class Ranges:
    """The certified range of every linear layer that reads a norm, in the order in which they run."""

    model: str
    layers: tuple[LayerRange, ...]
    not_covered: tuple[NotCovered, ...]

    def to_dict(self) -> dict[str, Any]:
        """Exactly what `normscope ranges --json` prints; schema: normscope/schemas/ranges.json."""
        return {
            "schema_version": SCHEMA_VERSION,
            "model": self.model,
            "layers": [_entry(layer) for layer in self.layers],
            "not_covered": [asdict(missed) for missed in self.not_covered],
        }

    @property
    def verified(self) -> bool:
        """Whether every witness came as near to its bound as it should."""
        return all(layer.witness is None or layer.witness.gap <= NEAR_ENOUGH for layer in self.layers)

    def _repr_html_(self) -> str:
        """A table for notebooks."""
        from normscope.report.notebook import ranges_html

        return ranges_html(self)

    def __repr__(self) -> str:
        bounded = [layer for layer in self.layers if layer.worst_bound is not None]
        worst = max(bounded, key=lambda layer: abs(layer.worst_bound or 0.0), default=None)
        lines = [f"{len(self.layers)} layers read a norm, {len(self.not_covered)} are not covered"]
        if worst is not None:
            lines.append(f"largest bound {worst.worst_bound:.6g} at {worst.layer}[{worst.worst_row}]")
        lines.append(f"{sum(layer.exceeds_float16 for layer in self.layers)} can exceed float16")
        return f"Ranges({self.model}: {'; '.join(lines)})"


def _entry(layer: LayerRange) -> dict[str, Any]:
    entry = asdict(layer)
    del entry["lows"], entry["highs"]
    if layer.witness is not None:
        entry["witness"]["input"] = layer.witness.input.tolist()
    return entry


def ranges(
    model: nn.Module | str | Path | None = None,
    example: Mapping[str, Any] | Sequence[Any] | None = None,
    *,
    inputs: Inputs | None = None,
) -> Ranges:
    """The exact interval of each output of every linear layer that reads a norm.

    Of a live module, of a folder in Hugging Face format, or of the model that ships with the package. `example` is what
    the model is called with, to see which layer reads which norm; models of transformers need none. So are `inputs`,
    by name: one batch, or several, of which the first is used.

    >>> from torch import nn, ones
    >>> model = nn.Sequential(nn.LayerNorm(3), nn.Linear(3, 1))
    >>> _ = nn.init.constant_(model[1].bias, 2.0)
    >>> model[1].weight.data[:] = ones(3) - ones(3).cumsum(0)
    >>> found = ranges(model, (ones(1, 3),)).layers[0]
    >>> round(found.low, 4), round(found.high, 4)  # 2 ± √3·|(1, 0, −1)|
    (-0.4495, 4.4495)
    """
    from torch import nn

    if example is not None and inputs is not None:
        raise ValueError("example and inputs can't be given together: both are what the model is called with")
    if isinstance(model, nn.Module):
        live, name = model, type(model).__name__
    else:
        live = load_model(bundled_model() if model is None else Path(model))
        name = "the bundled model" if model is None else str(Path(model))
    given = example if inputs is None else first_batch(live, inputs)
    return _ranges(live, given, name)


def _ranges(model: nn.Module, example: Mapping[str, Any] | Sequence[Any] | None, name: str) -> Ranges:
    if any(parameter.is_meta for parameter in model.parameters()):
        raise ValueError("model must have its weights loaded: ranges are computed from them, got a model on meta")
    inventory = find_traced(model, example)
    graph = inventory.graph
    assert graph is not None
    norms = {found.path: found for found in inventory.values() if found.path is not None}
    layers: list[LayerRange] = []
    refused: dict[str, str] = {}
    for path, found in norms.items():
        readers = graph.linear_readers(path)
        problem = _obstacle(graph, path, found)
        if problem is not None:
            refused |= {reader.label: f"its norm {path}: {problem}" for reader in readers}
        elif found.norm is not None:
            layers += [_layer_range(model, graph, reader, found, found.norm) for reader in readers]
    order = {(reader.label, reader.weight_name): index for index, reader in enumerate(graph.linear_layers())}
    layers.sort(key=lambda layer: order[layer.layer, layer.weight])
    return Ranges(name, tuple(layers), tuple(_not_covered(graph, norms, refused)))


def _obstacle(graph: ModelGraph, path: str, found: FoundNorm) -> str | None:
    """Why nothing is known for all inputs about what reads a norm."""
    if found.obstacle is not None:
        return found.obstacle
    shape = next((shape for shape in graph.shapes(path) if shape[-1:] != (found.size,)), None)
    return None if shape is None else f"normalizes {found.size} channels, not the last axis of {shape}"


def _layer_range(model: nn.Module, graph: ModelGraph, reader: LinearReader, found: FoundNorm, norm: Norm) -> LayerRange:
    weight, bias = _weights(model, reader)
    what: dict[str, Any] = {
        "layer": reader.label,
        "weight": reader.weight_name,
        "norm": found.name,
        "outputs": len(weight),
    }
    if not norm.scales:
        return _unbounded(what)
    shift = np.zeros(len(weight)) if bias is None else as_floats(bias, str(reader.bias_name))
    lows, highs = np.empty(len(weight)), np.empty(len(weight))
    for rows, block in _blocks(weight, reader.weight_name):
        lows[rows] = shift[rows] - norm.ellipsoid.support(-block)
        highs[rows] = shift[rows] + norm.ellipsoid.support(block)
    farthest = np.maximum(np.abs(lows), np.abs(highs))
    row = int(np.argmax(farthest))
    sign = 1.0 if highs[row] == farthest[row] else -1.0
    bound = sign * float(farthest[row])
    x = driving_input(norm, sign * as_floats(weight[row], reader.weight_name))
    attained = _output(model, graph, reader, found, row, x)
    terms = float(np.sum(np.abs(norm.gain * as_floats(weight[row], reader.weight_name))))
    rounding = np.finfo(float).eps * norm.size**1.5 * terms
    short = abs(bound - attained)
    beyond = int(np.count_nonzero(farthest > FLOAT16_MAX))
    return LayerRange(
        **what,
        bounded=True,
        low=float(lows.min()),
        high=float(highs.max()),
        worst_row=row,
        worst_bound=bound,
        exceeds_float16=beyond > 0,
        rows_beyond_float16=beyond,
        witness=Witness(frozen(x), attained, short / abs(bound) if short > rounding else 0.0),
        lows=frozen(lows),
        highs=frozen(highs),
    )


def _weights(model: nn.Module, reader: LinearReader) -> tuple[Tensor, Tensor | None]:
    """The matrix (outputs, inputs) and the bias of a layer, where they are."""
    matrix = attrgetter(reader.weight_name)(model).detach()
    bias = None if reader.bias_name is None else attrgetter(reader.bias_name)(model).detach()
    return matrix.T if reader.transposed else matrix, bias


def _unbounded(what: dict[str, Any]) -> LayerRange:
    return LayerRange(
        **what,
        bounded=False,
        low=None,
        high=None,
        worst_row=None,
        worst_bound=None,
        exceeds_float16=True,
        rows_beyond_float16=what["outputs"],
        witness=None,
    )


def _blocks(weight: Tensor, name: str) -> Iterator[tuple[slice, Floats]]:
    """The rows of a matrix in float64, some at a time."""
    step = max(1, BLOCK // weight.shape[1])
    for start in range(0, len(weight), step):
        rows = slice(start, start + step)
        yield rows, as_floats(weight[rows], name)


def driving_input(norm: Norm, w: Floats) -> Floats:
    """An input for which w·norm(x) is within 1e-7 of its supremum, relative to ρ: along Π G w in each group.

    Its root mean square is so large that eps hardly counts, wherever the norm puts it.

    >>> driving_input(Norm(gain=[1, 2], eps=1e-12), np.array([3.0, 1.0]))
    array([ 1., -1.])
    """
    size = max(1.0, 1e4 * math.sqrt(norm.eps), 1e7 * norm.eps)
    direction = norm.project(norm.gain * w).reshape(norm.groups, -1)
    # Where a group cannot move the output, any input will do; not zero, which has no direction.
    anything = norm.project(np.resize([1.0, -1.0], norm.size)).reshape(norm.groups, -1)
    still = ~direction.any(axis=1, keepdims=True)
    direction = np.where(still, anything, direction)
    direction = direction / np.maximum(np.abs(direction).max(axis=1, keepdims=True), np.finfo(float).tiny)
    root = np.sqrt(np.mean(direction**2, axis=1, keepdims=True))
    driven: Floats = (size * direction / np.where(root == 0.0, 1.0, root)).reshape(norm.size)
    return driven


def _output(model: nn.Module, graph: ModelGraph, reader: LinearReader, found: FoundNorm, row: int, x: Floats) -> float:
    """One output of a layer for an input of its norm: the traced operations of the norm in float64, then the layer."""
    import torch

    call = graph.calls_of(found.name)[0]
    entering, output = graph.entering(found.name, call), graph.leaving(call)[0]
    if found.gate is not None and found.gate.used_first:
        entering.reverse()
    given = {node: torch.from_numpy(x).expand(node.meta["val"].shape) for node in entering[:1]}
    # A gate before the norm is the same for all channels: the norm then does not see it.
    given |= {node: torch.ones(node.meta["val"].shape, dtype=torch.float64) for node in entering[1:]}
    y = run_call(graph, call, given, lambda name: attrgetter(name)(model).detach())[output].reshape(-1, len(x))[0]
    weight, bias = _weights(model, reader)
    shift = 0.0 if bias is None else float(bias[row])
    return float(y @ weight[row].double().cpu()) + shift


def _not_covered(graph: ModelGraph, norms: Mapping[str, FoundNorm], refused: Mapping[str, str]) -> Iterator[NotCovered]:
    covered: dict[tuple[str, str], int] = {}
    near: dict[str, str] = {}
    for norm in norms:
        near |= dict.fromkeys(graph.read_by(norm), f"reads {norm}, but not its output as it is")
        for reader in graph.linear_readers(norm):
            key = (reader.label, reader.weight_name)
            covered[key] = covered.get(key, 0) + reader.calls
    for layer in graph.linear_layers():
        count = covered.get((layer.label, layer.weight_name), 0)
        if layer.label in refused:
            yield NotCovered(layer.label, refused[layer.label])
        elif not count:
            yield NotCovered(layer.label, near.get(layer.label, "does not read a norm"))
        elif count < layer.calls:
            yield NotCovered(layer.label, f"does not read a norm in {layer.calls - count} of its {layer.calls} calls")
    for other in graph.other_layers():
        yield NotCovered(other, "applies its weights in a way that is not followed: no plain matrix product")
