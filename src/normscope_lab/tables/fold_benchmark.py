"""What `normscope bench fold` measured."""

from rich.console import RenderableType

from normscope.report.tables.shared import duration, new_table, tables
from normscope_lab.bench.fold_bench import FoldBenchmark

CAPTION = "CPU time on one thread, medians, variants in turn; speed: of the original over this, above 1 is faster"


@tables.register
def _(result: FoldBenchmark) -> list[RenderableType]:
    title = f"A GPT-2 of {result.layers} layers and {result.width} channels"
    table = new_table(title, CAPTION, "what", "batch × tokens", "mode", "variant")
    for heading in ("time", "speed"):
        table.add_column(heading, justify="right")
    for row in result.passes:
        shape = f"{row.batch} × {row.tokens}"
        table.add_row(row.what, shape, row.mode, row.variant, duration(row.seconds), f"{row.speed:.3f}")
    return [table]
