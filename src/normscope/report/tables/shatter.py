"""Labellings of points that networks of LayerNorms realise."""

from rich.console import RenderableType
from rich.text import Text

from normscope.capacity.shatter import Shattering
from normscope.report.tables.shared import counted, duration, new_table, tables

SHOWN = 10  # labellings that are left open


@tables.register
def _(result: Shattering) -> list[RenderableType]:
    table = new_table(f"{len(result.points)} points, depth {result.depth}", "", "runs of labels")
    for heading in ("  labellings", "  certified", "  least margin"):
        table.add_column(heading, justify="right")
    for row in result.by_runs:
        margin = "–" if row.margin is None else f"{row.margin:.2g}"
        table.add_row(str(row.runs), f"{row.labellings:,}", f"{row.certified:,}", margin)
    return [table, *(Text(f"• {sentence}") for sentence in _sentences(result))]


def _sentences(result: Shattering) -> list[str]:
    count, depth = len(result.points), result.depth
    sentences = [
        f"{result.certified:,} of {result.labellings:,} labellings certified: shown in ball arithmetic for the weights "
        "that the module stores, and its float64 outputs are right on every point, in batch and one by one."
    ]
    if result.shatters:
        sentences.append(f"Networks of {counted(depth)} of width 3 shatter these {count} points of a line.")
    else:
        sentences.append(f"That these {count} points of a line are shattered is not shown.")
    sentences.append(
        f"L + 2 = {result.promised} are promised; more than 2^L + 1 = {result.bound} points of a line can't be."
    )
    if not result.shatters:
        more = len(result.open) - SHOWN
        left = ", ".join(result.open[:SHOWN]) + (f", and {more:,} more: --json lists all" if more > 0 else "")
        sentences.append(f"Left open: {left}.")
    sentences.append(f"CPU time: {duration(result.seconds)}.")
    return sentences
