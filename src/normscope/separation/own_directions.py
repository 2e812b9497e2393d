"""Keys that win with themselves as the query: q = zᵢ, which most keys of a round cloud in many dimensions do.

Only keys at least as long as zᵢ can beat it: zᵢ·zⱼ ≤ |zᵢ||zⱼ| < |zᵢ|² otherwise. So keys are sorted by length, and a
block of them meets only those before its end. Products are in single precision, and count above their rounding error.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from normscope.certificates.key_certificates import Ints
from normscope.checks import Floats

BLOCK = 256
FEW = 0.03  # share of winners in a block below which shorter keys are not worth asking


@dataclass(frozen=True, eq=False)
class OwnDirection:
    wins: NDArray[np.bool_]  # (n,)
    rival: Ints  # (n,): a key that scores high where key i points
    order: Ints  # keys by length, longest first


def own_direction(points: Floats) -> OwnDirection:
    """Which points beat all others along themselves, in single precision with room for its errors."""
    squares = np.einsum("ij,ij->i", points, points)
    order = np.argsort(-squares, kind="stable")
    single, lengths = points[order].astype(np.float32), np.sqrt(squares[order])
    error = 1.5e-7 * (points.shape[1] + 4) * lengths[0]
    count = len(points)
    wins, rival = np.zeros(count, bool), np.zeros(count, np.int64)
    for start in range(0, count, BLOCK):
        stop = min(count, start + BLOCK)
        scores = single[start:stop] @ single[:stop].T
        line = np.arange(stop - start)
        scores[line, start + line] = -np.inf
        best = scores.argmax(axis=1) if stop > 1 else np.zeros(1, np.int64)
        wins[start:stop] = lengths[start:stop] ** 2 - scores[line, best] > error * lengths[start:stop]
        rival[start:stop] = best
        if wins[start:stop].mean() < FEW:
            rival[stop:] = best[0]
            break
    unsorted_wins, unsorted_rival = np.empty(count, bool), np.empty(count, np.int64)
    unsorted_wins[order] = wins
    unsorted_rival[order] = order[rival]
    itself = unsorted_rival == np.arange(count)
    unsorted_rival[itself] = np.where(order[0] == np.flatnonzero(itself), order[-1], order[0])
    return OwnDirection(unsorted_wins, unsorted_rival, order)
