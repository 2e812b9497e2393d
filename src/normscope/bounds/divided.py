"""A smaller bound of a sum of plain neurons: the ball is divided into parts, and each part has multipliers of its own.

    parts      low ≤ v·u ≤ high, for one or two directions v
    there      f(u) ≤ u'Xu + 2g·u + c − Σ η(v·u − low)(v·u − high),  η ≥ 0,  and the right side is below λ + s

The bound over the whole ball is loose where the neurons don't agree on one u: each takes the best distribution of t
with the same mean and variance. The variance is mostly along one direction, the top eigenvector of X. The parts are
slabs across it, where little variance is left. The part with the largest bound is divided next.
"""

from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import eigh

from normscope.bounds.neuron_forms import CutForms, Cuts, single
from normscope.bounds.neurons import weights
from normscope.bounds.tight_bound import Tight, proven_by, reach_of, stepped, summed_forms, trust_region, unit_columns
from normscope.certificates.neuron_certificates import Division, NeuronCertificate, Neurons
from normscope.checks import Floats, as_floats

GOOD = 1.4  # a bound that is at most so many times what was reached is left as it is
SEARCHES = 10  # for better multipliers of one part
SOFT = 0.006  # ν·n as a share of the bound
WORTH = 0.04  # a part is searched again if the last search gained more than this share
TOP, WIDTH = 32, 64  # eigenvectors that join the subspace at a time, and its dimensions
DIRECTIONS = 3  # across which the ball is divided, at most
EDGE = 1 + 1e-9  # |v·u| is below that, whatever rounding did to v
ETA = 0.2  # the first η, as a share of the bound


class _Part(NamedTuple):
    value: float
    cuts: Cuts
    theta: Floats
    top: float  # λmax(X)
    axes: Floats  # (n, k): its eigenvectors, the top one first
    basis: Floats  # of the subspace in which multipliers were searched
    gain: float  # of the last search, as a share of the bound; ∞ before the first


def divided(neurons: Neurons, d: Any, found: Tight, reached: float) -> Tight:
    """The bound that `tight` found, or a smaller one with a certificate for each part of the ball.

    Parameters
    ----------
    neurons
        F of them. Gated ones are left as they are.
    d
        (F,): the weights of the sum.
    found
        What `tight` returned for them.
    reached
        The largest value of the sum that is known: nothing is done for a bound that is near it.

    Returns
    -------
    Tight
        With a certificate of kind "divided", or `found` itself.

    >>> from normscope.bounds.tight_bound import tight
    >>> rng = np.random.default_rng(0)
    >>> many, d = Neurons("gelu", 4 * rng.normal(size=(64, 6))), rng.normal(size=64)
    >>> whole = tight(many, d)
    >>> bool(divided(many, d, whole, 0.0).bound < 0.99 * whole.bound)
    True
    """
    row, proof = weights(neurons, as_floats(d, "d")[None])[0], found.certificate
    if neurons.b is not None or proof.kind != "quadratic" or found.bound <= GOOD * reached or neurons.size < 2:
        return found
    live = row != 0
    some, chosen, reach = neurons.part(live), row[live], reach_of(neurons, row)
    family = CutForms(some, chosen / reach)
    parts = _parts(family, family.at(proof.first[live], proof.second[live]), found.bound / reach, reached / reach)
    return _certified(neurons, row, live, family, parts, reach, found)


def _parts(family: CutForms, theta: Floats, bound: float, reached: float) -> list[_Part]:
    """Parts that cover the ball; those with a large bound are divided while searches are left."""
    n = family.a.shape[1]
    none = Cuts(np.zeros((0, n)), np.zeros(0), np.zeros(0), np.zeros(0))
    family.part(none, theta, bound)
    parts, left = [_looked_at(family, none, theta, np.zeros((n, 0)), 0.0)], SEARCHES
    while left:
        parts.sort(key=lambda part: part.value)
        worst = parts.pop()
        if worst.value <= GOOD * reached:
            return [*parts, worst]
        if worst.gain > WORTH:
            parts.append(_searched(family, worst, bound))
            left -= 1
            continue
        smaller = _smaller(worst, len(_directions([*parts, worst])) < DIRECTIONS)
        if left < len(smaller):
            return [*parts, worst]
        for cuts in smaller:
            family.part(cuts, worst.theta, bound)
            parts.append(_looked_at(family, cuts, family.start, worst.basis, np.inf))
    return parts


def _searched(family: CutForms, part: _Part, bound: float) -> _Part:
    """A part with better multipliers."""
    family.part(part.cuts, part.theta, bound)
    basis = np.linalg.qr(np.column_stack([part.cuts.directions.T, part.axes, part.basis]))[0][:, :WIDTH]
    theta = stepped(family, family.start, single(family.a @ basis), None, SOFT)
    found = _looked_at(family, part.cuts._replace(eta=family.eta(theta)), theta, basis, 0.0)
    gain = (part.value - found.value) / abs(found.value) if found.value else 0.0
    return found._replace(gain=gain) if gain > 0 else part._replace(gain=0.0)


def _looked_at(family: CutForms, cuts: Cuts, theta: Floats, basis: Floats, gain: float) -> _Part:
    """The bound that θ gives for a part, in all dimensions."""
    n = family.a.shape[1]
    X, g, c = summed_forms(family.forms(theta, 0.0), single(family.a), family.alpha, None, None)
    top, vectors = eigh(X, subset_by_index=[max(0, n - TOP), n - 1], driver="evr", check_finite=False)
    lam, centre = trust_region(X, g, float(top[-1]))
    axes = unit_columns(np.column_stack([vectors[:, ::-1], centre, g]).astype(float))
    return _Part(lam + float(g @ centre) + c, cuts, theta, float(top[-1]), axes, basis, gain)


def _smaller(part: _Part, room: bool) -> list[Cuts]:
    """A part divided across the direction with the most variance, if there is room for one more, or across an old one.

    The first division is into four.
    """
    old = part.cuts
    count = len(old.low)
    along = part.axes[:, 0]
    widths = old.high - old.low
    new = not count or (room and widths.max() < 0.6 and np.abs(old.directions @ along).max() < 0.7)
    eta = ETA * max(part.value, 1e-12)
    if new:
        edges = (-EDGE, -0.5, 0.0, 0.5, EDGE) if not count else (-EDGE, 0.0, EDGE)
        rows = np.concatenate([old.directions, along[None]])
        return [
            Cuts(rows, np.append(old.low, low), np.append(old.high, high), np.append(old.eta, eta))
            for low, high in pairwise(edges)
        ]
    at = int(np.argmax(widths))
    low, high = old.low.copy(), old.high.copy()
    low[at] = high[at] = (low[at] + high[at]) / 2
    return [old._replace(high=high), old._replace(low=low)]


def _directions(parts: list[_Part]) -> Floats:
    """Those of all parts, each once."""
    return np.unique(np.concatenate([part.cuts.directions for part in parts]), axis=0)


def _certified(
    neurons: Neurons, d: Floats, live: Any, family: CutForms, parts: list[_Part], reach: float, found: Tight
) -> Tight:
    """The bound that all parts prove in float64, if it is smaller than the one found before."""
    rows = _directions(parts)
    if not len(rows):
        return found
    count, size = len(parts), len(rows)
    low, high, eta = np.full((count, size), -EDGE), np.full((count, size), EDGE), np.zeros((count, size))
    first, second = np.ones((count, neurons.count)), np.zeros((count, neurons.count))
    lam, s = np.zeros(count), np.zeros(count)
    for i, part in enumerate(parts):
        at = [int(np.flatnonzero((rows == row).all(axis=1))[0]) for row in part.cuts.directions]
        low[i, at], high[i, at], eta[i, at] = part.cuts.low, part.cuts.high, reach * part.cuts.eta
        first[i, live], second[i, live] = family.multipliers(part.theta)
        cuts = part.cuts._replace(eta=eta[i, at])
        proven = proven_by(neurons.part(live), d[live], first[i, live], second[i, live], part.top * reach, cuts)
        if proven is None or proven[0] + proven[1] >= found.bound:
            return found
        lam[i], s[i] = proven
    bound = float(np.nextafter((lam + s).max(), np.inf))
    proof = NeuronCertificate("divided", bound, first, second, 0.0, 0.0, Division(rows, low, high, eta, lam, s))
    return replace(found, bound=bound, certificate=proof)
