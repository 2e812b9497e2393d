"""Networks of LayerNorms of width 3 as plain arrays: the weights that a module stores, and exact weights of many bits.

    Linear, LayerNorm(3), Linear, …, LayerNorm(3), Linear

A Linear is one array: its weight, with the bias as the last column. Exact weights are maps of the plane (see `balls`)
after a line p = w·x + b; each is a mantissa and a power of two. The module then holds them rounded, each weight once
to float64 and then to its own dtype, which gives the same bits on every machine.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from normscope.certificates.balls import (
    Ball,
    BallMap,
    as_floats_of,
    as_linear,
    ball,
    ball_map,
    images,
    precision,
)
from normscope.checks import Floats
from normscope.errors import InputError

WIDTH = 3
Layers = Sequence[NDArray[Any]]  # of Linears, each (out, in + 1)
BASIS: Floats = np.array([[1.0, 1.0], [-1.0, 1.0], [0.0, -2.0]]) / np.sqrt([2.0, 6.0])  # (3, 2): U, as in `balls`
HIGHEST = 2**17  # bits, of arithmetic and of exact weights
BITS, BITS_PER_LAYER = 80, 4  # of arithmetic, to begin with
LEAST = 64  # bits that exact arithmetic begins with
ROUNDING = 128  # bits beyond those of the weights, so that each weight of the module is rounded once


class StoredNetwork(NamedTuple):
    """The network with the weights that a module stores."""

    layers: Layers
    eps: float

    @property
    def depth(self) -> int:
        """The number of LayerNorms."""
        return len(self.layers) - 1

    @property
    def first_bits(self) -> int:
        """Initial precision, likely enough to tell its scores apart."""
        return BITS + BITS_PER_LAYER * len(self.layers)

    def entering(self, samples: Floats) -> list[list[Ball]]:
        """The output of its first Linear for the samples, in balls of the working precision."""
        return images(ball_map(self.layers[0], reads=False, writes=len(self.layers) > 1), samples)

    def maps(self) -> list[BallMap]:
        """Its other Linears, as maps of the plane."""
        last = len(self.layers) - 1
        return [ball_map(layer, reads=True, writes=place < last) for place, layer in enumerate(self.layers) if place]


class ExactNetwork(NamedTuple):
    """A network whose weights are binary fractions of many bits."""

    line: Floats  # (d + 1,): w, then b
    plane_maps: list[BallMap]  # the first of p, the others of points of the circle
    eps: float
    bits: int

    @property
    def depth(self) -> int:
        return len(self.plane_maps) - 1

    @property
    def first_bits(self) -> int:
        return self.bits

    def entering(self, samples: Floats) -> list[list[Ball]]:
        first = list(zip(self.plane_maps[0].matrix, self.plane_maps[0].shift, strict=True))
        return [[row[0] * place + shift for row, shift in first] for place in places_on(self.line, samples)]

    def maps(self) -> list[BallMap]:
        return self.plane_maps[1:]

    def rounded(self, dtype: Any) -> Layers:
        """The weights of the module."""
        layers: list[NDArray[Any]] = []
        for place, affine in enumerate(self.plane_maps):
            writes = place < len(self.plane_maps) - 1
            with precision(self.bits + ROUNDING):
                layer = _layer(affine, None if place else self.line, scaled=self.eps == 0, writes=writes)
            with np.errstate(over="ignore"):
                layers.append(layer.astype(dtype))
        return layers

    def packed(self) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """Mantissas, as signed whole numbers of equal length in little-endian bytes, and powers of two."""
        pairs = [value.man_exp() for value in numbers_of(self.plane_maps)]
        mantissas = [int(mantissa) for mantissa, _ in pairs]
        size = max(mantissa.bit_length() for mantissa in mantissas) // 8 + 1
        content = b"".join(mantissa.to_bytes(size, "little", signed=True) for mantissa in mantissas)
        powers = np.array([int(power) for _, power in pairs], np.int64)
        return np.frombuffer(content, np.uint8).reshape(len(pairs), size).copy(), powers


def unpacked(
    line: NDArray[Any], mantissas: NDArray[Any], powers: NDArray[Any], *, depth: int, classes: int, eps: float
) -> ExactNetwork:
    """The exact network from the output of `packed`."""
    shapes = [(2, 1), *[(2, 2)] * (depth - 1), (classes, 2)] if depth else [(classes, 1)]
    count = sum(rows * (columns + 1) for rows, columns in shapes)
    if line.ndim != 1 or line.dtype != np.float64 or not np.isfinite(line).all():
        raise InputError("the line of exact weights must be finite numbers, float64")
    if mantissas.ndim != 2 or mantissas.dtype != np.uint8 or not 0 < 8 * mantissas.shape[1] <= HIGHEST + 8:
        raise InputError(f"mantissas of exact weights must be bytes, of up to {HIGHEST} bits each")
    if powers.shape != (count,) or len(mantissas) != count or powers.dtype != np.int64:
        raise InputError(f"there must be {count} exact weights, got {len(mantissas)} and {powers.size} powers")
    if np.abs(powers).max() > 2**24:
        raise InputError("powers of exact weights must be within ±2^24")
    wholes = [int.from_bytes(row.tobytes(), "little", signed=True) for row in mantissas]
    if any(whole % 2 == 0 and (whole or power) for whole, power in zip(wholes, powers.tolist(), strict=True)):
        raise InputError("mantissas of exact weights must be odd, or 0 with power 0")
    values = [_exactly(whole, power) for whole, power in zip(wholes, powers.tolist(), strict=True)]
    maps: list[BallMap] = []
    for rows, columns in shapes:
        part, values = values[: rows * (columns + 1)], values[rows * (columns + 1) :]
        matrix = [part[row * columns : (row + 1) * columns] for row in range(rows)]
        maps.append(BallMap(matrix, part[rows * columns :]))
    return ExactNetwork(line, maps, eps, max(LEAST, *(whole.bit_length() for whole in wholes)))


def require_layers(layers: Layers) -> None:
    """Refuse arrays that are not the weights of Linear, LayerNorm(3), …, Linear."""
    kinds = {layer.dtype for layer in layers}
    if kinds not in ({np.dtype(np.float64)}, {np.dtype(np.float32)}):
        raise InputError("weights must be all float64 or all float32")
    if any(layer.ndim != 2 or layer.shape[1] < 2 or not len(layer) for layer in layers):
        raise InputError("weights must be matrices, each with a bias as its last column")
    if any(len(before) != WIDTH or after.shape[1] != WIDTH + 1 for before, after in pairwise(layers)):
        raise InputError(f"layers must be of width {WIDTH}")
    if not all(np.isfinite(layer).all() for layer in layers):
        raise InputError("weights must be finite")


def places_on(line: Floats, samples: Floats) -> list[Ball]:
    """p = w·x + b of the samples."""
    affine = BallMap([[ball(value) for value in line[:-1].tolist()]], [ball(float(line[-1]))])
    return [row[0] for row in images(affine, samples)]


def numbers_of(maps: Sequence[BallMap]) -> list[Ball]:
    return [value for affine in maps for row in (*affine.matrix, affine.shift) for value in row]


def power_of_two_near(value: Ball) -> Ball:
    mantissa, exponent = value.mid().man_exp()
    return ball(2) ** (exponent + int(mantissa).bit_length() - 1)


def layers_of_numbers(numbers: Floats) -> Layers:
    """The network that `shatter` keeps as numbers: the 2×3 matrix of each layer, row by row, then three of the readout.

    Layers map (x, y, 1), the first one (p, 0, 1), to the h that is scaled to length 1. The sign of the readout is the
    label: there is one score for each of two labels.
    """
    plane, readout = numbers[:-3].reshape(-1, 2, 3), numbers[-3:]
    layers = [BASIS @ plane[0][:, [0, 2]]]
    layers += [np.column_stack([BASIS @ _reading(each[:, :2]), BASIS @ each[:, 2]]) for each in plane[1:]]
    scores = np.stack([-readout, readout])
    return [*layers, np.column_stack([_reading(scores[:, :2]), scores[:, 2]])]


def _reading(matrix: Floats) -> Floats:
    """A map of the plane whose input is the output of a LayerNorm."""
    read: Floats = matrix @ BASIS.T / np.sqrt(WIDTH)
    return read


def _layer(affine: BallMap, line: Floats | None, *, scaled: bool, writes: bool) -> Floats:
    """Weights of one map in the form of a Linear; the first, which reads samples, includes their line.

    Scaled to avoid overflow where it writes for a LayerNorm without eps, so that only directions matter.
    """
    matrix, shift = affine
    if scaled and writes:
        largest = max((abs(value) for value in numbers_of([affine])), key=lambda value: value.mid())
        factor = 1 / power_of_two_near(largest) if largest > 0 else ball(1)
        matrix, shift = [[factor * value for value in row] for row in matrix], [factor * value for value in shift]
    if line is not None:
        shift = [value + row[0] * ball(float(line[-1])) for value, row in zip(shift, matrix, strict=True)]
        matrix = [[row[0] * ball(value) for value in line[:-1].tolist()] for row in matrix]
    weight, bias = as_linear(BallMap(matrix, shift), reads=line is None, writes=writes)
    return np.column_stack([np.array([as_floats_of(row) for row in weight]), as_floats_of(bias)])


def _exactly(mantissa: int, power: int) -> Ball:
    """A mantissa times a power of two, exact at any working precision."""
    with precision(max(2, mantissa.bit_length())):
        return ball(mantissa) * ball(2) ** power
