"""Can a query from an ellipsoid prefer key i? An exact method in the style of Wolfe's, in compiled code.

Queries are q = c + Ay with |y| ≤ 1. Key i beats key j by y·aⱼ + bⱼ, with aⱼ = Aᵀ(kᵢ − kⱼ) and bⱼ = c·(kᵢ − kⱼ), so

    max over |y| ≤ 1 of minⱼ (y·aⱼ + bⱼ)   =   min over λ ≥ 0, Σλ = 1 of φ(λ) = |Σλa| + Σλb

A y of positive minimum is a query that prefers the key; weights with φ ≤ 0 prove that there is none.

Keep a few active rivals and the λ that is best among them. On their affine hull, with x₀ its point nearest to 0 and
Σλb = t − h·(x − x₀), h in the hull's own directions, φ has its minimum at x₀ + κh, κ = |x₀|/√(1 − |h|²), and

    y = √(1 − |h|²)·x₀/|x₀| + h

there; it has none if |h| ≥ 1, and falls without bound along h. Weights move that way until one of them is 0, and its
rival leaves. When none has to, the rival that y beats by least joins them, in exchange for another if they are r + 1
already. φ falls with every step, and a set of rivals has one best λ, so no set comes twice.
"""

import math
from typing import NamedTuple

import numpy as np

from normscope.certificates.key_certificates import Ints
from normscope.checks import Floats
from normscope.compiled import compiled
from normscope.separation.active_set import Factor, append_column, empty_factor, remove_column, solve_gram
from normscope.separation.scores import LANES, Singles, contains, dot, score_all, tiles_of

MOST_STEPS = 5000
CLEAR = 1e-9  # advantage over the longest rival, at which the search can stop
NOTHING = 1e-13  # a weight that is none
FLAT = 1e-11  # |x₀| over the longest rival, at which it is 0
UNREACHABLE, REACHABLE, OPEN = 0, 1, -1


class Rivals(NamedTuple):
    """Lifted keys (Aᵀk, c·k), centred."""

    points: Floats  # (n, r)
    heights: Floats  # (n,)
    tiles: Singles  # both, in single precision
    longest: float  # of the lifted keys


class Room(NamedTuple):
    """The active rivals of the current key, and work arrays."""

    names: Ints
    differences: Floats  # (r + 2, r): a
    heights: Floats  # b
    factor: Factor
    weights: Floats
    nearest: Floats  # λ of x₀
    falling: Floats  # the direction of h among the weights
    products: Floats
    incoming: Floats  # a of a newcomer
    x: Floats  # x₀
    h: Floats
    y: Floats
    single: Singles  # −(y, 1)
    scores: Singles


def rivals_of(points: Floats, heights: Floats) -> Rivals:
    """Lifted keys made ready: centred, which changes no difference."""
    points, heights = points - points.mean(axis=0), heights - heights.mean()
    both = np.column_stack([points, heights])
    longest = float(np.sqrt(np.einsum("ij,ij->i", both, both).max()))
    return Rivals(np.ascontiguousarray(points), heights, tiles_of(both, len(both)), longest)


def reach(rivals: Rivals, queue: Ints, first: Ints) -> tuple[Ints, Floats, Ints, Floats]:
    """Verdicts for the keys in the queue, each with a rival to begin with: status, y (m, r), supports and weights.

    Supports (m, r + 2) are padded by −1. Keys may be passed one by one: nothing is kept between calls.

    >>> line = rivals_of(np.array([[0.0], [1.0], [2.0]]), np.array([0.0, 0.0, -5.0]))
    >>> status, y, supports, weights = reach(line, np.array([1, 2]), np.array([0, 0]))
    >>> status, y[0], supports[1], weights[1]
    (array([1, 0]), array([1.]), array([ 0, -1, -1]), array([1., 0., 0.]))
    """
    answers: tuple[Ints, Floats, Ints, Floats] = _reach(rivals, queue, first)
    return answers


@compiled
def _reach(rivals, queue, first):  # type: ignore[no-untyped-def]
    size = rivals.points.shape[1]
    status = np.full(len(queue), OPEN)
    directions = np.zeros((len(queue), size))
    supports = np.full((len(queue), size + 2), -1)
    weights = np.zeros((len(queue), size + 2))
    room = Room(
        np.empty(size + 2, np.int64),
        np.empty((size + 2, size)),
        np.empty(size + 2),
        empty_factor(size + 3),
        np.zeros(size + 2),
        np.zeros(size + 2),
        np.zeros(size + 2),
        np.zeros(size + 2),
        np.zeros(size),
        np.zeros(size),
        np.zeros(size),
        np.zeros(size),
        np.zeros(rivals.tiles.shape[1], np.float32),
        np.zeros(rivals.tiles.shape[0] * LANES, np.float32),
    )
    for turn in range(len(queue)):
        status[turn], used = _reach_one(rivals, room, queue[turn], first[turn])
        directions[turn] = room.y
        supports[turn, :used], weights[turn, :used] = room.names[:used], room.weights[:used]
    return status, directions, supports, weights


@compiled
def _reach_one(rivals, room, i, rival):  # type: ignore[no-untyped-def]
    """The verdict on key i, and the number of rivals that are active in the end."""
    used = _join(rivals, room, 0, i, rival)
    room.weights[0] = 1.0
    for _ in range(MOST_STEPS):
        used = _best_in_hull(rivals, room, used)
        if used < 0:
            return OPEN, 0
        if _value(room, used) < -CLEAR * rivals.longest:
            return UNREACHABLE, used
        lowest, advantage = _least_beaten(rivals, room, i)
        if advantage > CLEAR * rivals.longest:
            return REACHABLE, used
        # If the least beaten is active, y is best for all rivals, as far as rounding lets see: a near tie.
        if contains(room.names, used, lowest):
            return OPEN, used
        used = _join(rivals, room, used, i, lowest)
        if used < 0:
            return OPEN, 0
    return OPEN, 0


@compiled
def _join(rivals, room, used, i, j):  # type: ignore[no-untyped-def]
    """Make rival j active, in exchange for another if it depends on those that are; −1 if that fails."""
    size, difference = len(room.x), room.incoming
    for k in range(size):
        difference[k] = rivals.points[i, k] - rivals.points[j, k]
    weight = 0.0
    if used > size or not _append(room, used, difference):
        used, weight = _exchange(room, used, difference)
        if used < 0 or not _append(room, used, difference):
            return -1
    for k in range(size):
        room.differences[used, k] = difference[k]
    room.names[used], room.weights[used] = j, weight
    room.heights[used] = rivals.heights[i] - rivals.heights[j]
    return used + 1


@compiled
def _append(room, used, difference):  # type: ignore[no-untyped-def]
    for b in range(used):
        room.products[b] = 1.0 + dot(room.differences[b], difference)
    return append_column(room.factor, used, room.products, 1.0 + dot(difference, difference))


@compiled
def _exchange(room, used, difference):  # type: ignore[no-untyped-def]
    """Move weight to a newcomer Σμa, Σμ = 1, until a rival has none left and leaves; how much was moved.

    x stays where it is, and Σλb falls, because y beats the newcomer by less than the active rivals.
    """
    for b in range(used):
        room.products[b] = 1.0 + dot(room.differences[b], difference)
    solve_gram(room.factor, used, room.products)
    moved, gone = np.inf, -1
    for a in range(used):
        if room.products[a] > NOTHING and room.weights[a] / room.products[a] < moved:
            moved, gone = room.weights[a] / room.products[a], a
    if gone < 0:
        return -1, 0.0
    for a in range(used):
        room.weights[a] = max(0.0, room.weights[a] - moved * room.products[a])
    return _leave(room, used, gone), moved


@compiled
def _best_in_hull(rivals, room, used):  # type: ignore[no-untyped-def]
    """Weights that are best on the hull of the active rivals, and y; how many are left, −1 if none can leave."""
    while True:
        step_is_whole, stretch = _towards_best(rivals, room, used)
        if step_is_whole:
            kept = True
            for a in range(used):
                kept = kept and room.nearest[a] + stretch * room.falling[a] > NOTHING
            if kept:
                for a in range(used):
                    room.weights[a] = room.nearest[a] + stretch * room.falling[a]
                return used
        step = 1.0 if step_is_whole else np.inf
        for a in range(used):
            change = _change(room, a, step_is_whole, stretch)
            if change < 0 and room.weights[a] + step * change < NOTHING:
                step = max(0.0, room.weights[a] / -change)
        if step == np.inf:
            return -1
        before = used
        for a in range(before - 1, -1, -1):
            change = _change(room, a, step_is_whole, stretch)
            moved = room.weights[a] + step * change
            if change <= 0 and moved <= NOTHING and used > 1:
                used = _leave(room, used, a)
            else:
                room.weights[a] = moved
        if used == before:
            return -1


@compiled
def _towards_best(rivals, room, used):  # type: ignore[no-untyped-def]
    """x₀, h and y; whether φ has a minimum on the affine hull, and then how far along `falling` from `nearest`."""
    for a in range(used):
        room.nearest[a], room.falling[a] = 1.0, room.heights[a]
    solve_gram(room.factor, used, room.nearest)
    solve_gram(room.factor, used, room.falling)
    total, total_falling = 0.0, 0.0
    for a in range(used):
        total += room.nearest[a]
        total_falling += room.falling[a]
    for a in range(used):
        room.nearest[a] /= total
        room.falling[a] = total_falling * room.nearest[a] - room.falling[a]
    distance = _combined(room, used, room.nearest, room.x)
    steepness = _combined(room, used, room.falling, room.h)
    if steepness >= 1.0 - 1e-15:
        return False, 0.0
    upright = math.sqrt((1.0 - steepness) * (1.0 + steepness))
    along = upright / distance if distance > FLAT * rivals.longest else 0.0
    for k in range(len(room.y)):
        room.y[k] = along * room.x[k] + room.h[k]
    # Certainly inside the ball, with its squares added in any order.
    length, most = math.sqrt(dot(room.y, room.y)), 1.0 - (len(room.y) + 8) * 2.0**-51
    if length > most:
        for k in range(len(room.y)):
            room.y[k] *= most / length
    return True, distance / upright


@compiled
def _change(room, a, step_is_whole, stretch):  # type: ignore[no-untyped-def]
    """How weight a changes on the way to the best ones, or down along h."""
    return room.nearest[a] + stretch * room.falling[a] - room.weights[a] if step_is_whole else room.falling[a]


@compiled
def _leave(room, used, a):  # type: ignore[no-untyped-def]
    remove_column(room.factor, used, a)
    for b in range(a, used - 1):
        room.names[b], room.heights[b] = room.names[b + 1], room.heights[b + 1]
        room.weights[b] = room.weights[b + 1]
        room.nearest[b], room.falling[b] = room.nearest[b + 1], room.falling[b + 1]
        for k in range(room.differences.shape[1]):
            room.differences[b, k] = room.differences[b + 1, k]
    return used - 1


@compiled
def _combined(room, used, weights, out):  # type: ignore[no-untyped-def]
    """out = Σ wₐaₐ; its length."""
    for k in range(len(out)):
        out[k] = 0.0
    for a in range(used):
        for k in range(len(out)):
            out[k] += weights[a] * room.differences[a, k]
    return math.sqrt(dot(out, out))


@compiled
def _value(room, used):  # type: ignore[no-untyped-def]
    """φ of the weights. Uses up x₀."""
    value = _combined(room, used, room.weights, room.x)
    for a in range(used):
        value += room.weights[a] * room.heights[a]
    return value


@compiled
def _least_beaten(rivals, room, i):  # type: ignore[no-untyped-def]
    """The rival that y beats by least, and by how much."""
    points, heights, scores, size = rivals.points, rivals.heights, room.scores, len(room.y)
    for k in range(size):
        room.single[k] = -room.y[k]
    room.single[size] = -1.0
    score_all(rivals.tiles, room.single, len(points), scores)
    scores[i] = np.inf
    least = scores[0]
    for j in range(1, len(points)):
        least = min(least, scores[j])
    near = least + 2 * 6e-8 * (size + 5) * math.sqrt(1.0 + dot(room.y, room.y)) * rivals.longest
    own = dot(room.y, points[i]) + heights[i]
    lowest, advantage = -1, np.inf
    for j in range(len(points)):
        if scores[j] <= near and j != i:
            found = own - dot(room.y, points[j]) - heights[j]
            if found < advantage:
                lowest, advantage = j, found
    return lowest, advantage
