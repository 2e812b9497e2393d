"""How the time for a set of keys grows with its channels and with its keys, beside what one would use instead."""

from typing import TYPE_CHECKING, Any

from normscope.report.pictures import new_figure
from normscope_lab.bench.keys_bench import KeysBenchmark, SetTiming

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KIND = "anisotropic"
OURS, PUBLISHED, HIGHS = "#4c72b0", "#c44e52", "#55a868"


def key_growth_picture(result: KeysBenchmark) -> "Figure":
    """Anisotropic sets in two panels: growth with the channels at the fewest keys, growth with the keys."""
    rows = [row for row in result.sets if row.kind == KIND]
    fewest = min(row.keys for row in rows)
    figure = new_figure(width=11, height=5.2)
    channels, keys = figure.subplots(1, 2)
    narrow = sorted((row for row in rows if row.keys == fewest), key=lambda row: row.channels)
    _draw(channels, narrow, [row.channels for row in narrow], "o-", "")
    channels.set(title=f"{fewest} keys", xlabel="channels d", ylabel="CPU time (s), one thread")
    widths = sorted({row.channels for row in rows if row.keys > fewest})
    for width, style in zip(widths, ("o-", "s--", "^:"), strict=False):
        wide = sorted((row for row in rows if row.channels == width), key=lambda row: row.keys)
        _draw(keys, wide, [row.keys for row in wide], style, f", d = {width}")
    keys.set(title="by number of keys", xlabel="keys n")
    for ax, places in ((channels, {row.channels for row in narrow}), (keys, {row.keys for row in rows})):
        ax.set(xscale="log", yscale="log")
        ax.set_xticks(sorted(places), [str(place) for place in sorted(places)])
        ax.set_xticks([], minor=True)
        ax.grid(alpha=0.3, which="both")
        ax.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=2)
    return figure


def _draw(ax: Any, rows: list[SetTiming], places: list[int], style: str, suffix: str) -> None:
    ax.plot(places, [row.normscope_seconds for row in rows], style, color=OURS, label=f"normscope{suffix}")
    published = [(at, row.published.seconds) for at, row in zip(places, rows, strict=True) if row.published is not None]
    if published:
        ax.plot(*zip(*published, strict=True), style, color=PUBLISHED, label=f"published procedure{suffix}")
    ax.plot(
        places, [row.highs.seconds for row in rows], style, color=HIGHS, label=f"HiGHS, one program per key{suffix}"
    )
