"""The set of outputs of a norm: an ellipsoid, or a product of ellipsoids, one per group.

    y − b = √c · G u,   |u| ≤ 1   (u ⊥ 1 where the norm projects)

No N × N matrix is formed unless all axes are requested.

[1] Riechers, Geometry and Dynamics of LayerNorm, 2024.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from normscope.checks import Floats, as_count, as_floats, as_vectors, frozen
from normscope.errors import InputError
from normscope.geometry.factors import ChannelGain, DenseMap, Factor, ProjectedGain, length_of
from normscope.norm import Norm

ON_THE_FLAT = 1e-9  # relative distance from the flat through an ellipsoid that still counts as rounding


class BallImage(ABC):
    """center + Σ Fₖuₖ over all |uₖ| ≤ 1: what ellipsoids and sums of ellipsoids have in common.

    Each factor fills a run of channels of its own (a product), or all factors fill all channels (a sum).
    """

    def __init__(self, center: Floats, factors: Sequence[Factor], *, bounded: bool = True) -> None:
        self._center = frozen(center)
        self._bounded = bounded
        self._factors = tuple(factors)

    @property
    def center(self) -> Floats:
        """Its center: the bias of the norm."""
        return self._center

    @property
    def bounded(self) -> bool:
        """Whether the set is bounded: False without the scale step."""
        return self._bounded

    @property
    def size(self) -> int:
        """N, the number of channels of its points."""
        return len(self.center)

    @property
    def parts(self) -> int:
        """How many ellipsoids it is made of: the groups of the norm."""
        return len(self._factors)

    @property
    @abstractmethod
    def dimension(self) -> int:
        """Dimension of the flat that it spans."""

    @abstractmethod
    def _pulled(self, w: Floats) -> list[Floats]:
        """Fₖᵀw for every factor."""

    def support(self, w: ArrayLike) -> Floats:
        """sup w·y over the set, for each w in the last axis: w·center + Σ |Fₖᵀw|. The bound is tight.

        For LayerNorm w·b + √N·|ΠGw|. It is attained if eps = 0, and approached if eps > 0.
        """
        self._require_bounded("support")
        w = as_vectors(w, "w", self.size)
        support: Floats = w @ self.center
        for part in self._pulled(w):
            support = support + length_of(part)
        return support

    def through(self, W: ArrayLike, c: ArrayLike | None = None) -> "Ellipsoid | EllipsoidSum":
        """The image under y → Wy + c, for W of shape (M, N)."""
        self._require_bounded("through")
        matrix = as_vectors(W, "W", self.size)
        if matrix.ndim != 2 or not len(matrix):
            raise InputError(
                f"W must be a matrix with {self.size} columns and at least one row, got shape {matrix.shape}"
            )
        shift = np.zeros(len(matrix)) if c is None else as_floats(c, "c")
        if shift.shape != (len(matrix),):
            raise InputError(f"c must have one entry per row of W, ({len(matrix)},), got shape {shift.shape}")
        factors = [DenseMap(part) for part in self._pulled(matrix)]
        center = matrix @ self.center + shift
        return Ellipsoid(center, factors) if len(factors) == 1 else EllipsoidSum(center, factors)

    def _require_bounded(self, what: str) -> None:
        if not self.bounded:
            raise InputError(
                f"{what} needs a bounded set: without the scale step, "
                f"outputs fill all of a {self.dimension}-dimensional flat"
            )


class Ellipsoid(BallImage):
    """An ellipsoid, or a product of ellipsoids that fill one run of channels each.

    >>> from normscope import Norm
    >>> ellipsoid = Norm(gain=[1, 2, 3], bias=[0, 0, 5]).ellipsoid
    >>> ellipsoid.dimension, ellipsoid.center
    (2, array([0., 0., 5.]))
    >>> ellipsoid.lengths.round(4)
    array([4.5826, 2.6458])
    >>> float(ellipsoid.support([0, 0, 1]).round(4))  # 5 + 3·√2: as far as the last channel can go
    9.2426

    Without the scale step the set is a whole flat: `bounded` is False, its lengths are infinite, and methods that need
    a bound or a surface raise InputError. Its dimension, axes and dead directions are the same as with scaling.
    """

    @property
    def dimension(self) -> int:
        """Number of semi-axes. For LayerNorm: N − 1, or N − k if k ≥ 1 gains are zero."""
        return sum(factor.rank for factor in self._factors)

    @cached_property
    def lengths(self) -> Floats:
        """Semi-axes, descending: (dimension,)."""
        if not self.bounded:
            return frozen(np.full(self.dimension, np.inf))
        return frozen(self._all_lengths[self._descending])

    def axis(self, i: int) -> Floats:
        """Unit vector along semi-axis i, in O(N); negative i counts from the shortest."""
        if not -self.dimension <= i < self.dimension:
            raise IndexError(f"axis must be from 0 to {self.dimension - 1}, got {i}")
        return self._rows(self._descending[[i]]).reshape(self.size)

    def axes(self, k: int | None = None) -> Floats:
        """The k longest axes, or all: (N, k), orthonormal columns in the order of `lengths`."""
        count = self.dimension if k is None else as_count(k, "k", least=0)
        if count > self.dimension:
            raise InputError(f"k must be at most the dimension, {self.dimension}, got {k}")
        return self._rows(self._descending[:count]).T

    @property
    def dead_directions(self) -> Floats:
        """Orthonormal columns that span the dead directions, in which no two outputs differ: (N, N − dimension).

        For LayerNorm: along 1/g, or the channels whose gain is zero; the left null space of diag(g) − g1ᵀ/N.
        """
        basis = np.zeros((self.size, self.size - self.dimension))
        column = 0
        for factor, rows in zip(self._factors, self._runs, strict=True):
            dead = factor.dead
            basis[rows, column : column + dead.shape[1]] = dead
            column += dead.shape[1]
        return basis

    @property
    def dead_direction(self) -> Floats | None:
        """The first dead direction, without computing the others; None if there is none."""
        for factor, run in zip(self._factors, self._runs, strict=True):
            first = factor.first_dead
            if first is not None:
                direction = np.zeros(self.size)
                direction[run] = first
                return direction
        return None

    def radius(self, y: ArrayLike) -> Floats:
        """The factor by which to scale the set about its center to reach y: 1 on the surface, infinite off its flat.

        For a product, the largest radius among its parts. A distance from the flat below 1e-9 counts as rounding.
        """
        self._require_bounded("radius")
        return self._gauge(y, ON_THE_FLAT)[0]

    def contains(self, y: ArrayLike, tol: float = ON_THE_FLAT) -> NDArray[np.bool_]:
        """Whether y, or a point within rounding of it, is in the set scaled by 1 + tol.

        Rounding is taken channel by channel: tol times |y| + |center| + the reach of the channel.
        """
        radius, least = self._gauge(y, tol)
        return np.isfinite(radius) if not self.bounded else least <= 1.0 + tol

    def sample(self, n: int, seed: int | np.random.Generator | None = None) -> Floats:
        """n random points on the surface (of each part, for a product), uniform in units of the axes: (n, N)."""
        self._require_bounded("sample")
        rng = np.random.default_rng(seed)
        count = as_count(n, "n", least=0)
        points = np.concatenate([factor.surface(count, rng) for factor in self._factors], axis=1)
        return points + self.center

    @cached_property
    def _runs(self) -> list[slice]:
        """The channels that each factor fills."""
        stops = np.cumsum([factor.size for factor in self._factors])
        return [slice(stop - factor.size, stop) for factor, stop in zip(self._factors, stops, strict=True)]

    @cached_property
    def _all_lengths(self) -> Floats:
        return np.concatenate([factor.lengths for factor in self._factors])

    @cached_property
    def _descending(self) -> NDArray[np.intp]:
        return np.argsort(-self._all_lengths, kind="stable")

    def _rows(self, which: NDArray[np.intp]) -> Floats:
        """Axes by their index in _all_lengths, one per row."""
        if len(self._factors) == 1:
            return self._factors[0].axes(which)
        rows = np.zeros((len(which), self.size))
        first = 0
        for factor, run in zip(self._factors, self._runs, strict=True):
            mine = np.flatnonzero((which >= first) & (which < first + factor.rank))
            if len(mine):
                rows[mine, run] = factor.axes(which[mine] - first)
            first += factor.rank
        return rows

    def _gauge(self, y: ArrayLike, tol: float) -> tuple[Floats, Floats]:
        y = as_vectors(y, "y", self.size)
        d, terms = y - self.center, np.abs(y) + np.abs(self.center)
        parts = [
            factor.gauge(d[..., run], terms[..., run], tol)
            for factor, run in zip(self._factors, self._runs, strict=True)
        ]
        radii, leasts = zip(*parts, strict=True)
        return np.max(radii, axis=0), np.max(leasts, axis=0)

    def _pulled(self, w: Floats) -> list[Floats]:
        return [factor.pull(w[..., run]) for factor, run in zip(self._factors, self._runs, strict=True)]

    def __repr__(self) -> str:
        parts = f", {len(self._factors)} parts" if len(self._factors) > 1 else ""
        if not self.bounded:
            return f"Ellipsoid(unbounded, dimension {self.dimension} of {self.size}{parts})"
        span = f", lengths {self.lengths[0]:.4g} to {self.lengths[-1]:.4g}" if self.dimension else ""
        return f"Ellipsoid(dimension {self.dimension} of {self.size}{parts}{span})"


class EllipsoidSum(BallImage):
    """The Minkowski sum of ellipsoids: the image under a linear map of the product that LN-G fills.

    It is convex but not an ellipsoid, so it has no axes; use its support function.

    >>> from normscope import Norm
    >>> norm = Norm(gain=[1, 1, 1, 1], groups=2)
    >>> image = norm.ellipsoid.through([[1, 0, 1, 0], [0, 1, 1, 0]])
    >>> image.support([[1, 0], [0, 1]]).round(4)
    array([2., 2.])
    """

    @property
    def dimension(self) -> int:
        return self._all_together.rank

    @property
    def dead_directions(self) -> Floats:
        """Orthonormal columns that span the dead directions."""
        return self._all_together.dead

    def sample(self, n: int, seed: int | np.random.Generator | None = None) -> Floats:
        """n random points, each the sum of a random surface point of every part."""
        rng = np.random.default_rng(seed)
        count = as_count(n, "n", least=0)
        return self.center + sum(factor.surface(count, rng) for factor in self._factors)

    @cached_property
    def _all_together(self) -> DenseMap:
        return DenseMap(np.concatenate([factor.pull(np.eye(self.size)) for factor in self._factors], axis=1))

    def _pulled(self, w: Floats) -> list[Floats]:
        return [factor.pull(w) for factor in self._factors]

    def __repr__(self) -> str:
        return f"EllipsoidSum({len(self._factors)} parts, {self.size} channels)"


def ellipsoid_of(norm: Norm) -> Ellipsoid:
    """The set that a norm's outputs fill."""
    kind = ProjectedGain if norm.projects else ChannelGain
    return Ellipsoid(norm.bias, [kind(part) for part in np.split(norm.gain, norm.groups)], bounded=norm.scales)
