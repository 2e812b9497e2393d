"""A network of LayerNorms of width 3 fitted to labelled points of a line, compiled.

    minimise Σ max(0, w − yᵢ·scoreᵢ)²       w: the target lead, yᵢ = ±1

by the Levenberg–Marquardt method. There are fewer points than numbers of a network, so each step solves a system of the
size of the points below the target: with r their shortfall and J the gradients of their leads,

    δ = Jᵀ(JJᵀ + λ)⁻¹r

Layers and readout are scaled to length 1 after each step, which changes no label: scale alone can't raise the lead.

A network is kept as its numbers: the 2×3 matrix of each layer, row by row, and the three numbers of the readout. Layers
map (x, y, 1), the first one (p, 0, 1), to the h that is scaled to length 1; the sign of the readout is the label.

The points, and the first network, are those of equal creases, one after the other:

    F(q) = 2(√(q² + s²) − s)/(√(1 + s²) − s) − 1          a V with a round tip: F(0) = −1, F(±1) = 1

Creased n times, [−1, 1] runs 2ⁿ times from end to end. The 2ⁿ + 1 places that are taken to an end are the points:
labelled in turn, they have a network of n LayerNorms, and none of n LayerNorms of width 3 changes its label more often
along a line. For s → ∞, F is 2q² − 1, and they are the extreme points of Chebyshev's polynomial.
"""

import math

import numpy as np

from normscope.checks import Floats
from normscope.compiled import compiled

ROUNDNESS = 0.3  # s: with it the points are near to equally spaced
LAYER, READOUT = 6, 3  # numbers
DAMPING, LEAST_DAMPING = 1e-2, 1e-9  # λ to begin with, and never less, as a share of the mean of JJᵀ's diagonal
MORE, LESS, RAISED = 4.0, 0.3, 6  # factor on λ after a step that fails or helps; how often a step is tried
HARDLY = 1e-4  # stop after a step that improves by less than this share


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
    """The numbers of a network that creases this many times, and whose other layers change nothing.

    >>> creasing_numbers(1, creases=0)
    array([1. , 0. , 0. , 0. , 0. , 0.3, 1. , 0. , 0. ])
    """
    stretch = 2 / (np.hypot(1, ROUNDNESS) - ROUNDNESS)
    after_crease = [0.0, -stretch * ROUNDNESS - 1, stretch * ROUNDNESS]  # F(q)·y, because √(q² + s²) = s/y
    first, crease, keep = (
        [1.0, 0.0, 0.0, 0.0, 0.0, ROUNDNESS],
        [*after_crease, 0.0, ROUNDNESS, 0.0],
        [1.0, 0, 0, 0, 1, 0],
    )
    layers = [first] + [crease if layer <= creases else keep for layer in range(1, depth)]
    return np.concatenate([*layers, after_crease if creases == depth else [1.0, 0.0, 0.0]])


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


@compiled
def fitted(start, depth, points, signs, wanted, enough, steps):  # type: ignore[no-untyped-def]
    """The numbers of the best network reached from a start, and its smallest lead; stops once that is `enough`."""
    count = len(points)
    states = np.empty((depth + 1, 3))
    numbers, tried = start.copy(), start.copy()
    _rescale(numbers, depth)
    slopes, lack, product = np.empty((count, len(start))), np.empty(count), np.empty((count, count))
    loss, lead = _judged(numbers, depth, points, signs, wanted, states)
    best, most = numbers.copy(), lead
    damping = DAMPING
    for _ in range(steps):
        if most > enough:
            break
        lacking = _lacking(numbers, depth, points, signs, wanted, states, slopes, lack)
        size = _products(slopes, lacking, product)
        if not 0.0 < size < np.inf:  # no slope, or steps that are not finite
            break
        helped = False
        for _ in range(RAISED):
            weights = _solved(product, lack, lacking, damping * size / lacking)
            for place in range(len(start)):
                tried[place] = numbers[place]
                for row in range(lacking):
                    tried[place] += slopes[row, place] * weights[row]
            _rescale(tried, depth)
            new_loss, lead = _judged(tried, depth, points, signs, wanted, states)
            helped = new_loss < loss
            if helped:
                break
            damping *= MORE
        if not helped:
            break
        numbers[:] = tried
        if lead > most:
            best[:], most = tried, lead
        if new_loss > (1.0 - HARDLY) * loss:
            break
        loss, damping = new_loss, max(damping * LESS, LEAST_DAMPING)
    return best, most


@compiled
def score(numbers, depth, point, states):  # type: ignore[no-untyped-def]
    """The readout at a point; states: the input of each layer with 1/|h| of the layer before, and the last output."""
    x, y = point, 0.0
    states[0, 0], states[0, 1] = x, y
    for layer in range(depth):
        at = 6 * layer
        h = numbers[at] * x + numbers[at + 1] * y + numbers[at + 2]
        k = numbers[at + 3] * x + numbers[at + 4] * y + numbers[at + 5]
        shrink = 1.0 / math.sqrt(h * h + k * k)
        x, y = h * shrink, k * shrink
        states[layer + 1, 0], states[layer + 1, 1], states[layer + 1, 2] = x, y, shrink
    at = 6 * depth
    return numbers[at] * x + numbers[at + 1] * y + numbers[at + 2]


@compiled
def slope(numbers, depth, states, sign, row):  # type: ignore[no-untyped-def]
    """How sign·score changes with each number, from the states that `score` left; written into row."""
    at = 6 * depth
    row[at], row[at + 1], row[at + 2] = sign * states[depth, 0], sign * states[depth, 1], sign
    by_x, by_y = sign * numbers[at], sign * numbers[at + 1]
    for layer in range(depth - 1, -1, -1):
        at = 6 * layer
        x, y, shrink = states[layer + 1, 0], states[layer + 1, 1], states[layer + 1, 2]
        along = by_x * x + by_y * y
        by_h, by_k = (by_x - along * x) * shrink, (by_y - along * y) * shrink
        x, y = states[layer, 0], states[layer, 1]
        row[at], row[at + 1], row[at + 2] = by_h * x, by_h * y, by_h
        row[at + 3], row[at + 4], row[at + 5] = by_k * x, by_k * y, by_k
        by_x = numbers[at] * by_h + numbers[at + 3] * by_k
        by_y = numbers[at + 1] * by_h + numbers[at + 4] * by_k


@compiled
def _rescale(numbers, depth):  # type: ignore[no-untyped-def]
    """Scale every layer, and the readout, to length 1."""
    for layer in range(depth + 1):
        first, last = 6 * layer, min(6 * layer + 6, len(numbers))
        length = 0.0
        for place in range(first, last):
            length += numbers[place] * numbers[place]
        length = math.sqrt(length)
        for place in range(first, last):
            numbers[place] /= length


@compiled
def _judged(numbers, depth, points, signs, wanted, states):  # type: ignore[no-untyped-def]
    """The sum of squares, and the smallest lead."""
    loss, least = 0.0, np.inf
    for place in range(len(points)):
        lead = signs[place] * score(numbers, depth, points[place], states)
        least = min(least, lead)
        if not lead >= wanted:
            loss += (wanted - lead) ** 2
    return loss, least


@compiled
def _lacking(numbers, depth, points, signs, wanted, states, slopes, lack):  # type: ignore[no-untyped-def]
    """Write slopes and shortfalls of the points below the target into the first rows; return how many there are."""
    rows = 0
    for place in range(len(points)):
        lead = signs[place] * score(numbers, depth, points[place], states)
        if lead < wanted:
            slope(numbers, depth, states, signs[place], slopes[rows])
            lack[rows] = wanted - lead
            rows += 1
    return rows


@compiled
def _products(slopes, rows, product):  # type: ignore[no-untyped-def]
    """JJᵀ, its lower half, and the sum of its diagonal."""
    size = 0.0
    for row in range(rows):
        for column in range(row + 1):
            total = 0.0
            for place in range(slopes.shape[1]):
                total += slopes[row, place] * slopes[column, place]
            product[row, column] = total
        size += product[row, row]
    return size


@compiled
def _solved(product, right, rows, damping):  # type: ignore[no-untyped-def]
    """(JJᵀ + λ)⁻¹r, by Cholesky's factors."""
    lower, solution = np.empty((rows, rows)), np.empty(rows)
    for row in range(rows):
        for column in range(row + 1):
            total = product[row, column] + (damping if row == column else 0.0)
            for before in range(column):
                total -= lower[row, before] * lower[column, before]
            # Rounding may cancel a pivot entirely; then use the value that λ alone would leave.
            lower[row, column] = math.sqrt(max(total, damping)) if row == column else total / lower[column, column]
    for row in range(rows):
        total = right[row]
        for before in range(row):
            total -= lower[row, before] * solution[before]
        solution[row] = total / lower[row, row]
    for row in range(rows - 1, -1, -1):
        total = solution[row]
        for after in range(row + 1, rows):
            total -= lower[after, row] * solution[after]
        solution[row] = total / lower[row, row]
    return solution
