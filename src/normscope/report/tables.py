"""Results as tables that fit 100 columns."""

from functools import singledispatch
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import RenderableType
from rich.markup import escape as escape_markup
from rich.table import Table
from rich.text import Text

from normscope.benchmarks.axes import AxesBenchmark
from normscope.benchmarks.inspect import InspectBenchmark
from normscope.report.words import highlights
from normscope.studies.inspection import Inspection, NormGeometry
from normscope.studies.ranges import Ranges

GEOMETRY_CAPTION = (
    "dim: dimension of the set that the outputs fill; longest, median, shortest: its semi-axes; "
    "particip.: how many of them carry the spread; zeros, neg: gains; *: assumed from names"
)
LANDING_CAPTION = (
    "medians over all inputs; nearness: 1 is on the surface; along 1: share of |x|² that projection removes; "
    "dead var.: variance along the dead direction over that of a channel; angle: between LayerNorm and RMSNorm"
)

RANGES_CAPTION = (
    "low, high: no output goes beyond, whatever the input; > float16: outputs whose bound is beyond ±65504; "
    "gap: how near a tried input came to the worst bound"
)


@singledispatch
def tables(result: Any) -> list[RenderableType]:
    """What a terminal shows of a result: tables, and words where some figures stand out."""
    raise TypeError(f"no table for {type(result).__name__}")


@tables.register
def _(result: Inspection) -> list[RenderableType]:
    geometry = _table(f"Norms of {result.model}", GEOMETRY_CAPTION, "norm", "kind")
    for heading in ("size", "dim", "zeros", "neg", "longest", "median", "shortest", "particip."):
        geometry.add_column(heading, justify="right")
    for norm in result.norms:
        counts = [norm.size, norm.dimension, norm.zero_gains, norm.negative_gains]
        lengths = [norm.axis_max, norm.axis_median, norm.axis_min, norm.participation_ratio]
        without = "∞" if norm.kind in ("projection", "affine") and norm.dimension else "–"
        geometry.add_row(
            escape(norm.name or "(the model)"),
            norm.kind + ("*" if norm.assumed else ""),
            *("–" if count is None else str(count) for count in counts),
            *(without if length is None else f"{length:.4g}" for length in lengths),
        )
    landed = [norm for norm in result.norms if norm.landing is not None]
    words = [Text(f"• {sentence}") for sentence in highlights(result)]
    return [geometry, *([_landing_table(landed)] if landed else []), *words]


def _landing_table(norms: list[NormGeometry]) -> Table:
    table = _table("Where the inputs land", LANDING_CAPTION, "norm")
    for heading in ("inputs", "nearness", "along 1", "|mean|/σ", "highest", "dead var.", "angle"):
        table.add_column(heading, justify="right")
    for norm in norms:
        landing = norm.landing
        assert landing is not None
        medians = [
            "–" if spread is None else f"{spread.median:.4g}"
            for spread in (landing.nearness, landing.ones_share, landing.mean_over_sigma)
        ]
        highest = f"{landing.mean_over_sigma_max:.4g}"
        dead = "–" if landing.dead_variance is None else f"{landing.dead_variance:.4g}"
        angle = "–" if landing.rms_angle is None else f"{landing.rms_angle.median:.3g}°"
        table.add_row(escape(norm.name or "(the model)"), str(landing.inputs), *medians, highest, dead, angle)
    return table


def _table(title: str, caption: str, *text_columns: str) -> Table:
    table = Table(title=escape(title), caption=caption, box=SIMPLE_HEAD, pad_edge=False, padding=(0, 0))
    for heading in text_columns:
        table.add_column(heading, overflow="fold")
    return table


@tables.register
def _(result: Ranges) -> list[RenderableType]:
    covered = _table(f"Ranges of {result.model}, over all inputs", RANGES_CAPTION, "layer", "reads")
    for heading in ("outputs", "low", "high", "> float16", "gap"):
        covered.add_column(heading, justify="right")
    for layer in result.layers:
        ends = ["∞" if end is None else f"{end:.4g}" for end in (layer.low, layer.high)]
        gap = "–" if layer.witness is None else f"{layer.witness.gap:.0e}"
        beyond = str(layer.rows_beyond_float16)
        covered.add_row(escape(layer.layer), escape(layer.norm), str(layer.outputs), *ends, beyond, gap)
    missed = _table("Not covered", "", "layer", "because it")
    for left_out in result.not_covered:
        missed.add_row(escape(left_out.layer), escape(left_out.reason))
    return [covered, missed] if result.not_covered else [covered]


@tables.register
def _(result: InspectBenchmark) -> list[RenderableType]:
    table = _table("normscope inspect on a checkpoint of 70B shape, in a new process", "", "what")
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


def duration(seconds: float) -> str:
    """Seconds in the unit that reads best, to two or three digits."""
    if seconds >= 1:
        return f"{seconds:.1f} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} µs"


def escape(name: str) -> str:
    """A name from a checkpoint as a terminal may show it: no markup, no control characters."""
    return escape_markup("".join(character if character.isprintable() else "�" for character in name))
