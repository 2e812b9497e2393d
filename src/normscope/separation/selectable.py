"""Which keys can ever win: key i is selectable iff some query scores it strictly above all others.

    ∃ q: q·kᵢ + bᵢ > q·kⱼ + bⱼ for all j ≠ i      iff      no weights λ ≥ 0 with Σλ = 1, Σλk = kᵢ, Σλb ≥ bᵢ exist

without a bias: iff kᵢ is outside the convex hull of the others [1]. If queries must come from an ellipsoid,
q = c + Ay with |y| ≤ 1, then iff no weights have |Aᵀx| + c·x + bᵢ − Σλb ≤ 0 with x = kᵢ − Σλk. Either side of an "iff"
is a certificate, and every answer carries one.

[1] Brody et al., On the Expressivity Role of LayerNorm in Transformers' Attention, ACL Findings 2023.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normscope.certificates.check_keys import first_fault, lifted
from normscope.certificates.check_reachable_keys import check_certificates
from normscope.certificates.key_certificates import Certificates, Reach
from normscope.checks import Floats, as_floats, frozen
from normscope.errors import InputError
from normscope.geometry import Ellipsoid
from normscope.separation.joining import joined, placed
from normscope.separation.many_sets import solve_sets
from normscope.separation.reachable import solve_reachable


@dataclass(frozen=True, eq=False, repr=False)
class Selectable:
    """Which keys can win, with a certificate for each."""

    keys: Floats  # (..., n, d)
    bias: Floats | None  # (..., n)
    mask: NDArray[np.bool_]  # (..., n): some query prefers this key to all others strictly
    degenerate: NDArray[np.bool_]  # (..., n): not shown with room to spare: twins, near ties, flat sets, open keys
    certificates: Certificates
    queries: Ellipsoid | None = None  # where queries must come from; None: anywhere

    @property
    def open(self) -> NDArray[np.bool_]:
        """Keys of which nothing could be shown: their mask is False and they are degenerate."""
        settled = np.zeros(self.mask.size, bool)
        settled[self.certificates.query_keys] = True
        settled[self.certificates.weight_keys] = True
        return ~settled.reshape(self.mask.shape)

    def check(self) -> bool:
        """Whether every certificate holds, from the keys alone; one that rounding decides only for a degenerate key.

        The checker imports nothing of the solver. The solver has asked parts of it before, to drop what would not hold.
        """
        found = check_certificates(self.keys, self.bias, self.reach, self.certificates)
        return first_fault(found, self.mask, self.degenerate, self.certificates) is None

    @cached_property
    def reach(self) -> Reach | None:
        """A (d, r) and c of reachable queries c + Ay, |y| ≤ 1: semi-axes as columns, and the center."""
        return None if self.queries is None else _reach_of(self.queries)

    def to_dict(self) -> dict[str, Any]:
        """Counts, and the least margin of the queries."""
        finite = self.certificates.margins[np.isfinite(self.certificates.margins)]
        return {
            "shape": list(self.keys.shape),
            "bias": self.bias is not None,
            "reachable": self.queries is not None,
            "keys": self.mask.size,
            "selectable": int(self.mask.sum()),
            "unselectable": len(self.certificates.weight_keys),
            "degenerate": int(self.degenerate.sum()),
            "open": int(self.open.sum()),
            "least_margin": float(finite.min()) if len(finite) else None,
            "largest_residual": float(self.certificates.residuals.max(initial=0.0)),
        }

    def __repr__(self) -> str:
        size = f"{self.mask.size} keys of {self.keys.shape[-1]} channels"
        if self.mask.ndim > 1:
            size += f" in {self.mask.size // self.mask.shape[-1]} sets"
        if self.queries is not None:
            size += ", reachable queries"
        parts = [f"{int(self.mask.sum())} selectable", f"{len(self.certificates.weight_keys)} not"]
        parts += [f"{int(self.degenerate.sum())} degenerate"] if self.degenerate.any() else []
        parts += [f"{int(self.open.sum())} open"] if self.open.any() else []
        return f"Selectable({size}: {', '.join(parts)})"


def selectable(keys: Any, *, bias: Any = None, queries: Ellipsoid | None = None) -> Selectable:
    """Which of keys (n, d), or of each set in a batch (..., n, d), some query prefers to all others of its set.

    With bias (..., n), key j scores q·kⱼ + bⱼ. With queries, an ellipsoid (of a norm's outputs, through W_Q), only
    queries from it count: those that the model can produce.

    >>> result = selectable([[0, 0], [4, 0], [0, 4], [1, 1]])
    >>> result
    Selectable(4 keys of 2 channels: 3 selectable, 1 not)
    >>> result.mask
    array([ True,  True,  True, False])
    >>> result.certificates[3].weights
    array([0.5 , 0.25, 0.25])
    >>> result.check()
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
    problems = points.reshape(-1, *points.shape[-2:])
    return _assembled(vectors, heights, *solve_sets(problems, heights is not None))


def _selectable_by(queries: Ellipsoid, keys: Floats, bias: Floats | None) -> Selectable:
    """Which keys a query from the ellipsoid prefers."""
    if not isinstance(queries, Ellipsoid) or not queries.bounded or queries.parts > 1:
        raise InputError(f"queries must be one bounded ellipsoid, got {queries!r}")
    if queries.size != keys.shape[-1]:
        raise InputError(f"queries must have as many channels as the keys, {keys.shape[-1]}, got {queries.size}")
    matrix, center = _reach_of(queries)
    sets = keys.reshape(-1, *keys.shape[-2:])
    heights = [None] * len(sets) if bias is None else list(bias.reshape(len(sets), -1))
    solutions = [solve_reachable(some, height, matrix, center) for some, height in zip(sets, heights, strict=True)]
    parts = placed({number: solution.certificates for number, solution in enumerate(solutions)}, keys.shape[:-1])
    certificates = joined(parts, keys.shape[:-1], matrix.shape[1])
    coordinates = certificates.queries
    in_full = replace(certificates, queries=center + coordinates @ matrix.T, coordinates=coordinates)
    degenerate = np.concatenate([solution.degenerate for solution in solutions])
    return replace(_assembled(keys, bias, in_full, degenerate), queries=queries)


def _reach_of(queries: Ellipsoid) -> Reach:
    matrix = queries.axes() * queries.lengths
    return matrix if matrix.shape[1] else np.zeros((queries.size, 1)), queries.center


def _assembled(
    keys: Floats, bias: Floats | None, certificates: Certificates, degenerate: NDArray[np.bool_]
) -> Selectable:
    shape, channels = keys.shape[:-1], keys.shape[-1]
    mask = np.zeros(shape, bool)
    mask.reshape(-1)[certificates.query_keys] = True
    queries = np.ascontiguousarray(certificates.queries[:, :channels])  # without the weight 1 of a bias
    certificates = replace(certificates, shape=shape, queries=queries)
    return Selectable(keys, bias, mask, degenerate.reshape(shape), certificates)
