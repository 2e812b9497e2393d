"""Certificates: what proves that a key can win, or that it cannot.

    a query q       q·kᵢ + bᵢ > q·kⱼ + bⱼ for all j ≠ i                      key i can win
    weights λ ≥ 0   Σλⱼ = 1, Σλⱼkⱼ = kᵢ, Σλⱼbⱼ ≥ bᵢ over j ≠ i               whatever the query, key i never wins alone

and if queries must be c + Ay with |y| ≤ 1, with x = kᵢ − Σλⱼkⱼ,

    y               |y| ≤ 1, and q = c + Ay as above                          key i can win
    weights λ ≥ 0   Σλⱼ = 1, |Aᵀx| + c·x + bᵢ − Σλⱼbⱼ ≤ 0                      no such query lets key i win

Those of a whole batch are kept in flat arrays, which are also what a file of certificates holds.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from operator import index
from typing import Self

import numpy as np
from numpy.typing import NDArray

from normscope.checks import Floats

Ints = NDArray[np.int64]
Reach = tuple[Floats, Floats]  # A (d, r) and c (d,) of the queries c + Ay, |y| ≤ 1


@dataclass(frozen=True, eq=False)
class Query:
    """A query by which one key scores above all others, and by how much at least."""

    query: Floats
    margin: float
    coordinates: Floats | None = None  # y of a reachable query c + Ay, |y| ≤ 1; None where any query may be asked


@dataclass(frozen=True, eq=False)
class Weights:
    """Convex weights of other keys that reproduce a key."""

    indices: Ints
    weights: Floats
    # |Σλk − kᵢ|, with what Σλb lacks of bᵢ as one more entry where there is a bias; where queries must be reachable,
    # the most by which one of them prefers the key to the weighted mean: not above 0, up to rounding.
    residual: float


@dataclass(frozen=True, eq=False)
class Certificates:
    """The certificates of all keys of a batch: `certificates[i]`, or `certificates[head, i]`; None: the key is open.

    Keys are numbered through the whole batch in `query_keys` and `weight_keys`, and inside their own problem in
    `indices`. The weights of `weight_keys[a]` are entries starts[a] to starts[a + 1] of `indices` and `weights`.
    """

    shape: tuple[int, ...]  # (..., n)
    query_keys: Ints
    queries: Floats  # (len(query_keys), d)
    margins: Floats
    weight_keys: Ints
    starts: Ints
    indices: Ints
    weights: Floats
    residuals: Floats
    coordinates: Floats | None = None  # (len(query_keys), r) where queries must be reachable

    @classmethod
    def of_queries(cls, shape: tuple[int, ...], keys: Ints, queries: Floats, margins: Floats) -> Self:
        """Queries (m, d) alone, for keys in ascending order or not: see `joined`."""
        nothing = np.zeros(0, np.int64)
        return cls(shape, keys, queries, margins, nothing, np.zeros(1, np.int64), nothing, np.zeros(0), np.zeros(0))

    @classmethod
    def of_weights(
        cls, shape: tuple[int, ...], keys: Ints, starts: Ints, indices: Ints, weights: Floats, residuals: Floats
    ) -> Self:
        """Weights alone."""
        nothing = np.zeros((0, 0))
        return cls(shape, np.zeros(0, np.int64), nothing, np.zeros(0), keys, starts, indices, weights, residuals)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, place: int | tuple[int, ...]) -> Query | Weights | None:
        key = self._number(place)
        row = int(np.searchsorted(self.query_keys, key))
        if row < len(self.query_keys) and self.query_keys[row] == key:
            inside = None if self.coordinates is None else self.coordinates[row]
            return Query(self.queries[row], float(self.margins[row]), inside)
        row = int(np.searchsorted(self.weight_keys, key))
        if row < len(self.weight_keys) and self.weight_keys[row] == key:
            entries = slice(self.starts[row], self.starts[row + 1])
            return Weights(self.indices[entries], self.weights[entries], float(self.residuals[row]))
        return None

    def __iter__(self) -> Iterator[Query | Weights | None]:
        """In the order of the keys, through the whole batch."""
        return (self[place] for place in np.ndindex(self.shape))

    def _number(self, place: int | tuple[int, ...]) -> int:
        entries = tuple(index(entry) for entry in (place if isinstance(place, tuple) else (place,)))
        inside = len(entries) == len(self.shape) and all(
            -size <= entry < size for entry, size in zip(entries, self.shape, strict=True)
        )
        if not inside:
            raise IndexError(f"a place must name one key of a batch of shape {self.shape}, got {place!r}")
        return int(np.ravel_multi_index([e % size for e, size in zip(entries, self.shape, strict=True)], self.shape))
