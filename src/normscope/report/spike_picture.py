"""Spikes as a picture: what each layer can write to the stream, and the channels that stand out."""

from typing import Any

import numpy as np

from normscope.errors import InputError
from normscope.report.pictures import as_label, new_figure
from normscope.results.spike_list import SpikeList

CHANNELS = 2  # channels that are drawn for themselves
COLOURS = ("#c0392b", "#1f77b4")


def draw(result: SpikeList) -> Any:
    """Bounds of all channels, layer by layer, on a logarithmic scale; on a text, what channels that stand out did."""
    if result.peaks is None:
        raise InputError("a picture of spikes needs layers that write the same channels")
    figure = new_figure(width=9, height=5)
    axes = figure.add_subplot()
    layers = np.arange(len(result.peaks))
    least, middle, most = (np.quantile(result.peaks, share, axis=1) for share in (0.05, 0.5, 0.95))
    axes.vlines(layers, least, most, color="#bfc5cb", lw=4, label="bounds of 90% of the channels")
    axes.plot(layers, middle, "_", color="#555555", ms=6, label="median bound")
    chosen = list(dict.fromkeys(spike.channel for spike in result.spikes))[:CHANNELS]
    for channel, colour in zip(chosen, COLOURS, strict=False):
        axes.plot(layers, result.peaks[:, channel], "o", color=colour, ms=4, label=f"bound of channel {channel}")
        if result.seen is not None and len(result.seen) == len(layers):
            axes.plot(layers, result.seen[:, channel], "x", color=colour, ms=5, label=f"channel {channel} on the text")
    for spike in result.spikes[:CHANNELS]:
        place = (result.writers.index(spike.module), abs(spike.bound))
        label = f"layer {spike.layer}, channel {spike.channel}"
        axes.annotate(label, place, textcoords="offset points", xytext=(0, 6), ha="center", fontsize=8)
    axes.margins(y=0.12)
    axes.set_yscale("log")
    axes.set_xlabel("layers that write to the stream, in order")
    axes.set_ylabel("largest value that one token can write")
    axes.set_title(f"What each layer of {as_label(result.model)} can write to the stream")
    axes.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=3, frameon=False)
    return figure
