"""Points that equal creases, one after the other, take to the ends of an interval; and the network of these creases.

    F(q) = 2(√(q² + s²) − s)/(√(1 + s²) − s) − 1          a V with a round tip: F(0) = −1, F(±1) = 1

Creased n times, [−1, 1] runs 2ⁿ times from end to end. The 2ⁿ + 1 places that are taken to an end are the points:
labelled in turn, they have a network of n LayerNorms, and none of n LayerNorms of width 3 changes its label more often
along a line. For s → ∞, F is 2q² − 1, and they are the extreme points of Chebyshev's polynomial.

A network is kept as its numbers: the 2×3 matrix of each layer, row by row, and the three numbers of the readout. Layers
map (x, y, 1), the first one (p, 0, 1), to the h that is scaled to length 1; the sign of the readout is the label.
"""

import numpy as np

from normscope.capacity.scaling_layer import AffineMap
from normscope.checks import Floats

ROUNDNESS = 0.3  # s: with it the points are near to equally spaced
LAYER, READOUT = 6, 3  # numbers


def creased_points(creases: int) -> Floats:
    """The 2ⁿ + 1 points for n creases, ascending.

    >>> creased_points(2).round(4)
    array([-1.    , -0.6013,  0.    ,  0.6013,  1.    ])
    """
    points = np.array([-1.0, 1.0])
    for _ in range(creases):
        above = _uncreased(points[1:])
        points = np.concatenate([-above[::-1], [0.0], above])
    return points


def creasing_numbers(depth: int, creases: int) -> Floats:
    """The numbers of a network that creases so many times, and keeps what it has in the layers after that.

    >>> creasing_numbers(1, creases=0)
    array([1. , 0. , 0. , 0. , 0. , 0.3, 1. , 0. , 0. ])
    """
    stretch = 2 / (np.hypot(1, ROUNDNESS) - ROUNDNESS)
    after_crease = [0.0, -stretch * ROUNDNESS - 1, stretch * ROUNDNESS]  # F(q)·y, because √(q² + s²) = s/y
    first, crease, keep = [1.0, 0.0, 0.0, 0.0, 0.0, ROUNDNESS], [*after_crease, 0.0, ROUNDNESS, 0.0], [1.0, 0, 0, 0, 1, 0]
    layers = [first] + [crease if layer <= creases else keep for layer in range(1, depth)]
    return np.concatenate([*layers, after_crease if creases == depth else [1.0, 0.0, 0.0]])


def maps_of(numbers: Floats) -> list[AffineMap]:
    """A network's numbers as maps of `layer_norm_network`, with one score for each label.

    >>> [affine.matrix.shape for affine in maps_of(creasing_numbers(2, creases=2))]
    [(2, 1), (2, 2), (2, 2)]
    """
    layers, readout = numbers[:-READOUT].reshape(-1, 2, 3), numbers[-READOUT:]
    maps = [AffineMap(layer[:, :-1], layer[:, -1]) for layer in [*layers, np.stack([-readout, readout])]]
    return [AffineMap(maps[0].matrix[:, :1], maps[0].shift), *maps[1:]]


def other_labels(numbers: Floats) -> Floats:
    """The numbers of the network that gives every point the other label."""
    changed = numbers.copy()
    changed[-READOUT:] *= -1
    return changed


def _uncreased(places: Floats) -> Floats:
    """The q ≥ 0 that F takes to these places."""
    reach = ROUNDNESS + (places + 1) * (np.hypot(1, ROUNDNESS) - ROUNDNESS) / 2
    uncreased: Floats = np.sqrt(reach**2 - ROUNDNESS**2)
    return uncreased
