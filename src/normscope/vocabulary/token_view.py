"""Tokens of a table as a search sees them: points that a vector is multiplied by, and heights that are added.

    any hidden vector     points wⱼ, and biases cⱼ where there are some
    reachable vectors     points aⱼ = √N·ΠGwⱼ, heights wⱼ·b + cⱼ: the score of output h = b + √N·GΠu is aⱼ·u + height

Points and heights of the second kind are rounded, and say by how much.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from normscope.certificates.key_certificates import Ints
from normscope.certificates.token_scores import outputs_of
from normscope.certificates.token_table import UNIT, Outputs, Table, in_parts
from normscope.checks import Floats


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
        return outputs_of(self.table)

    @property
    def question(self) -> str:
        return "reachable vectors" if self.reachable else "any vector"

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

    @property
    def biased(self) -> bool:
        """Whether something is added to scores that keys hold."""
        return self.heights is not None if self.reachable else self.table.bias is not None

    @cached_property
    def heights(self) -> Floats | None:
        """Heights of points, their mean taken off; None where all are equal. Of any hidden vector: not asked for.

        A vector that prefers a token by its row alone does so by an arbitrary margin when it grows.
        """
        if not self.reachable:
            return None
        center, bias = self.outputs.center, self.table.bias
        if bias is None and not center.any():
            return None
        heights = np.concatenate([self.table.doubles(self.names[part]) @ center for part in self.parts()])
        heights += 0.0 if bias is None else bias[self.names]
        return None if heights.min() == heights.max() else np.asarray(heights - heights.mean())

    @cached_property
    def point_error(self) -> float:
        """A bound on the error of points."""
        if not self.reachable:
            return 0.0
        size = self.table.channels
        longest = 0.0
        for part in self.parts():
            rows = self.table.doubles(self.names[part])
            rows *= self.outputs.gain
            longest = max(longest, float(np.sqrt(np.einsum("ij,ij->i", rows, rows).max())))
        return float(1.01 * (size + 6) * UNIT * np.sqrt(size) * longest)

    @cached_property
    def height_error(self) -> float:
        """A bound on the error of differences of heights, half on each side."""
        if not self.reachable:
            return 0.0
        largest = self.table.widest @ np.abs(self.outputs.center)
        largest += 0.0 if self.table.bias is None else np.abs(self.table.bias).max()
        return float(1.01 * (self.table.channels + 4) * UNIT * largest)
