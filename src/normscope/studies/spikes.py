"""Massive activations from the weights alone: channels of the stream whose supremum stands out in their layer.

    rank = bound of a channel / median bound of the channels that the layer writes

A layer that writes to the stream reads a norm, directly or through neurons or heads, so the largest value that it can
write to a channel follows from its weights (`ranges`), with an input of the norm that does it.
"""

import math
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

import numpy as np
from torch.fx import Node

from normscope.checks import Floats
from normscope.models.batches import Inputs
from normscope.models.subject import Model, Subject, Text
from normscope.progress import Progress, silent
from normscope.results.layer_ranges import TensorRange
from normscope.results.spike_list import Spike, SpikeList
from normscope.studies.observed import Seen
from normscope.studies.ranges import RangeSearch
from normscope.tensors.roles import before_moves, writers_of

LARGEST = float(np.finfo(float).max)
KEPT = 32  # spikes in the result
EACH = 4  # channels of every layer that are looked at
MOST_READ = 2_000_000_000  # parameters up to which later layers are searched for readers


def spikes(
    model: Model,
    *,
    text: Text | None = None,
    inputs: Inputs | None = None,
    device: str = "cpu",
    dtype: str | None = None,
    progress: Progress = silent,
) -> SpikeList:
    """Channels that one token can make far larger than the others, ranked; with a text, whether it happens.

    Parameters
    ----------
    model
        A folder in Hugging Face format, a .gguf file, or a torch module.
    text, inputs
        Text or inputs to look at: where each channel is largest, and how near it comes to its bound.
    device, dtype
        Device and floating-point type to run the model in.
    progress
        See `normscope.progress`.

    Returns
    -------
    SpikeList
        The channels that stand out most, with the input of the norm that triggers each.
    """
    subject = Subject.of(model, text=text, inputs=inputs, device=device, dtype=dtype)
    search = RangeSearch(subject, "float32", math.inf, EACH)
    found = search.rows(progress)
    writers = {node: found[node] for node in _writers(search, found)}
    return spikes_among(search, found, search.observe(writers, progress) if subject.runs else {})


def spikes_among(search: RangeSearch, found: Mapping[Node, TensorRange], seen: Mapping[Node, Seen]) -> SpikeList:
    """The channels that stand out among the rows of one walk, with what the text did at them."""
    subject = search.subject
    writers = {node: found[node] for node in _writers(search, found) if found[node].lows is not None}
    # A module may return its channels at another axis: then what it returned does not say what was written to which.
    seen = {node: each for node, each in seen.items() if node in writers and len(each.low) == writers[node].channels}
    ranked: list[tuple[float, Node, int]] = []
    for node, row in writers.items():
        assert row.lows is not None
        assert row.highs is not None
        peaks = np.maximum(np.abs(row.lows), np.abs(row.highs))
        median = float(np.median(peaks))
        top = np.argsort(-peaks, kind="stable")[:EACH]
        ranked += [(_times(float(peaks[at]), median), node, int(at)) for at in top if peaks[at]]
    ranked.sort(key=lambda each: -each[0])
    places = [int(seen[node].token[channel]) for _, node, channel in ranked[:KEPT] if node in seen]
    tokens = _tokens(subject, places)
    rows = []
    for times, node, channel in ranked[:KEPT]:
        spike = _spike(search, node, writers[node], channel, times)
        if node in seen:
            largest = seen[node].high[channel] if spike.bound > 0 else seen[node].low[channel]
            at = int(seen[node].token[channel])
            token = f"{tokens[at]!r} ({at})" if at in tokens else str(at)
            spike = replace(spike, observed=float(largest), used=float(max(0.0, largest / spike.bound)), token=token)
        rows.append(spike)
    return SpikeList(
        subject.name,
        tuple(_with_readers(search, rows)),
        tuple(row.layer for row in writers.values()),
        subject.text,
        _stacked([(row.lows, row.highs) for row in writers.values()]),
        _stacked([(seen[node].low, seen[node].high) for node in writers if node in seen]),
    )


def _times(peak: float, median: float) -> float:
    """How many times the median; the largest float stands for infinity, which JSON lacks."""
    return min(peak / median, LARGEST) if median else LARGEST


def _stacked(bounds: list[tuple[Floats | None, Floats | None]]) -> Floats | None:
    """The larger of both ends for every channel, a row for each layer; None where layers differ in their channels."""
    found = [np.maximum(np.abs(low), np.abs(high)) for low, high in bounds if low is not None and high is not None]
    return np.stack(found) if found and len({len(row) for row in found}) == 1 else None


def _writers(search: RangeSearch, rows: Mapping[Node, TensorRange]) -> Iterator[Node]:
    """The layers, mixtures of experts and norms whose output is added to a stream."""
    for term in writers_of(search.graph, search.norms):
        source = before_moves(term, search.layers)
        if source in rows and rows[source].what in ("output", "branch"):
            yield source


def _spike(search: RangeSearch, node: Node, row: TensorRange, channel: int, times: float) -> Spike:
    assert row.lows is not None
    assert row.highs is not None
    low, high = float(row.lows[channel]), float(row.highs[channel])
    bound = high if high >= -low else low
    number = re.search(r"(?:^|\.)(\d+)(?:\.|$)", row.layer)
    found = search.drive(node, channel, 1 if bound > 0 else -1)
    direction = None
    if found is not None:
        share = found.input**2 / max(float(np.sum(found.input**2)), np.finfo(float).tiny)
        top = np.argsort(-share)[:3]
        direction = ", ".join(f"{at} ({share[at]:.0%})" for at in top)
    return Spike(
        layer=int(number[1]) if number else None,
        channel=channel,
        bound=bound,
        reached=None if found is None else found.reached,
        times_median=times,
        observed=None,
        used=None,
        token=None,
        module=row.layer,
        norm=row.norm,
        direction=direction,
        readers=(),
        grade=None if found is None else found.grade,
        input=None if found is None else found.input,
    )


def _with_readers(search: RangeSearch, rows: list[Spike]) -> Iterator[Spike]:
    """Which later layers weigh the channel of each spike most: the size of its column against the median column."""
    if (search.parameters or 0) > MOST_READ:
        yield from rows
        return
    wanted = sorted({spike.channel for spike in rows})
    order: list[str] = []
    columns: dict[str, dict[int, float]] = {}
    for row in search.readers():
        sizes = search.column_sizes(row)
        if sizes is None or not wanted or max(wanted) >= len(sizes):
            continue
        median = float(np.median(sizes)) or 1.0
        order.append(row.label)
        columns[row.label] = {channel: float(sizes[channel] / median) for channel in wanted}
    for spike in rows:
        after = order[order.index(spike.module) + 1 :] if spike.module in order else _after(order, spike.layer)
        best = sorted(after, key=lambda name: -columns[name][spike.channel])[:3]
        yield replace(spike, readers=tuple(f"{name} (×{columns[name][spike.channel]:.1f})" for name in best))


def _after(order: list[str], layer: int | None) -> list[str]:
    """The layers of later blocks."""
    if layer is None:
        return order
    found = [(name, re.search(r"(?:^|\.)(\d+)(?:\.|$)", name)) for name in order]
    return [name for name, number in found if number is None or int(number[1]) > layer]


def _tokens(subject: Subject, places: Collection[int]) -> dict[int, str]:
    """The tokens at some places of the text, counted over all batches."""
    decode, before = subject.decoder, 0
    made: dict[int, str] = {}
    for batch in subject.batches() if places and decode is not None else ():
        ids = batch.get("input_ids")
        if ids is None or decode is None or before > max(places):
            break
        made |= {at: decode(int(ids.reshape(-1)[at - before])) for at in places if 0 <= at - before < ids.numel()}
        before += ids.numel()
    return made
