"""Axes of a spectrum, in compiled code: those of secular roots and those of tied gains."""

import math

import numpy as np
from numpy.typing import NDArray

from normscope.checks import Floats
from normscope.compiled import compiled

Indices = NDArray[np.int64]


@compiled
def fill_root_vectors(gain: Floats, anchor: Floats, offset: Floats, rows: Indices, out: Floats) -> None:
    """Axis of each root μ = anchor² + offset into its row of out: gₙ / (gₙ² − μ), to unit length."""
    for i in range(len(rows)):
        vector, a, tau = out[rows[i]], anchor[i], offset[i]
        square = 0.0
        for n in range(len(gain)):
            g = abs(gain[n])
            component = gain[n] / ((g - a) * (g + a) - tau)
            vector[n] = component
            square += component * component
        shrink = 1.0 / math.sqrt(square)
        for n in range(len(gain)):
            vector[n] *= shrink


@compiled
def fill_tie_vectors(
    gain: Floats, order: Indices, starts: Indices, contrasts: Indices, rows: Indices, out: Floats
) -> None:
    """Helmert contrast k among the channels order[start], order[start + 1], …, times the signs of their gains.

    (1, …, 1, −k) / √(k(k + 1)) over the first k + 1 of them, zero elsewhere.
    """
    for i in range(len(rows)):
        vector, k = out[rows[i]], contrasts[i]
        vector[:] = 0.0
        share = 1.0 / math.sqrt(k * (k + 1.0))
        for member in range(k + 1):
            n = order[starts[i] + member]
            vector[n] = math.copysign(1.0, gain[n]) * (share if member < k else -k * share)
