"""Quadratic functions above neurons: coefficients of t², tv, v², t and v for given multipliers, and their slopes.

    gated    d·act(t)·v  ≤  d·act(0)·v + d·tv·(most + least)/2 + |d|·(most − least)/4·(μt² + v²/μ)
    plain    d·act(t)    ≤  |d|·(p·t² + q·t + the least constant for which it holds)

least and most: of (act(t) − act(0))/t.

Rows have length 1, so that multipliers of all neurons are alike in size.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh
from scipy.optimize import Bounds

from normscope.bounds.activations import ACTIVATIONS
from normscope.bounds.neurons import lift_weight, norms, reader_range
from normscope.certificates.neuron_certificates import Neurons
from normscope.checks import Floats

Singles = NDArray[np.float32]
NODES = 96  # values of t at which a plain neuron is looked at while searching


class Forms(NamedTuple):
    """Coefficients of t², tv, v², t, v for each neuron (F,), and a constant."""

    tt: Floats
    tv: Floats
    vv: Floats
    t: Floats
    v: Floats
    constant: float


class Cuts(NamedTuple):
    """A part of the ball, low ≤ v·u ≤ high for k directions v, and multipliers of (v·u − low)(v·u − high) ≤ 0."""

    directions: Floats  # (k, n), of length 1 or a hair less
    low: Floats  # (k,)
    high: Floats
    eta: Floats


class GatedForms:
    """Gated neurons with rows of length 1 (offset included); θ = log of μ over its usual value."""

    steps = 40  # between two looks at all dimensions

    def __init__(self, neurons: Neurons, d: Floats) -> None:
        assert neurons.b is not None
        assert neurons.b_offset is not None
        act = ACTIVATIONS[neurons.activation]
        tau = lift_weight(neurons) or 1.0
        least, most = act.factors(*reader_range(neurons.a, neurons.a_offset))
        self.size_a = _positive(np.hypot(norms(neurons.a), neurons.a_offset / tau))
        self.size_b = _positive(np.hypot(norms(neurons.b), neurons.b_offset / tau))
        self.a, self.alpha = neurons.a / self.size_a[:, None], neurons.a_offset / self.size_a
        self.b, self.beta = neurons.b / self.size_b[:, None], neurons.b_offset / self.size_b
        scale = d * self.size_a * self.size_b
        self.signed, self.spread = scale * (most + least) / 2, np.abs(scale) * (most - least) / 4
        self.linear = act.at_zero * d * self.size_b
        self.start = np.zeros(len(d))
        self.limits = Bounds(np.full(len(d), -30.0), np.full(len(d), 30.0))
        self.largest = float(np.abs(self.signed).max() + np.abs(self.linear).max())

    def forms(self, theta: Floats, soft: float) -> Forms:
        ratio = np.exp(theta)
        zero = np.zeros(len(theta))
        return Forms(self.spread * ratio, self.signed, self.spread / ratio, zero, self.linear, 0.0)

    def slope(self, theta: Floats, tt: Floats, vv: Floats, t: Floats) -> Floats:
        ratio = np.exp(theta)
        return np.asarray(self.spread * (ratio * tt - vv / ratio))

    def multipliers(self, theta: Floats) -> tuple[Floats, Floats]:
        return np.exp(theta) * (self.size_b / self.size_a), np.zeros(0)


class PlainForms:
    """Plain neurons with rows of length 1 (offset included); θ = (p, q), p in units of its first value."""

    steps = 60
    b: Floats | None = None
    beta: Floats | None = None

    def __init__(self, neurons: Neurons, d: Floats) -> None:
        act = ACTIVATIONS[neurons.activation]
        tau = lift_weight(neurons) or 1.0
        self.size_a = _positive(np.hypot(norms(neurons.a), neurons.a_offset / tau))
        self.a, self.alpha = neurons.a / self.size_a[:, None], neurons.a_offset / self.size_a
        self.act, self.weight, sign = act, np.abs(d), np.sign(d)
        low, high = reader_range(neurons.a, neurons.a_offset)
        self.sign, self.low, self.high = sign, low, high
        even = low[:, None] + np.linspace(0, 1, NODES // 2) * (high - low)[:, None]
        near = np.clip(np.sinh(np.linspace(-4, 4, NODES - NODES // 2)) / 3, low[:, None], high[:, None])
        self.nodes = np.concatenate([even, near], axis=1)
        self.values = sign[:, None] * act.value(self.nodes)
        if act.halves:
            # The start is the cheap bound: p = 1/(4κ|a|), with the best κ for all.
            positive = np.sqrt(np.maximum(d, 0.0) * self.size_a)
            lifted = np.column_stack([self.a, self.alpha / tau]) * positive[:, None]
            trace, top = float(positive @ positive), _top(lifted)
            kappa = np.sqrt(max((1 + tau * tau) * top, 1e-300) / max(trace, 1e-300)) if trace > 0 else 1.0
            self.unit = 1 / (4 * max(kappa, 1e-3) * self.size_a)
            p, q, self.tilt = np.where(sign > 0, 1.0, 0.0), sign / 2, np.ones(len(d))
        else:
            width = np.maximum(high - low, 1e-100)
            self.unit = np.maximum(np.abs(act.value(high) - act.value(low)) / width / width, 1e-3 / width)
            secant = (act.value(high) - act.value(low)) / width
            self.tilt = np.maximum(np.abs(secant), 1e-3 * np.abs(self.values).max(axis=1) / width) + 1e-100
            p, q = np.zeros(len(d)), sign * secant / self.tilt
        self.start = np.concatenate([p, q])
        self.limits = Bounds(np.full(2 * len(d), -50.0), np.full(2 * len(d), 50.0))
        p, q = self._parts(self.start)
        self.largest = float(np.max(self.weight * np.maximum(self.unit * self.size_a, self.tilt) * self.size_a))
        first = self.values - p[:, None] * self.nodes**2 - q[:, None] * self.nodes
        floor = 1e-3 * np.abs(first).max(axis=1) + 1e-6 * np.abs(self.values).max(axis=1) + 1e-100
        self.scale = np.maximum(np.abs(first.max(axis=1)), floor)

    def forms(self, theta: Floats, soft: float) -> Forms:
        p, q = self._parts(theta)
        share = (-p)[:, None] * self.nodes
        share -= q[:, None]
        share *= self.nodes
        share += self.values
        most = share.max(axis=1)
        # The maximum is softened as well: p and q are a kink where two values of t tie.
        sharp = max(soft, 1e-12) * self.scale
        share -= most[:, None]
        share *= (1 / sharp)[:, None]
        np.exp(np.maximum(share, -60.0, out=share), out=share)
        total = share.sum(axis=1)
        self.mean = np.einsum("jk,jk->j", share, self.nodes) / total
        self.square = np.einsum("jk,jk,jk->j", share, self.nodes, self.nodes) / total
        zero = np.zeros(len(p))
        constant = float(self.weight @ (most + sharp * np.log(total)))
        return Forms(self.weight * p * self.size_a**2, zero, zero, self.weight * q * self.size_a, zero, constant)

    def slope(self, theta: Floats, tt: Floats, vv: Floats, t: Floats) -> Floats:
        of_p = self.weight * self.unit * (tt * self.size_a**2 - self.square)
        return np.concatenate([of_p, self.weight * self.tilt * (t * self.size_a - self.mean)])

    def multipliers(self, theta: Floats) -> tuple[Floats, Floats]:
        return self._parts(theta)

    def _parts(self, theta: Floats) -> tuple[Floats, Floats]:
        count = len(self.unit)
        return theta[:count] * self.unit, theta[count : 2 * count] * self.tilt


class CutForms(PlainForms):
    """Plain neurons in a part of the ball: f(u) ≤ u'Xu + 2g·u + c − Σ η(v·u − low)(v·u − high); θ = (p, q, η).

    The last terms have the shape of neurons with rows v. η is in units of a bound.
    """

    steps = 60

    def __init__(self, neurons: Neurons, d: Floats) -> None:
        super().__init__(neurons, d)
        self.whole = self.a, self.alpha

    def part(self, cuts: Cuts, theta: Floats, unit: float) -> None:
        """Look at this part, from multipliers p and q on."""
        count, more = 2 * len(self.unit), len(cuts.eta)
        self.a, self.alpha = np.concatenate([self.whole[0], cuts.directions]), np.append(self.whole[1], np.zeros(more))
        self.cuts, self.eta_unit = cuts, unit
        self.start = np.append(theta[:count], cuts.eta / unit)
        self.limits = Bounds(np.append(np.full(count, -50.0), np.zeros(more)), np.full(count + more, 50.0))

    def at(self, p: Floats, q: Floats) -> Floats:
        """θ of multipliers."""
        return np.concatenate([p / self.unit, q / self.tilt])

    def forms(self, theta: Floats, soft: float) -> Forms:
        found, eta = super().forms(theta, soft), self.eta(theta)
        tt, t = np.append(found.tt, -eta), np.append(found.t, eta * (self.cuts.low + self.cuts.high))
        zero = np.zeros(len(tt))
        return Forms(tt, zero, zero, t, zero, found.constant - float(eta @ (self.cuts.low * self.cuts.high)))

    def slope(self, theta: Floats, tt: Floats, vv: Floats, t: Floats) -> Floats:
        count, low, high = len(self.unit), self.cuts.low, self.cuts.high
        inside = tt[count:] - (low + high) * t[count:] + low * high  # E (v·u − low)(v·u − high)
        return np.append(super().slope(theta, tt[:count], vv[:count], t[:count]), -self.eta_unit * inside)

    def eta(self, theta: Floats) -> Floats:
        return np.asarray(theta[2 * len(self.unit) :] * self.eta_unit)


def _top(rows: Floats) -> float:
    """λmax of the sum of rows' squares."""
    n = rows.shape[1]
    gram = single(rows).T @ single(rows)
    return float(eigh(gram, eigvals_only=True, subset_by_index=[n - 1, n - 1], check_finite=False)[0])


def _positive(sizes: Floats) -> Floats:
    return np.where(sizes > 0, sizes, 1.0)


def single(array: Floats) -> Singles:
    return array.astype(np.float32)
