"""Panels of one norm on what its gains do: gains by channel, directions out of reach, how far a step turns it."""

from collections.abc import Sequence
from math import log10
from typing import Any

import numpy as np

from normscope.checks import Floats
from normscope.report.marks import DotsAndRange, Lane, Line, Panel, Row, Series, Strip, packed_floats
from normscope.results.inspection import Axes, Gains, NormGeometry
from normscope.rules.prose import count, number, percent

NAMED = 3  # channels with a label
SHOWN = 6  # rows of channels
MOST = 1024  # entries of a series that a page holds; longer ones are thinned
FAR_BELOW = 1e-3  # of the median gain
NEEDS_TEXT = "normscope report MODEL --text FILE"


def gain_panel(norm: NormGeometry, gain: Floats) -> Panel:
    """Gains by channel."""
    size = np.abs(gain)
    median = float(np.median(size))
    closed = int(np.count_nonzero(size < FAR_BELOW * median))
    lowest, highest = float(size.min()), float(size.max())
    title = f"Gains from {number(lowest)} to {number(highest)} in size, the median {number(median)}"
    if closed:
        title = f"{count(closed, 'channel')} {'is' if closed == 1 else 'are'} almost muted: the gain is below a "
        title += f"thousandth of the median, {number(median)}"
    negative = int(np.count_nonzero(gain < 0))
    signs = (
        f" {count(negative, 'gain')} below zero {'is' if negative == 1 else 'are'} drawn by size." if negative else ""
    )
    runs = np.array_split(np.arange(len(size)), min(MOST, len(size)))
    away = np.abs(np.log10(np.maximum(size, 1e-30)) - log10(max(median, 1e-30)))
    kept = [int(run[away[run].argmax()]) for run in runs]  # of each run, the gain that is farthest from the median
    far = sorted(sorted(range(len(kept)), key=lambda at: -away[kept[at]])[:NAMED])
    thinned = (
        f" Of each {len(size) / MOST:.0f} channels, the one farthest from it is drawn." if len(runs) < len(size) else ""
    )
    series = Series("gain", "limit", packed_floats(size[kept]))
    return Panel(
        "gains",
        "norm",
        title,
        f"The size of the gain of each channel, in the order of channels. The line is the median.{signs}{thinned}",
        (
            Lane(
                "Gain by channel",
                (series,),
                len(gain),
                by="channel",
                log=highest > 30 * max(lowest, 1e-30),
                lines=(Line(median, f"median {number(median)}", "soft"),),
                named=tuple((at, f"channel {kept[at]}: {number(float(size[kept[at]]))}") for at in far)
                if highest > 2 * max(lowest, 1e-30)
                else (),
            ),
        ),
        formula="y = b + g ∘ (x − mean)/√(σ² + eps); an RMSNorm leaves the mean out.",
        norm=norm.name,
    )


def reach_panel(norm: NormGeometry, gains: Gains, axes: Axes | None) -> Panel:
    """What it can never write."""
    common: dict[str, Any] = {
        "id": "reach",
        "section": "norm",
        "norm": norm.name,
        "paper": "riechers",
        "formula": "A LayerNorm writes nothing along 1/g: Σ (yₙ − bₙ)/gₙ = 0 for every input.",
        "wide": False,
    }
    size, lost = norm.found.size, norm.found.size - (norm.dimension or 0)
    if lost and gains.dead_direction is not None:
        rows = tuple(
            Row(f"channel {each.channel}", at=abs(each.weight), text=f"{each.weight:+.3g}".replace("-", "−"))
            for each in gains.dead_direction[:SHOWN]
        )
        top = max((row.at or 0.0 for row in rows), default=1.0)
        even = 1 / np.sqrt(size)
        mark = DotsAndRange(
            rows,
            0.0,
            1.05 * max(top, even),
            "weight in that direction",
            lines=(Line(even, "even", "soft"),),
            first=SHOWN,
        )
        title = "One direction is out of reach" if lost == 1 else f"{lost:,} directions are out of reach"
        see = "Whatever the input, outputs never differ along it. The channels that weigh most in it:"
        see = see if lost == 1 else f"Whatever the input, outputs never differ along them. The first of {lost:,}:"
        return Panel(title=title, see=see, marks=(mark,), **common)
    lengths = None if axes is None else axes.lengths
    title = "No direction is out of reach"
    see = f"It subtracts no mean, and none of its {size:,} gains is exactly 0: outputs span all {size:,} dimensions."
    if lengths is None or norm.found.gain is None or not len(lengths):
        return Panel(title=title, see=see, **common)
    order = np.argsort(np.abs(norm.found.gain), kind="stable")[: min(SHOWN, len(lengths))]
    reach = lengths[::-1][: len(order)]
    nearly = float(lengths[-1]) < FAR_BELOW * float(np.median(lengths))
    if nearly:
        title = f"No direction is out of reach, but channel {order[0]} nearly is"
    rows = tuple(
        Row(f"channel {channel}", at=float(each), text=f"±{number(float(each))}")
        for channel, each in zip(order.tolist(), reach, strict=True)
    )
    median = float(np.median(lengths))
    mark = DotsAndRange(
        rows,
        float(reach.min()) / 2,
        max(2 * median, 2 * float(reach.max())),
        "reach of the shortest axes, log scale",
        log=True,
        lines=(Line(median, f"median axis ±{number(median)}"),),
        first=SHOWN,
    )
    return Panel(title=title, see=see, marks=(mark,), **common)


def turning_panel(norm: NormGeometry, steps: Sequence[float]) -> Panel:
    """How much it bends at real inputs."""
    common: dict[str, Any] = {
        "id": "turning",
        "section": "norm",
        "norm": norm.name,
        "paper": "ni",
        "formula": "length = |Πx|·tan 10°: a change of that length, at a right angle, rotates Πx/|Πx| by 10°.",
        "wide": False,
    }
    step = None if norm.landing is None else norm.landing.step
    if norm.landing is None:
        return Panel(
            title="How much it bends depends on its inputs", see="A text shows it.", command=NEEDS_TEXT, **common
        )
    if step is None or not step.high > 0:
        return Panel(title="It does not bend", see="It does not scale, so it is an affine map.", **common)
    every = [value for value in (*steps, step.low, step.high) if value > 0]
    mark = Strip(
        "length of the input change, log scale",
        min(every) / 1.3,
        max(every) * 1.3,
        ticks=tuple(sorted(value for value in steps if value > 0)),
        dot=step.median,
        bar=(step.low, step.high),
    )
    notes = []
    fit = norm.landing.affine_fit
    if fit is not None:
        way = "the best affine map" if fit.fit == "full" else "the norm with a fixed scale"
        notes.append(
            f"{way[0].upper()}{way[1:]} leaves {percent(fit.unexplained)} of the output’s variance unexplained."
        )
    return Panel(
        title=f"An input change of length {number(step.median)} rotates the output by 10°",
        see="How sharply the norm bends at its real inputs, before gains: the smaller the input, the more a "
        "change rotates it. The dot is the median token, the bar goes from 5% to 95%; ticks are the other norms.",
        marks=(mark,),
        notes=tuple(notes),
        **common,
    )
