"""`normscope.swap`: what became of every norm of a model whose norms were swapped."""

from dataclasses import dataclass, field
from typing import Annotated, Any

from normscope.results.describe import NOT_IN_JSON, Column, Table
from normscope.results.result import Result
from normscope.results.rows import path_text


@dataclass(frozen=True)
class SwappedNorm:
    """A norm that was replaced."""

    norm: Annotated[str, Column("norm", "The path of the module.", path_text)]
    before: Annotated[str, Column("was", "Its kind before.")]
    after: Annotated[str, Column("is now", "Its kind now.")]
    channels: Annotated[int, Column("channels", "How many it normalizes.")]
    groups_before: Annotated[int, Column("groups before", "Into how many groups it divided its channels.", brief=False)]
    groups: Annotated[int, Column("groups", "Into how many groups it divides its channels now.")]
    note: Annotated[str | None, Column("note", "What else is different.")]

    @property
    def channels_in_group(self) -> Annotated[int, Column("channels in a group", "How many are normalized together.")]:
        return self.channels // self.groups


@dataclass(frozen=True)
class KeptNorm:
    """A norm that was not replaced."""

    norm: Annotated[str, Column("norm", "The path of the module.", path_text)]
    kind: Annotated[str, Column("kind", "Which member of the family it is.")]
    reason: Annotated[str, Column("because it", "Why it was kept.")]


@dataclass(frozen=True, repr=False, eq=False)
class Swapping(Result, kind="swapping", schema_version=2):
    """A model with other norms, and what became of each of its own."""

    model: str
    swapped: Annotated[tuple[SwappedNorm, ...], Table("Swapped norms of {0.model}", empty="No norm was swapped.")]
    kept: Annotated[tuple[KeptNorm, ...], Table("Kept")]
    module: Annotated[Any, NOT_IN_JSON] = field(default=None)  # the model with its new norms; not saved

    def __repr__(self) -> str:
        return f"Swapping({self.model}: {len(self.swapped)} swapped, {len(self.kept)} kept)"
