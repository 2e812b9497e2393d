"""Rewrites that follow one another: gains and means folded, streams turned, values at another scale.

Each takes the tensors that the one before it gives, in float64, and promises identities between the two. What is stored
in the end is rounded once.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from normscope.certificates.check_fold import (
    Identity,
    Scaling,
    Stored,
    Turning,
    identities,
    scaling_identities,
    turning_identities,
)
from normscope.errors import InputError
from normscope.models.example_inputs import example_inputs
from normscope.models.graph import trace
from normscope.results.folding import StreamVerdict
from normscope.results.inventory import FoundNorm
from normscope.results.layer_ranges import TYPES
from normscope.rewrite.eps_settings import EpsSettings, eps_identities
from normscope.rewrite.folded_weights import FoldedWeights, NewWeights, ScaledWeights, TurnedWeights
from normscope.rewrite.orthogonal import KINDS, read_matrix
from normscope.rewrite.plan import Plan
from normscope.rewrite.stored_tensors import StoredTensors, Uses
from normscope.rewrite.streams import Streams

Step = Callable[[Stored], Iterable[Identity]]  # the identities of a rewrite, from the tensors after it
TOLERANCE = 1e-2  # relative error of rescaled gains that are stored as 1 + w


@dataclass(frozen=True)
class Wanted:
    """What is asked of a fold."""

    rms: bool = False
    untie: bool = False
    rotate: str | None = None
    rotate_heads: bool = False
    seed: int = 0
    rescale: str | None = None
    tolerance: float = TOLERANCE

    def __post_init__(self) -> None:
        if self.rescale is not None and self.rescale not in TYPES:
            raise InputError(f"rescale must be one of {', '.join(TYPES)}, got {self.rescale!r}")
        if not self.tolerance >= 0:
            raise InputError(f"tolerance must be 0 or more, got {self.tolerance!r}")
        if self.rms and (self.rescale is not None or self.rotate is not None):
            raise InputError("rms can't be combined with rescale or rotate, whose results have the same architecture")
        if self.rotate_heads and self.rotate is None:
            raise InputError("rotate_heads needs rotate: hadamard, random or a .npy file")
        if self.seed < 0:
            raise InputError(f"seed must be 0 or more, got {self.seed}")
        if self.rotate is not None and self.rotate not in KINDS:
            read_matrix(Path(self.rotate))


class Rewrites:
    """The rewrites of a copy of a model, its tensors after the last of them, and their identities."""

    def __init__(
        self,
        model: nn.Module,
        original: StoredTensors,
        uses: Uses,
        plan: Plan,
        streams: Streams,
        norms: Iterable[FoundNorm],
    ) -> None:
        self._model, self._uses, self._streams, self._norms = model, uses, streams, tuple(norms)
        self.graph = uses.graph  # of the rewritten model
        self.verdicts: list[StreamVerdict] = []
        self.scaling = Scaling({}, frozenset(), {})
        self.turning: Turning | None = None
        self.settings: Mapping[str, int] = {}  # numbers of the configuration that became 2^k times as large
        self.weights: NewWeights = FoldedWeights(original, plan.promise, uses.tensors)
        self._steps: list[tuple[Step, NewWeights]] = [
            (partial(identities, plan.promise, arrays(original.in_float64)), self.weights)
        ]
        self._of_eps: list[Identity] = []

    def identities(self, held: Stored) -> Iterator[Identity]:
        """The identities of all rewrites; `held` looks up the tensors after the last one, as the model holds them."""
        for step, weights in self._steps:
            yield from step(held if weights is self.weights else arrays(weights.__getitem__))
        yield from self._of_eps

    def rotate(self, kind: str, seed: int, *, heads: bool) -> None:
        """Turn every stream that can be turned, and value heads."""
        from normscope.rewrite.rotation import plan_rotation
        from normscope.rewrite.value_heads import plan_heads

        rotations = plan_rotation(self._model, self._uses, self._streams, self._norms, self.weights, kind, seed)
        turning = rotations.turning
        self.verdicts += rotations.verdicts
        if heads:
            of_heads = kind if kind in KINDS else KINDS[0]
            turning, verdicts = plan_heads(self._uses, self._streams, turning, of_heads, seed)
            self.verdicts += verdicts
        self.turning = turning
        before, self.weights = self.weights, TurnedWeights(self.weights, turning)
        self._steps.append((partial(turning_identities, turning, arrays(before.__getitem__)), self.weights))

    def rescale(
        self,
        limit: str,
        given: Mapping[str, tuple[float, float]],
        example: Mapping[str, Any],
        mistaken: Mapping[str, str],
        *,
        has_text: bool,
    ) -> None:
        """Multiply values by powers of two until they stay within a type; the model itself gets another eps.

        Bounds come from a short call, as those of `ranges` do, which is compared with one of another length.
        """
        from normscope.rewrite.rescale import largest_inputs, plan_rescale  # with all of `tensors`

        settings = EpsSettings(self._model, self._norms, self._streams.calls)
        uses, streams = self._uses, self._streams
        if has_text:
            uses = Uses(uses.tensors, trace(self._model, example_inputs(self._model)))
            streams = Streams(uses.graph, self._norms, mistaken)
        seen = largest_inputs(self._streams, self.weights) if has_text else {}
        rescaling = plan_rescale(self._model, uses, streams, self._norms, self.weights, settings, limit, given, seen)
        before, self.weights = self.weights, ScaledWeights(self.weights, rescaling.scaling)
        self.scaling, self.settings = rescaling.scaling, rescaling.settings
        self.verdicts += rescaling.verdicts
        self._steps.append((partial(scaling_identities, rescaling.scaling, arrays(before.__getitem__)), self.weights))
        if rescaling.settings:
            for setting, exponent in rescaling.settings.items():
                settings.multiply(self._model, setting, 2.0**exponent)
            self.graph = trace(self._model, example)
            factors = {norm: 2.0 ** rescaling.settings.get(each, 0) for norm, each in settings.of_norm.items()}
            self._of_eps += eps_identities(self._uses.graph, self.graph, factors)


def arrays(stored: Callable[[str], Tensor]) -> Stored:
    """Tensors by name as numpy arrays, as certificates look them up."""
    return lambda name: stored(name).numpy()
