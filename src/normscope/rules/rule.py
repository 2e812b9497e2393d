"""What a rule is: a function of results that returns findings, with a number, a name, and its docstring as its page.

    @rule("NS303", "eps-dominates")
    def eps_dominates(result: Inspection) -> Outcome:
        \"\"\"Outputs of a norm stay far from its surface. …\"\"\"

The annotation says which result it reads. It returns findings; or, if there are none, a sentence on what it looked at;
or `Skipped`, if the result does not tell.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, NamedTuple, get_type_hints

import normscope.rules
from normscope.results.finding_list import SEVERITIES, Clear, Figure, Finding, PanelId, Severity, Sure, Unchecked
from normscope.results.result import Result


class Skipped(NamedTuple):
    """Why a rule can't be checked on a result that is there."""

    reason: str
    needs_text: bool = False


Outcome = list[Finding] | str | Skipped
NEEDS_TEXT = Skipped("it needs a text to run the model on", needs_text=True)
_RULES: dict[str, "Rule"] = {}


@dataclass(frozen=True)
class Rule:
    """A rule. Called with the result that it reads, it returns its outcome."""

    number: str  # "NS102"
    name: str  # "massive-activation"
    reads: str  # kind of the result
    function: Callable[..., Outcome]
    threshold: "Threshold | None" = None  # None: no number decides

    @property
    def page(self) -> str:
        """What it looks for, why it matters and what to do: its documentation."""
        return inspect.cleandoc(self.function.__doc__ or "")

    @property
    def summary(self) -> str:
        """The first line of its page."""
        return self.page.partition("\n")[0]

    def __call__(self, result: Result) -> Outcome:
        outcome = self.function(result)
        if isinstance(outcome, list):
            return [replace(finding, rule=self.number, name=self.name) for finding in outcome]
        return outcome


class Threshold(NamedTuple):
    """The number that decides a heuristic rule: it finds something where the measured value is beyond it."""

    value: float
    measure: Callable[[Any], float | None]  # of the result; None where there is nothing to measure
    what: str  # that is measured
    below: bool = False  # whether values below it are findings

    def passed(self, measured: float) -> bool:
        """Whether a value is beyond it."""
        return measured < self.value if self.below else measured > self.value


def rule(number: str, name: str, threshold: Threshold | None = None) -> Callable[[Callable[..., Outcome]], Rule]:
    """Make a rule of a function of one result."""

    def made(function: Callable[..., Outcome]) -> Rule:
        (result,) = (kind for each, kind in get_type_hints(function).items() if each != "return")
        if number in _RULES and _RULES[number].function.__module__ != function.__module__:
            raise ValueError(f"rule numbers must be unique, got {number} twice")
        _RULES[number] = Rule(number, name, result.kind, function, threshold)
        return _RULES[number]

    return made


def found(
    severity: Severity,
    sure: Sure,
    panel: PanelId,
    *,
    title: str,
    evidence: str,
    why: str,
    do: str,
    sites: tuple[str, ...] = (),
    norms: tuple[str, ...] = (),
    figure: tuple[float, float | None] | None = None,
) -> Finding:
    """A finding; the rule that returns it adds its number and name."""
    judged = None if figure is None else Figure(*figure)
    return Finding("", "", severity, sure, title, evidence, why, do, panel, sites, norms, judged)


def all_rules() -> dict[str, Rule]:
    """Every rule by its number, in ascending order."""
    for module in iter_modules(normscope.rules.__path__):
        import_module(f"normscope.rules.{module.name}")
    return dict(sorted(_RULES.items()))


def titles(rules: tuple[Rule, ...], result: Result) -> Iterator[str]:
    """The findings of some rules on one result in a sentence each: what is printed above its tables."""
    for each in rules:
        outcome = each(result)
        if isinstance(outcome, list):
            yield from (finding.title for finding in outcome)


class Judged(NamedTuple):
    """What some rules said about some results."""

    findings: tuple[Finding, ...]  # the most important first
    clear: tuple[Clear, ...]
    unchecked: tuple[Unchecked, ...]


def judge(
    rules: Mapping[str, Rule],
    results: Mapping[str, Result],
    missing: Mapping[str, tuple[str, str | None]],
    text_command: str | None = None,
) -> Judged:
    """Apply rules to results by kind; `missing` has the reason and the command of kinds that were not computed."""
    findings: list[Finding] = []
    clear: list[Clear] = []
    unchecked: list[Unchecked] = []
    for number, each in rules.items():
        if each.reads not in results:
            reason, command = missing.get(each.reads, ("it was not computed", None))
            unchecked.append(Unchecked(number, each.name, reason, command))
            continue
        outcome = each(results[each.reads])
        if isinstance(outcome, Skipped):
            command = text_command if outcome.needs_text else None
            unchecked.append(Unchecked(number, each.name, outcome.reason, command))
        elif isinstance(outcome, str):
            clear.append(Clear(number, each.name, outcome))
        else:
            findings += outcome
    findings.sort(key=lambda finding: (SEVERITIES.index(finding.severity), finding.rule))
    return Judged(tuple(findings), tuple(clear), tuple(unchecked))
