"""`normscope bench ranges`: what ranges take, and how near their bounds are to what was reached."""

from dataclasses import dataclass
from typing import Annotated

from normscope.results.describe import Column, Table
from normscope.results.result import Result
from normscope_lab.bench.timing import Machine, duration


@dataclass(frozen=True)
class RangesRun:
    """One run of `normscope ranges --json` in a new process, with one thread."""

    model: Annotated[str, Column("model", "The checkpoint.")]
    options: Annotated[str, Column("options", "Options of the command.")]
    tensors: Annotated[int, Column("tensors", "Tensors that were bounded, layers included.", ",")]
    cpu_seconds: Annotated[float, Column("CPU time", "Of the whole process, imports included.", duration)]
    peak_megabytes: Annotated[float, Column("peak memory (MB)", "Most memory that the process held.", ".0f")]


@dataclass(frozen=True)
class Tightness:
    """How far bounds are above what was reached, for one kind of tensor of one model."""

    model: Annotated[str, Column("model", "The checkpoint.")]
    kind: Annotated[str, Column("kind of tensor", "What was bounded.")]
    count: Annotated[int, Column("bounds", "How many bounds.")]
    median: Annotated[float, Column("median", "Median of bound over reached.", ".6g")]
    worst: Annotated[float, Column("worst", "Largest of bound over reached.", ".6g")]
    intervals: Annotated[
        float | None, Column("intervals, median", "The same for interval arithmetic of the same steps.", ".4g")
    ]
    seconds: Annotated[float | None, Column("CPU time each", "Bound, certificate and witness of one.", duration)]


@dataclass(frozen=True, repr=False)
class RangesSpeed(Result, kind="ranges_speed"):
    """Time and memory of ranges, and their tightness."""

    machine: Machine
    runs: Annotated[tuple[RangesRun, ...], Table("normscope ranges in a new process, one thread")]
    tightness: Annotated[tuple[Tightness, ...], Table("Bound over reached")]

    def __repr__(self) -> str:
        return f"RangesSpeed({', '.join(f'{run.model} in {run.cpu_seconds:.0f} s' for run in self.runs)})"
