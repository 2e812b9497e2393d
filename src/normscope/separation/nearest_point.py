"""Is 0 in the convex hull of the differences yⱼ = zⱼ − zᵢ? Wolfe's method for its nearest point [1], in compiled code.

Keep a few active points and the point x of their hull nearest to 0. The point lowest along x joins them; then the
nearest point is found again, and points that it does not need leave. In the end either x = 0, and its weights
reproduce zᵢ, or every x·yⱼ > 0, and −x is a query that prefers zᵢ.

Most of the work is finding the lowest point, so it is tried first on a short list of the last search, then among keys
already known to be extreme (Clarkson), and only then among all: in single precision with a bound on its error, in
double where that is not enough. A key that is the lowest of all by more than that error is extreme itself, and x is
its witness.

[1] Wolfe, Finding the nearest point in a polytope, Mathematical Programming 11, 1976.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from normscope.certificates.key_certificates import Ints
from normscope.checks import Floats
from normscope.compiled import compiled
from normscope.separation.active_set import Factor, affine_weights, append_column, empty_factor, remove_column
from normscope.separation.scores import LANES, SHORT, Singles, contains, dot, find, least_of, score_all, shortlist

MOST_STEPS = 2000
ZERO = 1e-9  # |x| over the longest point, at which x is 0 or the key is a near tie
CLEAR = 1e-8  # margin over |x| times the longest point, at which the search can stop
NOTHING = 1e-13  # a weight that is none
INSIDE, SEPARATED, WITNESSED, OPEN = 0, 1, 2, -1
NONE, DONE = -1, -2  # instead of a lowest point: none found yet, none needed


class Cloud(NamedTuple):
    """The points, and the ray that counts as number n."""

    points: Floats  # (n, r)
    tiles: Singles  # (tiles, channels, lanes): the same in single precision
    ray: Floats  # (r,)
    asks_ray: bool
    longest: float


class Known(NamedTuple):
    """Points known to be extreme, in the order in which they became so."""

    is_known: NDArray[np.bool_]  # (n,)
    names: Ints
    tiles: Singles
    witnesses: Floats  # (n, r): x along which a point was found to be lowest
    filled: Ints  # (1,): how many there are


class Active(NamedTuple):
    """The active points, and room to work in."""

    names: Ints
    differences: Floats
    factor: Factor
    weights: Floats
    trial: Floats
    products: Floats
    x: Floats
    single: Singles  # x
    scores: Singles
    short: Ints
    short_length: Ints  # (1,)


@compiled
def nearest_points_of_sets(points, ray, asks_ray, longest, wins, asked, rivals, order):  # type: ignore[no-untyped-def]
    """`nearest_points` for the keys of sets (m, n, r) that are asked and do not win along themselves.

    status (m, n), directions (m, n, r) and supports (m, n, r + 2); a key that wins along itself is separated.
    """
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
            if asked[s, i] and not wins[s, i]:
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


@compiled
def nearest_points(cloud, known, queue, rivals):  # type: ignore[no-untyped-def]
    """Verdicts for the keys in the queue: (status, directions, supports), supports padded by −1."""
    size = cloud.points.shape[1]
    status = np.full(len(queue), OPEN)
    directions = np.zeros((len(queue), size))
    supports = np.full((len(queue), size + 2), -1)
    active = Active(
        np.empty(size + 2, np.int64),
        np.empty((size + 2, size)),
        empty_factor(size + 3),
        np.zeros(size + 2),
        np.zeros(size + 2),
        np.empty(size + 2),
        np.zeros(size),
        np.zeros(cloud.tiles.shape[1], np.float32),
        np.zeros(known.tiles.shape[0] * LANES, np.float32),
        np.empty(SHORT, np.int64),
        np.zeros(1, np.int64),
    )
    for turn in range(len(queue)):
        i = queue[turn]
        if known.is_known[i]:
            status[turn], directions[turn] = WITNESSED, -known.witnesses[i]
            continue
        status[turn], used = _nearest_point(cloud, known, active, i, rivals[turn])
        if status[turn] == SEPARATED:
            directions[turn] = -active.x
            _learn(cloud, known, i)
        elif status[turn] == INSIDE:
            supports[turn, :used] = active.names[:used]
    return status, directions, supports


@compiled
def _nearest_point(cloud, known, active, i, rival):  # type: ignore[no-untyped-def]
    """The verdict on key i, from a rival to start with; the number of points that are active in the end."""
    used = _join(cloud, active, 0, i, rival)
    active.weights[0], active.short_length[0] = 1.0, 0
    stage = 0 if known.filled[0] <= 0.75 * len(cloud.points) else 1
    for _ in range(MOST_STEPS):
        used = _nearest_in_hull(active.factor, active.differences, active.names, active.weights, active.trial, used)
        if used < 0:
            return OPEN, 0
        length = _combine(active.differences, active.weights, used, active.x)
        if length <= ZERO * cloud.longest:
            return INSIDE, used
        lowest = _lowest_nearby(cloud, active, used, i, length)
        if lowest == NONE:
            active.single[: len(active.x)] = active.x
            if stage == 0:
                lowest = _lowest_known(cloud, known, active, i, length)
        if lowest == NONE:
            stage = 1
            lowest = _lowest_of_all(cloud, known, active, i, length)
        # If the lowest is active, x is the nearest point of the whole hull, as far as rounding lets see.
        if lowest == DONE or contains(active.names, used, lowest):
            return SEPARATED, used
        used = _join(cloud, active, used, i, lowest)
        if used < 0:
            return OPEN, 0
    return OPEN, 0


@compiled
def _join(cloud, active, used, i, j):  # type: ignore[no-untyped-def]
    """Make point j active; −1 if it depends on those that are."""
    size = len(active.x)
    if used > size:
        return -1
    difference = active.differences[used]
    for k in range(size):
        difference[k] = cloud.ray[k] if j == len(cloud.points) else cloud.points[j, k] - cloud.points[i, k]
    for b in range(used):
        active.products[b] = 1.0 + dot(active.differences[b], difference)
    if not append_column(active.factor, used, active.products, 1.0 + dot(difference, difference)):
        return -1
    active.names[used], active.weights[used] = j, 0.0
    return used + 1


@compiled
def _lowest_nearby(cloud, active, used, i, length):  # type: ignore[no-untyped-def]
    """The ray if it is too low, or the lowest of the short list if it is below key i."""
    ray = len(cloud.points)
    if cloud.asks_ray and not _ray_is_clear(cloud, active, length) and not contains(active.names, used, ray):
        return ray
    lowest, best = NONE, dot(active.x, cloud.points[i]) - 1e-13 * length * cloud.longest
    for a in range(active.short_length[0]):
        score = dot(active.x, cloud.points[active.short[a]])
        if score < best:
            best, lowest = score, active.short[a]
    return lowest


@compiled
def _lowest_known(cloud, known, active, i, length):  # type: ignore[no-untyped-def]
    """The lowest of the points known to be extreme, if it is clearly below key i."""
    limit = dot(active.x, cloud.points[i]) - _error(cloud, active, length)
    least = score_all(known.tiles, active.single, known.filled[0], active.scores)
    if not least < limit:
        return NONE
    length_of_list = shortlist(active.scores, known.filled[0], limit, least, active.short)
    for a in range(length_of_list):
        active.short[a] = known.names[active.short[a]]
    active.short_length[0] = length_of_list
    return known.names[find(active.scores, least)]


@compiled
def _lowest_of_all(cloud, known, active, i, length):  # type: ignore[no-untyped-def]
    """The lowest of all other points; DONE if all of them are clearly above key i."""
    points, scores, count = cloud.points, active.scores, len(cloud.points)
    own, error = dot(active.x, points[i]), _error(cloud, active, length)
    score_all(cloud.tiles, active.single, count, scores)
    scores[i] = np.inf
    least = least_of(scores, count)
    if least < own - error:
        lowest = find(scores, least)
        active.short_length[0] = shortlist(scores, count, own - error, least, active.short)
        if not known.is_known[lowest] and (not cloud.asks_ray or _ray_is_clear(cloud, active, length)):
            scores[i], scores[lowest] = own, np.inf
            if least_of(scores, count) - least > 2 * error:
                _learn(cloud, known, lowest)
                known.witnesses[lowest] = active.x
        return lowest
    clear = CLEAR * length * cloud.longest
    if least > own + error + clear:
        return DONE
    lowest, best = NONE, np.inf
    for j in range(count):
        if j != i and scores[j] <= least + 2 * error:
            score = dot(active.x, points[j])
            if score < best:
                best, lowest = score, j
    return DONE if best - own > clear else lowest


@compiled
def _ray_is_clear(cloud, active, length):  # type: ignore[no-untyped-def]
    return dot(active.x, cloud.ray) > CLEAR * length * cloud.longest


@compiled
def _error(cloud, active, length):  # type: ignore[no-untyped-def]
    """How far a score in single precision may be off."""
    return 6e-8 * (len(active.x) + 4) * length * cloud.longest


@compiled
def _learn(cloud, known, j):  # type: ignore[no-untyped-def]
    """Point j is extreme: price it early from now on."""
    place = known.filled[0]
    known.is_known[j], known.names[place] = True, j
    _put(known.tiles, place, cloud.points[j])
    known.filled[0] = place + 1


@compiled
def _nearest_in_hull(factor, differences, active, weights, trial, used):  # type: ignore[no-untyped-def]
    """Weights of the point of the active hull nearest to 0; how many points are left, −1 if none can leave."""
    while True:
        affine_weights(factor, used, trial)
        step, inside = 1.0, True
        for a in range(used):
            if trial[a] <= NOTHING:
                inside = False
                step = min(step, weights[a] / (weights[a] - trial[a]) if weights[a] > trial[a] else 0.0)
        if inside:
            for a in range(used):
                weights[a] = trial[a]
            return used
        for a in range(used):
            weights[a] += step * (trial[a] - weights[a])
        before = used
        for a in range(before - 1, -1, -1):
            if weights[a] <= NOTHING and trial[a] <= NOTHING and used > 1:
                remove_column(factor, used, a)
                for b in range(a, used - 1):
                    active[b], weights[b], trial[b] = active[b + 1], weights[b + 1], trial[b + 1]
                    for k in range(differences.shape[1]):
                        differences[b, k] = differences[b + 1, k]
                used -= 1
        if used == before:
            return -1


@compiled
def _combine(differences, weights, used, x):  # type: ignore[no-untyped-def]
    """x = Σ wₐyₐ; its length."""
    for k in range(len(x)):
        x[k] = 0.0
    for a in range(used):
        for k in range(len(x)):
            x[k] += weights[a] * differences[a, k]
    return math.sqrt(dot(x, x))
