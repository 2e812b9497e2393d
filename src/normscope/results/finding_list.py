"""`normscope.check`: what stands out in a model, why it matters, how sure that is, and what to do about it."""

from dataclasses import dataclass
from typing import Annotated, Literal

from normscope.results.describe import Column, Table
from normscope.results.result import Result
from normscope.results.rows import several

Severity = Literal["error", "warning", "note"]
Sure = Literal[
    "proved for all inputs",
    "proved for an input of a norm",
    "proved, for this text",
    "seen on the text",
    "planned from the graph",
    "heuristic",
]
PanelId = Literal["norm", "ranges", "stream", "heads", "equal", "vocabulary", "folding", "norms"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")  # the most important first
MARKS: dict[Severity, str] = {"error": "■", "warning": "▲", "note": "●"}


@dataclass(frozen=True)
class Figure:
    """The number that a rule judged, and the threshold that it was judged by."""

    value: float
    threshold: float | None = None  # None: a count, of which one is enough


@dataclass(frozen=True)
class Finding:
    """Something that stands out, in sentences that can be read alone."""

    rule: Annotated[str, Column("rule", "Its number; `normscope check --explain` has a page on it.")]
    name: Annotated[str, Column("name", "Its name.")]
    severity: Annotated[Severity, Column("severity", "error, warning or note.")]
    sure: Annotated[
        Sure,
        Column(
            "how sure",
            "Proved for all inputs; proved, for this text; seen on the text; planned from the graph; or heuristic: "
            "exact numbers, judged by a threshold.",
        ),
    ]
    title: Annotated[str, Column("what", "What was found, where, and its number.")]
    evidence: Annotated[str, Column("evidence", "What the number is compared with.", brief=False)]
    why: Annotated[str, Column("why it matters", "What follows for the reader.", brief=False)]
    do: Annotated[str, Column("what to do", "An action, or a command.", brief=False)]
    panel: PanelId  # the panel of the report that shows it
    sites: Annotated[tuple[str, ...], Column("where", "Modules where it happens.", several, brief=False)] = ()
    norms: Annotated[tuple[str, ...], Column("reaches", "Norms that it concerns.", several, brief=False)] = ()
    figure: Figure | None = None


@dataclass(frozen=True)
class Clear:
    """A rule that found nothing."""

    rule: Annotated[str, Column("rule", "Its number.")]
    name: Annotated[str, Column("name", "Its name.")]
    evidence: Annotated[str, Column("nothing found", "What was looked at, and what was seen there.")]


@dataclass(frozen=True)
class Unchecked:
    """A rule that could not be checked."""

    rule: Annotated[str, Column("rule", "Its number.")]
    name: Annotated[str, Column("name", "Its name.")]
    reason: Annotated[str, Column("not checked, because", "What is missing.")]
    command: Annotated[str | None, Column("what would check it", "The command that computes what is missing.")]


@dataclass(frozen=True, repr=False)
class FindingList(Result, kind="finding_list", shown_by="normscope.report.finding_blocks:show"):
    """What stands out in a model, the most important first; then what was checked without a finding, and what was not.

    It holds no certificates of its own: a finding that is proved names the command whose result can be saved and
    verified.
    """

    model: str
    findings: Annotated[tuple[Finding, ...], Table("Findings on {0.model}", empty="No finding.")]
    clear: Annotated[tuple[Clear, ...], Table("Checked, and nothing found")] = ()
    unchecked: Annotated[tuple[Unchecked, ...], Table("Not checked")] = ()
    text: str | None = None  # description of the text that the model was run on
    path: str | None = None  # of the model; None for a module

    @property
    def errors(self) -> int:
        """How many findings are errors."""
        return self.count("error")

    def count(self, severity: Severity) -> int:
        """How many findings are of this severity."""
        return sum(finding.severity == severity for finding in self.findings)

    def failure(self) -> str | None:
        """Why a command that shows it ends with exit code 1."""
        return f"{self.errors} error{'s' * (self.errors != 1)} found" if self.errors else None

    def __repr__(self) -> str:
        counts = [f"{count} {word}{'s' * (count != 1)}" for word in SEVERITIES if (count := self.count(word))]
        return f"FindingList({self.model}: {', '.join(counts) or 'no finding'}; {len(self.clear)} rules found nothing)"
