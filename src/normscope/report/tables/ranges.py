"""The range of every linear layer that reads a norm."""

from rich.console import RenderableType

from normscope.report.tables.shared import escape, new_table, tables
from normscope.studies.ranges import Ranges

RANGES_CAPTION = (
    "low, high: no output goes beyond where the layer reads this norm, whatever the input; "
    "> float16: outputs whose bound is beyond ±65504; gap: how near a tried input came to the worst bound; "
    "a matrix in place of a layer: only the product with it is bounded, and its module goes on from there"
)


@tables.register
def _(result: Ranges) -> list[RenderableType]:
    covered = new_table(f"Ranges of {result.model}, over all inputs", RANGES_CAPTION, "layer", "reads")
    for heading in ("outputs", "low", "high", "> float16", "gap"):
        covered.add_column(heading, justify="right")
    for layer in result.layers:
        ends = ["∞" if end is None else f"{end:.4g}" for end in (layer.low, layer.high)]
        gap = "–" if layer.witness is None else f"{layer.witness.gap:.0e}"
        beyond = str(layer.rows_beyond_float16)
        covered.add_row(escape(layer.layer), escape(layer.norm), str(layer.outputs), *ends, beyond, gap)
    missed = new_table("Not covered", "", "layer", "because it")
    for left_out in result.not_covered:
        missed.add_row(escape(left_out.layer), escape(left_out.reason))
    return [covered, missed] if result.not_covered else [covered]
