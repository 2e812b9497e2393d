"""Keys of many sets inside simplices of other keys: `inside_simplex`, where each key is of its own set."""

import numpy as np
from numpy.typing import NDArray

from normscope.certificates.key_certificates import Ints
from normscope.checks import Floats
from normscope.separation.simplex_weights import BLOCK, REFINEMENTS, Inside
from normscope.separation.whitened_sets import WhitenedSets


def inside_simplices(whitened: WhitenedSets, keys: Floats, owner: Ints, rows: Ints, supports: Ints) -> Inside:
    """Weights of keys rows (a,) of sets owner (a,) in the simplices of supports (a, r + 1); number n is the ray.

    keys (m, n, D) are those of the sets that are whitened.
    """
    count, rank = whitened.points.shape[1:]
    points = _homogeneous(whitened.points, whitened.ray)
    scaled = np.ldexp(keys, -whitened.exponents[:, None])
    weights, depth = np.zeros(supports.shape), np.full(len(rows), -1.0)
    step = max(1, BLOCK // ((keys.shape[2] + 1) * supports.shape[1]))
    for start in range(0, len(rows), step):
        part = slice(start, start + step)
        some, own, corners = owner[part], (owner[part], rows[part]), supports[part]
        is_ray = corners == count
        differences = scaled[some[:, None], np.where(is_ray, 0, corners)] - scaled[own][:, None]
        if whitened.ray is not None:
            length = -np.sqrt(rank) / np.linalg.norm(whitened.back[some, -1], axis=1)
            differences[is_ray] = 0.0
            differences[..., -1] += np.where(is_ray, length[:, None], 0.0)
        with np.errstate(all="ignore"):  # what leaves the range of floats is not inside
            around = (points[own], points[some[:, None], corners], whitened.centred[own])
            found = _some_inside(*around, differences, is_ray, whitened.back[some])
            if found is not None:
                weights[part], inverse = found
                faces = weights[part] / np.linalg.norm(inverse[:, :, :rank], axis=2)
                depth[part] = faces.min(axis=1) / whitened.longest[some]
    return Inside(weights, depth)


def _homogeneous(points: Floats, ray: Floats | None) -> Floats:
    """(z, 1) for all points (m, n, k), and after those of a set (ray, 0)."""
    total, count, size = points.shape
    extended = np.ones((total, count + 1, size + 1))
    extended[:, :count, :size] = points
    extended[:, count, :size] = 0.0 if ray is None else ray
    extended[:, count, size] = 0.0
    return extended


def _some_inside(
    points: Floats, corners: Floats, centred: Floats, differences: Floats, is_ray: NDArray[np.bool_], back: Floats
) -> tuple[Floats, Floats] | None:
    """Weights (a, r + 1) of points (a, r + 1) in their corners (a, r + 1, r + 1), and the inverses that gave them."""
    try:
        inverse = np.asarray(np.linalg.inv(corners.transpose(0, 2, 1)))
    except np.linalg.LinAlgError:
        return None
    weights = _apply(inverse, points)
    # Refined against what the keys differ by, without whitening, which is what a certificate is judged by.
    for _ in range(REFINEMENTS):
        lacking = 1 - np.where(is_ray, 0.0, weights).sum(axis=1, keepdims=True)
        missing = lacking * centred - _apply(differences.transpose(0, 2, 1), weights)
        whitened = _apply(back.transpose(0, 2, 1), missing)
        weights += _apply(inverse, np.column_stack([whitened, lacking]))
    return weights, inverse


def _apply(matrices: Floats, vectors: Floats) -> Floats:
    return np.asarray((matrices @ vectors[:, :, None])[:, :, 0])
