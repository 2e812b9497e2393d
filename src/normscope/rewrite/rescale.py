"""Which values of a model can pass the largest number of a type, and the powers of two that keep them below it.

The bound of a value is certified for all inputs where it is known (`normscope.tensors`), with as many roundings of the
type as lie before it. Elsewhere the largest value of the traced call decides, twice over, and the verdict says so. The
smallest power that suffices is taken, for each set of values that have to be scaled together.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from torch import Tensor, nn
from torch.fx import Node

from normscope.certificates.check_fold import Scaling
from normscope.models.float64_run import evaluate
from normscope.models.second_trace import TwoSizes
from normscope.results.folding import FITS, KEPT_STREAM, RESCALED, StreamVerdict
from normscope.results.inventory import FoundNorm
from normscope.results.layer_ranges import TYPES, UNITS
from normscope.rewrite.eps_settings import EpsSettings
from normscope.rewrite.folded_weights import NewWeights
from normscope.rewrite.norm_places import path_of
from normscope.rewrite.norm_tensors import NormTensors
from normscope.rewrite.scales import Scales, Variable
from normscope.rewrite.stored_tensors import Uses
from normscope.rewrite.streams import Streams
from normscope.tensors.traced_nodes import has_floats
from normscope.tensors.values import Value
from normscope.tensors.walk import NormCall, Walk

ROOM = 2.0  # between the largest value of one call and the limit, where there is no bound


@dataclass(frozen=True)
class Reach:
    """How far values go that are scaled together."""

    bound: float = 0.0  # over all inputs; infinite where it is not known
    needed: float = 0.0  # the same with rounding errors of the type
    seen: float = 0.0  # in the traced call
    why: str = ""  # unbounded because of this

    def with_(self, other: "Reach") -> "Reach":
        return Reach(
            max(self.bound, other.bound),
            max(self.needed, other.needed),
            max(self.seen, other.seen),
            self.why or other.why,
        )

    @property
    def far(self) -> float:
        """What has to fit."""
        return self.needed if math.isfinite(self.needed) else ROOM * self.seen


@dataclass(frozen=True)
class Rescaling:
    """The plan of a rescale: exponents of tensors, factors of settings, and a verdict on each stream."""

    scaling: Scaling
    settings: Mapping[str, int]  # exponents of the settings that hold eps
    verdicts: tuple[StreamVerdict, ...]


def plan_rescale(
    model: nn.Module,
    uses: Uses,
    streams: Streams,
    norms: Iterable[FoundNorm],
    weights: NewWeights,
    settings: EpsSettings,
    limit: str,
    given: Mapping[str, tuple[float, float]],
    seen: Mapping[str, float],
) -> Rescaling:
    """Decide which values are scaled, and by how much, for a model with these weights.

    `given` has bounds of floating-point inputs; `seen`, the largest inputs of norms in another call.
    """
    found = {path_of(norm): norm for norm in norms if path_of(norm) in streams.calls}
    tensors = {path: NormTensors.of(model, uses, path) for path in found}
    dividing = {path: norm for path, norm in found.items() if norm.norm is not None and norm.norm.scales}
    scales = Scales(
        streams, _tensors(uses), {path: tensors[path].names for path in dividing}, settings.of_norm, settings.fixed
    )
    calls = {
        call.output: NormCall(path, tensors[path].norm(norm.norm, weights), norm.axis)
        for path, norm in dividing.items()
        if norm.norm is not None
        for call in streams.calls[path]
    }
    sizes = TwoSizes(model, uses.graph)
    walk = Walk(uses.graph, lru_cache(8)(weights.__getitem__), calls, given, sizes=sizes)
    reaches: dict[Variable, Reach] = {}
    for node, reach in _reaches(walk, uses, weights, limit):
        if node in scales.values:
            stem = scales.stem(node)
            reaches[stem] = reaches.get(stem, Reach()).with_(reach)
    for path, peak in seen.items():
        for call in streams.calls.get(path, ()):
            stem = scales.stem(call.value)
            reaches[stem] = reaches.get(stem, Reach()).with_(Reach(seen=peak))
    return _Powers(scales, streams, uses, reaches, TYPES[limit], limit).plan(tensors, settings)


def largest_inputs(streams: Streams, weights: NewWeights) -> dict[str, float]:
    """The largest entry of what every norm reads in the traced call, in float64."""
    norms: dict[Node, list[str]] = {}
    for path, calls in streams.calls.items():
        for call in calls:
            norms.setdefault(call.value, []).append(path)
    seen: dict[str, float] = {}

    def note(node: Node, value: Tensor) -> None:
        for path in norms.get(node, ()):
            seen[path] = max(seen.get(path, 0.0), float(value.abs().max()))

    evaluate(streams.graph.program, weights.__getitem__, note)
    return seen


def _tensors(uses: Uses) -> Callable[[str], tuple[str, str]]:
    def tensor(name: str) -> tuple[str, str]:
        return uses.tensors.first_name(name), uses.can_change(name, uses.of(name))[1]

    return tensor


def _reaches(walk: Walk, uses: Uses, weights: NewWeights, limit: str) -> Iterable[tuple[Node, Reach]]:
    """Every value that depends on the input, outside norms, and how far it goes."""
    seen: dict[Node, float] = {}

    def note(node: Node, value: Tensor) -> None:
        if value.is_floating_point() and value.numel():
            seen[node] = float(value.abs().max())

    evaluate(uses.graph.program, weights.__getitem__, note)
    for node, value in walk.steps():
        if not isinstance(value, Value) or node.op != "call_function" or node in uses.graph.constants:
            continue
        if not has_floats(node):
            continue
        farthest, peak = np.maximum(np.abs(value.low), np.abs(value.high)), seen.get(node, 0.0)
        if not np.isfinite(farthest).all():
            yield node, Reach(math.inf, math.inf, peak, value.why or "it is not known")
            continue
        needed = (farthest + value.depth * UNITS[limit] * value.size).max(initial=0.0)
        yield node, Reach(float(farthest.max(initial=0.0)), float(needed), peak)


class _Powers:
    """Powers of two, one solution of the equations after the other, the largest first."""

    def __init__(
        self,
        scales: Scales,
        streams: Streams,
        uses: Uses,
        reaches: Mapping[Variable, Reach],
        largest: float,
        limit: str,
    ) -> None:
        self._scales, self._streams, self._uses, self._reaches = scales, streams, uses, reaches
        self._largest, self._limit = largest, limit
        self._exponents: Counter[Variable] = Counter()
        self._refused: dict[Variable, str] = {}
        self._read_by: dict[Variable, list[str]] = {}
        for norm, calls in streams.calls.items():
            for call in calls:
                readers = self._read_by.setdefault(scales.stem(call.value), [])
                readers += [norm] if norm not in readers else []
        order = {node: place for place, node in enumerate(streams.graph.nodes)}
        first = {norm: min(order[call.value] for call in calls) for norm, calls in streams.calls.items()}
        for readers in self._read_by.values():
            readers.sort(key=first.__getitem__)
        for stem in sorted(reaches, key=lambda stem: -reaches[stem].far):
            self._scale(stem)

    def _scale(self, stem: Variable) -> None:
        """Scale a set of values so that it fits, if it does not yet and can be scaled."""
        more = _power(self._reaches[stem].far / self._largest) + self._exponents[stem]
        if more <= 0:
            return
        solution = self._scales.solution(stem)
        if isinstance(solution, str):
            self._refused[stem] = solution
            return
        after = Counter(self._exponents)
        for variable, exponent in solution.items():
            after[variable] -= more * exponent
        for variable, exponent in after.items():
            far = self._reaches.get(variable, Reach()).far
            if exponent > max(0, self._exponents[variable]) and math.ldexp(far, exponent) > self._largest >= far:
                self._refused[stem] = f"{self._name(variable)} would pass the largest number of {self._limit} then"
                return
        self._exponents = after

    def plan(self, tensors: Mapping[str, NormTensors], settings: EpsSettings) -> Rescaling:
        def of(variable: Variable) -> int:
            return self._exponents[self._scales.stem(variable)]

        names = {name: of(name) for name in self._uses.tensors.first_names if self._uses.of(name)}
        calls = self._streams.calls
        scaling = Scaling(
            {name: exponent for name, exponent in names.items() if exponent},
            frozenset(each.gain for each in tensors.values() if each.adds_one and each.gain is not None),
            {norm: of(placed[0].output) for norm, placed in calls.items()},
        )
        eps = {setting: 2 * of(setting) for setting in dict.fromkeys(settings.of_norm.values())}
        return Rescaling(
            scaling, {setting: exponent for setting, exponent in eps.items() if exponent}, self._verdicts()
        )

    def _verdicts(self) -> tuple[StreamVerdict, ...]:
        """A verdict on every stream that a norm reads, and on all else that was scaled or had to be."""
        scaled = {stem for stem in self._reaches if self._exponents[stem] < 0}
        open_ = {stem for stem in self._refused if self._scales.is_free_value(stem)}
        wanted = [stem for stem in self._reaches if stem in self._read_by or stem in scaled | open_]
        return tuple(self._verdict(stem) for stem in sorted(wanted, key=lambda stem: stem not in self._read_by))

    def _verdict(self, stem: Variable) -> StreamVerdict:
        reach, exponent = self._reaches[stem], self._exponents[stem]
        bounded, now = math.isfinite(reach.bound), "now stays" if exponent else "stays"
        known = "" if bounded else f"no bound is known ({reach.why}): decided by the largest value of the traced call"
        verdict = StreamVerdict(
            stream=self._name(stem),
            what=RESCALED if exponent else FITS,
            how=known or f"with rounding errors, it {now} within {self._limit} for all inputs",
            bound=reach.bound if bounded else None,
            seen=reach.seen,
            exponent=exponent,
        )
        if stem in self._refused:
            return replace(verdict, what=KEPT_STREAM, how=f"it can pass {self._limit}, and {self._refused[stem]}")
        if exponent > 0 or (exponent and _power(reach.far / self._largest) <= 0):
            return replace(verdict, how="it shares eps or weights with a stream that is rescaled")
        return verdict

    def _name(self, stem: Variable) -> str:
        readers = self._read_by.get(stem)
        if readers:
            more = f" and {len(readers) - 1} more norms" if len(readers) > 1 else ""
            return f"read by {readers[0]}{more}"
        node = next((node for node in self._scales.values if self._scales.stem(node) is stem), None)
        return str(stem) if node is None else f"{self._streams.words(node)}"


def _power(ratio: float) -> int:
    """The least k with ratio ≤ 2^k.

    >>> _power(1.0), _power(1.5), _power(0.2), _power(0.0)
    (0, 1, -2, 0)
    """
    if not ratio or not math.isfinite(ratio):
        return 0
    mantissa, exponent = math.frexp(ratio)
    return exponent - 1 if mantissa == 0.5 else exponent
