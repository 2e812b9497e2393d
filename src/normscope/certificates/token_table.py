"""A table of tokens, one row each, and the two sets of hidden vectors that may be scored by it.

    score of token j for h           wⱼ·h + cⱼ
    any hidden vector                h in ℝᴺ
    reachable: outputs of a norm     h = b + √N·GΠu, |u| ≤ 1

Rows stay where they are stored, in the precision they are stored in, and are converted to doubles in parts: a table in
a mapped file is never in memory as a whole. Verdicts are about exactly these numbers.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from normscope.certificates.key_certificates import Ints
from normscope.checks import Floats
from normscope.norm import Norm

BLOCK = 2**22  # entries in double precision at a time: 32 MB
UNIT = 2.0**-53  # unit roundoff of double precision


@dataclass(frozen=True, eq=False)
class Outputs:
    """The outputs of a norm: center + √N·gain·(u − mean u), |u| ≤ 1; u as it is where the norm does not project."""

    gain: Floats
    center: Floats
    projects: bool

    def at(self, u: Floats) -> Floats:
        """The outputs for each u in the last axis.

        >>> Outputs(np.array([1.0, 2.0]), np.array([0.0, 5.0]), True).at(np.array([0.5, -0.5])).round(4)
        array([0.7071, 3.5858])
        """
        inner = u - u.mean(axis=-1, keepdims=True) if self.projects else u
        outputs: Floats = self.center + self.reach * inner
        return outputs

    def pull(self, rows: Floats) -> Floats:
        """The a with a·u = w·(output for u − center), for each row w."""
        pulled: Floats = rows * self.reach
        if self.projects:
            pulled -= pulled.mean(axis=-1, keepdims=True)
        return pulled

    @cached_property
    def reach(self) -> Floats:
        """√N·gain."""
        return np.asarray(np.sqrt(len(self.gain)) * self.gain)


class Rows(Protocol):
    """A matrix whose rows are read when they are asked for, as float32 or float64; a numpy array is one."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> np.dtype[Any]: ...

    def __len__(self) -> int: ...

    def __getitem__(self, which: Any, /) -> Any: ...


@dataclass(frozen=True, eq=False)
class Table:
    """Tokens as rows (V, N) of float32 or float64, with a bias (V,) if scores have one."""

    rows: Rows
    bias: Floats | None = None
    outputs: Outputs | None = None  # None: nothing is known about reachable vectors

    @classmethod
    def after(cls, norm: Norm | None, rows: Rows, bias: Floats | None) -> "Table":
        """A table that scores the outputs of a norm; without outputs where they do not fill an ellipsoid.

        >>> Table.after(Norm(gain=[1.0, 2.0], scale=False), np.eye(2), None).outputs is None
        True
        """
        counts = bias is not None and (bias != bias[0]).any()  # a bias that all tokens share decides nothing
        fills = norm is not None and norm.scales and norm.groups == 1
        outputs = Outputs(norm.gain, norm.bias, norm.projects) if norm is not None and fills else None
        return cls(rows, bias if counts else None, outputs)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def channels(self) -> int:
        return int(self.rows.shape[1])

    def doubles(self, which: slice | Ints) -> Floats:
        doubles: Floats = self.rows[which].astype(np.float64)
        return doubles

    def keys(self, which: slice | Ints) -> Floats:
        """Rows with their bias, if there is one, as the last channel."""
        rows = self.doubles(which)
        return rows if self.bias is None else np.column_stack([rows, self.bias[which]])

    def parts(self) -> Iterator[slice]:
        """All rows, a block at a time."""
        return in_parts(len(self), self.channels)

    def stored(self) -> Iterator[NDArray[np.floating]]:
        """All rows as they are stored, a block at a time."""
        return (self.rows[part] for part in self.parts())

    @cached_property
    def widest(self) -> Floats:
        """The largest absolute value of each channel: (N,)."""
        widest = [np.abs(rows).max(axis=0) for rows in self.stored()]
        return np.asarray(np.max(widest, axis=0), np.float64)

    @cached_property
    def duplicates(self) -> NDArray[np.bool_]:
        """Whether each token equals another one in row and bias, where no equal row has a higher bias.

        >>> Table(np.array([[1.0], [2.0], [1.0], [2.0]]), np.array([0.0, 3.0, 0.0, 4.0])).duplicates
        array([ True, False,  True, False])
        """
        alike: dict[bytes, list[int]] = {}
        rows = (row for block in self.stored() for row in block + 0.0)  # −0 equals 0
        for number, row in enumerate(rows):
            alike.setdefault(hashlib.sha256(row.tobytes()).digest(), []).append(number)
        found = np.zeros(len(self), bool)
        for tokens in alike.values():
            if len(tokens) > 1:
                heights = np.zeros(len(tokens)) if self.bias is None else self.bias[tokens]
                highest = np.array(tokens)[heights == heights.max()]
                found[highest] = len(highest) > 1
        return found

    @cached_property
    def sha256(self) -> str:
        """SHA-256 of everything that verdicts depend on: rows as stored, bias, and the outputs of the norm."""
        outputs = self.outputs
        facts = (self.rows.shape, str(self.rows.dtype), self.bias is not None, outputs and outputs.projects)
        digest = hashlib.sha256(repr(facts).encode())
        for rows in self.stored():
            digest.update(rows.astype(rows.dtype.newbyteorder("<")).tobytes())
        for vector in (self.bias, *((outputs.gain, outputs.center) if outputs else ())):
            if vector is not None:
                digest.update(vector.astype("<f8").tobytes())
        return digest.hexdigest()


def in_parts(count: int, channels: int) -> Iterator[slice]:
    """Rows 0 to count, split into blocks that fit in memory in double precision."""
    step = max(1, BLOCK // channels)
    return (slice(start, min(count, start + step)) for start in range(0, count, step))
