"""Near ties, one key at a time: polish, then decide without rounding.

The exact problem starts from the few rivals that the polish found to matter, and takes in those that its answer missed
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
from normscope.separation.near_ties import Nearest, polish

ROUNDS = 30
ROUNDING = 1e-13  # depth of 0 among unit generators below which floats do not show that it is inside


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
