"""Certificates: numbers that prove that a key can win, or that it cannot.

    a query q       q·kᵢ + bᵢ > q·kⱼ + bⱼ for all j ≠ i                      key i can win
    weights λ ≥ 0   Σλⱼ = 1, Σλⱼkⱼ = kᵢ, Σλⱼbⱼ ≥ bᵢ over j ≠ i               for no query does key i win alone

and if queries must be c + Ay with |y| ≤ 1, with x = kᵢ − Σλⱼkⱼ,

    y               |y| ≤ 1, and q = c + Ay as above                          key i can win
    weights λ ≥ 0   Σλⱼ = 1, |Aᵀx| + c·x + bᵢ − Σλⱼbⱼ ≤ 0                      no such query lets key i win

Those of a whole batch are flat arrays, and are saved as such.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from operator import index
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from normscope.checks import Floats
from normscope.errors import InputError

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]
Reach = tuple[Floats, Floats]  # A (d, r) and c (d,) of the queries c + Ay, |y| ≤ 1


@dataclass(frozen=True, eq=False)
class Query:
    """A query for which one key scores above all others, and a lower bound on its lead."""

    query: Floats
    margin: float
    coordinates: Floats | None = None  # y of a reachable query c + Ay, |y| ≤ 1; None where any query is allowed


@dataclass(frozen=True, eq=False)
class Weights:
    """Convex weights of other keys that reproduce a key."""

    indices: Ints
    weights: Floats
    # |Σλk − kᵢ|, with the shortfall of Σλb below bᵢ as one more entry if there is a bias; if queries must be reachable,
    # the largest lead of the key over the weighted mean for any of them: not above 0, up to rounding.
    residual: float


@dataclass(frozen=True, eq=False)
class Certificates:
    """The certificates of all keys of a batch: `certificates[i]`, or `certificates[head, i]`; None: the key is open.

    Keys are numbered through the whole batch in `query_keys` and `weight_keys`, and inside their own set in `indices`.
    The weights of `weight_keys[a]` are entries starts[a] to starts[a + 1] of `indices` and `weights`.
    """

    shape: tuple[int, ...]  # (..., n)
    query_keys: Ints
    queries: Floats  # (len(query_keys), d); where queries must be reachable, their coordinates y (len(query_keys), r)
    margins: Floats
    weight_keys: Ints
    starts: Ints
    indices: Ints
    weights: Floats
    residuals: Floats
    reach: Reach | None = None

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
            found, margin = self.queries[row], float(self.margins[row])
            if self.reach is None:
                return Query(found, margin)
            return Query(self.reach[1] + self.reach[0] @ found, margin, found)
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


def placed(parts: Mapping[int, Certificates], shape: tuple[int, ...]) -> list[Certificates]:
    """Certificates of single sets, keyed by their number in a batch of keys (..., n), as parts of the batch.

    >>> alone = Certificates.of_queries((2,), np.array([1]), np.ones((1, 3)), np.array([0.5]))
    >>> placed({4: alone}, (5, 2))[0].query_keys
    array([9])
    """
    return [
        replace(
            part,
            shape=shape,
            query_keys=part.query_keys + number * shape[-1],
            weight_keys=part.weight_keys + number * shape[-1],
        )
        for number, part in parts.items()
    ]


def joined(parts: Sequence[Certificates], shape: tuple[int, ...], channels: int) -> Certificates:
    """Join parts of the same batch, each for different keys, in the order of the keys."""
    parts = [part for part in parts if len(part.query_keys) or len(part.weight_keys)]
    if len(parts) == 1 and len(parts[0].query_keys) and _is_sorted(parts[0]):  # so that large arrays are not copied
        return replace(parts[0], shape=shape)
    parts = [Certificates.of_queries(shape, np.zeros(0, np.int64), np.zeros((0, channels)), np.zeros(0)), *parts]
    query_keys = np.concatenate([part.query_keys for part in parts])
    by_query = _order(query_keys)
    weight_keys = np.concatenate([part.weight_keys for part in parts])
    by_weight = _order(weight_keys)
    lengths = np.concatenate([np.diff(part.starts) for part in parts])
    before = (np.cumsum(lengths) - lengths)[by_weight]
    lengths = lengths[by_weight]
    starts = np.append(0, np.cumsum(lengths))
    entries = np.arange(starts[-1]) + np.repeat(before - starts[:-1], lengths)
    return Certificates(
        shape=shape,
        query_keys=query_keys[by_query],
        queries=np.concatenate([part.queries for part in parts if len(part.query_keys) or part is parts[0]])[by_query],
        margins=np.concatenate([part.margins for part in parts])[by_query],
        weight_keys=weight_keys[by_weight],
        starts=starts,
        indices=np.concatenate([part.indices for part in parts])[entries],
        weights=np.concatenate([part.weights for part in parts])[entries],
        residuals=np.concatenate([part.residuals for part in parts])[by_weight],
    )


def _is_sorted(part: Certificates) -> bool:
    return isinstance(_order(part.query_keys), slice) and isinstance(_order(part.weight_keys), slice)


def _order(keys: Ints) -> Ints | slice:
    """An index that sorts keys: a slice if they are sorted already, so that large arrays are not copied."""
    return slice(None) if (keys[1:] > keys[:-1]).all() else np.argsort(keys)


def equal_keys(keys: Floats, earlier: bool = False) -> Bools:
    """Which of keys (n, d) equal another one, or with `earlier` one before them.

    >>> twice = np.array([[1.0], [2.0], [1.0]])
    >>> equal_keys(twice), equal_keys(twice, earlier=True)
    (array([ True, False,  True]), array([False, False,  True]))
    """
    plain = np.ascontiguousarray(keys + 0.0)  # −0 equals 0
    names = plain.view(f"V{plain.shape[1] * plain.itemsize}").ravel()
    _, first, kinds, counts = np.unique(names, return_index=True, return_inverse=True, return_counts=True)
    return np.asarray(np.arange(len(keys)) > first[kinds] if earlier else counts[kinds] > 1)


def require_form(keys: Any, bias: Any, near_ties: Any, certificates: Certificates) -> None:
    """Refuse arrays, which may come from a file, that can't be read as certificates for keys (..., n, d)."""
    about_keys = _key_faults(keys, bias, near_ties, certificates)
    faults = chain(_array_faults(keys, bias, near_ties, certificates), about_keys, _list_faults(keys, certificates))
    for fault in faults:  # only the first: later checks rely on earlier ones
        raise InputError(fault)


def _array_faults(keys: Any, bias: Any, near_ties: Any, c: Certificates) -> Iterator[str]:
    reach = (None, None) if c.reach is None else c.reach
    for name, array, kind in (
        ("keys", keys, np.float64),
        ("bias", bias, np.float64),
        ("near_ties", near_ties, np.bool_),
        ("query_keys", c.query_keys, np.int64),
        ("queries", c.queries, np.float64),
        ("margins", c.margins, np.float64),
        ("weight_keys", c.weight_keys, np.int64),
        ("starts", c.starts, np.int64),
        ("indices", c.indices, np.int64),
        ("weights", c.weights, np.float64),
        ("residuals", c.residuals, np.float64),
        ("semi_axes", reach[0], np.float64),
        ("center", reach[1], np.float64),
    ):
        if array is None and (name == "bias" or (name in ("semi_axes", "center") and c.reach is None)):
            continue
        if not isinstance(array, np.ndarray) or array.dtype != kind:
            got = array.dtype if isinstance(array, np.ndarray) else "none"
            yield f"array {name} must be of {np.dtype(kind)}, got {got}"
        # A single key wins by an infinite margin.
        elif kind == np.float64 and (np.isnan(array).any() if name == "margins" else not np.isfinite(array).all()):
            yield f"array {name} must be finite"


def _key_faults(keys: Floats, bias: Floats | None, near_ties: Bools, c: Certificates) -> Iterator[str]:
    if keys.ndim < 2 or 0 in keys.shape:
        yield f"keys must have shape (..., n, d) with one or more of each, got shape {keys.shape}"
    shape = keys.shape[:-1]
    if not (c.shape == near_ties.shape == shape):
        yield f"near_ties must have the shape of the keys, {shape}, got {near_ties.shape}"
    if bias is not None and bias.shape != shape:
        yield f"bias must have one entry per key, shape {shape}, got {bias.shape}"
    if c.reach is not None:
        axes, center = c.reach
        if axes.ndim != 2 or len(axes) != keys.shape[-1] or center.shape != keys.shape[-1:] or not axes.shape[1]:
            yield f"semi_axes and center must have {keys.shape[-1]} rows, got shapes {axes.shape} and {center.shape}"


def _list_faults(keys: Floats, c: Certificates) -> Iterator[str]:
    shape, size = keys.shape[:-1], keys[..., 0].size
    for numbers in (c.query_keys, c.weight_keys, c.starts, c.indices, c.weights):
        if numbers.ndim != 1:
            yield "numbers of keys, starts, indices and weights must be plain lists"
    channels = keys.shape[-1] if c.reach is None else c.reach[0].shape[1]
    if c.queries.shape != (len(c.query_keys), channels) or c.margins.shape != c.query_keys.shape:
        yield "there must be one query with its margin per selectable key"
    if c.starts.shape != (len(c.weight_keys) + 1,) or c.residuals.shape != c.weight_keys.shape:
        yield "there must be one set of weights with its residual per key that is never selected"
    if c.indices.shape != c.weights.shape or c.starts[0] != 0 or c.starts[-1] != len(c.weights):
        yield "the weights must be split up by their starts"
    if (np.diff(c.starts) < 1).any() or ((c.indices < 0) | (c.indices >= shape[-1])).any():
        yield "weights must name one or more keys of their own set"
    for numbers in (c.query_keys, c.weight_keys):
        if (np.diff(numbers) <= 0).any() or ((numbers < 0) | (numbers >= size)).any():
            yield f"certificates must be in the order of the keys, one for each of {size} at most"
    if len(both := np.intersect1d(c.query_keys, c.weight_keys)):
        yield f"key {np.unravel_index(int(both[0]), shape)[-1]} has both a query and weights"
