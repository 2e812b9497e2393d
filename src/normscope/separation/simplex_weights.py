"""Keys inside a simplex of other keys: their weights to full precision, and how far inside they are.

With a simplex of r + 1 corners in rank r, weights are the solution of a square system, M β = (zᵢ, 1), and βₐ over the
length of the gradient of βₐ is the distance to the face opposite corner a. If that distance is well above rounding for
every corner, the key is inside whatever the last digits are. A ray counts as a corner at infinity: (ray, 0).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from normscope.certificates.key_certificates import Ints
from normscope.checks import Floats
from normscope.separation.coordinates import Whitened

REFINEMENTS = 2
BLOCK = 2**21  # matrix entries at a time


@dataclass(frozen=True, eq=False)
class Inside:
    weights: Floats  # (m, r + 1), those of a ray included
    depth: Floats  # (m,): least distance to a face, over the longest point; ≤ 0 or NaN: not inside


def inside_simplex(whitened: Whitened, keys_at: Callable[[Ints], Floats], rows: Ints, supports: Ints) -> Inside:
    """Weights of keys in rows (m,) in the simplices of supports (m, r + 1); number n in a support is the ray.

    keys_at gives the keys themselves, which the whitened ones round.
    """
    weights, depth = np.zeros(supports.shape), np.full(len(rows), -1.0)
    step = max(1, BLOCK // supports.shape[1] ** 2)
    for start in range(0, len(rows), step):
        part = slice(start, start + step)
        weights[part], depth[part] = _some_inside(whitened, keys_at, rows[part], supports[part])
    return Inside(weights, depth)


def _some_inside(
    whitened: Whitened, keys_at: Callable[[Ints], Floats], rows: Ints, supports: Ints
) -> tuple[Floats, Floats]:
    count, rank = whitened.points.shape
    is_ray = supports == count
    corners = _corners(whitened.points, whitened.ray, supports, is_ray)  # (m, r + 1, r + 1)
    try:
        inverse: Floats = np.linalg.inv(corners.transpose(0, 2, 1)).astype(np.float64, copy=False)
    except np.linalg.LinAlgError:
        return np.zeros(supports.shape), np.full(len(rows), -1.0)
    weights = _apply(inverse, _homogeneous(whitened.points[rows]))
    # Refined against what the keys differ by, without whitening, which is what a certificate is judged by.
    named = np.ldexp(keys_at(np.where(is_ray, 0, supports).ravel()), -whitened.exponents)
    differences = named.reshape(*supports.shape, -1) - np.ldexp(keys_at(rows), -whitened.exponents)[:, None]
    if whitened.ray is not None:
        differences[is_ray] = 0.0
        differences[is_ray, -1] = -np.sqrt(rank) / np.linalg.norm(whitened.back[-1])
    for _ in range(REFINEMENTS):
        lacking = 1 - np.where(is_ray, 0.0, weights).sum(axis=1, keepdims=True)
        missing = lacking * whitened.centred[rows] - np.einsum("ma,mak->mk", weights, differences)
        weights += _apply(inverse, np.column_stack([missing @ whitened.back, lacking]))
    with np.errstate(all="ignore"):
        depth = weights / np.linalg.norm(inverse[:, :, :rank], axis=2) / whitened.longest()
    return weights, depth.min(axis=1)


def _corners(points: Floats, ray: Floats | None, supports: Ints, is_ray: NDArray[np.bool_]) -> Floats:
    corners = _homogeneous(points[np.where(is_ray, 0, supports)])
    if ray is not None:
        corners[is_ray] = np.append(ray, 0.0)
    return corners


def _homogeneous(points: Floats) -> Floats:
    return np.concatenate([points, np.ones((*points.shape[:-1], 1))], axis=-1)


def _apply(matrices: Floats, vectors: Floats) -> Floats:
    return np.asarray((matrices @ vectors[:, :, None])[:, :, 0])
