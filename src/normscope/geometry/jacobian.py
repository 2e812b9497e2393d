"""Singular values of a norm's Jacobian at a point, without forming it.

    J = G (Π − ssᵀ/c) / r  in each group,    JJᵀ = G (I − VVᵀ) G / r²,    V = [1̂, κŝ],   κ² = 1 − δ²

with ŝ the direction of s and δ = ε/r² what is left of the Jacobian along it. How many squared singular values lie below
μ takes one pass over the channels: by Sylvester's law of inertia it is

    #{gₙ² < μ} + the number of negative eigenvalues of  diag(0, δ²/μ) − Vᵀ(G² − μ)⁻¹V

which cancels nowhere, so bisection on that count finds small values as accurately as large ones: O(N²) for all of them.
"""

import numpy as np

from normscope.checks import Floats
from normscope.compiled import compiled
from normscope.norm import Norm

NEGLIGIBLE = 1e-60  # a gain this small beside the largest of its group counts as zero: its square would underflow
ZERO = 1e-280  # so does a square this small beside the largest


def singular_values(norm: Norm, scaled: Floats, root: Floats) -> Floats:
    """All N values, descending, from the output (g, c) and the divisor (g,) of the scale step at the point."""
    parts = []
    for gain, s, r in zip(np.split(np.abs(norm.gain), norm.groups), scaled, root, strict=True):
        largest = gain.max()
        if largest == 0.0:
            parts.append(gain)
            continue
        length = np.linalg.norm(s)
        bends = bool(norm.scales and length > 0.0)
        left = (np.sqrt(norm.eps) / r) ** 2  # δ
        direction = s * (np.sqrt((1.0 - left) * (1.0 + left)) / length) if bends else np.zeros_like(s)
        order = np.argsort(gain)
        unit = gain[order] / largest
        unit[unit < NEGLIGIBLE] = 0.0
        squares = _squared_values(unit**2, direction[order], left**2, norm.projects, bends)
        parts.append(np.sqrt(squares) * (largest / r))
    return np.sort(np.concatenate(parts))[::-1]


@compiled
def _squared_values(squares: Floats, direction: Floats, left: float, projects: bool, bends: bool) -> Floats:
    """Eigenvalues, ascending, of G(I − VVᵀ)G for gains whose squares ascend."""
    values = np.empty(len(squares))
    corrections = int(projects) + int(bends)
    for i in range(len(squares)):
        low = max(ZERO, squares[i - corrections]) if i >= corrections else ZERO
        high = max(squares[i], low)
        if _count_below(low, squares, direction, left, projects, bends) > i:
            values[i] = low if low > ZERO else 0.0
            continue
        # Halve the bit patterns of positive floats, which are in their order: 62 steps settle the last bit at any size.
        bits = np.array([low, high]).view(np.int64)
        while bits[1] - bits[0] > 1:
            middle = bits[0] + (bits[1] - bits[0]) // 2
            at = np.array([middle]).view(np.float64)[0]
            if _count_below(at, squares, direction, left, projects, bends) > i:
                bits[1] = middle
            else:
                bits[0] = middle
        values[i] = bits[1:].view(np.float64)[0]
    return values


@compiled
def _count_below(at, squares, direction, left, projects, bends):  # type: ignore[no-untyped-def]
    """How many eigenvalues are below a point."""
    count = 0
    ones, mixed, along = 0.0, 0.0, 0.0  # Vᵀ(G² − μ)⁻¹V, its first row and column times √c
    for n in range(len(squares)):
        count += squares[n] < at
        inverse = 1.0 / _distance(squares[n], at)
        ones += inverse
        mixed += inverse * direction[n]
        along += inverse * direction[n] * direction[n]
    rest = left / at - along
    if not bends:
        return count + (projects and ones > 0.0)
    if not projects:
        return count + (rest < 0.0)
    if -ones * rest < 0.5 * mixed * mixed:  # the determinant is clearly negative
        return count + 1
    # What is left of `along` beside the ones, as a weighted variance: at a pole, products of sums would cancel.
    middle, variance = (mixed / ones if ones != 0.0 else 0.0), 0.0
    for n in range(len(squares)):
        variance += (direction[n] - middle) ** 2 / _distance(squares[n], at)
    return count + (ones > 0.0) + (left / at - variance < 0.0)


@compiled
def _distance(square, at):  # type: ignore[no-untyped-def]
    """From a point to a pole; a point on the pole counts as just below it."""
    return square - at if square != at else 1e-16 * square
