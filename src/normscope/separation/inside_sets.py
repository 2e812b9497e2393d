"""Keys of many sets inside simplices of other keys: `inside_simplex`, where each key is of its own set."""

import numpy as np

from normscope.checks import Floats
from normscope.separation.certificates import Ints
from normscope.separation.inside import BLOCK, REFINEMENTS, Inside
from normscope.separation.whitened_sets import WhitenedSets


def inside_simplices(whitened: WhitenedSets, owner: Ints, rows: Ints, supports: Ints) -> Inside:
    """Weights of keys rows (a,) of sets owner (a,) in the simplices of supports (a, r + 1); number n is the ray."""
    rank = whitened.points.shape[2]
    points = _homogeneous(whitened.points, whitened.ray)
    around = None
    if whitened.ray is not None:
        around = np.zeros(whitened.exponents.shape)
        around[:, -1] = -np.sqrt(rank) / np.linalg.norm(whitened.back[:, -1], axis=1)
    centred = _homogeneous(whitened.centred, around)
    weights, depth = np.zeros(supports.shape), np.full(len(rows), -1.0)
    step = max(1, BLOCK // (centred.shape[2] * supports.shape[1]))
    for start in range(0, len(rows), step):
        part = slice(start, start + step)
        some, own, corners = owner[part], (owner[part], rows[part]), (owner[part, None], supports[part])
        with np.errstate(all="ignore"):  # what leaves the range of floats is not inside
            found = _some_inside(points[own], points[corners], centred[own], centred[corners], whitened.back[some])
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
    points: Floats, corners: Floats, centred: Floats, among_centred: Floats, back: Floats
) -> tuple[Floats, Floats] | None:
    """Weights (a, r + 1) of points (a, r + 1) in their corners (a, r + 1, r + 1), and the inverses that gave them."""
    try:
        inverse = np.asarray(np.linalg.inv(corners.transpose(0, 2, 1)))
    except np.linalg.LinAlgError:
        return None
    weights = _apply(inverse, points)
    # Refined against the keys before whitening, whose residual is what a certificate is judged by.
    for _ in range(REFINEMENTS):
        missing = centred - _apply(among_centred.transpose(0, 2, 1), weights)
        whitened = _apply(back.transpose(0, 2, 1), missing[:, :-1])
        weights += _apply(inverse, np.column_stack([whitened, missing[:, -1]]))
    return weights, inverse


def _apply(matrices: Floats, vectors: Floats) -> Floats:
    return np.asarray((matrices @ vectors[:, :, None])[:, :, 0])
