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
class OwnDirections:
    wins: NDArray[np.bool_]  # (m, n)
    rivals: Ints  # (m, n): a key that scores high where key i points
    order: Ints  # (m, n): keys by length, longest first


def own_directions(points: Floats) -> OwnDirections:
    """Which points of sets (m, n, r) beat all others along themselves, in single precision with room for its errors.

    Sets of more than BLOCK points come one at a time: where few of a block win, the rest of its set is not asked.
    """
    total, count, channels = points.shape
    assert total == 1 or count <= BLOCK
    squares = np.einsum("mij,mij->mi", points, points)
    order = np.argsort(-squares, axis=1, kind="stable")
    first = count * np.arange(total)[:, None]
    places = order + first  # in all sets, one after the other
    lengths = np.sqrt(squares.ravel()[places])
    single = points.reshape(-1, channels)[places].astype(np.float32)
    error = 1.5e-7 * (channels + 4) * lengths[:, :1]
    ahead, best = np.zeros((total, count), bool), np.zeros((total, count), np.int64)
    for start in range(0, count, BLOCK):
        stop = min(count, start + BLOCK)
        part, line = slice(start, stop), np.arange(stop - start)
        scores = single[:, part] @ single[:, :stop].transpose(0, 2, 1)
        scores[:, line, start + line] = -np.inf
        best[:, part] = scores.argmax(axis=2)
        highest = scores[np.arange(total)[:, None], line, best[:, part]]
        ahead[:, part] = lengths[:, part] ** 2 - highest > error * lengths[:, part]
        if stop < count and ahead[:, part].mean() < FEW:
            best[:, stop:] = best[:, start : start + 1]
            break
    wins, rivals = np.empty((total, count), bool), np.empty((total, count), np.int64)
    wins.ravel()[places], rivals.ravel()[places] = ahead, order.ravel()[best + first]
    itself = rivals == np.arange(count)  # of keys that were not asked
    if itself.any():
        rivals[itself] = np.where(order[:, :1] == np.arange(count), order[:, -1:], order[:, :1])[itself]
    return OwnDirections(wins, rivals, order)
