"""What `normscope bench` measured."""

from rich.console import RenderableType
from rich.table import Table

from normscope.report.tables.shared import duration, new_table, tables
from normscope_lab.bench.axes_bench import AxesBenchmark
from normscope_lab.bench.inspect_bench import InspectBenchmark


@tables.register
def _(result: InspectBenchmark) -> list[RenderableType]:
    table = new_table("normscope inspect on a checkpoint of 70B shape, in a new process", "", "what")
    table.add_column("measured", justify="right")
    table.add_row("parameters", f"{result.parameters:,}")
    table.add_row("norms found", str(result.norms))
    table.add_row("CPU time, imports included", duration(result.cpu_seconds))
    table.add_row("peak memory", f"{result.peak_megabytes:.0f} MB")
    return [table]


@tables.register
def _(result: AxesBenchmark) -> list[RenderableType]:
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
