"""Equal attention: does a query score all keys equally, can the model produce it, and do its queries come close?

    keys k = W y + c, and y ⊥ α up to a constant, α the dead direction of the norm behind them (1/gain of a LayerNorm)
    so q·k is the same for all y  iff  Wᵀq ∥ α  or  Wᵀq = 0

A head has fewer channels than the norm, so Wᵀq reaches only the row space of W. The angle between α and that space says
how nearly a query can score all possible keys equally; q* with Wᵀq* = the projection of α is the closest one. For any
norm, the direction in which the real keys spread least is the best that a query can do on them.
"""

import math
from dataclasses import dataclass

import numpy as np

from normscope.checks import Floats
from normscope.errors import InputError
from normscope.geometry import Ellipsoid
from normscope.results.key_selection import EqualAttention
from normscope.studies.sampled_inputs import Reservoir


@dataclass(frozen=True, eq=False)
class EqualQuery:
    """q* of a head."""

    direction: Floats  # (D,), of unit length
    angle: float  # degrees between α and what W can express: 0 if q* scores all possible keys alike
    reach: float | None  # the longest multiple of it that the model can produce; 0: none; None: unknown
    everywhere: bool  # whether it is the same at every position
    reason: str | None = None  # why its reach is not known


def equal_query(matrix: Floats, dead: Floats) -> tuple[Floats, float]:
    """q* of unit length for W (D, N) and orthonormal dead directions (N, k), and its angle in degrees.

    >>> q, angle = equal_query(np.array([[0.0, 2.0, 0.0], [0.0, 0.0, 1.0]]), np.array([[0.6], [0.8], [0.0]]))
    >>> q, round(angle, 2)  # α = (0.6, 0.8, 0), of which W sees (0, 0.8, 0)
    (array([1., 0.]), 36.87)
    """
    left, values, rows = np.linalg.svd(matrix, full_matrices=False)
    rank = int(np.count_nonzero(values > max(matrix.shape) * np.finfo(float).eps * values[0]))
    if not rank:
        raise InputError("W must not be zero: all its keys are the same")
    space = rows[:rank]  # orthonormal rows (rank, N)
    seen, _, mixing = np.linalg.svd(space @ dead, full_matrices=False)
    alpha, within = dead @ mixing[0], seen[:, 0]  # the dead direction nearest to the space, and the nearest in it
    along = float(within @ (space @ alpha))
    away = np.linalg.norm(alpha - (along * within) @ space)
    query = left[:, :rank] @ (within / values[:rank])
    return _upright(query), float(np.degrees(np.arctan2(away, along)))


def reach_along(queries: Ellipsoid, direction: Floats) -> float:
    """The longest multiple of a unit vector in a bounded ellipsoid, in either direction: 0 if there is none but zero.

    >>> from normscope import Norm
    >>> ball = Norm(gain=[1, 1], project=False).ellipsoid  # of radius √2
    >>> round(reach_along(ball, np.array([0.6, 0.8])), 4)
    1.4142
    """
    axes, lengths = queries.axes(), queries.lengths
    inside, center = axes.T @ direction, axes.T @ queries.center
    off, off_center = direction - axes @ inside, queries.center - axes @ center
    if np.linalg.norm(off) > 1e-9:  # the line meets the flat of the ellipsoid in one point at most
        candidates = [float(off @ off_center / (off @ off))]
    else:
        a, b = inside / lengths, center / lengths
        nearest = float(a @ b / (a @ a))
        room = 1.0 - float(np.sum((nearest * a - b) ** 2))
        half = math.sqrt(max(room, 0.0) / float(a @ a))
        candidates = [nearest - half, nearest + half]
    return max((abs(t) for t in candidates if queries.contains(t * direction)), default=0.0)


def least_spread_direction(keys: Floats) -> Floats | None:
    """The unit query whose scores of keys (n, D) differ least; None unless there are more keys than channels.

    >>> least_spread_direction(np.array([[0.0, 5.0], [1.0, 5.0], [2.0, 5.0]]))
    array([0., 1.])
    """
    if len(keys) <= keys.shape[1]:
        return None
    return _upright(np.linalg.svd(keys - keys.mean(axis=0), full_matrices=False)[2][-1])


def score_spreads(keys: Floats, queries: Floats) -> Floats:
    """Standard deviation over keys (n, D) of the scores of each query (m, D), taken at unit length: (m,)."""
    lengths = np.linalg.norm(queries, axis=1)
    some = queries[lengths > 0] / lengths[lengths > 0, None]
    return np.asarray(np.std((keys - keys.mean(axis=0)) @ some.T, axis=0))


def angles_to(direction: Floats, queries: Floats) -> Floats:
    """Degrees between queries (m, D) and the line along a unit vector, 0 to 90; queries of length zero are left out."""
    along = np.abs(queries @ direction)
    away = np.linalg.norm(queries - (queries @ direction)[:, None] * direction, axis=1)
    some = (along > 0) | (away > 0)
    return np.asarray(np.degrees(np.arctan2(away[some], along[some])))


class EqualAttentionGatherer:
    """Add the keys and queries of a head, sequence by sequence, then take the result; memory does not grow."""

    def __init__(self, layer: str, head: int) -> None:
        self._layer, self._head = layer, head
        self._equal: EqualQuery | None = None  # of the first sequence
        self._everywhere = True
        self._reasons: dict[str, None] = {}  # in their order, each once
        self._lengths, self._angles, self._least_angles = Reservoir(0), Reservoir(0), Reservoir(0)  # of queries
        self._spreads, self._least_spreads = Reservoir(0), Reservoir(0)  # of sequences
        self._channels: int | None = None

    def add(self, keys: Floats, queries: Floats, equal: EqualQuery | str) -> None:
        """Keys (n, D) and queries (m, D) of one sequence, and its q*, or why there is none."""
        typical = _median(score_spreads(keys, queries))
        self._channels = keys.shape[1]
        self._lengths.add(np.linalg.norm(queries, axis=1))
        if isinstance(equal, EqualQuery):
            self._equal = self._equal or equal
            self._everywhere &= equal.everywhere
            self._angles.add(angles_to(equal.direction, queries if equal.everywhere else queries[-1:]))
            self._spreads.add(_relative_spread(keys, equal.direction, typical))
        reason = equal.reason if isinstance(equal, EqualQuery) else equal
        if reason is not None:
            self._reasons[reason] = None
        least = least_spread_direction(keys)
        if least is not None:
            self._least_angles.add(angles_to(least, queries))
            self._least_spreads.add(_relative_spread(keys, least, typical))

    def result(self) -> EqualAttention:
        equal, length = self._equal, _median(self._lengths.values)
        reach = None if equal is None or equal.reach is None or not length else equal.reach / length
        return EqualAttention(
            layer=self._layer,
            head=self._head,
            angle=None if equal is None else equal.angle,
            reachable=None if equal is None or equal.reach is None else equal.reach > 0,
            reach=reach,
            spread=_median(self._spreads.values),
            query_angle=self._angles.spread(),
            everywhere=None if equal is None else self._everywhere,
            least_spread=_median(self._least_spreads.values),
            least_query_angle=self._least_angles.spread(),
            reason="; ".join(self._reasons) or None,
            channels=self._channels,
        )


def _relative_spread(keys: Floats, direction: Floats, typical: float | None) -> Floats:
    """Over that of a typical query; empty where that is none."""
    return score_spreads(keys, direction[None]) / typical if typical else np.zeros(0)


def _upright(direction: Floats) -> Floats:
    """Of the two unit vectors along a line, the one whose largest entry is positive."""
    upright: Floats = direction * np.sign(direction[np.argmax(np.abs(direction))]) / np.linalg.norm(direction)
    return upright


def _median(values: Floats) -> float | None:
    return float(np.median(values)) if len(values) else None
