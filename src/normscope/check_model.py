"""`normscope.check`: all rules on all studies of a model."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from normscope.checks import quoted
from normscope.errors import InputError
from normscope.models.batches import Inputs
from normscope.models.subject import Model, Text
from normscope.progress import Progress, silent
from normscope.results.finding_list import SEVERITIES, FindingList
from normscope.rules.rule import Rule, all_rules, judge
from normscope.studies.survey import Survey, named_on_the_command_line, survey


def check(
    model: Model,
    *,
    text: Text | None = None,
    inputs: Inputs | None = None,
    select: Sequence[str] | None = None,
    ignore: Sequence[str] | None = None,
    severity: str = "note",
    seconds: float | None = None,
    device: str = "cpu",
    dtype: str | None = None,
    progress: Progress = silent,
) -> FindingList:
    """What is unusual about a model, why it matters, how sure that is, and what to do.

    Parameters
    ----------
    model
        A folder in Hugging Face format, a .gguf file, a file of weights, or a torch module.
    text, inputs
        Text or inputs to run the model on. Without them, rules about what a text shows are listed as not checked.
    select, ignore
        Rules to check, and rules to leave out: numbers ("NS102"), names ("massive-activation"), or the beginning of
        numbers ("NS1"). None: all rules, and none left out.
    severity
        Only findings of this severity or above: "note", "warning" or "error".
    seconds
        Stop after this many seconds; what could not be computed is listed as not checked. None: no limit, but verdicts
        on tokens stop after a minute.
    device, dtype
        Device and floating-point type to run the model in.
    progress
        Called with the items of each study and a description; see `normscope.progress`.

    Returns
    -------
    FindingList
        Findings, the most important first; rules that found nothing, and rules that could not be checked.

    >>> from torch import nn
    >>> check(nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)), select=["NS201", "NS305"])
    FindingList(Sequential: no finding; 2 rules found nothing)
    """
    _require_severity(severity)
    rules = chosen_rules(select, ignore)
    parts = {rule.reads for rule in rules.values()}
    found = survey(
        model, text=text, inputs=inputs, seconds=seconds, parts=parts, device=device, dtype=dtype, progress=progress
    )
    return findings_of(found, rules, severity=severity)


def findings_of(found: Survey, rules: Mapping[str, Rule] | None = None, *, severity: str = "note") -> FindingList:
    """What rules (None: all) say about the results of a survey."""
    _require_severity(severity)
    missing = {each.kind: (each.reason, each.command) for each in found.missing}
    judged = judge(all_rules() if rules is None else rules, found.results, missing, _with_text(found))
    kept = SEVERITIES[: SEVERITIES.index(severity) + 1]
    return FindingList(
        model=found.model,
        findings=tuple(
            replace(finding, do=found.with_names(finding.do)) for finding in judged.findings if finding.severity in kept
        ),
        clear=judged.clear,
        unchecked=judged.unchecked,
        text=found.text,
        path=found.path,
    )


def _require_severity(severity: str) -> None:
    if severity not in SEVERITIES:
        raise InputError(f"severity must be one of {', '.join(SEVERITIES)}, got {quoted(severity)}")


def chosen_rules(select: Sequence[str] | None, ignore: Sequence[str] | None) -> dict[str, Rule]:
    """The rules that are selected and not ignored, by number; an error for a name that no rule has.

    >>> list(chosen_rules(["NS20", "foldable"], ["NS202"]))
    ['NS201', 'NS203', 'NS204', 'NS301']
    """
    rules = all_rules()
    wanted = set(rules) if select is None else {number for each in select for number in _matching(each, rules)}
    unwanted = {number for each in ignore or () for number in _matching(each, rules)}
    return {number: rule for number, rule in rules.items() if number in wanted - unwanted}


def _matching(given: str, rules: Mapping[str, Rule]) -> list[str]:
    found = [
        number
        for number, rule in rules.items()
        if given == rule.name or (len(given) > 2 and number.startswith(given.upper()))
    ]
    if not found:
        raise InputError(f"{quoted(given)} is no rule: `normscope check --explain all` lists them")
    return found


def _with_text(found: Survey) -> str:
    """The command that checks the model on a text."""
    if found.path is None:
        return "normscope.check(model, inputs=…)"
    return f"normscope check{named_on_the_command_line(Path(found.path))} --text FILE"
