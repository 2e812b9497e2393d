"""The share of keys that no query can select: a heat map of layers by heads, or one bar per layer."""

from typing import TYPE_CHECKING, Any

import numpy as np

from normscope.report.pictures import as_label, new_figure
from normscope.results.key_selection import KeySelection

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAMED = 24  # layers that can be named; heads whose shares can be written in their cells
SHARE = "keys never selected (%)"


def keys_picture(result: KeySelection) -> "Figure":
    """The shares of a result, in percent."""
    layers = list(dict.fromkeys(place.layer for place in result.places))
    heads = max(place.head or 0 for place in result.places) + 1
    shares = np.full((len(layers), heads), np.nan)
    for place in result.places:
        shares[layers.index(place.layer), place.head or 0] = 100 * place.share
    figure = new_figure(width=3 + 0.35 * min(max(heads, 10), 32), height=1.6 + 0.25 * min(max(len(layers), 5), 32))
    ax = figure.add_subplot()
    if result.at == "heads":
        _draw_heat_map(figure, ax, shares)
    else:
        _draw_bars(ax, shares[:, 0])
    step = -(-len(layers) // NAMED)
    ax.set_yticks(range(0, len(layers), step), [as_label(layer) for layer in layers[::step]])
    ax.tick_params(labelsize=7)
    ax.set_title(_title(result), fontsize=9)
    return figure


def _draw_heat_map(figure: "Figure", ax: Any, shares: Any) -> None:
    highest = float(np.nanmax(shares)) or 1.0  # where all are zero, the lowest colour
    image = ax.imshow(shares, cmap="Blues", vmin=0.0, vmax=highest, aspect="auto")
    bar = figure.colorbar(image, ax=ax)
    bar.set_label(SHARE, fontsize=8)
    bar.ax.tick_params(labelsize=7)
    ax.set_xlabel("head", fontsize=8)
    ax.set_xticks(range(0, shares.shape[1], -(-shares.shape[1] // NAMED)))
    if max(shares.shape) <= NAMED:
        for (row, column), share in np.ndenumerate(shares):
            if not np.isnan(share):
                colour = "white" if share > 0.6 * highest else "black"
                ax.text(column, row, f"{share:.2g}", ha="center", va="center", fontsize=7, color=colour)


def _draw_bars(ax: Any, shares: Any) -> None:
    bars = ax.barh(range(len(shares)), shares, color="#4c72b0")
    ax.bar_label(bars, fmt="%.2g", padding=3, fontsize=7)
    ax.set_xlabel(SHARE, fontsize=8)
    ax.set_xlim(0, 1.15 * (float(shares.max()) or 1.0))
    ax.invert_yaxis()


def _title(result: KeySelection) -> str:
    by = "no query of their head" if result.queries == "reachable" else "no query"
    among = "those up to it" if result.rivals == "causal" else "all of its sequence"
    return f"{as_label(result.model)}: keys {result._where}\nthat {by} can select, each against {among}"
