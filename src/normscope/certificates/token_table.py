"""A table of tokens, one row each, and the two sets of hidden vectors that may be put to it.

    score of token j for h         wⱼ·h + cⱼ
    any h                          points wⱼ, heights cⱼ
    what the norm before writes    h = b + √N·GΠu, |u| ≤ 1: points aⱼ = √N·ΠGwⱼ, heights wⱼ·b + cⱼ, scores aⱼ·u + height

Rows stay in the precision they are stored in, and are turned into doubles some at a time: what is said of them is said
of these numbers exactly. Points and heights of the second kind are rounded, and say by how much.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normscope.certificates.key_certificates import Ints
from normscope.checks import Floats
from normscope.errors import InputError

BLOCK = 2**22  # entries in double precision at a time: 32 MB
UNIT = 2.0**-53


@dataclass(frozen=True, eq=False)
class Outputs:
    """What a norm writes: center + √N·gain·(u − mean u), |u| ≤ 1; u as it is where the norm does not project."""

    gain: Floats
    center: Floats
    projects: bool

    def at(self, u: Floats) -> Floats:
        """The outputs for each u in the last axis.

        >>> Outputs(np.array([1.0, 2.0]), np.array([0.0, 5.0]), True).at(np.array([0.5, -0.5])).round(4)
        array([0.7071, 3.5858])
        """
        inner = u - u.mean(axis=-1, keepdims=True) if self.projects else u
        outputs: Floats = self.center + self._reach * inner
        return outputs

    def pull(self, rows: Floats) -> Floats:
        """The a with a·u = w·(output for u − center), for each row w."""
        pulled: Floats = rows * self._reach
        if self.projects:
            pulled -= pulled.mean(axis=-1, keepdims=True)
        return pulled

    def towards(self, directions: Floats) -> Floats:
        """The u, of length just below 1, whose outputs lie most nearly along each direction from the center."""
        live = self.gain != 0
        u = np.where(live, directions / np.where(live, self._reach, 1.0), 0.0)
        if self.projects:
            u -= u.mean(axis=-1, keepdims=True)
        lengths = np.linalg.norm(u, axis=-1, keepdims=True)
        return np.asarray(u * ((1 - 1e-12) / np.where(lengths > 0, lengths, 1.0)))

    @cached_property
    def _reach(self) -> Floats:
        return np.asarray(np.sqrt(len(self.gain)) * self.gain)


@dataclass(frozen=True, eq=False)
class Table:
    """Tokens as rows (V, N) of float32 or float64, with a bias (V,) if scores have one."""

    rows: NDArray[np.floating]
    bias: Floats | None = None
    outputs: Outputs | None = None  # None: nothing is asked about reachable vectors

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def channels(self) -> int:
        return int(self.rows.shape[1])

    def doubles(self, which: slice | Ints) -> Floats:
        return self.rows[which].astype(np.float64)

    def parts(self) -> Iterator[slice]:
        """All rows, some at a time."""
        return in_parts(len(self), self.channels)

    def stored(self) -> Iterator[NDArray[np.floating]]:
        """All rows as they are, some at a time."""
        return (self.rows[part] for part in self.parts())

    @cached_property
    def widest(self) -> Floats:
        """The largest absolute value of each channel: (N,)."""
        widest = [np.abs(rows).max(axis=0) for rows in self.stored()]
        return np.asarray(np.max(widest, axis=0), np.float64)

    @cached_property
    def sha256(self) -> str:
        """Of all that verdicts depend on: rows as they are stored, bias, and the outputs of the norm."""
        outputs = self.outputs
        facts = (self.rows.shape, str(self.rows.dtype), self.bias is not None, outputs and outputs.projects)
        digest = hashlib.sha256(repr(facts).encode())
        for rows in self.stored():
            digest.update(rows.astype(rows.dtype.newbyteorder("<")).tobytes())
        for vector in (self.bias, *((outputs.gain, outputs.center) if outputs else ())):
            if vector is not None:
                digest.update(vector.astype("<f8").tobytes())
        return digest.hexdigest()


@dataclass(frozen=True, eq=False)
class View:
    """Some tokens of a table as points and heights: for any hidden vector, or for reachable ones."""

    table: Table
    names: Ints  # the tokens, by their number in the table
    reachable: bool

    def __len__(self) -> int:
        return len(self.names)

    @property
    def outputs(self) -> Outputs:
        """What the norm before the table writes."""
        if self.table.outputs is None:
            raise InputError("outputs must be known to ask for reachable vectors, got a table without")
        return self.table.outputs

    @property
    def question(self) -> str:
        return "reachable" if self.reachable else "plain"

    def place(self, tokens: Any) -> Any:
        """The number in the view of a token, or of many."""
        return np.searchsorted(self.names, tokens)

    def parts(self) -> Iterator[slice]:
        return in_parts(len(self), self.table.channels)

    def points(self, which: slice | Ints) -> Floats:
        rows = self.table.doubles(self.names[which])
        return self.outputs.pull(rows) if self.reachable else rows

    def keys(self, which: slice | Ints) -> Floats:
        """Points with what is added to their scores, if anything is, as one more channel."""
        added = self.heights if self.reachable else self.table.bias
        if added is None:
            return self.points(which)
        return np.column_stack([self.points(which), (added if self.reachable else added[self.names])[which]])

    @cached_property
    def spread(self) -> Floats:
        """Half of what lies between the least and the largest value of each channel of the keys."""
        low, high = np.inf, -np.inf
        for part in self.parts():
            keys = self.keys(part)
            low, high = np.minimum(low, keys.min(axis=0)), np.maximum(high, keys.max(axis=0))
        return np.asarray((high - low) / 2)

    @property
    def biased(self) -> bool:
        """Whether something is added to scores that keys hold."""
        return self.heights is not None if self.reachable else self.table.bias is not None

    @cached_property
    def heights(self) -> Floats | None:
        """Heights of points, their mean taken off; None where all are equal. Of any hidden vector: not asked for.

        A vector that prefers a token by its row alone does so by as much as one likes when it grows.
        """
        if not self.reachable:
            return None
        center, bias = self.outputs.center, self.table.bias
        heights = np.concatenate([self.table.doubles(self.names[part]) @ center for part in self.parts()])
        heights += 0.0 if bias is None else bias[self.names]
        return None if heights.min() == heights.max() else np.asarray(heights - heights.mean())

    @cached_property
    def point_error(self) -> float:
        """How far points may be from where exact arithmetic has them."""
        if not self.reachable:
            return 0.0
        size = self.table.channels
        longest = max(
            np.linalg.norm(self.table.doubles(self.names[part]) * self.outputs.gain, axis=1).max()
            for part in self.parts()
        )
        return float(1.01 * (size + 6) * UNIT * np.sqrt(size) * longest)

    @cached_property
    def height_error(self) -> float:
        """How far differences of heights may be off, a half on each side."""
        if not self.reachable:
            return 0.0
        largest = self.table.widest @ np.abs(self.outputs.center)
        largest += 0.0 if self.table.bias is None else np.abs(self.table.bias).max()
        return float(1.01 * (self.table.channels + 4) * UNIT * largest)


def in_parts(count: int, channels: int) -> Iterator[slice]:
    """Rows 0 to count, as many at a time as are held in double precision at once."""
    step = max(1, BLOCK // channels)
    return (slice(start, min(count, start + step)) for start in range(0, count, step))
