"""How times grow with the size of a problem, beside those of other ways."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from normscope_lab.results.axes_speed import AxesSpeed
from normscope_lab.results.keys_speed import KeysSpeed, KeysTiming

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KIND = "anisotropic"
OURS, PUBLISHED, HIGHS = "#4c72b0", "#c44e52", "#55a868"


def axes_picture(result: AxesSpeed) -> "Figure":
    """Time for all semi-axes against the number of channels, with the dense solver where it was run."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.5, 4.5), dpi=150, layout="constrained")
    ax = figure.add_subplot()
    sizes = [point.size for point in result.growth]
    ax.loglog(sizes, [point.distinct_seconds for point in result.growth], "o-", label="normscope, all gains distinct")
    ax.loglog(sizes, [point.bfloat16_seconds for point in result.growth], "s-", label="normscope, bfloat16 gains")
    dense = [row for row in result.comparisons if row.quantity == "lengths"]
    ax.loglog([row.size for row in dense], [row.dense_seconds for row in dense], "^--", label="torch.linalg.eigvalsh")
    linear = [size * result.growth[0].distinct_seconds / sizes[0] for size in sizes]
    ax.loglog(sizes, linear, ":", color="grey", label="∝ N")
    ax.set(title="All semi-axis lengths of a LayerNorm", xlabel="channels N", ylabel="CPU time (s), one thread")
    ax.grid(alpha=0.3, which="both")
    ax.legend(fontsize=8)
    return figure


def keys_picture(result: KeysSpeed) -> "Figure":
    """Anisotropic sets in two panels: growth with the channels at the fewest keys, growth with the keys."""
    from matplotlib.figure import Figure

    rows = [row for row in result.timings if row.kind == KIND]
    fewest = min(row.keys for row in rows)
    figure = Figure(figsize=(11, 5.2), dpi=150, layout="constrained")
    by_channels, by_keys = figure.subplots(1, 2)
    narrow = sorted((row for row in rows if row.keys == fewest), key=lambda row: row.channels or 0)
    _draw(by_channels, narrow, [row.channels or 0 for row in narrow], "o-", "")
    by_channels.set(title=f"{fewest} keys", xlabel="channels d", ylabel="CPU time (s), one thread")
    widths = sorted({row.channels or 0 for row in rows if row.keys > fewest})
    for width, style in zip(widths, ("o-", "s--", "^:"), strict=False):
        wide = sorted((row for row in rows if row.channels == width), key=lambda row: row.keys)
        _draw(by_keys, wide, [row.keys for row in wide], style, f", d = {width}")
    by_keys.set(title="by number of keys", xlabel="keys n")
    for ax, places in ((by_channels, {row.channels or 0 for row in narrow}), (by_keys, {row.keys for row in rows})):
        ax.set(xscale="log", yscale="log")
        ax.set_xticks(sorted(places), [str(place) for place in sorted(places)])
        ax.set_xticks([], minor=True)
        ax.grid(alpha=0.3, which="both")
        ax.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=2)
    return figure


def _draw(ax: Any, rows: Sequence[KeysTiming], places: Sequence[int], style: str, suffix: str) -> None:
    ax.plot(places, [row.normscope_seconds for row in rows], style, color=OURS, label=f"normscope{suffix}")
    published = [(at, row.published.seconds) for at, row in zip(places, rows, strict=True) if row.published is not None]
    if published:
        ax.plot(*zip(*published, strict=True), style, color=PUBLISHED, label=f"published procedure{suffix}")
    ax.plot(
        places, [row.highs.seconds for row in rows], style, color=HIGHS, label=f"HiGHS, one program per key{suffix}"
    )
