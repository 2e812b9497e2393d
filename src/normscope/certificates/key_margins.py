"""Margins by which queries prefer keys, residuals of weights that reproduce keys, and rounding bounds for both.

A margin counts if it exceeds the rounding bound. With the keys centred at any point c, k' = fl(k − c), and scores
s = q·k' in double precision (unit roundoff u = 2⁻⁵³), with the d products added in any order,

    |(sᵢ − sⱼ) − q·(kᵢ − kⱼ)|  ≤  2(d + 4)·u·Σₖ |qₖ|·maxⱼ|k'ⱼₖ|

A margin below the bound is recomputed without rounding. A bias is one more channel, of weight 1 in the query.

Of a large set, only the rival that scores highest is met in double precision, where single precision singles it out:
its scores are off by (d + 4)·2⁻²⁴·Σₖ |qₖ|·maxⱼ|k'ⱼₖ| at most, and all others are lower by more than twice that.

So a query that counts is a proof. Weights are judged in `hull_proofs`: wrong, a proof, or a near tie.

Nothing is imported from the solver. The solver imports `margins` and `residuals`, to drop what would not count.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from normscope.certificates.hull_proofs import UNIT, WRONG, Verdicts, judged, tolerance
from normscope.certificates.key_certificates import Ints
from normscope.checks import Floats

BLOCK = 2**17  # scores at a time
SINGLE, TINY = 2.0**-24, 2.0**-120  # unit roundoff in single precision; more than a term loses by underflow in it
USUAL = 300  # powers of two between which numbers can be multiplied as they are
ENTRIES = 2**21  # terms of weighted sums at a time


def lifted(keys: Floats, bias: Floats | None) -> Floats:
    """Keys (..., n, d) with their bias, if any, as channel d."""
    return keys if bias is None else np.concatenate([keys, bias[..., None]], axis=-1)


@dataclass(frozen=True, eq=False)
class Margins:
    least: Floats  # lower bounds on each query's margin
    proven: NDArray[np.bool_]  # whether that is certainly above 0
    rounding: Floats  # bounds on the error of least
    gap: Floats  # least over the size of the scores, Σₖ |qₖ|·maxⱼ|k'ⱼₖ|


def margins(keys: Floats, rows: Ints, queries: Floats, *, earlier: bool = False) -> Margins:
    """How each query scores its key against all others of its set, or with `earlier` against those before it.

    Keys are (n, D), or (..., n, D) for many sets; rows number them through all sets, one set after the other.

    >>> found = margins(np.array([[0.0], [1.0], [3.0]]), np.array([2, 1]), np.array([[1.0], [1.0]]))
    >>> found.least, found.proven
    (array([ 2., -2.]), array([ True, False]))
    """
    sets = keys.reshape(-1, *keys.shape[-2:])
    found = [
        _margins_together(sets[some], rows[part] - first, queries[part], earlier)
        for some, part, first in _groups(sets, rows)
    ]
    return Margins(
        np.concatenate([each.least for each in found]),
        np.concatenate([each.proven for each in found]),
        np.concatenate([each.rounding for each in found]),
        np.concatenate([each.gap for each in found]),
    )


@dataclass(frozen=True, eq=False)
class Residuals:
    length: Floats  # |Σλk − kᵢ|
    right: NDArray[np.bool_]  # whether every channel is below half of what counts as rounding, and weights are convex
    rounding: Floats  # bounds on the error of length


def residuals(keys: Floats, biased: bool, rows: Ints, starts: Ints, indices: Ints, weights: Floats) -> Residuals:
    """How well weights reproduce keys[rows]; those of row a are entries starts[a] to starts[a + 1].

    Keys are (n, D), or (..., n, D) for many sets; rows number them through all sets, one set after the other, and
    indices inside the set of their row.

    >>> line = np.array([[0.0], [1.0], [4.0]])
    >>> found = residuals(line, False, np.array([1]), np.array([0, 2]), np.array([0, 2]), np.array([0.75, 0.25]))
    >>> found.length, found.right
    (array([0.]), array([ True]))
    """
    sets = keys.reshape(-1, *keys.shape[-2:])
    found = []
    for some, part, first in _groups(sets, rows):
        begin = starts[part.start : part.stop + 1]
        entries = slice(begin[0], begin[-1])
        found.append(
            _residuals_together(
                sets[some], biased, rows[part] - first, begin - begin[0], indices[entries], weights[entries]
            )
        )
    return Residuals(
        np.concatenate([each.length for each in found]),
        np.concatenate([each.right for each in found]),
        np.concatenate([each.rounding for each in found]),
    )


def judged_sets(keys: Floats, biased: bool, rows: Ints, starts: Ints, indices: Ints, weights: Floats) -> Verdicts:
    """What the weights of each row prove, with arguments as above: WRONG, NEAR_TIE or PROVEN."""
    points, count = keys.reshape(-1, keys.shape[-1]), keys.shape[-2]
    lengths, verdicts = np.diff(starts), np.zeros(len(rows), np.int8)
    for length in np.unique(lengths):
        some = np.flatnonzero(lengths == length)
        step = max(1, BLOCK // int(length * points.shape[1]))
        for part in (some[start : start + step] for start in range(0, len(some), step)):
            entries = starts[part, None] + np.arange(length)
            own, named = rows[part], (rows[part] // count * count)[:, None] + indices[entries]
            found = judged(points[own], points[named], weights[entries], biased)
            verdicts[part] = np.where((named == own[:, None]).any(axis=1), WRONG, found)
    return verdicts


def _groups(sets: Floats, rows: Ints) -> Iterator[tuple[slice, slice, int]]:
    """Sets that have BLOCK scores at most between them, or one that has more; their rows, and the number of their
    first key."""
    count, together = sets.shape[1], _together(sets)
    for start in range(0, len(sets), together):
        stop = start + together
        part = np.searchsorted(rows, [start * count, stop * count])
        yield slice(start, stop), slice(int(part[0]), int(part[1])), start * count


def _together(sets: Floats) -> int:
    """How many sets of this size are a group."""
    count, channels = sets.shape[1:]
    return max(1, BLOCK // int(count * max(count, channels)))


def _margins_together(sets: Floats, rows: Ints, queries: Floats, earlier: bool) -> Margins:
    finite = np.asarray(np.isfinite(queries).all(axis=1))
    count, channels = sets.shape[1:]
    if count == 1:
        endless = np.full(len(rows), np.inf)
        return Margins(endless, finite, np.zeros(len(rows)), endless)
    centred, widest, exponents = _centred(sets)
    owner, own_row = np.divmod(rows, count)
    each = owner if len(sets) > 1 else slice(1)
    numbers = queries if finite.all() else np.where(finite[:, None], queries, 0.0)
    scaled, shift = _scaled_queries(numbers, exponents[each], widest[each] > 0)
    size = np.einsum("ak,ak->a", np.abs(scaled), np.broadcast_to(widest[each], scaled.shape))
    bounds = 2 * (channels + 4) * UNIT * size
    least = np.full(len(rows), np.nan)
    if _together(sets) == 1:
        least = _least_of_large_set(centred[0], own_row, scaled, size, earlier)
    proven = least > bounds
    rest = np.flatnonzero(~(np.abs(least) > bounds))
    step = max(1, BLOCK // count)
    for part in (rest[start : start + step] for start in range(0, len(rest), step)):
        place, scores = _scores(centred, owner[part], scaled[part])
        itself = (*place, own_row[part])
        own = scores[itself]
        scores[itself] = -np.inf
        if earlier:
            scores[place] = np.where(np.arange(count) > own_row[part, None], -np.inf, scores[place])
        least[part] = own - scores.max(axis=2)[place]
        proven[part] = least[part] > bounds[part]
        for turn in np.flatnonzero((np.abs(least[part]) <= bounds[part]) & finite[part]):
            a = part[turn]
            near = np.flatnonzero(own[turn] - scores[place[0][turn], place[1][turn]] <= 2 * bounds[a])
            exact = _exact_margin(sets[owner[a]], int(own_row[a]), near, queries[a])
            least[a] = float(exact * Fraction(2) ** -int(shift[a]))
            proven[a] = exact > 0
    with np.errstate(over="ignore", under="ignore", divide="ignore", invalid="ignore"):
        return Margins(np.ldexp(least, shift), proven & finite, np.ldexp(bounds, shift), least / size)


def _least_of_large_set(centred: Floats, own_row: Ints, queries: Floats, size: Floats, earlier: bool) -> Floats:
    """Margins against the rival that scores highest; NaN where single precision does not single it out."""
    count, channels = centred.shape
    error = 1.1 * (channels + 4) * SINGLE * size + channels * TINY
    keys, single = centred.astype(np.float32).T, queries.astype(np.float32)
    rivals, clear = np.empty(len(queries), np.int64), np.empty(len(queries), bool)
    step = max(1, BLOCK // count)
    for start in range(0, len(queries), step):
        part = slice(start, start + step)
        scores = single[part] @ keys
        line = np.arange(len(scores))
        scores[line, own_row[part]] = -np.inf
        if earlier:
            scores[np.arange(count) > own_row[part, None]] = -np.inf
        rivals[part] = scores.argmax(axis=1)
        highest = scores[line, rivals[part]].astype(float)
        scores[line, rivals[part]] = -np.inf
        with np.errstate(invalid="ignore"):  # a key that has no rival
            clear[part] = highest - scores.max(axis=1) > 2 * error[part]
    least = np.einsum("ak,ak->a", queries, centred[own_row]) - np.einsum("ak,ak->a", queries, centred[rivals])
    return np.where(clear, least, np.nan)


def _scores(centred: Floats, owner: Ints, queries: Floats) -> tuple[tuple[Ints, Ints], Floats]:
    """Scores (m, p, n) of at most p queries for each set (m, n, D), and where those of queries (a, D) are in them.

    Queries come one set after the other; places without a query are not used.
    """
    if len(centred) == 1:
        return (owner, np.arange(len(owner))), (queries @ centred[0].T)[None]
    among_its_own = np.arange(len(owner)) - np.searchsorted(owner, owner)
    table = np.zeros((len(centred), among_its_own.max() + 1, queries.shape[1]))
    table[owner, among_its_own] = queries
    return (owner, among_its_own), table @ centred.transpose(0, 2, 1)


def _residuals_together(
    sets: Floats, biased: bool, rows: Ints, starts: Ints, indices: Ints, weights: Floats
) -> Residuals:
    if not len(rows):
        return Residuals(np.zeros(0), np.zeros(0, bool), np.zeros(0))
    count, channels = sets.shape[1:]
    exponents = 1 + _exponents(sets)
    keys = times_powers(sets, -exponents[:, None])
    share = tolerance(channels)
    owner, own_row = np.divmod(rows, count)
    lengths = np.diff(starts)
    length, rounding, right = np.empty(len(rows)), np.empty(len(rows)), np.empty(len(rows), bool)
    step = max(1, ENTRIES // int(lengths.max() * channels))
    for start in range(0, len(rows), step):
        part = slice(start, min(len(rows), start + step))
        entries = slice(starts[start], starts[part.stop])
        begin, whose, powers = (
            starts[part] - starts[start],
            np.repeat(owner[part], lengths[part]),
            exponents[owner[part]],
        )
        own, shares = np.repeat(own_row[part], lengths[part]), weights[entries]
        terms = shares[:, None] * (keys[whose, indices[entries]] - keys[whose, own])
        missing, size = np.add.reduceat(terms, begin), np.add.reduceat(np.abs(terms), begin)
        if biased:
            missing[:, -1] = np.minimum(missing[:, -1], 0.0)
        right[part] = (np.abs(missing) <= share / 2 * size).all(axis=1)
        right[part] &= np.abs(np.add.reduceat(shares, begin) - 1) <= share / 2
        right[part] &= ~np.logical_or.reduceat((shares <= 0) | (indices[entries] == own), begin)
        length[part], rounding[part] = _lengths(missing, powers), share * _lengths(size, powers)
    return Residuals(length, right, rounding)


def _centred(sets: Floats) -> tuple[Floats, Floats, Ints]:
    """Sets (m, n, D) minus their means, every channel scaled into [−1, 1] by a power of two; and per set and channel
    the largest entry (m, D) and that power (m, D)."""
    first = _exponents(sets)
    keys = times_powers(sets, -first[:, None])
    keys -= keys.mean(axis=1, keepdims=True)
    second = _exponents(keys)
    keys = times_powers(keys, -second[:, None])
    return keys, largest(keys), first + second


def _exponents(values: Floats) -> Ints:
    """Per set (n, D) and channel e with max|values| in [2^(e−1), 2^e)."""
    return np.asarray(np.frexp(largest(values))[1], np.int64)


def largest(values: Floats) -> Floats:
    """Per set (n, D) and channel the largest size."""
    return np.asarray(np.maximum(values.max(axis=-2), -values.min(axis=-2)))


def times_powers(values: Floats, powers: Ints) -> Floats:
    """values · 2^powers, for powers between −2000 and 2000; much faster than `ldexp` where there are few of them.

    >>> times_powers(np.array([[2.0**1000], [3 * 2.0**-1070]]), np.array([[-1000], [1070]]))
    array([[1.],
           [3.]])
    """
    half = powers // 2
    return np.asarray(values * np.ldexp(1.0, half) * np.ldexp(1.0, powers - half))


def _lengths(vectors: Floats, exponents: Ints) -> Floats:
    """Euclidean lengths of vectors in the scaled channels, in the units of the keys."""
    largest = exponents.max(axis=1)
    with np.errstate(over="ignore", under="ignore"):
        sized = np.ldexp(vectors, exponents - largest[:, None])
        return np.asarray(np.ldexp(np.linalg.norm(sized, axis=1), largest))


def _scaled_queries(queries: Floats, exponents: Ints, alive: NDArray[np.bool_]) -> tuple[Floats, Ints]:
    """Queries for the centred keys, scaled to size about 1, and the power of two removed from each."""
    usual = queries.size and np.abs(exponents).max() < USUAL and np.abs(queries).max(initial=0.0) < 2.0**USUAL
    if usual:
        sized = np.where(alive, queries, 0.0) * np.ldexp(1.0, exponents)
        longest = np.maximum(sized.max(axis=1), -sized.min(axis=1))
        if longest.min() > 2.0**-USUAL:
            shift = np.frexp(longest)[1].astype(np.int64)
            return sized * np.ldexp(1.0, -shift)[:, None], shift
    mantissa, power = np.frexp(np.where(alive, queries, 0.0))
    total = np.where(mantissa != 0, power + exponents, np.iinfo(np.int64).min // 2)
    shift = total.max(axis=1, initial=-(2**40))
    shift = np.where(shift < -(2**39), 0, shift)
    return np.ldexp(mantissa, np.clip(total - shift[:, None], -5000, 0)), shift


def _exact_margin(keys: Floats, row: int, others: Ints, query: Floats) -> Fraction:
    weights = [Fraction(entry) for entry in query.tolist()]
    own = _exact_score(keys[row], weights)
    return min(own - _exact_score(keys[j], weights) for j in others if j != row)


def _exact_score(key: Floats, weights: list[Fraction]) -> Fraction:
    return sum((Fraction(entry) * weight for entry, weight in zip(key.tolist(), weights, strict=True)), Fraction(0))


def rows_of(numbers: Ints, problem: int, count: int) -> slice:
    """Which of the ascending key numbers belong to one problem."""
    start, stop = np.searchsorted(numbers, [problem * count, (problem + 1) * count])
    return slice(int(start), int(stop))
