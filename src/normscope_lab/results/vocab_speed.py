"""`normscope bench vocab`: what searching and checking a vocabulary takes."""

from dataclasses import dataclass
from typing import Annotated

from normscope.results.describe import Column, Table
from normscope.results.result import Result
from normscope_lab.bench.timing import Machine, duration


@dataclass(frozen=True)
class TableSearch:
    """One search over a table of embeddings, and the check of its certificates, on one thread."""

    tokens: Annotated[int, Column("tokens", "Rows of the table.", ",")]
    channels: Annotated[int, Column("channels", "Columns of the table.")]
    own_direction_seconds: Annotated[
        float, Column("own directions", "CPU time of trying every token's own direction, for both questions.", duration)
    ]
    own_direction_wins: Annotated[
        int, Column("settled by them", "Tokens that they show to be preferred by a reachable vector.", ",")
    ]
    own_direction_megabytes: Annotated[
        float, Column("memory by then (MB)", "Most memory that the process held by then.", ".0f", brief=False)
    ]
    rest_seconds: Annotated[
        float, Column("rest of the search", "CPU time of duplicates, nearest points and the ellipsoid.", duration)
    ]
    wins: Annotated[int, Column("settled in the end", "Tokens shown to be preferred by a reachable vector.", ",")]
    check_seconds: Annotated[float, Column("check", "CPU time of checking every certificate.", duration)]
    check_holds: Annotated[bool, Column("certificates hold", "Whether every certificate was right.", brief=False)]
    peak_megabytes: Annotated[float, Column("peak memory (MB)", "Most memory that the process held.", ".0f")]


@dataclass(frozen=True, repr=False)
class VocabSpeed(Result, kind="vocab_speed"):
    """Time and memory of a search over a random table of embeddings, and of its check."""

    machine: Machine
    runs: Annotated[tuple[TableSearch, ...], Table("Which tokens can be predicted: a random table, one thread")]

    @property
    def holds(self) -> bool:
        return all(run.check_holds for run in self.runs)

    def __repr__(self) -> str:
        each = (
            f"{run.tokens} × {run.channels} in {run.own_direction_seconds + run.rest_seconds:.0f} s"
            for run in self.runs
        )
        return f"VocabSpeed({', '.join(each)}, {'certified' if self.holds else 'NOT certified'})"
