"""Linear functions of a norm's direction: t = a·u + β, |u| ≤ 1, one u for each place.

    norm         y = √N·G·Π u + b         rows √N·gₙ·(eₙ − mean), offset b          (RMSNorm: no mean)
    layer        W·y + c                  rows W·(rows of y), offset W·b + c
    largest      β + |a|                  over all u; with groups of channels, β + Σ |a of the group| / √groups

Rows are made in blocks when they are needed, from the stored matrix, so that no matrix is held in float64 as a whole.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normscope.checks import Floats, as_floats
from normscope.norm import Norm

Indices = NDArray[np.intp]
BLOCK = 2**22  # numbers held in float64 at a time: 32 MB
EPS = float(np.finfo(float).eps)
StoredMatrix = Callable[[], Any]  # a matrix (outputs, inputs) as a torch tensor, read when it is called


@dataclass(frozen=True, eq=False)
class Ball:
    """The directions u of one norm, or mixtures of them: |u| ≤ 1, and with groups |u of a group| ≤ 1/√groups."""

    size: int
    norm: str  # its name
    groups: int = 1
    mixes: bool = False  # u is a mixture of several tokens' directions, as attention makes
    source: Any = None  # the node of the graph that is the norm's output

    def lengths(self, rows: Floats) -> Floats:
        """The largest a·u for each row a, rounded up."""
        parts = rows.reshape(*rows.shape[:-1], self.groups, -1)
        longest = np.sqrt(np.einsum("...i,...i->...", parts, parts)).sum(axis=-1) / np.sqrt(self.groups)
        up: Floats = longest * (1 + (self.size + 8) * EPS)
        return up


class Rows:
    """Rows a of functions a·u + β; `block` makes some of them."""

    count: int

    def __init__(self, ball: Ball) -> None:
        self.ball = ball

    def block(self, index: Indices) -> Floats:
        raise NotImplementedError

    def blocks(self) -> Iterator[tuple[slice, Floats]]:
        step = max(1, BLOCK // max(1, self.ball.size))
        for start in range(0, self.count, step):
            stop = min(start + step, self.count)
            yield slice(start, stop), self.block(np.arange(start, stop))

    @cached_property
    def lengths(self) -> Floats:
        """The largest a·u of every row, rounded up."""
        found = np.empty(self.count)
        for rows, block in self.blocks():
            found[rows] = self.ball.lengths(block)
        return found

    def whole(self) -> Floats:
        return self.block(np.arange(self.count))

    def combined(self, weights: Floats) -> Floats:
        """One row: the sum of all rows with these weights."""
        total = np.zeros(self.ball.size)
        for rows, block in self.blocks():
            total += weights[rows] @ block
        return total


class NormRows(Rows):
    """The rows of a norm itself."""

    def __init__(self, norm: Norm, ball: Ball) -> None:
        super().__init__(ball)
        self.norm, self.count = norm, norm.size

    def block(self, index: Indices) -> Floats:
        rows = np.zeros((len(index), self.norm.size))
        rows[np.arange(len(index)), index] = 1.0
        return self.of(rows)

    def combined(self, weights: Floats) -> Floats:
        found: Floats = self.of(weights[None])[0]
        return found

    def of(self, weights: Floats, scale: Floats | float = 1.0) -> Floats:
        """The rows of weights·(scale·y)."""
        pulled: Floats = weights * (self.norm.gain * np.sqrt(self.norm.size) * scale)
        if self.norm.projects:
            parts = pulled.reshape(len(pulled), self.norm.groups, -1)
            pulled = (parts - parts.mean(axis=-1, keepdims=True)).reshape(pulled.shape)
        return pulled

    @cached_property
    def lengths(self) -> Floats:
        size = self.norm.size // self.norm.groups
        free = size - 1 if self.norm.projects else size
        up: Floats = np.abs(self.norm.gain) * np.sqrt(free) * (1 + 8 * EPS)
        return up


class ProductRows(Rows):
    """The rows of a stored matrix times other rows."""

    def __init__(self, matrix: StoredMatrix, count: int, under: "Linear", source: Any = None) -> None:
        super().__init__(under.ball)
        self._matrix, self.count, self._under = matrix, count, under
        self.source = source  # the layer, to say where its numbers are stored

    def block(self, index: Indices) -> Floats:
        weights = as_floats(_taken(self._matrix(), index), "weights")
        rows = self._under.rows
        if isinstance(rows, NormRows) and self._under.is_whole:
            return rows.of(weights, self._under.scale)
        product: Floats = (weights * self._under.scale) @ self._below
        return product

    def combined(self, weights: Floats) -> Floats:
        total = np.zeros(len(self._under.index))
        step = max(1, BLOCK // max(1, len(total)))
        for start in range(0, self.count, step):
            some = np.arange(start, min(start + step, self.count))
            total += weights[some] @ as_floats(_taken(self._matrix(), some), "weights")
        return self._under.combined(total)

    @property
    def reads_norm(self) -> bool:
        """Whether it multiplies the output of a norm as it is."""
        return reads_norm(self._under)

    @property
    def read_norm(self) -> Norm:
        """The norm that it multiplies."""
        assert isinstance(self._under.rows, NormRows)
        return self._under.rows.norm

    @cached_property
    def _below(self) -> Floats:
        return self._under.rows.block(self._under.index)


class StackedRows(Rows):
    """Rows of several sources one after the other, all of the same directions."""

    def __init__(self, parts: Sequence[Rows]) -> None:
        super().__init__(parts[0].ball)
        self._parts = list(parts)
        self._starts = np.cumsum([0, *(part.count for part in parts)])
        self.count = int(self._starts[-1])

    def block(self, index: Indices) -> Floats:
        made = np.empty((len(index), self.ball.size))
        which = np.searchsorted(self._starts, index, side="right") - 1
        for place, part in enumerate(self._parts):
            mine = which == place
            if mine.any():
                made[mine] = part.block(index[mine] - self._starts[place])
        return made

    @cached_property
    def lengths(self) -> Floats:
        return np.concatenate([part.lengths for part in self._parts])


@dataclass(frozen=True, eq=False)
class Linear:
    """Unit i is scale[i]·(row index[i])·u + offset[i]; with `shrinks`, times one number of [0, 1] at each place."""

    rows: Rows
    index: Indices
    scale: Floats
    offset: Floats
    shrinks: bool = False
    ball_of: Ball | None = field(default=None)

    @property
    def ball(self) -> Ball:
        return self.ball_of or self.rows.ball

    def take(self, which: Indices) -> "Linear":
        return replace(self, index=self.index[which], scale=self.scale[which], offset=self.offset[which])

    def times(self, factor: Floats) -> "Linear":
        return replace(self, scale=self.scale * factor, offset=self.offset * factor)

    def plus(self, offset: Floats) -> "Linear":
        return replace(self, offset=self.offset + offset)

    @property
    def is_whole(self) -> bool:
        """Whether its units are all rows, in order."""
        return len(self.index) == self.rows.count and bool((self.index == np.arange(self.rows.count)).all())

    @property
    def lengths(self) -> Floats:
        return np.abs(self.scale) * self.rows.lengths[self.index] * (1 + 2 * EPS)

    def bounds(self) -> tuple[Floats, Floats]:
        """The least and the largest value of every unit."""
        low, high = self.offset - self.lengths, self.offset + self.lengths
        if self.shrinks:
            low, high = np.minimum(low, 0.0), np.maximum(high, 0.0)
        return widened(low, high, np.abs(self.offset))

    def matrix(self) -> Floats:
        """All rows, scaled: a matrix of units × directions."""
        made: Floats = self.rows.block(self.index)
        return made if (self.scale == 1.0).all() else self.scale[:, None] * made

    def combined(self, weights: Floats) -> Floats:
        """The row of the units' sum with these weights: weights @ matrix(), without that matrix."""
        spread = np.zeros(self.rows.count)
        np.add.at(spread, self.index, weights * self.scale)
        return self.rows.combined(spread)

    def multiple(self, other: "Linear") -> float | None:
        """The number k for which the other is k times this, unit by unit; None if there is none."""
        alike = self.rows is other.rows and self.shrinks == other.shrinks and self.ball is other.ball
        if not alike or not np.array_equal(self.index, other.index) or not len(self.scale) or self.scale[0] == 0:
            return None
        k = float(other.scale[0] / self.scale[0])
        near = 4 * EPS
        same = np.abs(self.scale * k - other.scale) <= near * np.abs(other.scale)
        shifts = np.abs(self.offset * k - other.offset) <= near * np.abs(other.offset)
        return k if same.all() and shifts.all() else None


def reads_norm(form: Any) -> bool:
    """Whether a value is the output of a norm as it is."""
    if not isinstance(form, Linear) or not isinstance(form.rows, NormRows) or form.shrinks or not form.is_whole:
        return False
    return bool((form.scale == 1.0).all()) and np.array_equal(form.offset, form.rows.norm.bias)


def joined(forms: Sequence[Linear]) -> Linear | None:
    """Linear functions of the same directions one after the other; None if the directions differ."""
    first = forms[0]
    if any(form.ball is not first.ball or form.shrinks != first.shrinks for form in forms):
        return None
    sources = list(dict.fromkeys(form.rows for form in forms))
    starts = dict(zip(sources, np.cumsum([0, *(rows.count for rows in sources)]), strict=False))
    rows = sources[0] if len(sources) == 1 else StackedRows(sources)
    return replace(
        first,
        rows=rows,
        index=np.concatenate([form.index + starts[form.rows] for form in forms]),
        scale=np.concatenate([form.scale for form in forms]),
        offset=np.concatenate([form.offset for form in forms]),
    )


def widened(low: Floats, high: Floats, size: Floats | float) -> tuple[Floats, Floats]:
    """Bounds moved apart by the rounding of a few operations on numbers of this size."""
    slack = 8 * EPS * (np.abs(size) + np.where(np.isfinite(low), np.abs(low), 0.0))
    slack = slack + 8 * EPS * np.where(np.isfinite(high), np.abs(high), 0.0)
    return low - slack, high + slack


def _taken(matrix: Any, index: Indices) -> Any:
    """Rows of a torch matrix; consecutive ones without a copy."""
    if len(index) and index[-1] - index[0] == len(index) - 1 and (np.diff(index) == 1).all():
        return matrix[int(index[0]) : int(index[-1]) + 1]
    import torch

    return matrix[torch.from_numpy(index)]
