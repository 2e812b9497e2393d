"""Which keys can ever win: key i is selectable iff some query scores it strictly above all others.

    ∃ q: q·kᵢ + bᵢ > q·kⱼ + bⱼ for all j ≠ i      iff      no weights λ ≥ 0 with Σλ = 1, Σλk = kᵢ, Σλb ≥ bᵢ exist

without a bias: iff kᵢ is outside the convex hull of the others [1]. If queries must come from an ellipsoid,
q = c + Ay with |y| ≤ 1, then iff no weights have |Aᵀx| + c·x + bᵢ − Σλb ≤ 0 with x = kᵢ − Σλk. Either side of an "iff"
is a certificate, and every verdict carries one.

[1] Brody et al., On the Expressivity Role of LayerNorm in Transformers' Attention, ACL Findings 2023.
"""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normscope.certificates.key_certificates import Certificates, joined, placed
from normscope.certificates.key_margins import lifted
from normscope.checks import Floats, as_floats, frozen
from normscope.errors import InputError
from normscope.geometry import Ellipsoid
from normscope.results.selection import Selection
from normscope.separation.passes import solve_sets
from normscope.separation.reachable import solve_reachable


def selectable(keys: Any, *, bias: Any = None, queries: Ellipsoid | None = None) -> Selection:
    """Which of keys (n, d), or of each set in a batch (..., n, d), some query prefers to all others of its set.

    Parameters
    ----------
    keys
        Numbers, an array or a tensor of shape (n, d) or (..., n, d).
    bias
        One number per key, shape (..., n): key j then scores q·kⱼ + bⱼ.
    queries
        An ellipsoid (of a norm's outputs, through W_Q): only queries from it count, those that a model can produce.

    Returns
    -------
    Selection
        `mask`, and a certificate for every key.

    >>> result = selectable([[0, 0], [4, 0], [0, 4], [1, 1]])
    >>> result
    Selection(4 keys of 2 channels: 3 selectable, 1 never selected)
    >>> result.mask
    array([ True,  True,  True, False])
    >>> result.certificates[3].weights
    array([0.5 , 0.25, 0.25])
    >>> result.holds
    True

    All keys may win, but not by a query of length 1 around (3, 0):

    >>> from normscope import Norm
    >>> near = Norm(gain=[0.5, 0.5], bias=[3, 0], project=False).ellipsoid
    >>> selectable([[0, 0], [4, 0], [0, 4]], queries=near).mask
    array([False,  True, False])
    """
    vectors = as_floats(keys, "keys")
    if vectors.ndim < 2 or 0 in vectors.shape:
        raise InputError(f"keys must have shape (..., n, d) with one or more of each, got shape {vectors.shape}")
    shape = vectors.shape[:-1]
    heights = None
    if bias is not None:
        heights = as_floats(bias, "bias")
        if heights.shape != shape:
            raise InputError(f"bias must have one entry per key, shape {shape}, got {heights.shape}")
        heights = frozen(heights)
    vectors = frozen(vectors)
    if queries is not None:
        return _selectable_by(queries, vectors, heights)
    points = lifted(vectors, heights)
    certificates, near_ties = solve_sets(points.reshape(-1, *points.shape[-2:]), heights is not None)
    among = np.ascontiguousarray(certificates.queries[:, : vectors.shape[-1]])  # without the weight 1 of a bias
    return _selection(vectors, heights, replace(certificates, queries=among), near_ties)


def _selectable_by(queries: Ellipsoid, keys: Floats, bias: Floats | None) -> Selection:
    """Which keys a query from the ellipsoid prefers."""
    if not isinstance(queries, Ellipsoid) or not queries.bounded or queries.parts > 1:
        raise InputError(f"queries must be one bounded ellipsoid, got {queries!r}")
    if queries.size != keys.shape[-1]:
        raise InputError(f"queries must have as many channels as the keys, {keys.shape[-1]}, got {queries.size}")
    matrix, center = queries.axes() * queries.lengths, queries.center
    matrix = matrix if matrix.shape[1] else np.zeros((queries.size, 1))
    sets = keys.reshape(-1, *keys.shape[-2:])
    heights = [None] * len(sets) if bias is None else list(bias.reshape(len(sets), -1))
    solutions = [solve_reachable(some, height, matrix, center) for some, height in zip(sets, heights, strict=True)]
    parts = placed({number: found for number, (found, _) in enumerate(solutions)}, keys.shape[:-1])
    certificates = replace(joined(parts, keys.shape[:-1], matrix.shape[1]), reach=(matrix, center))
    return _selection(keys, bias, certificates, np.concatenate([near_ties for _, near_ties in solutions]))


def _selection(
    keys: Floats, bias: Floats | None, certificates: Certificates, near_ties: NDArray[np.bool_]
) -> Selection:
    matrix, center = (None, None) if certificates.reach is None else certificates.reach
    arrays = {name: value for name, value in vars(certificates).items() if name not in ("shape", "reach")}
    near_ties = near_ties.reshape(keys.shape[:-1])
    return Selection(keys, bias, near_ties, **arrays, semi_axes=matrix, center=center)
