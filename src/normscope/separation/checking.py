"""Are these certificates right? From the keys and the certificates alone: nothing of the solver is used here.

A margin counts if it is above what rounding can do. With the keys centred at any point c, k' = fl(k − c), and scores
s = q·k' in double precision (unit roundoff u = 2⁻⁵³), in whatever order the d products are added,

    |(sᵢ − sⱼ) − q·(kᵢ − kⱼ)|  ≤  2(d + 4)·u·Σₖ |qₖ|·maxⱼ|k'ⱼₖ|

A margin that is not above it is computed again without rounding. A bias is one more channel, of weight 1 in the query.

Weights count if none is negative, their sum is 1, and Σλk − kᵢ is rounding: in every channel below 32(d + 4)·u of the
largest |k'|. With a bias, Σλb ≥ bᵢ up to the same.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from normscope.checks import Floats
from normscope.separation.certificates import Certificates, Ints

UNIT = 2.0**-53
BLOCK = 2**19  # scores at a time


def first_fault(
    keys: Floats,
    bias: Floats | None,
    mask: NDArray[np.bool_],
    degenerate: NDArray[np.bool_],
    certificates: Certificates,
) -> str | None:
    """The first thing that is wrong with the answers for keys (..., n, d); None if each one has its proof."""
    return next(_faults(keys, bias, mask, degenerate, certificates), None)


def lifted(keys: Floats, bias: Floats | None) -> Floats:
    """Keys (..., n, d) with their bias, if any, as channel d."""
    return keys if bias is None else np.concatenate([keys, bias[..., None]], axis=-1)


@dataclass(frozen=True, eq=False)
class Margins:
    least: Floats  # by how much each query prefers its key at least
    proven: NDArray[np.bool_]  # whether that is above 0 beyond doubt
    rounding: Floats  # how far least may be off
    gap: Floats  # least over the size of the scores, Σₖ |qₖ|·maxⱼ|k'ⱼₖ|


def margins(keys: Floats, rows: Ints, queries: Floats) -> Margins:
    """How each query scores keys[row] against all other keys.

    >>> found = margins(np.array([[0.0], [1.0], [3.0]]), np.array([2, 1]), np.array([[1.0], [1.0]]))
    >>> found.least, found.proven
    (array([ 2., -2.]), array([ True, False]))
    """
    finite = np.asarray(np.isfinite(queries).all(axis=1))
    if len(keys) == 1:
        endless = np.full(len(rows), np.inf)
        return Margins(endless, finite, np.zeros(len(rows)), endless)
    centred, exponents = _centred(keys)
    widest = np.abs(centred).max(axis=0)
    scaled, shift = _scaled_queries(np.where(finite[:, None], queries, 0.0), exponents, widest > 0)
    size = np.abs(scaled) @ widest
    bounds = 2 * (keys.shape[1] + 4) * UNIT * size
    least, proven = np.empty(len(rows)), np.zeros(len(rows), bool)
    step = max(1, BLOCK // len(keys))
    for start in range(0, len(rows), step):
        part = slice(start, start + step)
        some, line = rows[part], np.arange(len(rows[part]))
        scores = scaled[part] @ centred.T
        own = scores[line, some]
        scores[line, some] = -np.inf
        least[part] = own - scores.max(axis=1)
        proven[part] = least[part] > bounds[part]
        for a in np.flatnonzero((np.abs(least[part]) <= bounds[part]) & finite[part]):
            near = np.flatnonzero(own[a] - scores[a] <= 2 * bounds[start + a])
            exact = _exact_margin(keys, int(some[a]), near, queries[start + a])
            least[start + a] = float(exact * Fraction(2) ** -int(shift[start + a]))
            proven[start + a] = exact > 0
    with np.errstate(over="ignore", under="ignore", divide="ignore", invalid="ignore"):
        return Margins(np.ldexp(least, shift), proven, np.ldexp(bounds, shift), least / size)


@dataclass(frozen=True, eq=False)
class Residuals:
    length: Floats  # |Σλk − kᵢ|
    right: NDArray[np.bool_]  # whether it is rounding in every channel, and the weights are convex
    rounding: float  # a length that is rounding


def residuals(keys: Floats, biased: bool, rows: Ints, starts: Ints, indices: Ints, weights: Floats) -> Residuals:
    """How well weights reproduce keys[rows]; those of row a are entries starts[a] to starts[a + 1].

    >>> line = np.array([[0.0], [1.0], [4.0]])
    >>> found = residuals(line, False, np.array([1]), np.array([0, 2]), np.array([0, 2]), np.array([0.75, 0.25]))
    >>> found.length, found.right
    (array([0.]), array([ True]))
    """
    if not len(rows):
        return Residuals(np.zeros(0), np.zeros(0, bool), 0.0)
    centred, exponents = _centred(keys)
    widest = np.abs(centred).max(axis=0)
    tolerance = 32 * (keys.shape[1] + 4) * UNIT
    missing = np.add.reduceat(weights[:, None] * centred[indices], starts[:-1]) - centred[rows]
    if biased:
        missing[:, -1] = np.minimum(missing[:, -1], 0.0)
    owner = np.repeat(rows, np.diff(starts))
    right = (np.abs(missing) <= tolerance * widest).all(axis=1)
    right &= np.abs(np.add.reduceat(weights, starts[:-1]) - 1) <= tolerance
    right &= ~np.logical_or.reduceat((weights < 0) | (indices == owner), starts[:-1])
    return Residuals(_lengths(missing, exponents), right, tolerance * _lengths(widest[None], exponents)[0])


def form_faults(
    keys: Floats, mask: NDArray[np.bool_], degenerate: NDArray[np.bool_], certificates: Certificates
) -> Iterator[str]:
    """Whether there is one certificate of the right kind for every verdict, before any of them is looked at."""
    yield from _shape_faults(keys, mask, degenerate, certificates)
    wins, loses = np.zeros(mask.size, bool), np.zeros(mask.size, bool)
    wins[certificates.query_keys], loses[certificates.weight_keys] = True, True
    for name, wrong in (
        ("is called selectable without a query", mask.ravel() & ~wins),
        ("is called unselectable although it has a query", ~mask.ravel() & wins),
        ("has both a query and weights", wins & loses),
        ("has no certificate and is not marked degenerate", ~wins & ~loses & ~degenerate.ravel()),
    ):
        if wrong.any():
            yield f"key {place_of(np.flatnonzero(wrong)[0], mask.shape)} {name}"


def _faults(
    keys: Floats,
    bias: Floats | None,
    mask: NDArray[np.bool_],
    degenerate: NDArray[np.bool_],
    certificates: Certificates,
) -> Iterator[str]:
    """To be asked for the first only: each check relies on those before it."""
    count = keys.shape[-2]
    yield from form_faults(keys, mask, degenerate, certificates)
    matrices = lifted(keys, bias).reshape(-1, count, keys.shape[-1] + (bias is not None))
    for number, matrix in enumerate(matrices):
        rows = rows_of(certificates.query_keys, number, count)
        queries = certificates.queries[rows]
        queries = queries if bias is None else np.column_stack([queries, np.ones(len(queries))])
        found = margins(matrix, certificates.query_keys[rows] - number * count, queries)
        if not found.proven.all():
            key = certificates.query_keys[rows][~found.proven][0]
            yield f"the query of key {place_of(key, mask.shape)} does not prefer it to all others"
        claimed = certificates.margins[rows] <= found.least + 2 * found.rounding
        if not claimed.all():
            key = certificates.query_keys[rows][~claimed][0]
            yield f"the query of key {place_of(key, mask.shape)} prefers it by less than its margin says"
        rows = rows_of(certificates.weight_keys, number, count)
        starts = certificates.starts[rows.start : rows.stop + 1]
        entries = slice(starts[0], starts[-1])
        reproduced = residuals(
            matrix,
            bias is not None,
            certificates.weight_keys[rows] - number * count,
            starts - starts[0],
            certificates.indices[entries],
            certificates.weights[entries],
        )
        if not reproduced.right.all():
            key = certificates.weight_keys[rows][~reproduced.right][0]
            yield f"the weights of key {place_of(key, mask.shape)} do not reproduce it"
        claimed = np.abs(certificates.residuals[rows] - reproduced.length) <= reproduced.rounding
        if not claimed.all():
            key = certificates.weight_keys[rows][~claimed][0]
            yield f"the weights of key {place_of(key, mask.shape)} leave another residual than they say"


def _centred(keys: Floats) -> tuple[Floats, Ints]:
    """keys minus their mean, every channel scaled into [−1, 1] by a power of two, and those powers."""
    first = _exponents(keys)
    scaled = np.ldexp(keys, -first)
    centred = scaled - scaled.mean(axis=0)
    second = _exponents(centred)
    return np.ldexp(centred, -second), first + second


def _exponents(values: Floats) -> Ints:
    """Per column e with max|values| in [2^(e−1), 2^e)."""
    return np.asarray(np.frexp(np.abs(values).max(axis=0))[1], np.int64)


def _lengths(vectors: Floats, exponents: Ints) -> Floats:
    """Euclidean lengths of vectors in the scaled channels, in the units of the keys."""
    largest = exponents.max()
    with np.errstate(over="ignore", under="ignore"):
        return np.asarray(np.ldexp(np.linalg.norm(np.ldexp(vectors, exponents - largest), axis=1), largest))


def _scaled_queries(queries: Floats, exponents: Ints, alive: NDArray[np.bool_]) -> tuple[Floats, Ints]:
    """Queries for the centred keys, of size about 1, and the power of two that was taken out of each."""
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


def _shape_faults(
    keys: Floats, mask: NDArray[np.bool_], degenerate: NDArray[np.bool_], certificates: Certificates
) -> Iterator[str]:
    """What would make the arrays unreadable: checked first, because they may come from a file."""
    shape, c = keys.shape[:-1], certificates
    if not (mask.shape == degenerate.shape == c.shape == shape):
        yield f"mask, degenerate and certificates must have shape {shape}, as the keys have"
    if c.queries.shape != (len(c.query_keys), keys.shape[-1]) or c.margins.shape != c.query_keys.shape:
        yield "there must be one query with its margin per selectable key"
    if c.starts.shape != (len(c.weight_keys) + 1,) or c.residuals.shape != c.weight_keys.shape:
        yield "there must be one set of weights with its residual per unselectable key"
    if c.indices.shape != c.weights.shape or c.starts[0] != 0 or c.starts[-1] != len(c.weights):
        yield "the weights must be split up by their starts"
    if (np.diff(c.starts) < 1).any() or ((c.indices < 0) | (c.indices >= shape[-1])).any():
        yield "weights must name one or more keys of their own problem"
    for numbers in (c.query_keys, c.weight_keys):
        if (np.diff(numbers) <= 0).any() or ((numbers < 0) | (numbers >= mask.size)).any():
            yield f"certificates must be in the order of the keys, one for each of {mask.size} at most"
    if not (np.isfinite(c.queries).all() and np.isfinite(c.weights).all()):
        yield "queries and weights must be finite"


def rows_of(numbers: Ints, problem: int, count: int) -> slice:
    """Which of the ascending key numbers belong to one problem."""
    start, stop = np.searchsorted(numbers, [problem * count, (problem + 1) * count])
    return slice(int(start), int(stop))


def place_of(key: int, shape: tuple[int, ...]) -> str:
    return ", ".join(str(entry) for entry in np.unravel_index(int(key), shape))
