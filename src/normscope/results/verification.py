"""`normscope.verify`: whether a file proves what it says."""

from dataclasses import dataclass
from typing import Annotated

from normscope.results.describe import Column, Table
from normscope.results.result import Result


@dataclass(frozen=True)
class Check:
    """One file that was checked."""

    file: Annotated[str, Column("file", "What was checked.")]
    content: Annotated[str, Column("contains", "The type of the result in it.", lambda kind: kind.replace("_", " "))]
    verdict: Annotated[str, Column("verdict", "Whether every certificate in it is right.")]
    reason: Annotated[str, Column("because", "What it proves, or what is wrong first.")]


@dataclass(frozen=True, repr=False)
class Verification(Result, kind="verification"):
    """Whether a saved result proves what it says: every certificate and every number in it was checked again."""

    file: str
    content: str  # the type of the result in it
    reason: str
    holds: bool = False

    @property
    def checks(self) -> Annotated[tuple[Check, ...], Table("Certificates, checked without the solver")]:
        return (Check(self.file, self.content, "holds" if self.holds else "does not hold", self.reason),)

    def __repr__(self) -> str:
        return f"Verification({self.file}: {'holds' if self.holds else 'does not hold'}, {self.reason})"
