"""`normscope bench keys`: which keys are selectable, against linear programs and the published procedure."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from normscope.results.describe import Column, Table
from normscope.results.result import Result
from normscope_lab.bench.timing import Machine, duration, times


@dataclass(frozen=True)
class Alternative:
    """What another way takes for all keys, and on how many of them that was measured."""

    seconds: float
    ratio: float  # over normscope
    reflected: int  # keys that reflections settled
    reflection_seconds: float
    reflections_timed: int  # keys
    programs: int  # keys that need a linear program
    programs_timed: int
    failures: int  # keys, of those timed, on which it ended with an error
    disagreements: int  # keys, of those timed and no near ties, on which it differs from normscope

    def __str__(self) -> str:
        return f"{duration(self.seconds)}, {times(self.ratio)}, {self.programs_timed}/{self.programs}"


@dataclass(frozen=True)
class KeysTiming:
    """CPU seconds for one set of keys, or for many."""

    kind: Annotated[str, Column("kind", "How the keys were drawn; heads: as many as in a model; grid: many sizes.")]
    sets: Annotated[int, Column("sets", "Sets of keys.", ",", brief=False)]
    keys: Annotated[int, Column("keys", "Keys of all sets.", ",")]
    channels: Annotated[int | None, Column("channels", "Channels of a key; – where sets differ.")]
    selectable: Annotated[int, Column("selectable", "Keys that some query prefers.", ",", brief=False)]
    near_ties: Annotated[int, Column("near ties", "Keys within rounding of a tie.", ",", brief=False)]
    certificates_hold: Annotated[bool, Column("certificates hold", "Whether every certificate was right.", brief=False)]
    normscope_seconds: Annotated[float, Column("normscope", "CPU time, with certificates and their check.", duration)]
    published: Annotated[
        Alternative | None,
        Column(
            "published procedure",
            "Reflections, then a Gurobi program for each key left: time, ratio, programs timed of those needed; "
            "– where the set exceeds the licence that comes with gurobipy.",
            str,
        ),
    ]
    highs: Annotated[Alternative, Column("HiGHS", "A program for every key: time, ratio, programs timed.", str)]

    @property
    def lost(self) -> Annotated[int, Column("never selected", "Keys that no query prefers.", ",")]:
        return self.keys - self.selectable


@dataclass(frozen=True)
class ProfilePart:
    """A part of the solver in the profile of one set."""

    part: Annotated[str, Column("part", "What is computed.")]
    seconds: Annotated[float, Column("CPU time", "Of one call, with the profiler.", duration)]
    share: Annotated[float, Column("share", "Of the whole call.", ".0%")]


@dataclass(frozen=True, repr=False)
class KeysSpeed(
    Result,
    kind="keys_speed",
    plotted_by="normscope_lab.bench.growth_pictures:keys_picture",
    remarked_by="normscope_lab.results.keys_speed:remarks",
):
    """Times for verdicts on keys, by normscope, by the published procedure and by linear programs."""

    machine: Machine
    scipy: str
    gurobipy: str
    timings: Annotated[
        tuple[KeysTiming, ...],
        Table("Which keys are selectable: CPU time, one thread (others: time, ratio, programs timed/needed)"),
    ]
    profile: Annotated[tuple[ProfilePart, ...], Table("Where the time goes: Gaussian keys, 16 channels")] = ()

    @property
    def holds(self) -> bool:
        return all(timing.certificates_hold for timing in self.timings)

    def __repr__(self) -> str:
        ratios = [timing.published.ratio for timing in self.timings if timing.published is not None]
        return f"KeysSpeed({len(self.timings)} jobs, {times(min(ratios))} to {times(max(ratios))} the published speed)"


def remarks(result: KeysSpeed) -> Iterator[str]:
    others = [way for timing in result.timings for way in (timing.published, timing.highs) if way is not None]
    held = "Every certificate held." if result.holds else "A CERTIFICATE FAILED ITS CHECK."
    differ, failed = (sum(getattr(way, name) for way in others) for name in ("disagreements", "failures"))
    yield f"{held} Verdicts that differ from normscope's: {differ}; programs without an answer: {failed}."
