"""From differences between seeds to verdicts. With D the mean difference, [l, h] its interval and E the paper's effect:

holds                   l > 0, after Holm's correction over the claims of one experiment
does not hold           h < 0, after the same correction, or h < E/2 where the paper states E
not shown               neither, and the design had a power of 80% or more for E, or the paper states none
cannot be decided here  neither, and its power was less
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

from normscope_lab.engine.statistics import LEVEL, POWER, Interval, holm, least_effect, power, seeds_needed
from normscope_lab.results.reproduction import Finding

EXACT = "exact"  # the power of what is proved or certified for every case


@dataclass(frozen=True)
class Compared:
    """A claim that one side is above another, and the differences that decide it."""

    claim: str
    paper: str
    ours: str
    difference: Interval
    effect: float | None = None  # that the paper states
    unit: str = ""
    rule: str = ""  # what there is to say beyond the interval
    missing: str = ""  # what is needed before it can be decided, if anything is


def decided(claims: Sequence[Compared], differences: str) -> list[Finding]:
    """Findings about claims that one experiment decides together."""
    together = holm([claim.difference.chance for claim in claims])
    findings = []
    for claim, chance in zip(claims, together, strict=True):
        holds = None if claim.missing else _verdict(claim.difference, claim.effect, chance)
        findings.append(
            Finding(
                claim.claim,
                claim.paper,
                claim.ours,
                holds,
                "; ".join(filter(None, (_reason(claim, chance, len(claims)), claim.rule, _size(claim, holds)))),
                differences,
                power_of(claim.difference, claim.effect, claim.unit),
                "" if holds is not None else _would_decide(claim),
            )
        )
    return findings


def not_inferior(claim: str, ours: str, difference: Interval, margin: float, unit: str, differences: str) -> Finding:
    """Whether one side is worse by less than a margin that was fixed before: a claim of its own, not in the paper."""
    holds = True if difference.low > -margin else False if difference.high < -margin else None
    seen = power(margin, difference.deviation, difference.count)
    needed = _seeds(margin, difference)
    return Finding(
        f"{claim} by {margin:.1f}{unit} or more",
        "not in the paper",
        ours,
        holds,
        f"{_place(difference, -margin, f'−{margin:g}{unit}')}, a margin fixed before the run",
        differences,
        f"{seen:.0%} if there is no difference",
        needed if holds is None and seen < POWER else "",
    )


def power_of(difference: Interval, effect: float | None, unit: str = "") -> str:
    """The chance to see the paper's effect or, where it states none, the least effect that is seen with 80%.

    >>> power_of(Interval(-2.25, -4.97, 0.47, 3, 1.1), 0.45, " points")
    '7% for 0.45 points'
    """
    if difference.count < 2 or not isfinite(difference.deviation):
        return "none: one seed" if difference.count < 2 else "unknown: a seed diverged"
    if effect is None:
        return f"{POWER:.0%} for {least_effect(difference.deviation, difference.count):.2g}{unit}"
    return f"{power(effect, difference.deviation, difference.count):.0%} for {effect:.3g}{unit}"


def planned(what: str, effect: float, deviation: float, count: int, unit: str) -> str:
    """The power of a design, from the spread that earlier runs had.

    >>> planned("LN-G is better", 0.45, 1.1, 10, " points")
    'LN-G is better: power 21% for 0.45 points with 10 seeds, if differences deviate by 1.1 points as in earlier runs'
    """
    return (
        f"{what}: power {power(effect, deviation, count):.0%} for {effect:g}{unit} with {count} seeds, "
        f"if differences deviate by {deviation:g}{unit} as in earlier runs"
    )


def _verdict(difference: Interval, effect: float | None, chance: float) -> bool | None:
    if difference.low > 0:
        return True if chance < 1 - LEVEL else None
    if effect is not None and difference.high < effect / 2:
        return False
    return False if difference.high < 0 and chance < 1 - LEVEL else None


def _reason(claim: Compared, chance: float, count: int) -> str:
    """What a verdict follows from: where the interval is, and the chance of it if there were no difference."""
    difference, half = claim.difference, (claim.effect or 0.0) / 2
    text = _place(difference, 0.0, "0")
    if difference.count < 2 or not isfinite(difference.mean):
        return text
    if difference.low <= 0 <= difference.high < half:
        text += f" and ends below half of the published {claim.effect:.3g}{claim.unit}"
    return f"{text}; p = {chance:.2g}" + (f" after Holm's correction for {count} claims" if count > 1 else "")


def _place(difference: Interval, limit: float, shown: str) -> str:
    """Where the interval is, in words.

    >>> _place(Interval(2, 1, 3, 5), 0.0, "0"), _place(Interval(2, -1, 5, 5), 0.0, "0")
    ('the 95% interval over seeds is above 0', 'the 95% interval over seeds contains 0')
    """
    if difference.count < 2 or not isfinite(difference.mean):
        return "one seed has no interval" if difference.count < 2 else "no interval, as a seed diverged"
    above = difference.above(limit)
    side = {True: "is above", False: "is below", None: "contains"}[above]
    return f"the 95% interval over seeds {side} {shown}"


def _size(claim: Compared, holds: bool | None) -> str:
    """Of an effect that is there: whether its size is that of the paper, where it states one."""
    if claim.effect is None or not holds:
        return ""
    inside = claim.difference.low <= claim.effect <= claim.difference.high
    return f"the published {claim.effect:.3g}{claim.unit} is {'in' if inside else 'out'}side the interval"


def _would_decide(claim: Compared) -> str:
    """What would decide a claim for which the design had too little power; empty if it had enough."""
    difference = claim.difference
    if claim.missing:
        return claim.missing
    if difference.count < 2 or not isfinite(difference.deviation):
        return "more seeds" if difference.count < 2 else "settings with which no seed diverges"
    if claim.effect is None or power(claim.effect, difference.deviation, difference.count) >= POWER:
        return ""
    return _seeds(claim.effect, difference)


def _seeds(effect: float, difference: Interval) -> str:
    if difference.count < 2 or not isfinite(difference.deviation):
        return "more seeds"
    return f"{seeds_needed(effect, difference.deviation):,} seeds, if differences deviate by as much as here"
