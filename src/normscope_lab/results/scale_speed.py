"""`normscope bench scale`: engines with one and two workers, what a piece costs, and memory against length and size."""

from dataclasses import dataclass
from typing import Annotated

from normscope.results.describe import Column, Table
from normscope.results.result import Result
from normscope_lab.bench.timing import Machine, duration


def _megabytes(count: float) -> str:
    return f"{count / 1e6:,.1f} MB"


@dataclass(frozen=True)
class EngineRun:
    """The same pieces on one engine."""

    work: Annotated[str, Column("work", "heads: sets of keys of a model; grid: the published grid of random keys.")]
    engine: Annotated[
        str,
        Column("engine", "Where the pieces ran; apart: in processes that make their own share and send nothing."),
    ]
    workers: Annotated[int, Column("workers", "Pieces at the same time.")]
    pieces: Annotated[int, Column("pieces", "How many.", ",", brief=False)]
    one: Annotated[float | None, Column("one piece", "Wall time of a run of a single piece.", duration)]
    seconds: Annotated[float, Column("all pieces", "Wall time, once workers are there.", duration)]
    speedup: Annotated[
        float, Column("against 1 worker", "Time of one worker of this engine over this time.", "{:.2f}×".format)
    ]
    sent: Annotated[int, Column("sent", "Bytes to workers.", _megabytes)]
    received: Annotated[int, Column("received", "Bytes from workers.", _megabytes)]
    same: Annotated[
        bool, Column("same result", "Whether the results are the bytes that one process gives.", brief=False)
    ]


@dataclass(frozen=True)
class PieceCost:
    """Pieces that do nothing."""

    engine: Annotated[str, Column("engine", "Where the pieces ran.")]
    workers: Annotated[int, Column("workers", "Pieces at the same time.")]
    start: Annotated[float, Column("start", "Wall time until the first answer of a new engine.", duration)]
    seconds: Annotated[float, Column("time per piece", "Wall time of many empty pieces over their number.", duration)]


@dataclass(frozen=True)
class MemoryUse:
    """Peak memory of a new process."""

    what: Annotated[str, Column("what", "inspect or keys of a text; inspect of a checkpoint.")]
    size: Annotated[int, Column("size", "Bytes of the file.", _megabytes)]
    peak: Annotated[int, Column("peak memory", "Largest resident size of the process.", _megabytes)]


def _shortly(number: float) -> str:
    return f"{number:,.0f}" if 100 <= number < 1e6 else f"{number:.2g}"


@dataclass(frozen=True)
class UnitCost:
    """One unit of work on one core."""

    question: Annotated[str, Column("question", "The command, or what runs in it.")]
    unit: Annotated[str, Column("unit", "What is counted.")]
    width: Annotated[int, Column("channels", "Of the norm, the head, the layer or the matrix that was measured.", ",")]
    seconds: Annotated[float, Column("CPU time", "Of one unit, on one thread.", "{:.3g} s".format)]


@dataclass(frozen=True)
class Estimate:
    """A model of 405B with a corpus, computed from the costs of units."""

    question: Annotated[str, Column("question", "The command, or what runs in it.")]
    units: Annotated[float, Column("units", "How many the model with the corpus has.", _shortly)]
    seconds: Annotated[float, Column("CPU time each", "As measured.", "{:.3g} s".format)]
    core_hours: Annotated[float, Column("core hours", "All units.", _shortly)]
    at_once: Annotated[int, Column("at once", "Cores that can work on it at the same time.", ",")]
    hours: Annotated[float, Column("hours", "Core hours over these.", _shortly)]


@dataclass(frozen=True, repr=False)
class ScaleSpeed(Result, kind="scale_speed", schema_version=3):
    """What more workers bring, what they cost, and what memory does not depend on."""

    machine: Machine
    load: float  # average number of busy processes in the minute before: times mean little if it is not near 0
    runs: Annotated[tuple[EngineRun, ...], Table("Engines; load of the machine before: {0.load:.1f}")]
    costs: Annotated[tuple[PieceCost, ...], Table("Pieces that do nothing")]
    memory: Annotated[tuple[MemoryUse, ...], Table("Peak memory of a new process")]
    units: Annotated[tuple[UnitCost, ...], Table("Costs of units, on one core")]
    estimates: Annotated[tuple[Estimate, ...], Table("Llama 3.1 405B with 10⁹ tokens on 8 nodes of 64 cores, computed")]

    @property
    def holds(self) -> bool:
        return all(run.same for run in self.runs)

    def failure(self) -> str | None:
        return None if self.holds else "an engine gave other bytes than one process"

    def __repr__(self) -> str:
        return f"ScaleSpeed({len(self.runs)} runs, {'the same bytes' if self.holds else 'OTHER bytes'})"
