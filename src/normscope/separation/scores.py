"""Scores of many points along one direction, in single precision, and what is picked from them; in compiled code.

Points stand side by side in tiles, channel after channel, so that a product fills vector registers.
"""

import numpy as np
from numpy.typing import NDArray

from normscope.checks import Floats
from normscope.compiled import compiled

Singles = NDArray[np.float32]

LANES = 128  # points side by side in a tile
SHORT = 32  # length of a short list


def tiles_of(points: Floats, capacity: int) -> Singles:
    """Points in single precision as (tiles, channels, lanes), channels padded to a multiple of four."""
    channels = -(-points.shape[1] // 4) * 4
    tiles = -(-capacity // LANES)
    padded = np.zeros((tiles * LANES, channels), np.float32)
    padded[: len(points), : points.shape[1]] = points
    return np.ascontiguousarray(padded.reshape(tiles, LANES, channels).transpose(0, 2, 1))


@compiled
def score_all(tiles, x, count, scores):  # type: ignore[no-untyped-def]
    """scores[j] = x·zⱼ for the first count points, in single precision; the least of them."""
    for tile in range((count + LANES - 1) // LANES):
        block = tiles[tile]
        out = scores[tile * LANES : (tile + 1) * LANES]
        for lane in range(LANES):
            out[lane] = x[0] * block[0, lane] + x[1] * block[1, lane] + x[2] * block[2, lane] + x[3] * block[3, lane]
        for k in range(4, tiles.shape[1], 4):
            a, b, c, d = x[k], x[k + 1], x[k + 2], x[k + 3]
            for lane in range(LANES):
                out[lane] += (
                    a * block[k, lane] + b * block[k + 1, lane] + c * block[k + 2, lane] + d * block[k + 3, lane]
                )
    return least_of(scores, count)


@compiled
def least_of(scores, count):  # type: ignore[no-untyped-def]
    # Lane by lane first: one running minimum would not fill vector registers.
    lanes = np.full(LANES, np.inf, np.float32)
    whole = count // LANES * LANES
    for start in range(0, whole, LANES):
        for lane in range(LANES):
            lanes[lane] = min(lanes[lane], scores[start + lane])
    for j in range(whole, count):
        lanes[j - whole] = min(lanes[j - whole], scores[j])
    least = lanes[0]
    for lane in range(1, LANES):
        least = min(least, lanes[lane])
    return least


@compiled
def find(scores, value):  # type: ignore[no-untyped-def]
    j = 0
    while scores[j] != value:
        j += 1
    return j


@compiled
def shortlist(scores, count, limit, least, short):  # type: ignore[no-untyped-def]
    """Points lowest along x, roughly: some of those in the lower three quarters between least and limit."""
    cut, length = np.float32(limit + 0.25 * (least - limit)), 0
    for j in range(count):
        if scores[j] < cut:
            short[length] = j
            length += 1
            if length == SHORT:
                break
    return length


@compiled
def dot(a, b):  # type: ignore[no-untyped-def]
    total = 0.0
    for k in range(len(a)):
        total += a[k] * b[k]
    return total


@compiled
def contains(names, used, j):  # type: ignore[no-untyped-def]
    place = 0
    while place < used and names[place] != j:
        place += 1
    return place < used
