"""What `normscope bench lng` measured."""

from rich.console import RenderableType
from rich.table import Table

from normscope.report.tables.shared import duration, new_table, tables
from normscope_lab.bench.lng_bench import COPY, LAYER_NORM, NormBenchmark, Timing

CAPTION = (
    "CPU time over that of F.layer_norm on the same tensor, gain and bias included; medians, one thread, all ways in "
    "turn; g: groups"
)


@tables.register
def _(result: NormBenchmark) -> list[RenderableType]:
    parts: dict[tuple[int, int], list[Timing]] = {}
    for timing in result.timings:
        parts.setdefault((timing.rows, timing.channels), []).append(timing)
    return [_table(timings) for timings in parts.values()]


def _table(timings: list[Timing]) -> Table:
    first, counts = timings[0], list(dict.fromkeys(timing.groups for timing in timings))
    table = new_table(f"{first.rows} × {first.channels}", CAPTION, "numbers", "passes", "way")
    for count in counts:
        table.add_column(f"g = {count}", justify="right")
    rows: dict[tuple[str, str, str], dict[int, str]] = {}
    for timing in timings:
        way = timing.way.replace("LayerNorm", "LN-G") if timing.way.startswith("normscope Layer") else timing.way
        cells = rows.setdefault((timing.dtype, timing.passes, way), {})
        plain = timing.way in (LAYER_NORM, COPY)
        cells[timing.groups] = f"{timing.ratio:.2f}" + (f" ({duration(timing.median_seconds)})" if plain else "")
    for names, cells in rows.items():
        table.add_row(*names, *(cells.get(count, "") for count in counts))
    return table
