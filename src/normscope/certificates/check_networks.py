"""What a network of LayerNorms says about samples, shown in ball arithmetic and counted in floats.

Two different statements, each made by itself:

- exact: the network with these weights, in real arithmetic, gives the right class the highest score. A score that leads
  in balls leads in truth; where balls overlap, the precision is raised.
- float: the module, run by torch in its own dtype, all samples at once and one by one, does so too.

Nothing here knows how the network was found.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from normscope.capacity.balls import Ball, BallMap, ball_map, images, mapped, precision, scaled
from normscope.checks import Floats

if TYPE_CHECKING:
    from torch import nn

Indices = NDArray[np.int64]
OPEN = -1
BITS, BITS_PER_LAYER = 80, 4  # to begin with; more where balls overlap
GUARD = 40  # bits beyond those that are still right after a layer
HIGHEST = 2**17  # bits, beyond which a sample is left open


class Exact(NamedTuple):
    """The class of each sample in real arithmetic."""

    winners: Indices  # the place of the highest score, OPEN where none was shown to be highest
    precision: int  # bits that were enough for all, or the most that were tried
    margin: float  # no winner leads by less


@dataclass(frozen=True)
class Certificate:
    """How many samples a network classifies rightly: shown for real arithmetic, counted for floats."""

    samples: int
    exact: int  # shown in ball arithmetic
    precision: int  # bits of that arithmetic
    weight_bits: int  # of the weights that it was shown for
    of_module: bool  # whether these are the weights that the module stores; if not, the module holds them rounded
    margin: float  # no right score leads by less
    batch: int  # of the float module, all samples at once
    single: int  # of the float module, one by one

    @property
    def holds(self) -> bool:
        """Whether exact arithmetic shows every sample to be right."""
        return self.exact == self.samples

    @property
    def float_right(self) -> int:
        """Samples that the float module gets right, whichever way they are run."""
        return min(self.batch, self.single)

    def to_dict(self) -> dict[str, Any]:
        return {"holds": self.holds, **asdict(self)}


def certify(module: "nn.Sequential", samples: Floats, classes: Indices) -> Certificate:
    """Check that the module with the weights it stores gives sample i the highest score in place classes[i]."""
    found = exact_labels(module, samples)
    batch, single = float_labels(module, samples)
    return Certificate(
        samples=len(samples),
        exact=int((found.winners == classes).sum()),
        precision=found.precision,
        weight_bits={"float64": 53, "float32": 24}[str(next(module.parameters()).dtype).removeprefix("torch.")],
        of_module=True,
        margin=found.margin,
        batch=int((batch == classes).sum()),
        single=int((single == classes).sum()),
    )


def exact_labels(module: "nn.Sequential", samples: Floats) -> Exact:
    """The classes that the module's weights give the samples in real arithmetic."""
    linear: list[Any] = list(module)[0::2]
    eps = getattr(module[1], "eps", 0.0) if len(module) > 1 else 0.0

    def scores(chosen: Indices, bits: int) -> list[list[Ball]]:
        last = len(linear) - 1
        maps = [ball_map(layer, reads=place > 0, writes=place < last) for place, layer in enumerate(linear)]
        return scores_after(maps[1:], images(maps[0], samples[chosen]), eps, bits)

    return decided(scores, len(samples), start=BITS + BITS_PER_LAYER * len(linear))


def decided(scores: Callable[[Indices, int], list[list[Ball]]], count: int, start: int) -> Exact:
    """Winners from scores(chosen samples, bits), at rising precision for those that are not decided yet."""
    winners = np.full(count, OPEN)
    margin, bits = np.inf, start
    while True:
        undecided = np.flatnonzero(winners == OPEN)
        with precision(bits):
            for sample, row in zip(undecided, scores(undecided, bits), strict=True):
                winners[sample], lead = _winner(row)
                margin = min(margin, lead)
        if (winners != OPEN).all() or bits >= HIGHEST:
            return Exact(winners, bits, float(margin))
        bits = min(2 * bits, HIGHEST)


def scores_after(maps: Sequence[BallMap], rows: list[list[Ball]], eps: float, bits: int) -> list[list[Ball]]:
    """The rows scaled and mapped in turn. The precision falls with the accuracy that is left."""
    for affine in maps:
        with precision(bits):
            points = scaled(rows, eps)
            rows = mapped(affine, points)
        bits = min(bits, GUARD + max(max(x.rel_accuracy_bits(), y.rel_accuracy_bits()) for x, y in points))
        bits = max(bits, GUARD)
    return rows


def float_labels(module: "nn.Sequential", samples: Floats) -> tuple[Indices, Indices]:
    """The classes that the module gives in its own dtype: all samples in one batch, and one by one."""
    import torch

    inputs = torch.from_numpy(samples).to(next(module.parameters()).dtype)
    with torch.inference_mode():
        batch = module(inputs)
        single = torch.cat([module(inputs[row : row + 1]) for row in range(len(inputs))])
    return _highest(batch.numpy()), _highest(single.numpy())


def _winner(row: list[Ball]) -> tuple[int, float]:
    """The place of the score that is above all others, and by how much at least."""
    best = max(range(len(row)), key=lambda place: row[place].mid())
    leads = [row[best] - other for place, other in enumerate(row) if place != best]
    if all(lead > 0 for lead in leads):
        return best, min(float(lead.lower()) for lead in leads)
    return OPEN, np.inf


def _highest(scores: NDArray[Any]) -> Indices:
    return np.where(np.isfinite(scores).all(axis=1), scores.argmax(axis=1), OPEN).astype(np.int64)
