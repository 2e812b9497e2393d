"""The linear map with the least loss: multinomial logistic regression, by L-BFGS until its gradient vanishes.

    loss(W, b) = mean over samples of log Σ exp(scores) − score of the label  +  penalty/2 · |W|²

A linear network of any depth is one linear map, so its loss is no less than the minimum of this convex function without
a penalty. Its accuracy is that of the map with the least loss: one with more hits may exist.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from normscope.checks import Floats

SMALL_GRADIENT = 1e-6
STEPS = 30_000
MEMORY = 30  # pairs of steps and gradients from which L-BFGS estimates curvature


class LinearMap(NamedTuple):
    """A linear map with bias, and how near to the minimum it is."""

    weight: Floats  # (channels, classes)
    bias: Floats
    loss: float
    gradient: float  # its largest entry

    def scores(self, x: Floats) -> Floats:
        return np.asarray(x @ self.weight + self.bias)


def least_loss_map(
    x: Floats, y: NDArray[np.int64], classes: int, penalty: float = 0.0, gradient: float = SMALL_GRADIENT / 10
) -> LinearMap:
    """The map from samples (samples, channels) to scores whose loss is least, to a gradient of this size.

    >>> found = least_loss_map(np.array([[0.0], [1.0], [1.0], [0.0]]), np.array([0, 1, 0, 1]), 2)
    >>> round(found.loss, 6) == round(float(np.log(2)), 6)
    True
    """
    from scipy.optimize import minimize

    given = np.concatenate([np.asarray(x, float), np.ones((len(x), 1))], axis=1)
    penalties = np.full((given.shape[1], 1), penalty)
    penalties[-1] = 0  # the bias is free
    labels = np.eye(classes)[y]

    def loss(flat: Floats) -> tuple[float, Floats]:
        weights = flat.reshape(-1, classes)
        scores = given @ weights
        scores -= scores.max(axis=1, keepdims=True)
        powers = np.exp(scores)
        totals = powers.sum(axis=1, keepdims=True)
        value = float(np.mean(np.log(totals[:, 0]) - (scores * labels).sum(axis=1)))
        slope = given.T @ (powers / totals - labels) / len(given) + penalties * weights
        return value + 0.5 * float((penalties * weights**2).sum()), slope.ravel()

    found = minimize(
        loss,
        np.zeros(given.shape[1] * classes),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": STEPS, "maxfun": 2 * STEPS, "ftol": 0, "gtol": gradient, "maxcor": MEMORY},
    )
    weights = np.asarray(found.x).reshape(-1, classes)
    return LinearMap(weights[:-1], weights[-1], float(found.fun), float(np.abs(found.jac).max()))
