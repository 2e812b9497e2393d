"""Result types of `swap`: what became of every norm. Plain values; nothing is computed here."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Swapped:
    """A norm that was replaced."""

    name: str
    before: str  # its kind
    after: str
    channels: int
    groups_before: int
    groups: int
    note: str  # what else is different, if anything

    @property
    def in_words(self) -> str:
        many = f"{self.groups} groups of {self.channels // self.groups} channels"
        return f"{self.before} → {self.after}, {many if self.groups > 1 else f'{self.channels} channels'}"


@dataclass(frozen=True)
class Kept:
    """A norm that was not, and why."""

    name: str
    kind: str
    reason: str


@dataclass(frozen=True, repr=False, eq=False)
class Swapping:
    """The model with its new norms, and what became of each of the old ones: `print` shows it as a table."""

    model: nn.Module = field(repr=False)
    swapped: tuple[Swapped, ...]
    kept: tuple[Kept, ...]

    @property
    def rows(self) -> list[tuple[str, str, str]]:
        """Of each norm its name, what became of it, and a note or a reason."""
        rows = [(change.name, change.in_words, change.note) for change in self.swapped]
        rows += [(left.name, f"{left.kind}, kept", left.reason) for left in self.kept]
        return [(name or "(the model)", what, why) for name, what, why in rows]

    def to_dict(self) -> dict[str, Any]:
        """What became of each norm; the model is no part of it."""
        return {
            "schema_version": SCHEMA_VERSION,
            "swapped": [asdict(change) for change in self.swapped],
            "kept": [asdict(left) for left in self.kept],
        }

    def _repr_html_(self) -> str:
        """A table for notebooks."""
        from normscope.report.tables.swapping import swapping_html

        return swapping_html(self)

    def __repr__(self) -> str:
        return f"Swapping({type(self.model).__name__}: {len(self.swapped)} swapped, {len(self.kept)} kept)"

    def __str__(self) -> str:
        rows = self.rows
        names, whats = (max((len(row[column]) for row in rows), default=0) for column in (0, 1))
        return "\n".join([repr(self), *(f"{name:{names}}  {what:{whats}}  {why}".rstrip() for name, what, why in rows)])
