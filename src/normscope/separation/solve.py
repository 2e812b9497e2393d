"""One problem from keys to certificates: round coordinates, own directions, nearest points, and near ties at last.

Nothing leaves here that its own check has not passed: a query whose margin is not above rounding, or weights whose key
is not clearly inside, go on to be settled exactly.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from normscope.checks import Floats
from normscope.separation.certificates import Ints
from normscope.separation.checking import margins, residuals
from normscope.separation.inside import inside_simplex
from normscope.separation.own_direction import own_direction
from normscope.separation.rational import Budget
from normscope.separation.scores import tiles_of
from normscope.separation.settle import settle
from normscope.separation.whitening import Whitened, whiten
from normscope.separation.wolfe import INSIDE, SEPARATED, WITNESSED, Cloud, Known, nearest_points

CLEAR = 1e-8  # relative gap below which a verdict is called degenerate
ROUNDING = 1e-13  # depth, over the longest key, below which floats do not show that a key is inside
EXACT_ENTRIES = 1_000_000  # of whole-number tableaus per problem: a few seconds


@dataclass(eq=False)
class Solution:
    """Certificates by key number; a key in neither is open."""

    degenerate: NDArray[np.bool_]
    queries: dict[int, tuple[Floats, float]] = field(default_factory=dict)
    weights: dict[int, tuple[Ints, Floats, float]] = field(default_factory=dict)


def solve(keys: Floats, biased: bool) -> Solution:
    """Certificates for keys (n, D), which carry their bias as last channel if they have one."""
    solution = Solution(np.zeros(len(keys), bool))
    distinct = _set_twins_apart(keys, biased, solution)
    if len(distinct) == 1:
        if distinct[0] not in solution.weights:
            query = np.append(np.zeros(keys.shape[1] - 1), 1.0) if biased else np.zeros(keys.shape[1])
            solution.queries[int(distinct[0])] = (query, np.inf)
    else:
        _solve_distinct(keys if len(distinct) == len(keys) else keys[distinct], biased, distinct, solution)
    if biased and len(distinct) < len(keys) and solution.queries:
        _count_twins_in(keys, solution)
    return solution


def _set_twins_apart(keys: Floats, biased: bool, solution: Solution) -> Ints:
    """Settle keys that another one equals with at least their bias; the numbers of the best of each kind."""
    kinds: dict[bytes, list[int]] = {}
    for number, key in enumerate(keys[:, : keys.shape[1] - biased] + 0.0):  # −0 equals 0
        kinds.setdefault(key.tobytes(), []).append(number)
    if len(kinds) == len(keys):
        return np.arange(len(keys))
    best = []
    for twins in kinds.values():
        heights = keys[twins, -1] if biased else np.zeros(len(twins))
        first, second = np.argsort(-heights, kind="stable")[:2] if len(twins) > 1 else (0, 0)
        best.append(twins[first])
        for number, height in zip(twins, heights, strict=True):
            other = second if number == twins[first] else first
            if len(twins) > 1 and heights[other] >= height:
                solution.degenerate[number] = True
                solution.weights[number] = (np.array([twins[other]]), np.ones(1), 0.0)
    return np.sort(np.array(best))


def _count_twins_in(keys: Floats, solution: Solution) -> None:
    """Margins against all keys: a twin of lower bias may be nearer than any distinct key."""
    rows = np.array(list(solution.queries))
    queries = np.array([query for query, _ in solution.queries.values()])
    found = margins(keys, rows, queries)
    for row, query, margin in zip(rows.tolist(), queries, found.least.tolist(), strict=True):
        solution.queries[row] = (query, margin)


def _solve_distinct(keys: Floats, biased: bool, names: Ints, solution: Solution) -> None:
    whitened = whiten(keys, biased)
    undecided = np.array([int(name) not in solution.weights for name in names])
    own = own_direction(whitened.points)
    wins = own.wins & undecided
    if whitened.ray is not None:
        wins &= whitened.points @ whitened.ray < -CLEAR * whitened.longest() ** 2
    queue = own.order[(~wins & undecided)[own.order]]
    directions = whitened.points.copy()
    unclear: list[int] = []
    if len(queue):
        status, found, supports = _nearest_points(whitened, wins, queue, own.rival[queue])
        separated = (status == SEPARATED) | (status == WITNESSED)
        directions[queue[separated]] = found[separated]
        wins[queue[separated]] = True
        unclear += queue[~separated & (status != INSIDE)].tolist()
        unclear += _record_weights(keys, whitened, queue[status == INSIDE], supports[status == INSIDE], names, solution)
    unclear += _record_queries(keys, whitened, np.flatnonzero(wins), directions, names, solution)
    _record_near_ties(keys, whitened, sorted(unclear), names, solution)


def _nearest_points(
    whitened: Whitened, wins: NDArray[np.bool_], queue: Ints, rivals: Ints
) -> tuple[Ints, Floats, Ints]:
    points, count = whitened.points, len(whitened.points)
    ray = np.zeros(points.shape[1]) if whitened.ray is None else whitened.ray
    cloud = Cloud(points, tiles_of(points, count), ray, whitened.ray is not None, whitened.longest())
    names = np.zeros(count + 1, np.int64)
    winners = np.flatnonzero(wins)
    names[: len(winners)] = winners
    known_tiles = tiles_of(points[winners], count + 1)
    known = Known(wins.copy(), names, known_tiles, np.zeros(points.shape), np.array([len(winners)]))
    found: tuple[Ints, Floats, Ints] = nearest_points(cloud, known, queue, rivals)
    return found


def _record_queries(
    keys: Floats, whitened: Whitened, rows: Ints, directions: Floats, names: Ints, solution: Solution
) -> list[int]:
    """Keep the queries that are proven; the rows of those that are not."""
    queries = whitened.queries(directions[rows])
    found = margins(keys, rows, queries)
    for a in np.flatnonzero(found.proven):
        name = int(names[rows[a]])
        solution.queries[name] = (queries[a], float(found.least[a]))
        solution.degenerate[name] = found.gap[a] <= CLEAR
    return [int(row) for row in rows[~found.proven]]


def _record_weights(
    keys: Floats, whitened: Whitened, rows: Ints, supports: Ints, names: Ints, solution: Solution
) -> list[int]:
    """Keep the weights of keys that are clearly inside a simplex; the rows of the others."""
    rank, flat = whitened.points.shape[1], whitened.is_flat()
    whole = supports[:, rank] >= 0
    unclear = [int(row) for row in rows[~whole]]
    rows, supports = rows[whole], supports[whole, : rank + 1]
    inside = inside_simplex(whitened, rows, supports)
    named = supports < len(keys)  # not the ray
    weights = inside.weights / np.where(named, inside.weights, 0.0).sum(axis=1, keepdims=True)
    starts = np.append(0, np.cumsum(named.sum(axis=1)))
    found = residuals(keys, whitened.biased, rows, starts, supports[named], weights[named])
    right = found.right & (inside.depth > max(ROUNDING, whitened.noise()))
    for a in np.flatnonzero(right):
        name = int(names[rows[a]])
        solution.weights[name] = (names[supports[a, named[a]]], weights[a, named[a]], float(found.length[a]))
        solution.degenerate[name] = flat or inside.depth[a] <= CLEAR
    return unclear + [int(row) for row in rows[~right]]


def _record_near_ties(keys: Floats, whitened: Whitened, rows: list[int], names: Ints, solution: Solution) -> None:
    budget = Budget(EXACT_ENTRIES)
    for row in rows:
        name = int(names[row])
        solution.degenerate[name] = True
        settled = settle(keys, whitened, row, budget)
        if settled is None:
            continue
        if settled.query is not None:
            margin = margins(keys, np.array([row]), settled.query[None]).least
            solution.queries[name] = (settled.query, float(margin[0]))
        else:
            assert settled.indices is not None
            assert settled.weights is not None
            starts = np.array([0, len(settled.weights)])
            found = residuals(keys, whitened.biased, np.array([row]), starts, settled.indices, settled.weights)
            solution.weights[name] = (names[settled.indices], settled.weights, float(found.length[0]))
