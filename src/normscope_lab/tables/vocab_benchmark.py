"""What finding out which tokens can win takes."""

from rich.console import RenderableType

from normscope.report.tables.shared import duration, new_table, tables
from normscope_lab.bench.vocab_bench import VocabBenchmark


@tables.register
def _(result: VocabBenchmark) -> list[RenderableType]:
    measured = result.measured
    title = f"Own directions over a table of {measured.tokens:,} × {measured.channels}, one thread, in a new process"
    table = new_table(title, "", "what")
    table.add_column("measured", justify="right")
    table.add_row("own directions, CPU time", duration(measured.own_direction_seconds))
    table.add_row("tokens shown to win by then", f"{measured.own_direction_wins:,}")
    table.add_row("peak memory by then", f"{measured.own_direction_megabytes:.0f} MB")
    table.add_row("the rest, CPU time", duration(measured.rest_seconds))
    table.add_row("tokens shown to win in the end", f"{measured.wins:,}")
    table.add_row("every certificate checked, CPU time", duration(measured.check_seconds))
    table.add_row("all of them hold", "yes" if measured.check_holds else "no")
    table.add_row("peak memory in the end", f"{measured.peak_megabytes:.0f} MB")
    return [table]
