"""Near ties, one key at a time: a search by QR at unit length, then a decision without rounding.

0 is in the hull of the differences iff it is in the hull of the same directions at unit length, where a rival 1e-12
away weighs as much as any other. A Gram matrix would square the condition of nearly dependent directions; QR does not.

The exact problem starts from the few rivals that this search found to matter, and takes in those that its answer missed
until the answer holds for all. Weights found among some rivals are weights; a direction counts only against all.
"""

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from normscope.certificates.hull_proofs import PROVEN, WRONG, judged
from normscope.certificates.key_certificates import Ints
from normscope.certificates.key_margins import margins
from normscope.checks import Floats
from normscope.separation.coordinates import Whitened
from normscope.separation.exact_simplex import Budget, separate, whole_differences

ROUNDS = 30
ROUNDING = 1e-13  # depth of 0 among unit generators below which floats do not show that it is inside
MOST_STEPS = 500
SINGULAR = 1e-15  # smallest over largest pivot, per point, at which active points count as dependent


@dataclass(frozen=True, eq=False)
class Nearest:
    """Where the search ended."""

    direction: Floats  # the last one tried
    active: Ints  # generators that matter
    weights: Floats  # of the active generators at unit length
    depth: float  # distance of 0 to the nearest face, if it is inside a simplex of active generators; else −1


@dataclass(frozen=True, eq=False)
class Settled:
    """A query, or weights on indices; not proven where rounding decides whether the weights reproduce the key."""

    query: Floats | None = None
    indices: Ints | None = None
    weights: Floats | None = None
    proven: bool = True


def settle(keys: Floats, whitened: Whitened, row: int, budget: Budget) -> Settled | None:
    """The verdict on one of distinct keys (n, D), with its certificate; None if it stays open."""
    rivals = np.delete(np.arange(len(keys)), row)
    generators = _generators(keys, whitened, row, rivals)
    nearest = polish(generators)
    query = whitened.unscaled(-nearest.direction[None])
    if margins(keys, np.array([row]), query).proven[0] and (not whitened.biased or nearest.direction[-1] < 0):
        return Settled(query=query[0])
    near = None
    if nearest.depth > ROUNDING:
        near = _weights(keys, whitened.biased, row, rivals, nearest, generators)
        if near is not None and near.proven:
            return near
    return _settle_exactly(keys, whitened.biased, row, rivals, nearest.active.tolist(), budget) or near


def _generators(keys: Floats, whitened: Whitened, row: int, rivals: Ints) -> Floats:
    """What a direction must have a positive product with: rivals minus the key, and the ray of a bias."""
    scaled = np.ldexp(keys, -whitened.exponents)
    generators: Floats = scaled[rivals] - scaled[row]
    if whitened.biased:
        ray = np.zeros(keys.shape[1])
        ray[-1] = -1.0
        generators = np.vstack([generators, ray])
    return generators


def _weights(
    keys: Floats, biased: bool, row: int, rivals: Ints, nearest: Nearest, generators: Floats
) -> Settled | None:
    """Those of the polish, for generators as long as they are."""
    named = nearest.active < len(rivals)
    lengths = np.linalg.norm(generators[nearest.active[named]], axis=1)
    weights = nearest.weights[named] * (lengths.min() / lengths)
    return _if_right(keys, biased, row, rivals[nearest.active[named]], weights / weights.sum())


def _settle_exactly(
    keys: Floats, biased: bool, row: int, rivals: Ints, candidates: list[int], budget: Budget
) -> Settled | None:
    ray = len(rivals)  # its number among the generators
    for _ in range(ROUNDS):
        named = [a for a in candidates if a != ray]
        generators, multipliers = whole_differences(keys[rivals[named]], keys[row])
        if biased:
            generators.append([0] * (keys.shape[1] - 1) + [-1])
        found = separate(generators, budget)
        if found is None:
            return None
        if found.weights is not None:
            return _rounded_weights(keys, biased, row, rivals[named], found.weights[: len(named)])
        assert found.direction is not None
        query = _rounded_query([-v * m for v, m in zip(found.direction, multipliers, strict=True)], biased)
        if query is None:
            return None
        if margins(keys, np.array([row]), query[None]).proven[0]:
            return Settled(query=query)
        missed = [a for a in _ahead(keys, row, rivals, query) if a not in set(named)]
        if not missed:
            return None
        candidates = candidates + missed[: keys.shape[1]]
    return None


def _ahead(keys: Floats, row: int, rivals: Ints, query: Floats) -> list[int]:
    """Rivals that score at least as high as the key, highest first, as far as floats can tell."""
    lead = (keys[rivals] - keys[row]) @ query
    rounding = keys.shape[1] * np.finfo(float).eps * (np.abs(keys[rivals] - keys[row]) @ np.abs(query))
    return [int(a) for a in np.argsort(-lead, kind="stable") if lead[a] >= -rounding[a]]


def _rounded_query(exact: list[Fraction], biased: bool) -> Floats | None:
    """In floats: with t = 1 if biased, else of largest entry 1."""
    unit = exact[-1] if biased else max(abs(entry) for entry in exact)
    try:
        return np.array([float(entry / unit) for entry in exact])
    except OverflowError:
        return None


def _rounded_weights(keys: Floats, biased: bool, row: int, named: Ints, exact: list[Fraction]) -> Settled | None:
    total = sum(exact)
    kept = [a for a, entry in enumerate(exact) if entry > 0]
    indices, weights = named[kept], np.array([float(exact[a] / total) for a in kept])
    return _if_right(keys, biased, row, indices, weights)


def _if_right(keys: Floats, biased: bool, row: int, indices: Ints, weights: Floats) -> Settled | None:
    found = judged(keys[[row]], keys[indices][None], weights[None], biased)
    return None if found[0] == WRONG else Settled(indices=indices, weights=weights, proven=found[0] == PROVEN)


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
