"""Keys inside a simplex of other keys: their weights to full precision, and how far inside they are.

With a simplex of r + 1 corners in rank r, weights are the solution of a square system, M β = (zᵢ, 1), and βₐ over the
length of the gradient of βₐ is the distance to the face opposite corner a. If that distance is well above rounding for
every corner, the key is inside regardless of rounding. A ray counts as a corner at infinity: (ray, 0).
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
    weights: Floats  # (a, r + 1), those of a ray included
    depth: Floats  # (a,): least distance to a face, over the longest point; ≤ 0 or NaN: not inside


def inside_simplex(whitened: Whitened, keys_at: Callable[[Ints], Floats], rows: Ints, supports: Ints) -> Inside:
    """Weights of keys in rows (a,) of a set alone in the simplices of supports (a, r + 1); number n is the ray.

    keys_at gives the keys themselves, which the whitened ones round.
    """

    def scaled_at(names: Ints) -> Floats:
        return np.asarray(np.ldexp(keys_at(names.ravel()), -whitened.exponents).reshape(*names.shape, -1))

    return _inside(whitened, scaled_at, rows, supports, None)


def inside_simplices(whitened: Whitened, keys: Floats, owner: Ints, rows: Ints, supports: Ints) -> Inside:
    """The same for keys (m, n, D) of many sets, where each of rows (a,) is of its own set, owner (a,)."""
    if len(keys) == 1:  # one map back for all rows, and not one for each
        return inside_simplex(whitened.alone(0), keys[0].__getitem__, rows, supports)
    scaled = np.ldexp(keys, -whitened.exponents[:, None])
    return _inside(whitened, lambda sets, names: np.asarray(scaled[sets, names]), rows, supports, owner)


def _inside(
    whitened: Whitened, scaled_at: Callable[..., Floats], rows: Ints, supports: Ints, owner: Ints | None
) -> Inside:
    count, rank = whitened.points.shape[-2:]
    weights, depth = np.zeros(supports.shape), np.full(len(rows), -1.0)
    step = max(1, BLOCK // ((whitened.centred.shape[-1] + 1) * supports.shape[1]))
    for start in range(0, len(rows), step):
        part = slice(start, start + step)
        is_ray = supports[part] == count
        corners = np.where(is_ray, 0, supports[part])
        some = () if owner is None else (owner[part],)  # the set of each row, where there are many
        own, named = (*some, rows[part]), (*(each[:, None] for each in some), corners)
        back, longest = whitened.back[some], whitened.longest[some]
        simplices = _homogeneous(whitened.points[named])  # (a, r + 1, r + 1)
        differences = scaled_at(*named) - scaled_at(*own)[:, None]
        if whitened.ray is not None:
            rays = np.broadcast_to(whitened.ray[some], (len(is_ray), rank))
            simplices[is_ray] = _homogeneous(rays, last=0.0)[np.nonzero(is_ray)[0]]
            length = -np.sqrt(rank) / np.linalg.norm(back[..., -1, :], axis=-1)
            differences[is_ray] = 0.0
            differences[..., -1] += np.where(is_ray, np.reshape(length, (-1, 1)), 0.0)
        with np.errstate(all="ignore"):  # overflow counts as not inside
            found = _refined(
                _homogeneous(whitened.points[own]), simplices, whitened.centred[own], differences, is_ray, back
            )
            if found is not None:
                weights[part], inverse = found
                faces = weights[part] / np.linalg.norm(inverse[:, :, :rank], axis=2)
                depth[part] = faces.min(axis=1) / longest
    return Inside(weights, depth)


def _refined(
    points: Floats, simplices: Floats, centred: Floats, differences: Floats, is_ray: NDArray[np.bool_], back: Floats
) -> tuple[Floats, Floats] | None:
    """Weights (a, r + 1) of points (a, r + 1) in their simplices (a, r + 1, r + 1), and the inverses that gave them."""
    try:
        inverse = np.asarray(np.linalg.inv(simplices.transpose(0, 2, 1)))
    except np.linalg.LinAlgError:
        return None
    weights = _apply(inverse, points)
    # Refined against what the keys differ by, without whitening, which is what a certificate is judged by.
    for _ in range(REFINEMENTS):
        lacking = 1 - np.where(is_ray, 0.0, weights).sum(axis=1, keepdims=True)
        missing = lacking * centred - _apply(differences.transpose(0, 2, 1), weights)
        whitened = missing @ back if back.ndim == 2 else (missing[:, None] @ back)[:, 0]
        weights += _apply(inverse, np.column_stack([whitened, lacking]))
    return weights, inverse


def _homogeneous(points: Floats, last: float = 1.0) -> Floats:
    return np.concatenate([points, np.full((*points.shape[:-1], 1), last)], axis=-1)


def _apply(matrices: Floats, vectors: Floats) -> Floats:
    return np.asarray((matrices @ vectors[:, :, None])[:, :, 0])
