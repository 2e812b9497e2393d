"""Own directions and nearest points of many small sets: one batched product, then one compiled loop.

Both are what `own_direction` and `nearest_points` do for one set, in the same arithmetic, so that a set gets the same
answer alone and among others.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from normscope.certificates.key_certificates import Ints
from normscope.checks import Floats
from normscope.compiled import compiled
from normscope.separation.nearest_point import CLEAR, SEPARATED, Cloud, Known, nearest_points
from normscope.separation.own_directions import BLOCK
from normscope.separation.scores import LANES
from normscope.separation.whitened_sets import WhitenedSets

MOST_KEYS = BLOCK  # own directions of so many are asked in one product


@dataclass(frozen=True, eq=False)
class Verdicts:
    """Of all keys of sets (m, n), as `nearest_points` gives them; a key that wins along itself is separated."""

    status: Ints  # (m, n)
    directions: Floats  # (m, n, r)
    supports: Ints  # (m, n, r + 2), padded by −1


def verdicts(whitened: WhitenedSets) -> Verdicts:
    """What the two passes say about sets of up to MOST_KEYS keys."""
    points, longest = whitened.points, whitened.longest
    wins, rivals, order = _own_directions(points)
    ray = np.zeros((len(points), points.shape[2]))
    if whitened.ray is not None:
        ray = whitened.ray
        wins &= (points @ ray[:, :, None])[:, :, 0] < -CLEAR * longest[:, None] ** 2
    return Verdicts(*_nearest_points(points, ray, whitened.ray is not None, longest, wins, rivals, order))


@compiled
def have_twins(sets):  # type: ignore[no-untyped-def]
    """Which of the sets (m, n, d) have two equal keys."""
    found = np.zeros(len(sets), np.bool_)
    for s in range(len(sets)):
        for i in range(1, sets.shape[1]):
            for j in range(i):
                k = 0
                while k < sets.shape[2] and sets[s, i, k] == sets[s, j, k]:
                    k += 1
                found[s] |= k == sets.shape[2]
    return found


def _own_directions(points: Floats) -> tuple[NDArray[np.bool_], Ints, Ints]:
    """Per key (m, n) whether it wins along itself, and a rival; per set (m, n) its keys by length, longest first."""
    squares = np.einsum("mij,mij->mi", points, points)
    order = np.argsort(-squares, axis=1, kind="stable")
    lengths = np.sqrt(np.take_along_axis(squares, order, axis=1))
    single = np.take_along_axis(points, order[:, :, None], axis=1).astype(np.float32)
    scores = single @ single.transpose(0, 2, 1)
    line = np.arange(points.shape[1])
    scores[:, line, line] = -np.inf
    best = scores.argmax(axis=2)
    error = 1.5e-7 * (points.shape[2] + 4) * lengths[:, :1]
    ahead = lengths**2 - np.take_along_axis(scores, best[:, :, None], axis=2)[:, :, 0] > error * lengths
    wins, rivals = np.empty(squares.shape, bool), np.empty(squares.shape, np.int64)
    np.put_along_axis(wins, order, ahead, axis=1)
    np.put_along_axis(rivals, order, np.take_along_axis(order, best, axis=1), axis=1)
    return wins, rivals, order


@compiled
def _nearest_points(points, ray, asks_ray, longest, wins, rivals, order):  # type: ignore[no-untyped-def]
    """`nearest_points` for the keys of each set that do not win along themselves."""
    total, count, size = points.shape
    status, directions = np.full((total, count), SEPARATED), points.copy()
    supports = np.full((total, count, size + 2), -1)
    room = ((count + LANES) // LANES, (size + 3) // 4 * 4, LANES)
    tiles, queue, first = np.zeros(room, np.float32), np.empty(count, np.int64), np.empty(count, np.int64)
    known = Known(
        np.zeros(count, np.bool_),
        np.zeros(count + 1, np.int64),
        np.zeros(room, np.float32),
        np.zeros((count, size)),
        np.zeros(1, np.int64),
    )
    for s in range(total):
        waiting = 0
        for i in order[s]:
            if not wins[s, i]:
                queue[waiting], first[waiting] = i, rivals[s, i]
                waiting += 1
        if waiting == 0:
            continue
        known.filled[0] = 0
        for i in range(count):
            known.is_known[i] = wins[s, i]
            _put(tiles, i, points[s, i])
            if wins[s, i]:
                known.names[known.filled[0]] = i
                _put(known.tiles, known.filled[0], points[s, i])
                known.filled[0] += 1
        cloud = Cloud(points[s], tiles, ray[s], asks_ray, longest[s])
        found = nearest_points(cloud, known, queue[:waiting], first[:waiting])
        for turn in range(waiting):
            i = queue[turn]
            status[s, i], directions[s, i], supports[s, i] = found[0][turn], found[1][turn], found[2][turn]
    return status, directions, supports


@compiled
def _put(tiles, place, point):  # type: ignore[no-untyped-def]
    for k in range(len(point)):
        tiles[place // LANES, k, place % LANES] = point[k]
