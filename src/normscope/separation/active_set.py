"""A triangular factor R, RᵀR = G, that follows G as points come and go; in compiled code.

Two triangular solves would be most of the work. So R⁻ᵀ1 follows R, which leaves one, and R is kept by columns too, so
that in either solve a new entry is subtracted from those that come after it, all at once.

G is the Gram matrix of the points (y, 1), so that the point of their affine hull nearest to 0 is Σ αⱼyⱼ with α ∝ G⁻¹1.
"""

import math
from typing import NamedTuple

import numpy as np

from normscope.checks import Floats
from normscope.compiled import compiled


class Factor(NamedTuple):
    rows: Floats  # R
    columns: Floats  # Rᵀ, with 1/R on its diagonal
    ones: Floats  # R⁻ᵀ1


@compiled
def empty_factor(room):  # type: ignore[no-untyped-def]
    return Factor(np.zeros((room, room)), np.zeros((room, room)), np.zeros(room))


@compiled
def append_column(factor, size, products, square):  # type: ignore[no-untyped-def]
    """Take in a point by its products with the others and its square; False if it depends on them. Uses up products."""
    for a in range(size):
        entry = products[a] * factor.columns[a, a]
        products[a] = entry
        for b in range(a + 1, size):
            products[b] -= factor.rows[a, b] * entry
    rest, one = square, 1.0
    for a in range(size):
        rest -= products[a] * products[a]
        one -= products[a] * factor.ones[a]
    if rest <= 1e-14 * square:
        return False
    for a in range(size):
        factor.rows[a, size] = factor.columns[size, a] = products[a]
    root = math.sqrt(rest)
    factor.rows[size, size], factor.columns[size, size], factor.ones[size] = root, 1.0 / root, one / root
    return True


@compiled
def remove_column(factor, size, gone):  # type: ignore[no-untyped-def]
    """Drop a point: shift its column out, and rotate the factor back to triangular form."""
    rows, columns, ones = factor.rows, factor.columns, factor.ones
    for row in range(gone):
        for k in range(gone, size - 1):
            rows[row, k] = rows[row, k + 1]
            columns[k, row] = rows[row, k]
    for row in range(gone, size - 1):
        above, below = rows[row, row + 1], rows[row + 1, row + 1]
        length = math.sqrt(above * above + below * below)
        cosine, sine = above / length, below / length
        for k in range(row, size - 1):
            above, below = rows[row, k + 1], rows[row + 1, k + 1]
            rows[row, k] = cosine * above + sine * below
            rows[row + 1, k + 1] = cosine * below - sine * above
        for k in range(row + 1, size - 1):
            columns[k, row] = rows[row, k]
        columns[row, row] = 1.0 / rows[row, row]
        above, below = ones[row], ones[row + 1]
        ones[row], ones[row + 1] = cosine * above + sine * below, cosine * below - sine * above


@compiled
def solve_gram(factor, size, vector):  # type: ignore[no-untyped-def]
    """vector ← G⁻¹ vector."""
    for a in range(size):
        entry = vector[a] * factor.columns[a, a]
        vector[a] = entry
        for b in range(a + 1, size):
            vector[b] -= factor.rows[a, b] * entry
    _solve_upper(factor, size, vector)


@compiled
def _solve_upper(factor, size, vector):  # type: ignore[no-untyped-def]
    for a in range(size - 1, -1, -1):
        entry = vector[a] * factor.columns[a, a]
        vector[a] = entry
        for b in range(a):
            vector[b] -= factor.columns[a, b] * entry


@compiled
def affine_weights(factor, size, weights):  # type: ignore[no-untyped-def]
    """weights ∝ G⁻¹1, with sum 1."""
    for a in range(size):
        weights[a] = factor.ones[a]
    _solve_upper(factor, size, weights)
    total = 0.0
    for a in range(size):
        total += weights[a]
    for a in range(size):
        weights[a] /= total
