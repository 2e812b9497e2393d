"""Bounds of one operation on intervals, rounded outwards.

f rising           [f(low), f(high)]
f falling          [f(high), f(low)]
|x|, x², 1/x       by the side of 0 on which the interval is, or both
cos, sin           [−1, 1]
"""

from collections.abc import Callable

import numpy as np
import torch
from scipy.special import expit

from normscope.bounds.activations import ACTIVATIONS
from normscope.checks import Floats
from normscope.tensors.linear_rows import EPS, widened

Bounds = tuple[Floats, Floats]
LARGE = 1e150


def _monotone(function: Callable[[Floats], Floats]) -> Callable[[Floats, Floats], Bounds]:
    def bounds(low: Floats, high: Floats) -> Bounds:
        with np.errstate(all="ignore"):
            return widened(function(low), function(high), 0.0)

    return bounds


def _activation(name: str) -> Callable[[Floats, Floats], Bounds]:
    """Bounds of an activation that goes to 0 on the left and grows without bound on the right."""

    def bounds(low: Floats, high: Floats) -> Bounds:
        below, above = ACTIVATIONS[name].range(np.clip(low, -LARGE, LARGE), np.clip(high, -LARGE, LARGE))
        return np.where(low == np.inf, np.inf, below), np.where(high > LARGE, np.inf, above)

    return bounds


def _falling(function: Callable[[Floats], Floats]) -> Callable[[Floats, Floats], Bounds]:
    rising = _monotone(lambda x: -function(x))

    def bounds(low: Floats, high: Floats) -> Bounds:
        below, above = rising(low, high)
        return -above, -below

    return bounds


def absolute(low: Floats, high: Floats) -> Bounds:
    across = (low <= 0) & (high >= 0)
    ends = np.minimum(np.abs(low), np.abs(high)), np.maximum(np.abs(low), np.abs(high))
    return np.where(across, 0.0, ends[0]), ends[1]


def _square(low: Floats, high: Floats) -> Bounds:
    least, most = absolute(low, high)
    with np.errstate(over="ignore"):
        low, high = widened(least**2, most**2, 0.0)
    return np.maximum(low, 0.0), high


def _wave(low: Floats, high: Floats) -> Bounds:
    return np.full(len(low), -1.0), np.full(len(low), 1.0)


def reciprocal(low: Floats, high: Floats) -> Bounds:
    across = (low <= 0) & (high >= 0)
    with np.errstate(divide="ignore"):
        a, b = 1 / np.where(across, 1.0, low), 1 / np.where(across, 1.0, high)
    below, above = widened(np.minimum(a, b), np.maximum(a, b), 0.0)
    # zero at one end of the interval leaves the other side bounded
    after, before = 1 / np.where(high > 0, high, np.inf), 1 / np.where(low < 0, low, -np.inf)
    below = np.where(across, np.where(low == 0, after * (1 - EPS), -np.inf), below)
    above = np.where(across, np.where((high == 0) & (low < 0), before * (1 - EPS), np.inf), above)
    return below, above


def _erf(x: Floats) -> Floats:
    made: Floats = torch.erf(torch.from_numpy(np.asarray(x, dtype=float))).numpy()
    return made


def _nonnegative(function: Callable[[Floats], Floats]) -> Callable[[Floats], Floats]:
    return lambda x: function(np.maximum(x, 0.0))


def _log(x: Floats) -> Floats:
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(np.maximum(x, 0.0)))


def _rsqrt(x: Floats) -> Floats:
    with np.errstate(divide="ignore"):
        return np.asarray(1 / np.sqrt(np.maximum(x, 0.0)))


INTERVALS: dict[str, Callable[[Floats, Floats], Bounds]] = {
    "neg": lambda low, high: (-high, -low),
    "relu": _monotone(lambda x: np.maximum(x, 0.0)),
    "tanh": _monotone(np.tanh),
    "sigmoid": _monotone(expit),
    "exp": _monotone(np.exp),
    "erf": _monotone(_erf),
    "log": _monotone(_log),
    "log1p": _monotone(lambda x: np.log1p(np.maximum(x, -1.0))),
    "sqrt": _monotone(_nonnegative(np.sqrt)),
    "rsqrt": _falling(_rsqrt),
    "softplus": _monotone(lambda x: np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))),
    "log_sigmoid": _monotone(lambda x: np.minimum(x, 0) - np.log1p(np.exp(-np.abs(x)))),
    "floor": lambda low, high: (np.floor(low), np.floor(high)),
    "ceil": lambda low, high: (np.ceil(low), np.ceil(high)),
    "sign": lambda low, high: (np.sign(low), np.sign(high)),
    "abs": absolute,
    "square": _square,
    "reciprocal": reciprocal,
    "cos": _wave,
    "sin": _wave,
    "silu": _activation("silu"),
    "gelu": _activation("gelu"),
    "gelu_tanh": _activation("gelu_tanh"),
}


def times_or_zero(x: Floats, y: Floats) -> Floats:
    with np.errstate(invalid="ignore", over="ignore"):
        made = x * y
    return np.where(np.isnan(made), 0.0, made)  # 0 × infinity: the other corners say how large it can be


def finite_part(x: Floats) -> Floats:
    return np.where(np.isfinite(x), x, 0.0)
