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
        self.limits = [(-30.0, 30.0)] * len(d)
        self.largest = float(np.abs(self.signed).max() + np.abs(self.linear).max())

    def forms(self, theta: Floats, soft: float) -> Forms:
        ratio = np.exp(theta)
        zero = np.zeros(len(theta))
        return Forms(self.spread * ratio, self.signed, self.spread / ratio, zero, self.linear, 0.0)

    def slope(self, theta: Floats, tt: Floats, vv: Floats, t: Floats) -> Floats:
        ratio = np.exp(theta)
        return np.asarray(self.spread * (ratio * tt - vv / ratio))

    def constant(self, theta: Floats) -> float:
        return 0.0

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
        self.limits = [(-50.0, 50.0)] * (2 * len(d))
        p, q = self._parts(self.start)
        self.largest = float(np.max(self.weight * np.maximum(self.unit * self.size_a, self.tilt) * self.size_a))
        first = self.values - p[:, None] * self.nodes**2 - q[:, None] * self.nodes
        floor = 1e-3 * np.abs(first).max(axis=1) + 1e-6 * np.abs(self.values).max(axis=1) + 1e-100
        self.scale = np.maximum(np.abs(first.max(axis=1)), floor)

    def forms(self, theta: Floats, soft: float) -> Forms:
        p, q = self._parts(theta)
        excess = self.values - p[:, None] * self.nodes**2 - q[:, None] * self.nodes
        most = excess.max(axis=1)
        # The maximum is softened as well: p and q are a kink where two values of t tie.
        sharp = max(soft, 1e-12) * self.scale
        share = np.exp(np.maximum((excess - most[:, None]) / sharp[:, None], -60.0))
        total = share.sum(axis=1)
        self.mean = (share * self.nodes).sum(axis=1) / total
        self.square = (share * self.nodes**2).sum(axis=1) / total
        zero = np.zeros(len(p))
        constant = float(self.weight @ (most + sharp * np.log(total)))
        return Forms(self.weight * p * self.size_a**2, zero, zero, self.weight * q * self.size_a, zero, constant)

    def slope(self, theta: Floats, tt: Floats, vv: Floats, t: Floats) -> Floats:
        of_p = self.weight * self.unit * (tt * self.size_a**2 - self.square)
        return np.concatenate([of_p, self.weight * self.tilt * (t * self.size_a - self.mean)])

    def constant(self, theta: Floats) -> float:
        """What `forms` has from some values of t only, from all."""
        return float(self.weight @ self.act.least_constant(self.sign, *self._parts(theta), self.low, self.high))

    def multipliers(self, theta: Floats) -> tuple[Floats, Floats]:
        return self._parts(theta)

    def _parts(self, theta: Floats) -> tuple[Floats, Floats]:
        count = len(self.unit)
        return theta[:count] * self.unit, theta[count:] * self.tilt


def _top(rows: Floats) -> float:
    """λmax of the sum of rows' squares."""
    n = rows.shape[1]
    gram = single(rows).T @ single(rows)
    return float(eigh(gram, eigvals_only=True, subset_by_index=[n - 1, n - 1], check_finite=False)[0])


def _positive(sizes: Floats) -> Floats:
    return np.where(sizes > 0, sizes, 1.0)


def single(array: Floats) -> Singles:
    return array.astype(np.float32)
