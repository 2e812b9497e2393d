"""`normscope bench around`: exact outputs around one input, against interval arithmetic and linear relaxation."""

from dataclasses import dataclass
from typing import Annotated

from normscope.results.describe import Column, Table
from normscope.results.result import Result
from normscope_lab.bench.timing import Machine, duration, times


def factor(ratio: float) -> str:
    """How many times wider, to three digits below a hundred.

    >>> factor(1.0315), factor(3664.7)
    ('1.03×', '3665×')
    """
    return f"{ratio:.3g}×" if ratio < 100 else f"{ratio:.0f}×"


@dataclass(frozen=True)
class Widths:
    """Widths of the interval of w·y over all inputs within a radius, means over readers and inputs."""

    source: Annotated[str, Column("norms", "Random norms and readers, or those of the demo model.")]
    size: Annotated[int, Column("channels", "Channels of the norm.")]
    radius: Annotated[float, Column("radius", "Greatest distance of an input from x, over |Πx|.", "g")]
    cases: Annotated[int, Column("cases", "Pairs of an input and a reader.", ",", brief=False)]
    share: Annotated[float, Column("exact width", "Exact width over that for all inputs, mean.", ".3g")]
    attacked: Annotated[
        float, Column("attacked", "Width that attacks reach over the exact one, mean.", ".6f", brief=False)
    ]
    interval: Annotated[float, Column("intervals", "Width by interval arithmetic over the exact one, mean.", factor)]
    linear: Annotated[float, Column("linear", "Width by linear relaxation over the exact one, mean.", factor)]
    capped: Annotated[
        float,
        Column("linear, capped", "Linear bounds cut to those for all inputs, over the exact width, mean.", factor),
    ]
    passed: Annotated[int, Column("passed", "Attacks that pass the exact interval, of two for each case.")]
    interval_passed: Annotated[int, Column("passed intervals", "Attacks that pass the intervals.", brief=False)]
    linear_passed: Annotated[int, Column("passed linear", "Attacks that pass the linear bounds.", brief=False)]


@dataclass(frozen=True)
class WidthTimes:
    """CPU time of the three ways for the same readers around one input: both ends of every reader."""

    size: Annotated[int, Column("channels", "Channels of the norm.")]
    readers: Annotated[int, Column("readers", "Rows of the matrix of readers.", ",")]
    exact_seconds: Annotated[float, Column("exact", "CPU time of the exact ends, median.", duration)]
    interval_seconds: Annotated[float, Column("intervals", "CPU time of interval arithmetic, median.", duration)]
    linear_seconds: Annotated[float, Column("linear", "CPU time of linear relaxation, median.", duration)]

    @property
    def interval_ratio(self) -> Annotated[float, Column("exact / intervals", "Time of exact over intervals.", times)]:
        return self.exact_seconds / self.interval_seconds

    @property
    def linear_ratio(self) -> Annotated[float, Column("exact / linear", "Time of exact over linear.", times)]:
        return self.exact_seconds / self.linear_seconds


@dataclass(frozen=True, repr=False)
class AroundWidths(Result, kind="around_widths"):
    """How wide the outputs around one input are, exactly and by two ways of bounding them, and what each takes."""

    machine: Machine
    widths: Annotated[tuple[Widths, ...], Table("Outputs around one input: widths through linear readers")]
    times: Annotated[tuple[WidthTimes, ...], Table("CPU time, one thread, called in turn")]

    @property
    def holds(self) -> bool:
        """Whether no attack passed any bound."""
        return not any(row.passed or row.interval_passed or row.linear_passed for row in self.widths)

    def __repr__(self) -> str:
        cases, widest = sum(row.cases for row in self.widths), max(row.linear for row in self.widths)
        return f"AroundWidths({cases:,} cases, linear relaxation up to {widest:.3g} times as wide)"
