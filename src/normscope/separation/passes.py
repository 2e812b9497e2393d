"""One problem from keys to certificates: round coordinates, own directions, nearest points, and near ties at last.

Nothing leaves here that the checker would not pass: a query whose margin is not above rounding, or weights whose key
is not clearly inside, go on to be settled exactly.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from normscope.certificates.hull_proofs import PROVEN
from normscope.certificates.key_certificates import Certificates, Ints, joined
from normscope.certificates.key_margins import judged_sets, margins, residuals
from normscope.checks import Floats
from normscope.separation.coordinates import Whitened, whiten
from normscope.separation.exact_simplex import Budget
from normscope.separation.nearest_point import INSIDE, SEPARATED, WITNESSED, Cloud, Known, nearest_points
from normscope.separation.own_directions import own_direction
from normscope.separation.scores import tiles_of
from normscope.separation.settle import settle
from normscope.separation.simplex_weights import inside_simplex
from normscope.separation.twins import set_twins_apart

CLEAR = 1e-8  # relative gap below which a verdict is called a near tie
SURE = 1000  # times what rounding can do: depth at which the checker's own bound on rounding is not in doubt
ROUNDING = 1e-13  # depth, over the longest key, below which floats do not show that a key is inside
NOISE = 1e-5  # spread of a direction over the largest, below which it is left out where it does not help
EXACT_ENTRIES = 1_000_000  # of whole-number tableaus per problem: a few seconds


@dataclass(frozen=True, eq=False)
class Solution:
    """What is known of one set: a key in neither part of the certificates is open."""

    near_ties: NDArray[np.bool_]  # (n,)
    certificates: Certificates


def solve(keys: Floats, biased: bool) -> Solution:
    """Certificates for keys (n, D), which carry their bias as last channel if they have one."""
    count, channels = keys.shape
    near_ties = np.zeros(count, bool)
    distinct, twin_of = set_twins_apart([keys[:, : channels - biased]], keys[:, -1] if biased else None)
    parts = [_twins(twin_of, count)] if twin_of else []
    near_ties[list(twin_of)] = True
    if len(distinct) == 1:
        if distinct[0] not in twin_of:
            query = np.zeros((1, channels))
            query[:, -1] = biased
            parts.append(Certificates.of_queries((count,), distinct, query, np.array([np.inf])))
    else:
        some = keys if len(distinct) == count else keys[distinct]
        asked = np.array([int(name) not in twin_of for name in distinct]) if twin_of else np.ones(count, bool)
        found, doubtful = _solve_distinct(some, biased, asked)
        near_ties[distinct] |= doubtful
        parts.append(_renamed(found, distinct, count))
    certificates = joined(parts, (count,), channels)
    if biased and len(distinct) < count:  # a twin of lower bias may be nearer than any distinct key
        least = margins(keys, certificates.query_keys, certificates.queries).least
        certificates = replace(certificates, margins=least)
    return Solution(near_ties, certificates)


def _twins(twin_of: Mapping[int, int], count: int) -> Certificates:
    """Weight 1 on the twin, for keys that another one equals."""
    names, twins = np.array(list(twin_of)), np.array(list(twin_of.values()))
    starts = np.arange(len(names) + 1)
    return Certificates.of_weights((count,), names, starts, twins, np.ones(len(names)), np.zeros(len(names)))


def _renamed(found: Certificates, names: Ints, count: int) -> Certificates:
    """Certificates of some of the keys, by the numbers that these have among all."""
    return replace(
        found,
        shape=(count,),
        query_keys=names[found.query_keys],
        weight_keys=names[found.weight_keys],
        indices=names[found.indices],
    )


def _solve_distinct(keys: Floats, biased: bool, asked: NDArray[np.bool_]) -> tuple[Certificates, NDArray[np.bool_]]:
    """Certificates for those of the distinct keys that are asked for, and which of these are near ties."""
    whitened, near_ties = whiten(keys, biased), np.zeros(len(keys), bool)
    found = _search(whitened, asked)
    parts = [_weights(keys, whitened, found.inside, found.supports, near_ties)] if len(found.inside) else []
    parts.append(_queries(keys, whitened, found, near_ties))
    unclear = asked.copy()
    for part in parts:
        unclear[part.query_keys] = unclear[part.weight_keys] = False
    near_ties |= unclear
    parts += _near_ties(keys, whitened, np.flatnonzero(unclear))
    return joined(parts, (len(keys),), keys.shape[1]), near_ties


@dataclass(frozen=True, eq=False)
class Search:
    """What the two passes say of the keys that were asked for, in round coordinates."""

    winning: Ints  # rows
    directions: Floats  # (n, r): in which the winning ones win
    inside: Ints  # rows
    supports: Ints  # of those


def _search(whitened: Whitened, asked: NDArray[np.bool_]) -> Search:
    own = own_direction(whitened.points)
    wins = own.wins & asked
    if whitened.ray is not None:
        wins &= whitened.points @ whitened.ray < -CLEAR * whitened.longest() ** 2
    queue = own.order[(~wins & asked)[own.order]]
    directions = whitened.points.copy()
    if not len(queue):
        return Search(np.flatnonzero(wins), directions, queue, queue[:, None])
    status, found, supports = _nearest_points(whitened, wins, queue, own.rival[queue])
    separated = (status == SEPARATED) | (status == WITNESSED)
    directions[queue[separated]] = found[separated]
    wins[queue[separated]] = True
    return Search(np.flatnonzero(wins), directions, queue[status == INSIDE], supports[status == INSIDE])


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


def _queries(keys: Floats, whitened: Whitened, found: Search, near_ties: NDArray[np.bool_]) -> Certificates:
    """The queries that are proven; with a clear margin, if there is one that ignores directions of mere noise."""
    rows = found.winning
    queries = whitened.queries(found.directions[rows])
    shown = margins(keys, rows, queries)
    proven, gap, least = shown.proven, shown.gap, shown.least
    weak = rows[~proven | (gap <= CLEAR)]
    if len(weak):
        coarse = whiten(keys, whitened.biased, weakest=NOISE)
        if 0 < coarse.points.shape[1] < whitened.points.shape[1]:
            again = _search(coarse, np.isin(np.arange(len(keys)), weak))
            others = coarse.queries(again.directions[again.winning])
            reshown = margins(keys, again.winning, others)
            place = np.searchsorted(rows, again.winning)
            better = reshown.proven & ~(reshown.gap <= np.where(proven[place], gap[place], -np.inf))
            place = place[better]
            queries[place], proven[place] = others[better], True
            gap[place], least[place] = reshown.gap[better], reshown.least[better]
    near_ties[rows[proven]] = gap[proven] <= CLEAR
    return Certificates.of_queries((len(keys),), rows[proven], queries[proven], least[proven])


def _weights(
    keys: Floats, whitened: Whitened, rows: Ints, supports: Ints, near_ties: NDArray[np.bool_]
) -> Certificates:
    """The weights of keys that are clearly inside a simplex."""
    rank, flat = whitened.points.shape[1], whitened.is_flat()
    whole = supports[:, rank] >= 0
    rows, supports = rows[whole], supports[whole, : rank + 1]
    inside = inside_simplex(whitened, keys.__getitem__, rows, supports)
    deep = inside.depth > max(ROUNDING, whitened.noise())
    rows, supports, depth, weights = rows[deep], supports[deep], inside.depth[deep], inside.weights[deep]
    named = supports < len(keys)  # not the ray
    weights = weights / np.where(named, weights, 0.0).sum(axis=1, keepdims=True)
    starts = np.append(0, np.cumsum(named.sum(axis=1)))
    found = residuals(keys, whitened.biased, rows, starts, supports[named], weights[named])
    right = found.right
    kept = named & right[:, None]
    starts = np.append(0, np.cumsum(named[right].sum(axis=1)))
    certificates = Certificates.of_weights(
        (len(keys),), rows[right], starts, supports[kept], weights[kept], found.length[right]
    )
    near = flat | (depth[right] <= CLEAR)
    if not near.all() and (depth[right] <= SURE * whitened.noise()).any():
        near |= judged_sets(keys, whitened.biased, rows[right], starts, supports[kept], weights[kept]) != PROVEN
    near_ties[rows[right]] = near
    return certificates


def _near_ties(keys: Floats, whitened: Whitened, rows: Ints) -> list[Certificates]:
    """What exact arithmetic shows of the keys that floats leave open, one by one while its budget lasts."""
    budget, count, parts = Budget(EXACT_ENTRIES), len(keys), []
    for row in rows[:, None]:
        settled = settle(keys, whitened, int(row[0]), budget)
        if settled is None:
            continue
        if settled.query is not None:
            query = settled.query[None]
            parts.append(Certificates.of_queries((count,), row, query, margins(keys, row, query).least))
        else:
            assert settled.indices is not None
            assert settled.weights is not None
            starts = np.array([0, len(settled.weights)])
            length = residuals(keys, whitened.biased, row, starts, settled.indices, settled.weights).length
            parts.append(Certificates.of_weights((count,), row, starts, settled.indices, settled.weights, length))
    return parts
