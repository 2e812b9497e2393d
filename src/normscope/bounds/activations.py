"""Activations with what bounds need to know about them, rounded outwards.

    act(t) = c + σ(t)·t,   σ₀ ≤ σ(t) ≤ σ₁ on an interval       (for gates)
    act(t) ≤ pt² + qt + r  on an interval, r the least          (for plain neurons)

σ is monotone for t·Φ(t) and its like, and even for sigmoid (c = ½) and tanh. Beyond ±`tail`, act is a polynomial up to
`tail_error`; between, |act''| ≤ `curvature`.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import expit, ndtr

from normscope.checks import Floats

ROUND = 2.0**-44  # more than the relative error of any value between the tails
_TANH_SCALE, _TANH_CUBE = np.sqrt(2 / np.pi), 0.044715


@dataclass(frozen=True)
class Activation:
    """One activation. All functions are vectorised."""

    value: Callable[[Floats], Floats]
    slope: Callable[[Floats], Floats]
    factor: Callable[[Floats], Floats]  # σ(t)
    at_zero: float = 0.0  # c
    even: bool = False  # σ is even and falls with |t|; otherwise it rises with t
    halves: bool = False  # act(t) − t/2 is even, between 0 and |t|/2
    lowest_at: float = -np.inf  # where act turns from falling to rising
    lowest: float = 0.0  # the value there, rounded down
    tail: float = 0.0
    tail_error: float = 0.0
    left: tuple[float, float, float] = (0.0, 0.0, 0.0)  # of 1, t, t² below −tail
    right: tuple[float, float, float] = (0.0, 1.0, 0.0)  # above tail
    curvature: float = 0.0

    def range(self, low: Floats, high: Floats) -> tuple[Floats, Floats]:
        """Bounds of act on [low, high].

        >>> [float(x) for x in ACTIVATIONS["relu"].range(np.array(-1.0), np.array(2.0))]
        [0.0, 2.0000000000001137]
        """
        first, last = self.value(low), self.value(high)
        top = np.maximum(first, last)
        bottom = np.minimum(first, last)
        if np.isfinite(self.lowest_at):
            inside = (low < self.lowest_at + 1e-6) & (high > self.lowest_at - 1e-6)
            bottom = np.where(inside, self.lowest, bottom)
        return down(bottom) - self._beyond(low, high), up(top) + self._beyond(low, high)

    def factors(self, low: Floats, high: Floats) -> tuple[Floats, Floats]:
        """Bounds of σ on [low, high].

        >>> [round(float(x), 3) for x in ACTIVATIONS["silu"].factors(np.array(-1.0), np.array(1.0))]
        [0.269, 0.731]
        """
        if self.even:
            nearest = np.where((low <= 0) & (high >= 0), 0.0, np.minimum(np.abs(low), np.abs(high)))
            low, high = np.maximum(np.abs(low), np.abs(high)), nearest
        least, most = down(self.factor(low)) - self._beyond(low, low), up(self.factor(high)) + self._beyond(high, high)
        return np.maximum(least, 0.0), most

    def _beyond(self, low: Floats, high: Floats) -> Floats:
        """The error of values in the tails, where an exponential may have lost its relative precision."""
        return np.where((low < -self.tail) | (high > self.tail), self.tail_error, 0.0)

    def least_constant(self, sign: Floats, p: Floats, q: Floats, low: Floats, high: Floats) -> Floats:
        """r for which sign·act(t) ≤ pt² + qt + r on [low, high], a little above the least one.

        >>> one, half = np.ones(1), np.full(1, 0.5)
        >>> round(float(ACTIVATIONS["relu"].least_constant(one, half, half, -9 * one, 9 * one)[0]), 9)
        0.125
        """
        best = np.full(len(p), -np.inf)
        for side, ends in (
            (self.left, (low, np.minimum(high, -self.tail))),
            (self.right, (np.maximum(low, self.tail), high)),
        ):
            found = _parabola(sign * side[0], sign * side[1] - q, sign * side[2] - p, *ends)
            best = np.maximum(best, np.where(ends[0] <= ends[1], found + self.tail_error, -np.inf))
        if self.tail > 0:
            best = self._middle(best, sign, p, q, np.maximum(low, -self.tail), np.minimum(high, self.tail))
        return best

    def _middle(self, best: Floats, sign: Floats, p: Floats, q: Floats, low: Floats, high: Floats) -> Floats:
        """The same between the tails: cells are divided until none can hold much more than its ends.

        Between its ends a function with second derivative ≥ −k is at most k·width²/8 above the larger end.
        """
        who = np.flatnonzero(low <= high)
        left, width, parts = low[who], (high - low)[who], 32
        reached = best.copy()
        for _ in range(6):
            who = np.repeat(who, parts)
            width = np.repeat(width, parts) / parts
            left = np.repeat(left, parts) + np.tile(np.arange(parts), len(left)) * width
            ends = np.stack([left, left + width])
            terms = sign[who] * self.value(ends), p[who] * ends**2, q[who] * ends
            found = (terms[0] - terms[1] - terms[2]).max(axis=0)
            error = ROUND * sum(np.abs(term).max(axis=0) for term in terms)
            above = found + error + np.maximum(0.0, 2 * p[who] + self.curvature) * (width * (1 + ROUND)) ** 2 / 8
            np.maximum.at(reached, who, found)
            open_cells = above > reached[who] + 1e-9 * (1e-3 + np.abs(reached[who]))
            np.maximum.at(best, who[~open_cells], above[~open_cells])
            who, left, width, above = who[open_cells], left[open_cells], width[open_cells], above[open_cells]
            parts = 8
        np.maximum.at(best, who, above)
        return best


def up(value: Floats) -> Floats:
    """A little more."""
    return value + ROUND * np.abs(value)


def down(value: Floats) -> Floats:
    """A little less."""
    return value - ROUND * np.abs(value)


def _parabola(c: Floats, l: Floats, k: Floats, low: Floats, high: Floats) -> Floats:  # noqa: E741
    """Above the maximum of c + lt + kt² on [low, high]."""
    found = np.full(len(l), -np.inf)
    with np.errstate(all="ignore"):
        turn = np.where(k < 0, -l / (2 * k), low)
        turn = np.where(np.isfinite(turn), np.clip(turn, low, np.maximum(low, high)), low)
    for t in (low, high, turn):
        terms = c, l * t, k * t * t
        found = np.maximum(found, terms[0] + terms[1] + terms[2] + ROUND * sum(np.abs(term) for term in terms))
    return found


def _relu(t: Floats) -> Floats:
    return np.maximum(t, 0.0)


def _step(t: Floats) -> Floats:
    return np.asarray(t > 0, t.dtype)


def _gaussian(t: Floats) -> Floats:
    return np.asarray(np.exp(-t * t / 2) / np.sqrt(2 * np.pi))


def _tanh_factor(t: Floats) -> Floats:
    return np.asarray(expit(2 * _TANH_SCALE * (t + _TANH_CUBE * t * t * t)))


def _tanh_slope(t: Floats) -> Floats:
    near = np.clip(t, -50.0, 50.0)
    factor = _tanh_factor(near)
    return np.asarray(factor + near * factor * (1 - factor) * 2 * _TANH_SCALE * (1 + 3 * _TANH_CUBE * near * near))


def _silu_slope(t: Floats) -> Floats:
    near = np.clip(t, -700.0, 700.0)
    return np.asarray(expit(near) * (1 + near * expit(-near)))


def _hyperbolic(t: Floats) -> Floats:
    """tanh(t)/t."""
    small = np.abs(t) < 1e-4
    safe = np.where(small, 1.0, t)
    return np.where(small, 1 - t * t / 3, np.tanh(safe) / safe)


ACTIVATIONS = {
    "relu": Activation(_relu, _step, _step, halves=True),
    "relu2": Activation(lambda t: _relu(t) ** 2, lambda t: 2 * _relu(t), _relu, right=(0.0, 0.0, 1.0)),
    "gelu": Activation(
        lambda t: t * ndtr(t),
        lambda t: ndtr(t) + t * _gaussian(t),
        lambda t: np.asarray(ndtr(t)),
        halves=True,
        lowest_at=-0.751791524693564,
        lowest=-0.169971207479904,
        tail=9.0,
        tail_error=1e-17,
        curvature=0.8,
    ),
    "gelu_tanh": Activation(
        lambda t: t * _tanh_factor(t),
        _tanh_slope,
        _tanh_factor,
        halves=True,
        lowest_at=-0.752461422071016,
        lowest=-0.170040750571255,
        tail=9.0,
        tail_error=1e-17,
        curvature=0.85,
    ),
    "silu": Activation(
        lambda t: t * expit(t),
        _silu_slope,
        lambda t: np.asarray(expit(t)),
        halves=True,
        lowest_at=-1.278464542761074,
        lowest=-0.278464542761075,
        tail=45.0,
        tail_error=1e-17,
        curvature=0.5,
    ),
    "quick_gelu": Activation(
        lambda t: t * expit(1.702 * t),
        lambda t: _silu_slope(1.702 * t),
        lambda t: np.asarray(expit(1.702 * t)),
        halves=True,
        lowest_at=-1.278464542761074 / 1.702,
        lowest=-0.163610189636355,
        tail=27.0,
        tail_error=1e-17,
        curvature=0.852,
    ),
    "sigmoid": Activation(
        lambda t: np.asarray(expit(t)),
        lambda t: np.asarray(expit(t) * expit(-t)),
        lambda t: _hyperbolic(t / 2) / 4,
        at_zero=0.5,
        even=True,
        tail=45.0,
        tail_error=1e-17,
        right=(1.0, 0.0, 0.0),
        curvature=0.1,
    ),
    "tanh": Activation(
        np.tanh,
        lambda t: 1 - np.tanh(t) ** 2,
        _hyperbolic,
        even=True,
        tail=22.0,
        tail_error=1e-17,
        left=(-1.0, 0.0, 0.0),
        right=(1.0, 0.0, 0.0),
        curvature=0.78,
    ),
    "identity": Activation(lambda t: t, np.ones_like, np.ones_like, left=(0.0, 1.0, 0.0)),
}
