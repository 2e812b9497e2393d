"""A triangular factor R, RᵀR = G, that follows G as points come and go; in compiled code.

G is the Gram matrix of the points (y, 1), so that the point of their affine hull nearest to 0 is Σ αⱼyⱼ with α ∝ G⁻¹1.
"""

import math

from normscope.compiled import compiled


@compiled
def append_column(factor, size, products, square):  # type: ignore[no-untyped-def]
    """Take in a point by its products with the others and its square; False if it depends on them. Uses up products."""
    for a in range(size):
        entry = products[a] / factor[a, a]
        products[a] = entry
        for b in range(a + 1, size):
            products[b] -= factor[a, b] * entry
    rest = square
    for a in range(size):
        rest -= products[a] * products[a]
    if rest <= 1e-14 * square:
        return False
    for a in range(size):
        factor[a, size] = products[a]
    factor[size, size] = math.sqrt(rest)
    return True


@compiled
def remove_column(factor, size, gone):  # type: ignore[no-untyped-def]
    """Drop a point: shift its column out and rotate the factor back to triangular form."""
    for row in range(size):
        for column in range(max(gone, row - 1), size - 1):
            factor[row, column] = factor[row, column + 1]
    for column in range(gone, size - 1):
        above, below = factor[column, column], factor[column + 1, column]
        length = math.sqrt(above * above + below * below)
        cosine, sine = above / length, below / length
        factor[column, column], factor[column + 1, column] = length, 0.0
        for k in range(column + 1, size - 1):
            above, below = factor[column, k], factor[column + 1, k]
            factor[column, k], factor[column + 1, k] = cosine * above + sine * below, cosine * below - sine * above


@compiled
def solve_gram(factor, size, vector):  # type: ignore[no-untyped-def]
    """vector ← G⁻¹ vector."""
    for a in range(size):
        entry = vector[a] / factor[a, a]
        vector[a] = entry
        for b in range(a + 1, size):
            vector[b] -= factor[a, b] * entry
    for a in range(size - 1, -1, -1):
        entry = vector[a]
        for b in range(a + 1, size):
            entry -= factor[a, b] * vector[b]
        vector[a] = entry / factor[a, a]


@compiled
def affine_weights(factor, size, weights):  # type: ignore[no-untyped-def]
    """weights ∝ G⁻¹1, with sum 1."""
    for a in range(size):
        weights[a] = 1.0
    solve_gram(factor, size, weights)
    total = 0.0
    for a in range(size):
        total += weights[a]
    for a in range(size):
        weights[a] /= total
