"""`normscope bench axes`: the secular solver against dense eigendecomposition."""

from dataclasses import dataclass
from typing import Annotated

from normscope.results.describe import Column, Table
from normscope.results.result import Result
from normscope_lab.bench.timing import Machine, duration, times


@dataclass(frozen=True)
class Comparison:
    """CPU seconds for one quantity at one size."""

    size: Annotated[int, Column("channels", "Channels of the LayerNorm.")]
    quantity: Annotated[str, Column("computed", "All semi-axis lengths, or all lengths and axes.")]
    dense: Annotated[str, Column("dense solver", "The function that computes the same from the full matrix.")]
    rounds: Annotated[int, Column("rounds", "How often the dense solver ran.", brief=False)]
    dense_seconds: Annotated[float, Column("dense time", "CPU time of the dense solver, median.", duration)]
    normscope_seconds: Annotated[float, Column("normscope", "CPU time of normscope, median.", duration)]
    ratio: Annotated[float, Column("ratio", "Time of the dense solver over that of normscope.", times)]


@dataclass(frozen=True)
class GrowthPoint:
    """CPU seconds for all lengths."""

    size: Annotated[int, Column("channels", "Channels of the LayerNorm.")]
    distinct_seconds: Annotated[float, Column("distinct gains", "CPU time where all gains differ.", duration)]
    bfloat16_seconds: Annotated[
        float, Column("bfloat16 gains", "CPU time where gains are rounded to bfloat16, as stored.", duration)
    ]


@dataclass(frozen=True)
class FirstCall:
    """CPU seconds of a new process that computes lengths and axes once, everything included."""

    compiling_seconds: Annotated[float, Column("compiling", "With an empty cache of numba on disk.", duration)]
    cached_seconds: Annotated[float, Column("from the cache", "With compiled code in the cache.", duration)]
    import_seconds: Annotated[float, Column("imports alone", "Importing numba and numpy, part of both.", duration)]


@dataclass(frozen=True, repr=False)
class AxesSpeed(Result, kind="axes_speed", plotted_by="normscope_lab.bench.growth_pictures:axes_picture"):
    """Times for the semi-axes of a LayerNorm, by normscope and by dense solvers, and how they grow."""

    machine: Machine
    comparisons: Annotated[
        tuple[Comparison, ...], Table("Structured against dense: CPU time, one thread, called in turn")
    ]
    growth: Annotated[tuple[GrowthPoint, ...], Table("All lengths: growth with the number of channels")]
    first_call: Annotated[
        tuple[FirstCall, ...], Table("First lengths and axes in a new process: CPU time, imports included")
    ]

    def __repr__(self) -> str:
        ratios = [row.ratio for row in self.comparisons]
        return f"AxesSpeed({len(ratios)} comparisons, {min(ratios):.0f} to {max(ratios):.0f} times faster)"
