"""`normscope reproduce --list`: every experiment."""

from dataclasses import dataclass
from typing import Annotated

from normscope.results.describe import Column, Table
from normscope.results.result import Result
from normscope_lab.results.reproduction import Setting


@dataclass(frozen=True)
class Preset:
    """How an experiment is set up."""

    seeds: int
    settings: dict[str, Setting]


@dataclass(frozen=True)
class ListedExperiment:
    """One experiment, as it is named on the command line."""

    name: Annotated[str, Column("experiment", "Its name on the command line.")]
    what: Annotated[str, Column("what it shows", "What is measured.")]
    source: Annotated[str, Column("source", "Where it was published.")]
    data: Annotated[str, Column("needs in --data", "The files that it reads; empty: none.", brief=False)]
    presets: dict[str, Preset]


@dataclass(frozen=True, repr=False)
class ExperimentsList(Result, kind="experiments_list"):
    """Every experiment, with its presets."""

    experiments: Annotated[tuple[ListedExperiment, ...], Table("Experiments: normscope reproduce NAME")]

    def __repr__(self) -> str:
        return f"ExperimentsList({len(self.experiments)} experiments)"
