"""Linear maps F whose image of the unit ball, F·{u : |u| ≤ 1}, is one ellipsoid around the origin.

    ProjectedGain   √c · G Π      one group of LayerNorm or LN-G
    ChannelGain     √c · G        one group of RMSNorm
    DenseMap        any matrix    either, followed by a linear layer

Each knows its axes, its dead directions, its transpose and its gauge. Only DenseMap holds a matrix.
"""

import math
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from normscope.checks import Floats
from normscope.geometry.spectrum import Spectrum


class Factor(Protocol):
    """The interface of the map behind an ellipsoid; M is the size of its output."""

    @property
    def size(self) -> int:
        """M."""

    @property
    def rank(self) -> int:
        """Dimension of the image."""

    @property
    def lengths(self) -> Floats:
        """The non-zero singular values, descending: (rank,)."""

    def axes(self, which: NDArray[np.intp]) -> Floats:
        """Unit left singular vectors, one per row: (len(which), M)."""

    @property
    def dead(self) -> Floats:
        """Orthonormal columns that span the dead directions, orthogonal to the image: (M, M − rank)."""

    @property
    def first_dead(self) -> Floats | None:
        """The first column of `dead`, without the others; None if there is none."""

    def pull(self, w: Floats) -> Floats:
        """Fᵀw for each w in the last axis; for a matrix W with such rows, this is W F."""

    def surface(self, n: int, rng: np.random.Generator) -> Floats:
        """n random points of the surface, uniform in the directions of u: (n, M)."""

    def gauge(self, d: Floats, size_of_terms: Floats, tol: float) -> tuple[Floats, Floats]:
        """Least |u| with F u = d, infinite where there is none; and the least over all points within rounding of d.

        Rounding is tol times the size of the terms that d is a difference of, plus tol times the reach of the channel.
        """


class ChannelGain:
    """√c · G: semi-axes √c·|gₙ| along the channels."""

    def __init__(self, gain: Floats) -> None:
        self._gain = gain
        self._reach = math.sqrt(len(gain)) * np.abs(gain)
        self._live = np.flatnonzero(gain)
        self._descending = self._live[np.argsort(-self._reach[self._live], kind="stable")]

    @property
    def size(self) -> int:
        return len(self._gain)

    @property
    def rank(self) -> int:
        return len(self._live)

    @property
    def lengths(self) -> Floats:
        return self._reach[self._descending]

    def axes(self, which: NDArray[np.intp]) -> Floats:
        return _unit_rows(self._descending[which], self.size)

    @property
    def dead(self) -> Floats:
        return _unit_rows(np.flatnonzero(self._gain == 0), self.size).T

    @property
    def first_dead(self) -> Floats | None:
        dead = np.flatnonzero(self._gain == 0)[:1]
        return _unit_rows(dead, self.size)[0] if len(dead) else None

    def pull(self, w: Floats) -> Floats:
        return w * (math.sqrt(self.size) * self._gain)

    def surface(self, n: int, rng: np.random.Generator) -> Floats:
        u = rng.normal(size=(n, self.size)) * (self._gain != 0)
        return _to_unit(u) * self._gain * math.sqrt(self.size)

    def gauge(self, d: Floats, size_of_terms: Floats, tol: float) -> tuple[Floats, Floats]:
        u, slack, on_live_channels = _undo_gain(self._gain, d, size_of_terms, tol)
        radius = length_of(u)
        least = length_of(np.maximum(np.abs(u) - slack, 0.0))
        return np.where(on_live_channels, radius, np.inf), np.where(on_live_channels, least, np.inf)


class ProjectedGain:
    """√c · G Π: semi-axes from the secular equation, in the hyperplane ⊥ 1/g, or in all live channels."""

    def __init__(self, gain: Floats) -> None:
        self._gain = gain
        self._dead_channels = np.flatnonzero(gain == 0)

    @cached_property
    def _spectrum(self) -> Spectrum:
        return Spectrum(self._gain)

    @property
    def size(self) -> int:
        return len(self._gain)

    @property
    def rank(self) -> int:
        # Dead channels absorb the sum constraint, so one of them frees a dimension.
        return self.size - max(1, len(self._dead_channels))

    @property
    def lengths(self) -> Floats:
        return self._spectrum.values * math.sqrt(self.size)

    def axes(self, which: NDArray[np.intp]) -> Floats:
        return self._spectrum.vectors(which)

    @property
    def dead(self) -> Floats:
        if len(self._dead_channels):
            return _unit_rows(self._dead_channels, self.size).T
        return self.first_dead[:, None]

    @property
    def first_dead(self) -> Floats:
        if len(self._dead_channels):
            return _unit_rows(self._dead_channels[:1], self.size).reshape(self.size)
        return _to_unit(np.min(np.abs(self._gain)) / self._gain)  # ∝ 1/g, without overflow

    def pull(self, w: Floats) -> Floats:
        weighted = w * (math.sqrt(self.size) * self._gain)
        weighted -= weighted.mean(axis=-1, keepdims=True)
        return weighted

    def surface(self, n: int, rng: np.random.Generator) -> Floats:
        u = rng.normal(size=(n, self.size))
        if len(self._dead_channels):  # the shortest u for its image has equal entries on dead channels
            u[:, self._dead_channels] = u[:, self._dead_channels].mean(axis=1, keepdims=True)
        u -= u.mean(axis=1, keepdims=True)
        return _to_unit(u) * self._gain * math.sqrt(self.size)

    def gauge(self, d: Floats, size_of_terms: Floats, tol: float) -> tuple[Floats, Floats]:
        u, slack, possible = _undo_gain(self._gain, d, size_of_terms, tol)
        total, total_slack = np.abs(u.sum(axis=-1)), slack.sum(axis=-1)
        radius = length_of(u)
        least = length_of(np.maximum(np.abs(u) - slack, 0.0))
        dead = len(self._dead_channels)
        if dead:  # they carry what keeps the sum at zero, in equal parts
            radius = np.hypot(radius, total / math.sqrt(dead))
            least = np.hypot(least, np.maximum(total - total_slack, 0.0) / math.sqrt(dead))
        else:
            possible = possible & (total <= total_slack)
        return np.where(possible, radius, np.inf), np.where(possible, least, np.inf)


class DenseMap:
    """Any matrix (M, K), by its thin SVD."""

    def __init__(self, matrix: Floats) -> None:
        self._matrix = matrix

    @cached_property
    def _svd(self) -> tuple[Floats, Floats]:
        """Left singular vectors (M, rank) and the singular values above rounding."""
        left, values, _ = np.linalg.svd(self._matrix, full_matrices=False)
        noise = max(self._matrix.shape) * np.finfo(float).eps * values.max(initial=0.0)
        rank = int(np.count_nonzero(values > noise))
        return left[:, :rank], values[:rank]

    @property
    def size(self) -> int:
        return len(self._matrix)

    @property
    def rank(self) -> int:
        return len(self._svd[1])

    @property
    def lengths(self) -> Floats:
        return self._svd[1]

    def axes(self, which: NDArray[np.intp]) -> Floats:
        return self._svd[0][:, which].T

    @property
    def dead(self) -> Floats:
        complete, _ = np.linalg.qr(self._svd[0], mode="complete")
        return complete[:, self.rank :]

    @property
    def first_dead(self) -> Floats | None:
        return self.dead[:, 0] if self.rank < self.size else None

    def pull(self, w: Floats) -> Floats:
        return w @ self._matrix

    def surface(self, n: int, rng: np.random.Generator) -> Floats:
        left, values = self._svd
        return (_to_unit(rng.normal(size=(n, len(values)))) * values) @ left.T

    def gauge(self, d: Floats, size_of_terms: Floats, tol: float) -> tuple[Floats, Floats]:
        left, values = self._svd
        along = d @ left
        slack = tol * (np.linalg.norm(size_of_terms, axis=-1) + values.max(initial=0.0))[..., None]
        possible = np.linalg.norm(d - along @ left.T, axis=-1) <= slack[..., 0]
        radius = np.linalg.norm(along / values, axis=-1)
        least = np.linalg.norm(np.maximum(np.abs(along) - slack, 0.0) / values, axis=-1)
        return np.where(possible, radius, np.inf), np.where(possible, least, np.inf)


def _undo_gain(gain: Floats, d: Floats, size_of_terms: Floats, tol: float) -> tuple[Floats, Floats, NDArray[np.bool_]]:
    """u with √c·g·u = d on the live channels, its rounding error, and whether the dead channels agree."""
    live = gain != 0
    reach = math.sqrt(len(gain)) * gain[live]
    with np.errstate(over="ignore"):  # a point far beyond a tiny gain: any huge number will do
        u = np.clip(d[..., live] / reach, -1e300, 1e300)
        slack = tol * np.minimum(size_of_terms[..., live] / np.abs(reach) + 1.0, 1e300)
    return u, slack, np.all(np.abs(d[..., ~live]) <= tol * size_of_terms[..., ~live], axis=-1)


def length_of(u: Floats) -> Floats:
    """Euclidean length along the last axis, without overflow or underflow."""
    largest = np.max(np.abs(u), axis=-1, keepdims=True, initial=0.0)
    unit = u / np.where(largest == 0, 1.0, largest)
    length: Floats = largest[..., 0] * np.linalg.norm(unit, axis=-1)
    return length


def _to_unit(u: Floats) -> Floats:
    """u scaled to unit length along its last axis; zero stays zero."""
    length = length_of(u)[..., None]
    unit: Floats = u / np.where(length == 0, 1.0, length)
    return unit


def _unit_rows(channels: NDArray[np.intp], size: int) -> Floats:
    """The unit vectors of some channels, one per row."""
    rows = np.zeros((len(channels), size))
    rows[np.arange(len(channels)), channels] = 1.0
    return rows
