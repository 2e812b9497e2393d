"""From keys to certificates: round coordinates, own directions, nearest points, and finally near ties.

Every pass goes over many sets at once: a set of 20 keys is solved in microseconds, and takes most of a millisecond to
be passed from one function to the next. A large set is a batch of one. Only rare work is done set by set:
duplicates set apart, directions of mere noise left out, near ties settled exactly.

Only certificates that the checker would pass are returned: a query whose margin is within rounding, or weights whose
key is not clearly inside, are settled exactly.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from normscope.certificates.hull_proofs import PROVEN
from normscope.certificates.key_certificates import Bools, Certificates, Ints, joined
from normscope.certificates.key_margins import judged_sets, margins, residuals
from normscope.checks import Floats
from normscope.separation.coordinates import Whitened, whiten_sets
from normscope.separation.duplicates import are_distinct, have_duplicates, set_duplicates_apart
from normscope.separation.exact_simplex import Budget
from normscope.separation.near_ties import settle
from normscope.separation.nearest_point import INSIDE, OPEN, nearest_points_of_sets
from normscope.separation.own_directions import BLOCK as MOST_KEYS
from normscope.separation.own_directions import own_directions
from normscope.separation.simplex_weights import inside_simplices

CLEAR = 1e-8  # relative gap below which a verdict is called a near tie
SURE = 1000  # times what rounding can do: depth at which the checker's own bound on rounding is not in doubt
ROUNDING = 1e-13  # depth, over the longest key, below which floats do not show that a key is inside
NOISE = 1e-5  # spread of a direction over the largest, below which it is left out where it does not help
EXACT_ENTRIES = 1_000_000  # of whole-number tableaus per set: a few seconds
SMALL = 2**13  # entries of a set, up to which it is solved together with others
BLOCK = 2**19  # scores at a time


def solve_sets(keys: Floats, biased: bool) -> tuple[Certificates, Bools]:
    """Certificates for sets (m, n, D), which carry their bias as last channel if they have one; and near ties (m, n).

    A key in neither part of the certificates is open.

    >>> certificates, near_ties = solve_sets(np.array([[[0.0], [1], [3]], [[5.0], [2], [5]]]), False)
    >>> certificates.query_keys, certificates.weight_keys
    (array([0, 2, 4]), array([1, 3, 5]))
    >>> near_ties
    array([[False, False, False],
           [ True, False,  True]])
    """
    total, count, channels = keys.shape
    together = 1 < count <= MOST_KEYS and count * channels <= SMALL
    alone = have_duplicates(keys[..., : channels - biased]) if together else np.ones(total, bool)
    near_ties, parts = np.zeros((total, count), bool), []
    numbers, step = np.flatnonzero(~alone), max(1, BLOCK // (count * (count + channels)))
    for start in range(0, len(numbers), step):
        some = numbers[start : start + step]
        found, near_ties[some] = _solve_distinct(
            keys if len(some) == total else keys[some], biased, np.ones((len(some), count), bool)
        )
        parts.append(_of_sets(found, some, (total, count)))
    for number in np.flatnonzero(alone):
        found, near_ties[number] = _solve_alone(keys[number], biased)
        parts.append(_of_sets(found, np.array([number]), (total, count)))
    return joined(parts, (total, count), channels), near_ties


def _of_sets(found: Certificates, numbers: Ints, shape: tuple[int, ...]) -> Certificates:
    """Certificates of some sets, by the numbers that these have in a batch (m, n)."""
    count, moved = shape[-1], (numbers - np.arange(len(numbers))) * shape[-1]
    if not moved.any():
        return replace(found, shape=shape)
    query_keys = found.query_keys + moved[found.query_keys // count]
    return replace(
        found, shape=shape, query_keys=query_keys, weight_keys=found.weight_keys + moved[found.weight_keys // count]
    )


def _solve_alone(keys: Floats, biased: bool) -> tuple[Certificates, Bools]:
    """The same for one set (n, D), which may have duplicates."""
    count, channels = keys.shape
    near_ties = np.zeros(count, bool)
    distinct, equal_to = np.arange(count), dict[int, int]()
    if not are_distinct(keys[:, : channels - biased]):
        distinct, equal_to = set_duplicates_apart([keys[:, : channels - biased]], keys[:, -1] if biased else None)
    parts = [_duplicates(equal_to, count)] if equal_to else []
    near_ties[list(equal_to)] = True
    if len(distinct) == 1:
        if distinct[0] not in equal_to:
            query = np.zeros((1, channels))
            query[:, -1] = biased
            parts.append(Certificates.of_queries((count,), distinct, query, np.array([np.inf])))
    else:
        some = keys if len(distinct) == count else keys[distinct]
        asked = np.array([int(name) not in equal_to for name in distinct]) if equal_to else np.ones(count, bool)
        found, doubtful = _solve_distinct(some[None], biased, asked[None])
        near_ties[distinct] |= doubtful[0]
        parts.append(_renamed(found, distinct, (count,)) if len(distinct) < count else replace(found, shape=(count,)))
    certificates = joined(parts, (count,), channels)
    if biased and len(distinct) < count:  # a duplicate of lower bias may be nearer than any distinct key
        least = margins(keys, certificates.query_keys, certificates.queries).least
        certificates = replace(certificates, margins=least)
    return certificates, near_ties


def _renamed(found: Certificates, names: Ints, shape: tuple[int, ...]) -> Certificates:
    """Certificates of some of the keys of a set, by the numbers that these have among all."""
    return replace(
        found,
        shape=shape,
        query_keys=names[found.query_keys],
        weight_keys=names[found.weight_keys],
        indices=names[found.indices],
    )


def _duplicates(equal_to: Mapping[int, int], count: int) -> Certificates:
    """Weight 1 on the other, for keys that another one equals."""
    names, others = np.array(list(equal_to)), np.array(list(equal_to.values()))
    starts = np.arange(len(names) + 1)
    return Certificates.of_weights((count,), names, starts, others, np.ones(len(names)), np.zeros(len(names)))


def _solve_distinct(keys: Floats, biased: bool, asked: Bools) -> tuple[Certificates, Bools]:
    """Certificates for those keys of sets (m, n, D) of distinct keys that are asked (m, n), and their near ties."""
    shape, channels = keys.shape[:2], keys.shape[2]
    near_ties, parts = np.zeros(shape, bool), []
    for group in whiten_sets(keys, biased):
        some = keys if len(group.numbers) == len(keys) else keys[group.numbers]
        mine = np.zeros(some.shape[:2], bool)
        found = _search(group, asked[group.numbers])
        certified = [_weights(some, group, found, mine), _queries(some, group, found, mine)]
        unclear = asked[group.numbers].ravel()
        for part in certified:
            unclear[part.query_keys] = unclear[part.weight_keys] = False
        mine |= unclear.reshape(mine.shape)
        certified += _settled(some, group, unclear.reshape(mine.shape))
        near_ties[group.numbers] = mine
        parts += [_of_sets(part, group.numbers, shape) for part in certified]
    return joined(parts, shape, channels), near_ties


@dataclass(frozen=True, eq=False)
class Search:
    """Results of the two passes for the requested keys, in round coordinates."""

    wins: Bools  # (m, n)
    directions: Floats  # (m, n, r): in which those that win do
    inside: Bools  # (m, n)
    supports: Ints  # (m, n, r + 2), of those, padded by −1


def _search(whitened: Whitened, asked: Bools) -> Search:
    points, longest = whitened.points, whitened.longest
    own = own_directions(points)
    wins, ray = own.wins & asked, np.zeros((len(points), points.shape[2]))
    if whitened.ray is not None:
        ray = whitened.ray
        wins &= (points @ ray[:, :, None])[:, :, 0] < -CLEAR * longest[:, None] ** 2
    if (wins == asked).all():
        return Search(wins, points, np.zeros_like(wins), np.zeros((*wins.shape, 0), np.int64))
    status, directions, supports = nearest_points_of_sets(
        points, ray, whitened.ray is not None, longest, wins, asked, own.rivals, own.order
    )
    inside = asked & (status == INSIDE)
    return Search(asked & ~inside & (status != OPEN), directions, inside, supports)


def _queries(keys: Floats, whitened: Whitened, found: Search, near_ties: Bools) -> Certificates:
    """The queries that are proven; with a clear margin, if there is one that ignores directions of mere noise."""
    shape, channels = keys.shape[:2], keys.shape[2]
    rows = np.flatnonzero(found.wins)
    queries = whitened.queries(found.directions).reshape(-1, channels)
    queries = queries if len(rows) == len(queries) else queries[rows]
    shown = margins(keys, rows, queries)
    proven, gap, least = shown.proven, shown.gap, shown.least
    weak = rows[~proven | (gap <= CLEAR)]
    for names, others in _without_noise(keys, whitened, weak) if len(weak) else ():
        again = margins(keys, names, others)
        place = np.searchsorted(rows, names)
        better = again.proven & ~(again.gap <= np.where(proven[place], gap[place], -np.inf))
        place = place[better]
        queries[place], proven[place] = others[better], True
        gap[place], least[place] = again.gap[better], again.least[better]
    near_ties.flat[rows[proven]] = gap[proven] <= CLEAR
    kept = slice(None) if proven.all() else proven  # so that large arrays are not copied
    return Certificates.of_queries(shape, rows[kept], queries[kept], least[kept])


def _without_noise(keys: Floats, whitened: Whitened, weak: Ints) -> Iterator[tuple[Ints, Floats]]:
    """Set by set, other queries for some of the weak ones, and their keys."""
    count = keys.shape[1]
    for number in np.unique(weak // count):
        coarse = next(whiten_sets(keys[number][None], whitened.biased, weakest=NOISE))
        if 0 < coarse.points.shape[2] < whitened.points.shape[2]:
            found = _search(coarse, np.isin(number * count + np.arange(count), weak)[None])
            yield number * count + np.flatnonzero(found.wins), coarse.queries(found.directions)[found.wins]


def _weights(keys: Floats, whitened: Whitened, found: Search, near_ties: Bools) -> Certificates:
    """The weights of keys that are clearly inside a simplex."""
    shape, corners = keys.shape[:2], whitened.points.shape[2] + 1
    owner, rows = np.nonzero(found.inside)
    if len(rows):
        whole = found.supports[owner, rows, corners - 1] >= 0
        owner, rows = owner[whole], rows[whole]
    if not len(rows):
        return Certificates.of_weights(shape, rows, np.zeros(1, np.int64), rows, np.zeros(0), np.zeros(0))
    supports = found.supports[owner, rows, :corners]
    inside = inside_simplices(whitened, keys, owner, rows, supports)
    sets, place = np.unique(owner, return_inverse=True)
    noise = whitened.noise(sets)[place]
    deep = inside.depth > np.maximum(ROUNDING, noise)
    owner, names, supports = owner[deep], (owner * shape[1] + rows)[deep], supports[deep]
    depth, noise, weights = inside.depth[deep], noise[deep], inside.weights[deep]
    weights = np.where(supports < shape[1], weights, 0.0)  # without that of the ray
    weights /= weights.sum(axis=1, keepdims=True)
    listed = _listed(shape, names, supports, weights, np.zeros(len(names)))
    by_weights = residuals(keys, whitened.biased, *_entries(listed))
    right = by_weights.right
    near = whitened.is_flat[owner] | (depth <= CLEAR)
    unsure = right & ~near & (depth <= SURE * noise)
    if unsure.any():
        doubtful = _listed(shape, names[unsure], supports[unsure], weights[unsure], depth[unsure])
        near[unsure] = judged_sets(keys, whitened.biased, *_entries(doubtful)) != PROVEN
    near_ties.flat[names[right]] = near[right]
    if right.all():
        return replace(listed, residuals=by_weights.length)
    return _listed(shape, names[right], supports[right], weights[right], by_weights.length[right])


def _listed(shape: tuple[int, ...], names: Ints, supports: Ints, weights: Floats, residual: Floats) -> Certificates:
    """Certificates of weights (a, s) for keys of these names, without those of the ray, whose number is n."""
    named = supports < shape[-1]
    starts = np.append(0, np.cumsum(named.sum(axis=1)))
    return Certificates.of_weights(shape, names, starts, supports[named], weights[named], residual)


def _entries(c: Certificates) -> tuple[Ints, Ints, Ints, Floats]:
    return c.weight_keys, c.starts, c.indices, c.weights


def _settled(keys: Floats, whitened: Whitened, unclear: Bools) -> Iterator[Certificates]:
    """Verdicts of exact arithmetic on the keys that floats leave open, one by one while the budget of a set lasts."""
    shape = keys.shape[:2]
    for number in np.flatnonzero(unclear.any(axis=1)):
        some, alone, budget = keys[number], whitened.alone(int(number)), Budget(EXACT_ENTRIES)
        for row in np.flatnonzero(unclear[number])[:, None]:
            settled, name = settle(some, alone, int(row[0]), budget), number * shape[1] + row
            if settled is None:
                continue
            if settled.query is not None:
                query = settled.query[None]
                yield Certificates.of_queries(shape, name, query, margins(some, row, query).least)
            else:
                assert settled.indices is not None
                assert settled.weights is not None
                starts = np.array([0, len(settled.weights)])
                weighted = (starts, settled.indices, settled.weights)
                length = residuals(some, whitened.biased, row, *weighted).length
                yield Certificates.of_weights(shape, name, *weighted, length)
