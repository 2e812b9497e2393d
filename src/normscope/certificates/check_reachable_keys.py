"""Check certificates for reachable queries, from keys, ellipsoid and certificates alone.

Queries are q = c + Ay with |y| ≤ 1, so that key k scores y·(Aᵀk) + c·k + b: the lifted key (Aᵀk, c·k + b) times (y, 1).

    a y             |y| ≤ 1, and (y, 1) scores lifted key i above all others     a reachable query prefers key i
    weights λ ≥ 0   Σλ = 1, and with (x, t) = lifted key i − Σλ·lifted keys,
                    |x| + t ≤ 0                                                  no reachable query prefers key i

Lifting and scoring are in double precision, unit roundoff u = 2⁻⁵³, with keys centred first. An entry of a lifted key
is off by (d + 4)·u·Σ|k'||A| at most, a score by that and (r + 5)·u times the sizes it adds up. A margin, or −(|x| + t),
must exceed the sum of both. A margin that does not is recomputed without rounding; weights then have to reproduce
the key itself, as without an ellipsoid, and are a proof or a near tie as `hull_proofs` decides.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from normscope.certificates.hull_proofs import PROVEN, UNIT, Verdicts
from normscope.certificates.key_certificates import Certificates, Ints
from normscope.certificates.key_margins import BLOCK, judged_sets, lifted, residuals, rows_of
from normscope.checks import Floats

MARGINS = ("least", "proven", "rounding", "gap")
ADVANTAGES = ("largest", "proven", "right", "rounding", "gap")


@dataclass(frozen=True, eq=False)
class Lifted:
    """Lifted keys: the vectors that (y, 1) scores."""

    rows: Floats  # (n, r + 1), divided by 2^exponent
    errors: Floats  # (r + 1,): bounds on the error of an entry
    exponent: int

    def in_units_of_scores(self, values: Floats) -> Floats:
        with np.errstate(over="ignore", under="ignore"):
            return np.asarray(np.ldexp(values, self.exponent))


def lift(keys: Floats, bias: Floats | None, matrix: Floats, center: Floats) -> Lifted:
    """Lifted keys of one set (n, d) for queries center + matrix·y, matrix (d, r).

    >>> seen = lift(np.array([[1.0], [3.0]]), None, np.array([[2.0]]), np.array([1.0]))
    >>> seen.in_units_of_scores(seen.rows)
    array([[-2., -1.],
           [ 2.,  1.]])
    """
    map_exponent = _exponent(np.append(matrix, center))
    both = np.ldexp(np.column_stack([matrix, center]), -map_exponent)
    key_exponent = _exponent(keys)
    centred = np.ldexp(keys, -key_exponent)
    centred = centred - centred.mean(axis=0)
    rows = centred @ both
    sizes = np.abs(centred) @ np.abs(both)
    exponent = map_exponent + key_exponent
    if bias is not None:
        heights = np.ldexp(bias - bias.mean(), -exponent)
        rows[:, -1] += heights
        sizes[:, -1] += np.abs(heights)
    return Lifted(rows, (keys.shape[1] + 4) * UNIT * sizes.max(axis=0) + 1e-300, exponent)


@dataclass(frozen=True, eq=False)
class ReachMargins:
    least: Floats  # a lower bound on the lead of each key at (y, 1)
    proven: NDArray[np.bool_]  # whether that is certainly above 0, and y is in the ball
    rounding: Floats
    gap: Floats  # least over the size of the scores


def reach_margins(
    keys: Floats, bias: Floats | None, matrix: Floats, center: Floats, rows: Ints, coordinates: Floats
) -> ReachMargins:
    """How each center + matrix·y scores keys[row] against all other keys of the set.

    >>> line, middle = np.array([[0.0], [1.0]]), np.zeros((1, 1))
    >>> found = reach_margins(line, None, np.eye(1), np.array([3.0]), np.array([1]), middle)
    >>> found.least, found.proven
    (array([3.]), array([ True]))
    """
    in_ball = np.einsum("ij,ij->i", coordinates, coordinates) <= 1 - 2 * (coordinates.shape[1] + 2) * UNIT
    in_ball &= np.isfinite(coordinates).all(axis=1)
    if len(keys) == 1:
        endless = np.full(len(rows), np.inf)
        return ReachMargins(endless, in_ball, np.zeros(len(rows)), endless)
    seen = lift(keys, bias, matrix, center)
    queries = np.column_stack([np.where(in_ball[:, None], coordinates, 0.0), np.ones(len(rows))])
    sizes = np.abs(queries) @ np.abs(seen.rows).max(axis=0)
    bounds = 2 * (np.abs(queries) @ seen.errors + (coordinates.shape[1] + 5) * UNIT * sizes)
    least, proven = np.empty(len(rows)), np.zeros(len(rows), bool)
    step = max(1, BLOCK // len(keys))
    for start in range(0, len(rows), step):
        part = slice(start, start + step)
        some, line = rows[part], np.arange(len(rows[part]))
        scores = queries[part] @ seen.rows.T
        own = scores[line, some]
        scores[line, some] = -np.inf
        least[part] = own - scores.max(axis=1)
        proven[part] = least[part] > bounds[part]
        for a in np.flatnonzero((np.abs(least[part]) <= bounds[part]) & in_ball[part]):
            near = np.flatnonzero(own[a] - scores[a] <= 2 * bounds[start + a])
            near = near[near != some[a]]
            proven[start + a] = _wins_exactly(keys, bias, matrix, center, int(some[a]), near, coordinates[start + a])
    with np.errstate(divide="ignore", invalid="ignore"):
        gap = least / sizes
    return ReachMargins(seen.in_units_of_scores(least), proven & in_ball, seen.in_units_of_scores(bounds), gap)


@dataclass(frozen=True, eq=False)
class Advantages:
    largest: Floats  # |x| + t: no reachable query prefers the key to the weighted mean of others by more
    proven: NDArray[np.bool_]  # whether that is certainly not above 0, and the weights are convex
    right: NDArray[np.bool_]  # otherwise, whether the weights reproduce the key itself
    rounding: Floats
    gap: Floats  # −largest over the size of the lifted keys


def advantages(
    keys: Floats,
    bias: Floats | None,
    matrix: Floats,
    center: Floats,
    rows: Ints,
    starts: Ints,
    indices: Ints,
    weights: Floats,
) -> Advantages:
    """How far a reachable query can prefer keys[rows] to weighted means; those of row a are starts[a] to starts[a + 1].

    >>> line = np.array([[0.0], [1.0], [2.0]])
    >>> place = (line, None, np.eye(1), np.array([3.0]))
    >>> found = advantages(*place, np.array([0]), np.array([0, 1]), np.array([1]), np.ones(1))
    >>> found.largest, found.right
    (array([-2.]), array([ True]))
    """
    if not len(rows):
        nothing = np.zeros(0)
        return Advantages(nothing, np.zeros(0, bool), np.zeros(0, bool), nothing, nothing)
    seen = lift(keys, bias, matrix, center)
    left = seen.rows[rows] - np.add.reduceat(weights[:, None] * seen.rows[indices], starts[:-1])
    largest = np.linalg.norm(left[:, :-1], axis=1) + left[:, -1]
    total = np.add.reduceat(weights, starts[:-1])
    size = np.linalg.norm(np.abs(seen.rows).max(axis=0))
    entries = np.diff(starts)
    bounds = (
        4 * np.linalg.norm(seen.errors) + (np.abs(total - 1) + (entries + seen.rows.shape[1] + 5) * 2 * UNIT) * 2 * size
    )
    convex = np.abs(total - 1) <= 32 * (keys.shape[1] + 4) * UNIT
    owner = np.repeat(rows, entries)
    convex &= ~np.logical_or.reduceat((weights <= 0) | (indices == owner), starts[:-1])
    proven = convex & (largest + bounds <= 0)
    plain = residuals(lifted(keys, bias), bias is not None, rows, starts, indices, weights).right
    return Advantages(
        seen.in_units_of_scores(largest),
        proven,
        proven | (convex & plain),
        seen.in_units_of_scores(bounds),
        -largest / max(size, 1e-300),
    )


def reach_margins_of_sets(keys: Floats, bias: Floats | None, certificates: Certificates) -> ReachMargins:
    """How the queries of certificates score keys (..., n, d)."""
    c, (matrix, center), parts = certificates, _reach(certificates), []
    for number, (some, height) in enumerate(_sets(keys, bias)):
        rows = rows_of(c.query_keys, number, len(some))
        own = c.query_keys[rows] - number * len(some)
        parts.append(reach_margins(some, height, matrix, center, own, c.queries[rows]))
    return ReachMargins(*(np.concatenate([getattr(part, name) for part in parts]) for name in MARGINS))


def advantages_of_sets(keys: Floats, bias: Floats | None, certificates: Certificates) -> tuple[Advantages, Verdicts]:
    """How far reachable queries can prefer keys (..., n, d) to weighted means, and what each set of weights proves."""
    c, (matrix, center), parts, kinds = certificates, _reach(certificates), [], []
    for number, (some, height) in enumerate(_sets(keys, bias)):
        rows = rows_of(c.weight_keys, number, len(some))
        starts = c.starts[rows.start : rows.stop + 1]
        entries = slice(starts[0], starts[-1])
        own = c.weight_keys[rows] - number * len(some)
        weighted = (own, starts - starts[0], c.indices[entries], c.weights[entries])
        parts.append(advantages(some, height, matrix, center, *weighted))
        kinds.append(_kinds(some, height, parts[-1], *weighted))
    together = Advantages(*(np.concatenate([getattr(part, name) for part in parts]) for name in ADVANTAGES))
    return together, np.concatenate(kinds)


def _reach(certificates: Certificates) -> tuple[Floats, Floats]:
    assert certificates.reach is not None
    return certificates.reach


def _sets(keys: Floats, bias: Floats | None) -> Iterator[tuple[Floats, Floats | None]]:
    sets = keys.reshape(-1, *keys.shape[-2:])
    heights = [None] * len(sets) if bias is None else list(bias.reshape(len(sets), -1))
    return zip(sets, heights, strict=True)


def _kinds(
    keys: Floats,
    bias: Floats | None,
    held: Advantages,
    rows: Ints,
    starts: Ints,
    indices: Ints,
    weights: Floats,
) -> Verdicts:
    """What weights prove; where the ellipsoid leaves doubt, judged as if any query were allowed."""
    kinds = np.full(len(rows), PROVEN, np.int8)
    doubtful = np.flatnonzero(~held.proven)
    if len(doubtful):
        entries = np.concatenate([np.arange(starts[row], starts[row + 1]) for row in doubtful])
        begin = np.append(0, np.cumsum(np.diff(starts)[doubtful]))
        weighted = (rows[doubtful], begin, indices[entries], weights[entries])
        kinds[doubtful] = judged_sets(lifted(keys, bias), bias is not None, *weighted)
    return kinds


def _wins_exactly(
    keys: Floats, bias: Floats | None, matrix: Floats, center: Floats, row: int, others: Ints, coordinates: Floats
) -> bool:
    along = [Fraction(entry) for entry in coordinates.tolist()]
    query = [
        Fraction(float(start))
        + sum((Fraction(float(entry)) * part for entry, part in zip(line, along, strict=True)), Fraction(0))
        for start, line in zip(center, matrix, strict=True)
    ]

    def score(key: int) -> Fraction:
        start = Fraction(0) if bias is None else Fraction(float(bias[key]))
        return sum((Fraction(float(entry)) * part for entry, part in zip(keys[key], query, strict=True)), start)

    own = score(row)
    return all(own > score(int(other)) for other in others)


def _exponent(values: Floats) -> int:
    """e with max|values| in [2^(e−1), 2^e)."""
    return int(np.frexp(np.abs(values).max())[1])
