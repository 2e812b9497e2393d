"""`normscope reproduce`: claims of a paper, its figures and ours, and verdicts."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from normscope.results.describe import Column, Table
from normscope.results.result import Result
from normscope_lab.bench.timing import duration

UNDECIDED = "cannot be decided here"
Setting = bool | int | float | str | tuple[int | float | str, ...] | dict[str, str]


@dataclass(frozen=True)
class Finding:
    """One claim of a paper, what it reports, and what was measured here."""

    claim: Annotated[str, Column("claim", "What the paper claims.")]
    paper: Annotated[str, Column("the paper", "What it reports.")]
    ours: Annotated[str, Column("ours", "What was measured here.")]
    holds: bool | None  # None: not shown either way
    decided_by: Annotated[str, Column("decided by", "The rule or the statistical test.")]
    differences: str = ""  # in data or scale, from what the paper did
    power: Annotated[str, Column("power", "What this design could have seen.", brief=False)] = ""
    would_decide: str = ""  # if the claim can't be decided here: what would decide it

    @property
    def verdict(
        self,
    ) -> Annotated[
        str,
        Column(
            "verdict", "Whether the claim holds here; not shown: neither way, though the design could have seen it."
        ),
    ]:
        undecided = UNDECIDED if self.would_decide else "not shown"
        return {True: "holds", False: "does not hold", None: undecided}[self.holds]


@dataclass(frozen=True, repr=False)
class Reproduction(
    Result, kind="reproduction", schema_version=2, remarked_by="normscope_lab.results.reproduction:remarks"
):
    """A finished run of an experiment: its settings, and what it says about the paper's claims."""

    experiment: str
    what: str
    source: str
    preset: str
    seeds: tuple[int, ...]
    settings: dict[str, Setting]
    findings: Annotated[tuple[Finding, ...], Table("{0.what}")]
    pictures: tuple[str, ...]
    pages: tuple[str, ...]
    seconds: float  # CPU seconds of all cells; for a cell that was interrupted, since it was resumed
    folder: str

    def __repr__(self) -> str:
        verdicts = [finding.verdict for finding in self.findings]
        counts = ", ".join(f"{verdicts.count(each)} {each}" for each in dict.fromkeys(verdicts))
        return f"Reproduction({self.experiment}, preset {self.preset}: {counts})"


def remarks(result: Reproduction) -> Iterator[str]:
    yield (
        f"{result.source}; preset {result.preset}, seeds {len(result.seeds)}, "
        f"{duration(result.seconds)} of CPU time; files in {result.folder}."
    )
    for difference in dict.fromkeys(finding.differences for finding in result.findings if finding.differences):
        yield f"Different here: {difference}."
    for finding in result.findings:
        if finding.verdict == UNDECIDED:
            yield f"Would decide whether {finding.claim}: {finding.would_decide}."
