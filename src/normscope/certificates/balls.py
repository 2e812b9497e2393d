"""A network of LayerNorms of width 3 in ball arithmetic: every number is a midpoint and a radius that covers all
rounding, so whatever holds for the balls holds for the real numbers.

The weights are those that the module stores, which are binary fractions and so exact. LayerNorm of width 3 is taken in
the plane of vectors with mean zero, in the coordinates of `plane_scaling`; that is an identity:

    z = Wo + b,  o' = LN(z)        is        h = (√3·UᵀWU)x + Uᵀb,  x' = h/√(|h|² + 3·eps)        with o = √3·Ux
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from normscope.checks import Floats

Ball = Any  # flint.arb, which has no type stubs
Point = tuple[Ball, Ball]
BLOCK = 2**18  # sample values converted to balls at a time


class BallMap(NamedTuple):
    """x -> matrix @ x + shift, in balls."""

    matrix: list[list[Ball]]
    shift: list[Ball]


@contextmanager
def precision(bits: int) -> Iterator[None]:
    """A context in which all ball arithmetic rounds to this number of bits."""
    from flint import ctx

    with ctx.workprec(bits):
        yield


def ball(value: Any) -> Ball:
    from flint import arb

    return arb(value)


def ball_map(layer: NDArray[Any], *, reads: bool, writes: bool) -> BallMap:
    """A Linear as a map of the plane; it reads a LayerNorm of width 3, writes for one, or both.

    layer: its weight with the bias as last column.
    """
    weights = [[ball(value) for value in row] for row in layer[:, :-1].tolist()]
    shift = [[ball(value)] for value in layer[:, -1].tolist()]
    basis = _basis()
    if writes:
        across = [list(column) for column in zip(*basis, strict=True)]  # Uᵀ
        weights, shift = _product(across, weights), _product(across, shift)
    if reads:
        root = ball(3).sqrt()
        weights = [[root * value for value in row] for row in _product(weights, basis)]
    return BallMap(weights, [row[0] for row in shift])


def as_linear(affine: BallMap, *, reads: bool, writes: bool) -> tuple[list[list[Ball]], list[Ball]]:
    """The inverse of `ball_map`: weights and biases of the Linear that acts as this map of the plane."""
    basis = _basis()
    matrix, shift = affine.matrix, [[value] for value in affine.shift]
    if reads:
        root = ball(3).rsqrt()
        across = [list(column) for column in zip(*basis, strict=True)]  # Uᵀ
        matrix = [[root * value for value in row] for row in _product(matrix, across)]
    if writes:
        matrix, shift = _product(basis, matrix), _product(basis, shift)
    return matrix, [row[0] for row in shift]


def images(affine: BallMap, samples: Floats) -> list[list[Ball]]:
    """A map of the samples themselves: (m, d) exact floats to m rows of balls."""
    from flint import arb_mat

    across = arb_mat([list(column) for column in zip(*affine.matrix, strict=True)])  # (d, out)
    width, rows = len(affine.shift), max(1, BLOCK // samples.shape[1])
    found: list[list[Ball]] = []
    for first in range(0, len(samples), rows):
        product = (arb_mat(samples[first : first + rows].tolist()) * across).entries()
        found += [
            [value + add for value, add in zip(product[row : row + width], affine.shift, strict=True)]
            for row in range(0, len(product), width)
        ]
    return found


def mapped(affine: BallMap, points: Sequence[Point]) -> list[list[Ball]]:
    """A map of points of the plane."""
    rows = list(zip(affine.matrix, affine.shift, strict=True))
    return [[row[0] * x + row[1] * y + shift for row, shift in rows] for x, y in points]


def scaled(rows: Sequence[Sequence[Ball]], eps: float) -> list[Point]:
    """h -> h/√(|h|² + 3·eps), which is the LayerNorm."""
    extra = 3 * ball(eps)
    points = []
    for u, v in rows:
        shrunk = (u * u + v * v + extra).rsqrt()
        points.append((u * shrunk, v * shrunk))
    return points


def _basis() -> list[list[Ball]]:
    """U, as in `plane_scaling`."""
    half, sixth = ball(2).rsqrt(), ball(6).rsqrt()
    return [[half, sixth], [-half, sixth], [ball(0), -2 * sixth]]


def _product(left: Sequence[Sequence[Ball]], right: Sequence[Sequence[Ball]]) -> list[list[Ball]]:
    columns = list(zip(*right, strict=True))
    return [[sum(map(_times, row, column), ball(0)) for column in columns] for row in left]


def _times(a: Ball, b: Ball) -> Ball:
    return a * b


def as_floats_of(balls: Sequence[Ball]) -> Floats:
    """The midpoints, rounded; 0 where a ball contains 0."""
    return np.array([0.0 if value.contains(0) else float(value) for value in balls])
