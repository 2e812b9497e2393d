"""What an experiment is: cells that do not depend on each other, and findings about all their rows.

A cell is one variant with one seed. Its rows are tidy: one observation each, with all that it depends on.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from normscope_lab.engine.keep import Keep

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Settings = Mapping[str, Any]  # as JSON holds them
Row = dict[str, str | int | float | None]


@dataclass(frozen=True)
class Cell:
    """One independent part of a run."""

    key: str  # names its files
    seed: int
    settings: Settings
    data: Path | None = None  # where --data is in this run; the results depend on what is there, not on where


@dataclass(frozen=True)
class Finding:
    """One claim of a paper, what it reports, and what was measured here."""

    claim: str
    paper: str
    ours: str
    holds: bool | None  # None: not shown either way
    decided_by: str  # the rule or the statistical test
    differences: str = ""  # in data or scale, from what the paper did

    @property
    def verdict(self) -> str:
        return {True: "holds", False: "does not hold", None: "not shown"}[self.holds]


class Experiment(ABC):
    """One experiment of a paper: how it is set up, run, judged and drawn."""

    name: ClassVar[str]
    what: ClassVar[str]
    source: ClassVar[str]
    seeds: ClassVar[Mapping[str, int]]  # how many, by preset
    data: ClassVar[str] = ""  # what --data must hold; empty if none is needed

    @abstractmethod
    def settings(self, preset: str, data: Path | None) -> Settings:
        """Everything that the results depend on, apart from the seeds."""

    @abstractmethod
    def cells(self, settings: Settings, seeds: Sequence[int]) -> list[Cell]:
        """The parts, in the order in which they are run."""

    @abstractmethod
    def run(self, cell: Cell, keep: Keep) -> list[Row]:
        """The rows of one cell. Long ones save their state and go on from it."""

    @abstractmethod
    def findings(self, settings: Settings, rows: Sequence[Row]) -> list[Finding]:
        """What the rows say about the paper's claims."""

    @abstractmethod
    def pictures(self, settings: Settings, rows: Sequence[Row]) -> "dict[str, Figure]":
        """Figures by name, like those of the paper."""

    def pages(self, settings: Settings, rows: Sequence[Row]) -> dict[str, str]:
        """HTML by name, for what must be turned to be seen."""
        return {}


def cells_by(name: str, settings: Settings, seeds: Sequence[int]) -> list[Cell]:
    """One cell for each seed and each value of a setting that is a list.

    >>> [(cell.key, cell.settings) for cell in cells_by("channels", {"channels": [3, 4], "runs": 9}, [0])]
    [('seed-0-channels-3', {'channels': 3, 'runs': 9}), ('seed-0-channels-4', {'channels': 4, 'runs': 9})]
    """
    return [
        Cell(f"seed-{seed}-{name}-{value}", seed, {**settings, name: value})
        for seed in seeds
        for value in settings[name]
    ]


def rows_where(rows: Sequence[Row], **where: Any) -> list[Row]:
    """The rows that agree with all of it.

    >>> rows_where([{"seed": 0, "kind": "a"}, {"seed": 0, "kind": "b"}, {"seed": 1}], seed=0, kind="b")
    [{'seed': 0, 'kind': 'b'}]
    """
    return [row for row in rows if all(row.get(name) == value for name, value in where.items())]
