"""Results as tables that fit 100 columns."""

from functools import singledispatch
from typing import Any

from rich.table import Table

from normscope.benchmarks.axes import AxesBenchmark
from normscope.studies.inspect import Inspection

INSPECT_CAPTION = (
    "dim: dimension of the set that the outputs fill; longest, median, shortest: its semi-axes; "
    "particip.: how many of them carry the spread; zeros, neg: gains"
)


@singledispatch
def tables(result: Any) -> list[Table]:
    """The tables that show a result."""
    raise TypeError(f"no table for {type(result).__name__}")


@tables.register
def _(result: Inspection) -> list[Table]:
    table = Table(title=f"Norms of {result.model}", caption=INSPECT_CAPTION)
    table.add_column("norm", overflow="fold")
    table.add_column("kind")
    for heading in ("size", "dim", "zeros", "neg", "longest", "median", "shortest", "particip."):
        table.add_column(heading, justify="right")
    for norm in result.norms:
        unbounded = "∞" if norm.kind in ("projection", "affine") and norm.dimension else "–"
        lengths = [
            unbounded if value is None else f"{value:.4g}"
            for value in (norm.axis_max, norm.axis_median, norm.axis_min, norm.participation_ratio)
        ]
        counts = [str(count) for count in (norm.size, norm.dimension, norm.zero_gains, norm.negative_gains)]
        table.add_row(norm.name, norm.kind, *counts, *lengths)
    return [table]


@tables.register
def _(result: AxesBenchmark) -> list[Table]:
    speed = Table(title="Structured against dense, CPU time, one thread, interleaved")
    for heading in ("N", "asked for", "dense", "dense time", "normscope", "ratio"):
        speed.add_column(heading, justify="left" if heading in ("asked for", "dense") else "right")
    for row in result.comparisons:
        ours, dense = duration(row.normscope_seconds), duration(row.dense_seconds)
        speed.add_row(str(row.size), row.quantity, row.dense, dense, ours, f"{row.ratio:.0f}×")
    growth = Table(title="Lengths: growth with N")
    for heading in ("N", "all gains distinct", "gains rounded to bfloat16"):
        growth.add_column(heading, justify="right")
    for point in result.growth:
        growth.add_row(str(point.size), duration(point.distinct_seconds), duration(point.bfloat16_seconds))
    first = Table(title="First lengths and axes in a new process, CPU time with imports")
    first.add_column("numba's cache on disk")
    first.add_column("time", justify="right")
    first.add_row("empty: compiles", duration(result.first_call.compiling_seconds))
    first.add_row("filled: loads", duration(result.first_call.cached_seconds))
    first.add_row("of that, import numba and numpy", duration(result.first_call.import_seconds))
    return [speed, growth, first]


def duration(seconds: float) -> str:
    """Seconds in the unit that reads best, to two or three digits."""
    if seconds >= 1:
        return f"{seconds:.1f} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} µs"
