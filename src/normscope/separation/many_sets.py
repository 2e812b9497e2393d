"""Many sets: the passes of `solve`, each of them over all small sets at once.

A set of 20 keys is solved in microseconds, and takes most of a millisecond to be handed from one function to the next.
So small sets go through every pass together. A set that needs more than that (it has twins, or a key that is near a
tie) is left to `solve`, alone, as large sets are.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from normscope.certificates.key_certificates import Certificates, Ints, joined, placed
from normscope.certificates.key_margins import margins, residuals
from normscope.checks import Floats
from normscope.separation.inside_sets import inside_simplices
from normscope.separation.nearest_point import INSIDE, OPEN
from normscope.separation.nearest_sets import MOST_KEYS, have_twins, verdicts
from normscope.separation.passes import CLEAR, SURE, solve
from normscope.separation.whitened_sets import WhitenedSets, whiten_sets

SMALL = 2**13  # entries of a set, up to which it is solved together with others
NEAR = 10 * CLEAR  # relative gap below which a set is left to `solve`: near ties are named there
BLOCK = 2**19  # scores at a time


def solve_sets(keys: Floats, biased: bool) -> tuple[Certificates, NDArray[np.bool_]]:
    """Certificates for sets (m, n, D), which carry their bias as last channel if they have one; and near_ties (m, n).

    >>> certificates, near_ties = solve_sets(np.array([[[0.0], [1], [3]], [[5.0], [2], [5]]]), False)
    >>> certificates.query_keys, certificates.weight_keys
    (array([0, 2, 4]), array([1, 3, 5]))
    >>> near_ties
    array([[False, False, False],
           [ True, False,  True]])
    """
    total, count, channels = keys.shape
    near_ties, alone = np.zeros((total, count), bool), np.ones(total, bool)
    parts = []
    if total > 1 and 1 < count <= MOST_KEYS and count * channels <= SMALL:
        step = max(1, BLOCK // (count * (count + channels)))
        for start in range(0, total, step):
            twins = have_twins(keys[start : start + step, :, : channels - biased])
            distinct = start + np.flatnonzero(~twins)
            for whitened in whiten_sets(keys[distinct], biased) if len(distinct) else ():
                numbers = distinct[whitened.numbers]
                shown = _shown(keys[numbers], whitened)
                alone[numbers], near_ties[numbers] = ~shown.clear, shown.near_ties
                parts.append(_renumbered(shown, numbers, (total, count)))
    solutions = {int(number): solve(keys[number], biased) for number in np.flatnonzero(alone)}
    for number, solution in solutions.items():
        near_ties[number] = solution.near_ties
    one_by_one = {number: solution.certificates for number, solution in solutions.items()}
    return joined([*parts, *placed(one_by_one, (total, count))], (total, count), channels), near_ties


@dataclass(frozen=True, eq=False)
class Shown:
    """What the passes show of sets (m, n)."""

    clear: NDArray[np.bool_]  # (m,): whether every key of a set has its certificate, with room to spare
    near_ties: NDArray[np.bool_]  # (m, n)
    certificates: Certificates


def _shown(keys: Floats, whitened: WhitenedSets) -> Shown:
    found = verdicts(whitened)
    shape, channels = keys.shape[:2], keys.shape[2]
    won = np.flatnonzero((found.status != INSIDE) & (found.status != OPEN))
    queries = whitened.queries(found.directions).reshape(-1, channels)[won]
    by_query = margins(keys, won, queries)

    owner, rows = np.nonzero(found.status == INSIDE)
    owner, rows, supports, weights = _clearly_inside(whitened, keys, owner, rows, found.supports[owner, rows])
    lost = owner * shape[1] + rows
    named = supports < shape[1]  # not the ray
    shares = weights / np.where(named, weights, 0.0).sum(axis=1, keepdims=True)
    starts = np.append(0, np.cumsum(named.sum(axis=1)))
    by_weights = residuals(keys, whitened.biased, lost, starts, supports[named], shares[named])

    clear, near_ties = np.zeros(shape, bool), np.zeros(shape, bool)
    clear.flat[won] = by_query.proven & (by_query.gap > NEAR)
    clear.flat[lost] = by_weights.right
    near_ties.flat[lost] = whitened.is_flat[owner]
    certificates = Certificates(
        shape=shape,
        query_keys=won,
        queries=queries,
        margins=by_query.least,
        weight_keys=lost,
        starts=starts,
        indices=supports[named],
        weights=shares[named],
        residuals=by_weights.length,
    )
    return Shown(np.asarray(clear.all(axis=1)), near_ties, certificates)


def _clearly_inside(
    whitened: WhitenedSets, keys: Floats, owner: Ints, rows: Ints, supports: Ints
) -> tuple[Ints, Ints, Ints, Floats]:
    """Those of the keys that are clearly inside the simplex of their support, with it and their weights."""
    corners = whitened.points.shape[2] + 1
    whole = supports[:, corners - 1] >= 0
    owner, rows, supports = owner[whole], rows[whole], supports[whole, :corners]
    inside = inside_simplices(whitened, keys, owner, rows, supports)
    sets, place = np.unique(owner, return_inverse=True)
    deep = inside.depth > np.maximum(NEAR, SURE * whitened.noise(sets))[place]
    return owner[deep], rows[deep], supports[deep], inside.weights[deep]


def _renumbered(shown: Shown, numbers: Ints, shape: tuple[int, int]) -> Certificates:
    """The certificates of sets that are clear, with the numbers that these have in the batch."""
    c, count = shown.certificates, shape[1]
    wins, loses = shown.clear[c.query_keys // count], shown.clear[c.weight_keys // count]
    lengths = np.diff(c.starts)
    entries = np.repeat(loses, lengths)
    names = (numbers[:, None] * count + np.arange(count)).ravel()
    return Certificates(
        shape=shape,
        query_keys=names[c.query_keys[wins]],
        queries=c.queries[wins],
        margins=c.margins[wins],
        weight_keys=names[c.weight_keys[loses]],
        starts=np.append(0, np.cumsum(lengths[loses])),
        indices=c.indices[entries],
        weights=c.weights[entries],
        residuals=c.residuals[loses],
    )
