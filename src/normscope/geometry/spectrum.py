"""Singular values and left singular vectors of GΠ, for one group of a norm that projects.

    GΠG = G² − ggᵀ/N        its eigenvalues μ are the squares of the singular values

They are the roots of the secular equation, one between each two neighbouring distinct |g|, and for each |g| > 0 that
occurs w times, w − 1 times |g|² itself. A root's axis is gₙ/(gₙ² − μ); those of a tie are Helmert contrasts times
sign(g). A zero gain is a pole like any other.
"""

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from normscope.checks import Floats

# Roots are found a window at a time, in units of the pole above the highest root that is still to be found. There poles
# beyond BEYOND move a root by less than 1e-29 of its distance from its pole and are left out, and those below SPAN act
# as one pole at zero; roots that could tell it from zero are left to the next window. So squares and their inverses
# stay far from overflow for every finite gain, and no two neighbours are taken apart however evenly gains are spread.
SPAN = 1e-50
BEYOND = 1e15


class Spectrum:
    """Singular values of GΠ, the non-zero ones in descending order, and their left singular vectors on demand."""

    def __init__(self, gain: Floats) -> None:
        self._gain = gain
        magnitude = np.abs(gain)
        self._order = np.argsort(magnitude, kind="stable")
        ascending = magnitude[self._order]
        self._starts = np.flatnonzero(np.r_[True, ascending[1:] != ascending[:-1]])
        self._poles = ascending[self._starts]  # (m,) distinct |g|, ascending
        self._weights = np.diff(np.r_[self._starts, len(gain)])  # (m,)
        # Ascending order is known without sorting: the ties at a pole, then the root above it, then the next pole.
        ties = np.where(self._poles > 0, self._weights - 1, 0)
        per_pole = ties + (np.arange(len(ties)) < len(ties) - 1)
        self._pole = np.repeat(np.arange(len(ties)), per_pole)[::-1]  # per singular value: the pole at or below it
        within = (np.arange(per_pole.sum()) - np.repeat(np.cumsum(per_pole) - per_pole, per_pole))[::-1]
        self._contrast = np.where(within < ties[self._pole], within + 1, 0)  # per singular value: 0 for a root

    @property
    def rank(self) -> int:
        """N − 1 without zero gains, N − k with k of them."""
        return len(self._pole)

    @cached_property
    def values(self) -> Floats:
        """The non-zero singular values, descending."""
        anchor, offset, exponent = self._roots
        roots = np.ldexp(np.sqrt(anchor * anchor + offset), exponent)
        return np.where(self._contrast == 0, np.r_[roots, 0.0][self._pole], self._poles[self._pole])

    def vectors(self, which: NDArray[np.intp]) -> Floats:
        """Unit left singular vectors of the given indices, one per row: (len(which), N)."""
        from normscope.geometry.axis_vectors import fill_root_vectors, fill_tie_vectors

        rows = np.empty((len(which), len(self._gain)))
        pole, contrast = self._pole[which], self._contrast[which]
        ties, roots = np.flatnonzero(contrast), np.flatnonzero(contrast == 0)
        fill_tie_vectors(self._gain, self._order, self._starts[pole[ties]], contrast[ties], ties, rows)
        anchor, offset, exponent = (part[pole[roots]] for part in self._roots)
        for power in np.unique(exponent):
            here = exponent == power
            # Gains far above the poles of this power have components that vanish; keep their squares finite.
            with np.errstate(over="ignore"):
                gain = np.clip(np.ldexp(self._gain, -power), -1e100, 1e100)
            fill_root_vectors(gain, anchor[here], offset[here], roots[here], rows)
        return rows

    @cached_property
    def _roots(self) -> tuple[Floats, Floats, NDArray[np.int64]]:
        """Root i, between poles i and i + 1, as 4^exponent · (anchor² + offset)."""
        from normscope.geometry.secular import secular_roots

        count = len(self._poles) - 1
        anchor, offset, exponent = np.zeros(count), np.zeros(count), np.zeros(count, dtype=np.int64)
        left = count  # roots 0..left − 1 are still to be found
        while left:
            power = int(np.frexp(self._poles[left])[1])
            with np.errstate(over="ignore", under="ignore"):
                poles = np.ldexp(self._poles, -power)
            low = max(int(np.searchsorted(poles, SPAN)) - 1, 0)  # poles 0..low act as one
            high = int(np.searchsorted(poles, BEYOND))
            weights = np.r_[self._weights[: low + 1].sum(), self._weights[low + 1 : high]].astype(float)
            near = np.r_[poles[0] if low == 0 else 0.0, poles[low + 1 : high]]
            origin, offsets = secular_roots(near, weights)
            first = 0 if low == 0 else int(np.searchsorted(poles, SPAN * BEYOND)) - 1
            found = slice(first - low, left - low)
            anchor[first:left], offset[first:left] = near[origin[found]], offsets[found]
            exponent[first:left] = power
            left = first
        return anchor, offset, exponent
