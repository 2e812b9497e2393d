"""Findings on a terminal: a block of text for each, the most important first."""

from textwrap import wrap

from rich.console import Console
from rich.text import Text

from normscope.report.terminal import printable
from normscope.results.finding_list import MARKS, Finding, FindingList, Severity, Unchecked

STYLES: dict[Severity, str] = {"error": "bold red", "warning": "yellow", "note": "blue"}
INDENT = 2


def show(result: FindingList, console: Console) -> None:
    """Every finding with its evidence and advice; then what was checked without a finding, and what was not."""
    run = "" if result.text is None else f", run on {result.text}"
    head = f"{_counted(result)} on {result.model}{run}. {not_run(result)}"
    _indented(head.rstrip(), console, indent=0)
    for finding in result.findings:
        console.print()
        _show_finding(finding, console)
    if result.clear:
        console.print()
        console.print(Text("Checked, and nothing found:"))
        for clear in result.clear:
            _indented(f"{clear.rule} {clear.name}: {clear.evidence}", console)
    if result.unchecked:
        console.print()
        console.print(Text("Not checked:"))
        for (reason, command), rules in together(result.unchecked).items():
            with_what = "" if command is None else f" To check: {command}"
            _indented(f"{', '.join(rules)}: {reason}.{with_what}", console)


def _show_finding(finding: Finding, console: Console) -> None:
    head = Text(f"{MARKS[finding.severity]} {finding.severity}", STYLES[finding.severity])
    head.append(f" · {finding.sure} · {finding.rule} {finding.name}", "dim")
    console.print(head)
    _indented(finding.title, console, "bold")
    for part in (finding.evidence, finding.why, f"Do: {finding.do}"):
        _indented(part, console)


def _indented(words: str, console: Console, style: str = "", indent: int = INDENT) -> None:
    """Lines between words: a path that is wider than the terminal stays whole, so that its command can be copied."""
    for line in wrap(printable(words), console.width - indent, break_long_words=False, break_on_hyphens=False):
        console.print(Text(" " * indent).append(line, style), soft_wrap=True)


def not_run(result: FindingList) -> str:
    """How many checks did not run, in a sentence; empty if all did."""
    many = len(result.unchecked)
    total = len({each.rule for part in (result.findings, result.clear, result.unchecked) for each in part})
    return f"{many} of {total} checks did not run." if many else ""


def together(unchecked: tuple[Unchecked, ...]) -> dict[tuple[str, str | None], list[str]]:
    """Rules that could not be checked for the same reason."""
    together: dict[tuple[str, str | None], list[str]] = {}
    for each in unchecked:
        together.setdefault((each.reason, each.command), []).append(f"{each.rule} {each.name}")
    return together


def _counted(result: FindingList) -> str:
    counts = [(result.count(severity), severity) for severity in MARKS]
    words = [f"{count} {severity}{'s' * (count != 1)}" for count, severity in counts if count]
    return ", ".join(words) if words else "No finding"
