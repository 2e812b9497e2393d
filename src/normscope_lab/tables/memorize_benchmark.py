"""How deep networks are that memorise random labels."""

import statistics

from rich.console import RenderableType

from normscope.report.tables.shared import duration, new_table, tables
from normscope_lab.bench.memorize_bench import MemorizeBenchmark

CAPTION = "medians over seeds, the range in brackets; time: CPU, one thread, certificate included"


@tables.register
def _(result: MemorizeBenchmark) -> list[RenderableType]:
    table = new_table("Random labels, memorised by LayerNorms of width 3", CAPTION, "by", "module")
    for heading in ("samples", "classes", "seeds", "paper's depth", "depth", "certified", "right in floats", "time"):
        table.add_column(f" {heading}", justify="right")
    for task, runs in result.tasks().items():
        depths = [run.depth for run in runs]
        table.add_row(
            task.method,
            f" {task.dtype}",
            str(task.samples),
            str(task.classes),
            str(len(runs)),
            str(task.samples - task.classes),
            f"{statistics.median(depths):g} ({min(depths)}–{max(depths)})",
            "all" if all(run.certified == run.samples for run in runs) else "not all",
            f"≥ {min(run.float_right for run in runs)}",
            duration(statistics.median(run.seconds for run in runs)),
        )
    return [table]
