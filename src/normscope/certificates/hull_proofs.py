"""What weights prove about a key: that it lies in the hull of others, or only that rounding decides.

    gⱼ = kⱼ − kᵢ      key i is in the hull of keys j      iff      Σ xⱼgⱼ = 0 for some x ≥ 0, x ≠ 0

Weights λ > 0 in floats leave a residual Σλg. They are wrong unless it is rounding error: in every channel below
32(d + 4)·2⁻⁵³ of Σλ|g|, the sum of its absolute terms. If it is, they are a strict proof in three cases:

- in floats: as many keys as channels and one more, and a bound on rounding shows that exact weights λ(1 + δ) exist with
  |δ| < 1. With A = (g·λ, λ), an approximate inverse R and ρ the residual, A is invertible if κ = |I − RA| < 1, and then
  |δ| ≤ |R||ρ|/(1 − κ). The deeper inside the key is, the smaller is δ, in any units of the channels.
- in whole numbers, as floats are: the residual is 0.
- in whole numbers, where keys have few digits: the exact weights on the same keys are not negative.

A bias is one more channel, in which Σλg ≥ 0 is enough. Everything else is a near tie: a change of the gⱼ in their
last digits puts the key into the hull, and another change may put it outside.
"""

from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normscope.checks import Floats

Verdicts = NDArray[np.int8]
Whole = NDArray[Any]  # Python's whole numbers

WRONG, NEAR_TIE, PROVEN = 0, 1, 2
UNIT = 2.0**-53
TINY = 2.0**-1060  # more than numbers and products lose by underflow
SAFE = 1.01  # covers the rounding of the bounds themselves
BLOCK = 2**21  # matrix entries at a time
SMALL, DIGITS = 2**13, 40  # entries times keys, and bits of a difference, up to which exact weights are computed


def tolerance(channels: int) -> float:
    """The share of a sum of absolute terms that counts as rounding."""
    return 32 * (channels + 4) * UNIT


def judged(own: Floats, corners: Floats, weights: Floats, biased: bool) -> Verdicts:
    """What weights (m, s) of corners (m, s, D) prove about keys own (m, D), which carry a bias as last channel or not.

    >>> line = np.array([[[0.0], [3.0]]])
    >>> judged(np.array([[1.0]]), line, np.array([[2 / 3, 1 / 3]]), False)
    array([2], dtype=int8)
    >>> judged(np.array([[0.0]]), np.array([[[1.0], [1e18]]]), np.array([[1.0, 1e-18]]), False)
    array([0], dtype=int8)
    """
    verdicts = np.zeros(len(own), np.int8)
    step = max(1, BLOCK // (corners.shape[1] * max(corners.shape[1], corners.shape[2])))
    for start in range(0, len(own), step):
        part = slice(start, start + step)
        convex = (weights[part] > 0).all(axis=1)
        convex &= np.abs(weights[part].sum(axis=1) - 1) <= tolerance(own.shape[1])
        differences, off = _differences(own[part], corners[part])
        proven = convex & reproduced(differences, weights[part], biased, tolerance(own.shape[1]))
        proven &= proven_in_floats(differences, off, weights[part], biased)
        verdicts[part] = np.where(proven, PROVEN, WRONG)
        for row in start + np.flatnonzero(convex & ~proven):
            whole = whole_differences(corners[row], own[row])
            verdicts[row] = judged_exactly(whole, weights[row], biased)
    return verdicts


def reproduced(differences: Floats, weights: Floats, biased: bool, share: float) -> NDArray[np.bool_]:
    """Whether weights (m, s) bring differences (m, s, D) to 0 up to a share of the absolute terms, in every channel."""
    terms = differences * weights[:, :, None]
    left = terms.sum(axis=1)
    if biased:
        left[:, -1] = np.minimum(left[:, -1], 0.0)
    return np.asarray((np.abs(left) <= share * np.abs(terms).sum(axis=1)).all(axis=1))


def proven_in_floats(differences: Floats, off: Floats, weights: Floats, biased: bool) -> NDArray[np.bool_]:
    """Whether exact weights near these (m, s) bring differences (m, s, D), known up to an error of `off`, to 0."""
    shares = weights[:, :, None]
    terms = differences * shares
    off = np.where(off > 0, SAFE * off * shares + UNIT * np.abs(terms) + TINY, 0.0)
    live = np.asarray(off.any(axis=1))  # (m, D); an exact 0 needs no proof
    corners, channels = weights.shape[1], live.sum(axis=1)
    proven = np.zeros(len(weights), bool)
    fits = channels == corners - 1
    if biased:
        fits_without = channels - live[:, -1] == corners - 1
        proven[fits_without] = _proven_together(
            terms[fits_without], off[fits_without], weights[fits_without], live[fits_without], True
        )
        fits &= ~fits_without
    proven[fits] = _proven_together(terms[fits], off[fits], weights[fits], live[fits], False)
    return proven


def _proven_together(
    terms: Floats, off: Floats, weights: Floats, live: NDArray[np.bool_], above: bool
) -> NDArray[np.bool_]:
    """The same where s − 1 channels are live; with `above`, without the last, whose sum must not be below 0."""
    total, corners = weights.shape
    if not total:
        return np.zeros(0, bool)
    heights, off_heights = terms[:, :, -1], off[:, :, -1]
    live = live.copy()
    live[:, -1] &= not above
    chosen = np.argsort(~live, axis=1, kind="stable")[:, None, : corners - 1]
    terms, off = (np.take_along_axis(part, chosen, axis=2).transpose(0, 2, 1) for part in (terms, off))
    count = (corners + 3) * UNIT
    with np.errstate(all="ignore"):  # overflow proves nothing
        missing = np.abs(terms.sum(axis=2)) + off.sum(axis=2) + count * np.abs(terms).sum(axis=2)
        rows = np.concatenate([terms, weights[:, None, :]], axis=1)
        off = np.concatenate([off, np.zeros((total, 1, corners))], axis=1)
        missing = np.concatenate([missing, np.zeros((total, 1))], axis=1)
        powers = -np.frexp(np.abs(rows).max(axis=2))[1]
        rows, off = np.ldexp(rows, powers[:, :, None]), np.ldexp(off, powers[:, :, None]) + TINY
        missing = np.ldexp(missing, powers)
        inverse = _inverses(rows)
        size = np.abs(inverse)
        beside = np.abs(np.eye(corners) - inverse @ rows) + size @ (off + count * np.abs(rows))
        shrink = 1 - SAFE * beside.sum(axis=2).max(axis=1)
        change = SAFE * (size @ missing[:, :, None])[:, :, 0].max(axis=1) / shrink
        proven = np.asarray((shrink > 0) & (change < 1))
        if above:
            least = heights.sum(axis=1) - SAFE * (
                (off_heights + count * np.abs(heights)).sum(axis=1)
                + change * (np.abs(heights) + off_heights).sum(axis=1)
            )
            proven &= least >= 0
    return proven


def _inverses(matrices: Floats) -> Floats:
    """Inverses of matrices; NaN where there is none."""
    try:
        return np.asarray(np.linalg.inv(matrices))
    except np.linalg.LinAlgError:
        if len(matrices) == 1:
            return np.full(matrices.shape, np.nan)
    return np.concatenate([_inverses(matrix[None]) for matrix in matrices])


def _differences(own: Floats, corners: Floats) -> tuple[Floats, Floats]:
    """corners − own (m, s, D), every channel scaled by a power of two, and bounds on their error."""
    largest = np.maximum(np.abs(own), np.abs(corners).max(axis=1))
    powers = -1 - np.frexp(largest)[1]
    differences = np.ldexp(corners, powers[:, None]) - np.ldexp(own, powers)[:, None]
    return differences, np.where(corners == own[:, None], 0.0, UNIT * np.abs(differences) + TINY)


def whole_differences(corners: Floats, own: Floats) -> Whole:
    """corners (s, D) − own (D,) without rounding, every channel multiplied by the power of two that makes it whole.

    >>> whole_differences(np.array([[0.75, 2.0]]), np.array([0.5, 8.0]))
    array([[1, -3]], dtype=object)
    """
    channels = [whole(np.append(corners[:, channel], own[channel])) for channel in range(len(own))]
    return np.array([channel[:-1] - channel[-1] for channel in channels], object).T


def whole(values: Floats) -> Whole:
    """Finite floats (n,) times the least power of two that makes all of them whole."""
    mantissas, powers = np.frexp(values)
    numbers = (mantissas * 2.0**53).astype(np.int64)
    powers = np.where(numbers == 0, powers.max(), powers).astype(np.int64)
    found: Whole = numbers.astype(object) << (powers - powers.min()).astype(object)
    together = 0
    for number in found:
        together |= abs(number)
    return found >> max(0, (together & -together).bit_length() - 1)


def judged_exactly(differences: Whole, weights: Floats, biased: bool) -> int:
    """What positive weights (s,) prove about differences (s, D) of whole numbers, in any unit for each channel."""
    shares = whole(weights)
    left, size = shares @ differences, shares @ abs(differences)
    if biased:
        left[-1] = min(left[-1], 0)
    if not all(abs(a) * 2**53 <= 32 * (len(left) + 4) * b for a, b in zip(left, size, strict=True)):
        return WRONG
    return PROVEN if not left.any() or _has_exact_weights(differences, biased) else NEAR_TIE


def _has_exact_weights(differences: Whole, biased: bool) -> bool:
    """Whether the only weights that bring differences of few digits to 0 are not negative."""
    corners, channels = differences.shape
    if corners**2 * channels > SMALL or max(abs(entry) for entry in differences.flat).bit_length() > DIGITS:
        return False
    rows = [[Fraction(entry) for entry in (*column, 0)] for column in differences.T]
    rows.append([Fraction(1)] * (corners + 1))
    found = _only_solution([*rows[:-2], rows[-1]], corners) if biased else None
    found = found or _only_solution(rows, corners)
    if found is None or min(found) < 0:
        return False
    return not biased or sum(x * height for x, height in zip(found, differences[:, -1], strict=True)) >= 0


def _only_solution(rows: list[list[Fraction]], unknowns: int) -> list[Fraction] | None:
    """The x of rows (a, b), a·x = b; None if there is none, or more than one."""
    rows = [row.copy() for row in rows]
    for place in range(unknowns):
        pivot = next((number for number in range(place, len(rows)) if rows[number][place]), None)
        if pivot is None:
            return None
        rows[place], rows[pivot] = rows[pivot], rows[place]
        head = [entry / rows[place][place] for entry in rows[place]]
        for number, row in enumerate(rows):
            if row[place]:
                rows[number] = [a - row[place] * b for a, b in zip(row, head, strict=True)]
        rows[place] = head
    return [row[-1] for row in rows[:unknowns]] if not any(row[-1] for row in rows[unknowns:]) else None
