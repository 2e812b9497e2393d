"""How much of a norm's output no affine map of its input explains, on real inputs: a measurement, not a bound.

    share = Σ|y − Ax − b|² / Σ|y − ȳ|²       over held-out inputs, A and b fitted on the others

H says how much a norm bends at an input, in units of that input; this share has no unit. Every second input is for
fitting, the others are held out. Two maps are fitted:

    full            the best A and b: least squares over all affine maps; ten inputs per channel or more are needed
    frozen scale    y ≈ a·G·Πx + b: the divisor replaced by one number a (in each group), as if the norm did not scale

Only moments are kept, of each half Σxxᵀ, Σxyᵀ and Σ|y|² about the first input, so memory does not grow with the text.
"""

import numpy as np

from normscope.checks import Floats
from normscope.results.inspection import AffineFit

PER_CHANNEL = 10  # inputs for fitting that a full fit needs per channel
ROOM = 1 << 30  # bytes for the moments of all norms of a model; beyond, the scale is frozen


def room_for_full_fits(sizes: list[int]) -> bool:
    """Whether the moments of norms with these numbers of channels fit into ROOM.

    >>> room_for_full_fits([576] * 61), room_for_full_fits([4096] * 65)
    (True, False)
    """
    return sum(4 * 8 * size**2 for size in sizes) <= ROOM


class AffineFitter:
    """Add inputs and outputs in pieces, then take the result."""

    def __init__(self, size: int, groups: int, full: bool) -> None:
        self._size, self._groups, self._full = size, groups, full
        self._origin: tuple[Floats, Floats, Floats] | None = None
        self._halves = (_Half(size, groups, full), _Half(size, groups, full))
        self._seen = 0

    def add(self, x: Floats, linear: Floats, y: Floats) -> None:
        """Inputs, G·Πx of each, and outputs, (n, N) each."""
        if not len(x):
            return
        if self._origin is None:
            self._origin = x[0].copy(), linear[0].copy(), y[0].copy()
        with np.errstate(all="ignore"):  # overflow is detected at the end
            moved = [part - first for part, first in zip((x, linear, y), self._origin, strict=True)]
            for turn in range(2):
                rows = slice((turn + self._seen) % 2, None, 2)
                self._halves[turn].add(*(part[rows] for part in moved))
        self._seen += len(x)

    def result(self) -> AffineFit | None:
        """The fit; None with fewer than two inputs in each half, or if the held-out outputs do not differ."""
        fitted, held_out = self._halves
        if min(fitted.count, held_out.count) < 2:
            return None
        full = self._full and fitted.count >= PER_CHANNEL * self._size
        with np.errstate(all="ignore"):
            error, whole = _full_error(fitted, held_out) if full else _frozen_error(fitted, held_out)
        if not (np.isfinite(error) and np.isfinite(whole) and whole > 0):
            return None
        return AffineFit("full" if full else "frozen scale", max(0.0, error / whole), fitted.count, held_out.count)


class _Half:
    """Moments of half of the inputs, about the first input."""

    def __init__(self, size: int, groups: int, full: bool) -> None:
        self._groups = groups
        self.count = 0
        self.x, self.linear, self.y = np.zeros(size), np.zeros(size), np.zeros(size)  # sums
        self.along, self.square = np.zeros(groups), np.zeros(groups)  # Σ linear·y and Σ|linear|², group by group
        self.whole = np.zeros(groups)  # Σ|y|²
        self.xx = np.zeros((size, size)) if full else None
        self.xy = np.zeros((size, size)) if full else None

    def add(self, x: Floats, linear: Floats, y: Floats) -> None:
        self.count += len(x)
        self.x += x.sum(axis=0)
        self.linear += linear.sum(axis=0)
        self.y += y.sum(axis=0)
        self.along += self._by_group((linear * y).sum(axis=0))
        self.square += self._by_group((linear * linear).sum(axis=0))
        self.whole += self._by_group((y * y).sum(axis=0))
        if self.xx is not None and self.xy is not None:
            self.xx += x.T @ x
            self.xy += x.T @ y

    def _by_group(self, channels: Floats) -> Floats:
        sums: Floats = channels.reshape(self._groups, -1).sum(axis=1)
        return sums

    def about_means(self) -> tuple[Floats, Floats, Floats]:
        """Σ linear·y, Σ|linear|² and Σ|y|² group by group, of what is left when means are taken out."""
        n = self.count
        return (
            self.along - self._by_group(self.linear * self.y) / n,
            self.square - self._by_group(self.linear**2) / n,
            self.whole - self._by_group(self.y**2) / n,
        )


def _frozen_error(fitted: _Half, held_out: _Half) -> tuple[float, float]:
    """Sum of squared errors of a·linear + b over the held-out half, and of the mean of that half."""
    along, square, _ = fitted.about_means()
    factor = np.divide(along, square, out=np.zeros_like(along), where=square > 0)
    along, square, whole = held_out.about_means()
    per_channel = np.repeat(factor, len(fitted.x) // len(factor))
    shift = fitted.y / fitted.count - per_channel * fitted.linear / fitted.count
    off = held_out.y / held_out.count - per_channel * held_out.linear / held_out.count - shift
    error = whole - 2 * factor * along + factor**2 * square
    return float(error.sum() + held_out.count * (off @ off)), float(whole.sum())


def _full_error(fitted: _Half, held_out: _Half) -> tuple[float, float]:
    """The same of the best A and b: tr Syy − 2 tr(A Sxy) + tr(A Sxx Aᵀ), plus what the means are off."""
    sxx, sxy = _about_means(fitted)
    # In units of each channel's deviation: channels of very different size stay apart from rounding.
    deviation = np.sqrt(np.maximum(np.diag(sxx), 0.0))
    unit = np.divide(1.0, deviation, out=np.zeros_like(deviation), where=deviation > 0)
    values, vectors = np.linalg.eigh(sxx * unit * unit[:, None])
    kept = values > len(values) * np.finfo(float).eps * values[-1]
    basis = vectors[:, kept] / np.sqrt(values[kept])
    a = unit[:, None] * (basis @ (basis.T @ (unit[:, None] * sxy)))  # (N, N): y ≈ x @ a
    sxx, sxy = _about_means(held_out)
    off = held_out.y / held_out.count - fitted.y / fitted.count
    off -= (held_out.x / held_out.count - fitted.x / fitted.count) @ a
    whole = float(held_out.about_means()[2].sum())
    error = whole - 2 * float(np.sum(a * sxy)) + float(np.sum(a * (sxx @ a)))
    return error + held_out.count * float(off @ off), whole


def _about_means(half: _Half) -> tuple[Floats, Floats]:
    assert half.xx is not None
    assert half.xy is not None
    n = half.count
    return half.xx - np.outer(half.x, half.x) / n, half.xy - np.outer(half.x, half.y) / n
