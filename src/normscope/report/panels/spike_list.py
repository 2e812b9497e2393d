"""The panel of spikes: channels that one token can make far larger than the others."""

from collections.abc import Iterator

from normscope.report.marks import DotsAndRange, Panel, Row
from normscope.report.places import short_place
from normscope.results.spike_list import Spike, SpikeList
from normscope.rules.prose import number, percent

TIGHT = ("exact", "heads", "tight")


def panels(result: SpikeList) -> Iterator[Panel]:
    """One panel, with the channels that stand out most."""
    if not result.spikes:
        return
    first = result.spikes[0]
    seen = [spike for spike in result.spikes if spike.observed is not None]
    top = max(seen, key=lambda spike: abs(spike.observed or 0.0), default=None)
    title = f"Layer {first.layer} can write at most {number(abs(first.bound))} to channel {first.channel}, "
    title += f"{number(first.times_median)} times its median channel"
    if first.layer is None:
        title = title.replace("Layer None", first.module, 1)
    if top is not None and abs(top.observed or 0.0) > 0:
        title += f"; the text drew {number(abs(top.observed or 0.0))} from it" if top is first else ""
    see = (
        "Channels of the stream, in the order of how many times their layer's median channel they can become, from the "
        "weights alone; each row in units of its own bound. The bracket is the bound, with its times the median; "
        "the ring is what the layer itself wrote for an input made for it"
        + ("; the bar is what the text drew from it." if seen else ".")
    )
    scale = DotsAndRange(
        tuple(_row(spike) for spike in result.spikes),
        0.0,
        1.0,
        "share of the bound",
        percent=True,
        headings=("bound", "on the text" if seen else ""),
    )
    notes = []
    if top is not None and top.token is not None:
        where = short_place(top.module)
        notes.append(
            f"Largest of these on the text: {number(abs(top.observed or 0.0))} in channel {top.channel}, written by "
            f"{where} at token {top.token}, {percent(top.used or 0.0)} of its bound."
        )
    yield Panel(
        "spikes",
        "ranges",
        title,
        see,
        (scale,),
        tuple(notes),
        formula="rank = bound of a channel / median bound of the channels that the layer writes.",
        command="" if seen else "normscope report MODEL --text FILE",
    )


def _row(spike: Spike) -> Row:
    return Row(
        f"{short_place(spike.module)} · channel {spike.channel}",
        limit=1.0,
        seen=spike.used,
        at=None if spike.reached is None or not spike.bound else abs(spike.reached / spike.bound),
        text=f"±{number(abs(spike.bound))} ({spike.times_median:.2g}×)",
        more="" if spike.observed is None else number(abs(spike.observed)),
        tight=spike.grade in TIGHT,
        norm=spike.norm,
    )
