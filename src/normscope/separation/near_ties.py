"""The nearest point again, for near ties: generators of unit length, and QR in place of their Gram matrix.

0 is in the hull of the differences iff it is in the hull of the same directions at unit length, where a rival 1e-12
away weighs as much as any other. A Gram matrix would square the condition of nearly dependent directions; QR does not.
"""

from dataclasses import dataclass

import numpy as np

from normscope.certificates.key_certificates import Ints
from normscope.checks import Floats

MOST_STEPS = 500
SINGULAR = 1e-15  # smallest over largest pivot, per point, at which active points count as dependent


@dataclass(frozen=True, eq=False)
class Nearest:
    """Where the search ended."""

    direction: Floats  # the last one tried
    active: Ints  # generators that matter
    weights: Floats  # of the active generators at unit length
    depth: float  # distance of 0 to the nearest face, if it is inside a simplex of active generators; else −1


def polish(generators: Floats) -> Nearest:
    """Search for a direction of positive product with all generators (m, D)."""
    units = _units(generators)
    direction, active, weights = _search(units)
    depth = _depth(units[active]) if len(active) > units.shape[1] else -1.0
    return Nearest(direction, np.array(active), weights, depth)


def _units(generators: Floats) -> Floats:
    """At unit length; a generator that has underflown stays 0."""
    largest = np.abs(generators).max(axis=1, keepdims=True)
    sized = generators / np.where(largest > 0, largest, 1.0)
    lengths = np.linalg.norm(sized, axis=1, keepdims=True)
    return np.asarray(sized / np.where(lengths > 0, lengths, 1.0))


def _search(units: Floats) -> tuple[Floats, list[int], Floats]:
    """The last direction, the active generators and their weights."""
    size = units.shape[1]
    active = [int(np.argmin(units @ units.mean(axis=0)))]
    weights, direction = np.ones(1), units[active[0]]
    for _ in range(MOST_STEPS):
        while True:
            target, towards = _affine_nearest(units[active])
            if target is None:
                return direction, active, weights
            if (target > 0).all():
                weights = target
                break
            leaving = target <= 0
            towards_zero = weights[leaving] - target[leaving]
            step = np.min(weights[leaving] / np.where(towards_zero > 0, towards_zero, 1.0))
            weights = weights + step * (target - weights)
            staying = weights > 0
            staying[np.argmin(np.where(leaving, weights, np.inf))] = False
            active = [a for a, stays in zip(active, staying, strict=True) if stays]
            weights = weights[staying]
        if len(active) > size or towards is None:
            return direction, active, weights
        direction = towards / np.linalg.norm(towards)
        heights = units @ direction
        lowest = int(np.argmin(heights))
        if heights[lowest] > 4 * np.finfo(float).eps * size or lowest in active:
            return direction, active, weights
        active.append(lowest)
        weights = np.append(weights, 0.0)
    return direction, active, weights


def _affine_nearest(points: Floats) -> tuple[Floats | None, Floats | None]:
    """Weights of the point nearest to 0 in the affine hull of points (s, D), and the direction towards it.

    No direction if 0 is in the affine hull by count; no weights either if the points are dependent.
    """
    count, size = points.shape
    if count > size:
        bordered, target = np.vstack([points.T, np.ones(count)]), np.zeros(size + 1)
        target[-1] = 1.0
        try:
            return np.linalg.solve(bordered, target), None
        except np.linalg.LinAlgError:
            return None, None
    basis, factor = np.linalg.qr(points.T)
    pivots = np.abs(np.diag(factor))
    if pivots.min() < SINGULAR * count * pivots.max():
        return None, None
    coordinates = np.linalg.solve(factor.T, np.ones(count))
    weights = np.linalg.solve(factor, coordinates)
    total = weights.sum()
    if not total > 0:
        return None, None
    return weights / total, basis @ coordinates


def _depth(corners: Floats) -> float:
    """How far inside the simplex of corners (D + 1, D) 0 is; negative or NaN if it is not."""
    bordered = np.column_stack([corners, np.ones(len(corners))])
    try:
        coordinates = np.linalg.inv(bordered)  # column a: gradient of weight a, and the weight at 0
    except np.linalg.LinAlgError:
        return -1.0
    return float((coordinates[-1] / np.linalg.norm(coordinates[:-1], axis=0)).min())
