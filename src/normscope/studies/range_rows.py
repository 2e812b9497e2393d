"""Rows of ranges: bounds of every channel, all calls of a layer as one row, and what happened on a text.

used = largest entry on the text / bound, over all channels and both sides
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from normscope.checks import Floats, frozen
from normscope.results.layer_ranges import Neurons, TensorRange
from normscope.studies.observed import Seen
from normscope.tensors.values import Value


def by_channel(value: Value) -> tuple[int, Floats, Floats]:
    """Bounds for every channel of the last axis, whatever the token."""
    if not value.unit.ndim:
        return 1, value.low[value.unit.reshape(1).numpy()], value.high[value.unit.reshape(1).numpy()]
    unit = value.unit
    thin = unit[tuple(slice(0, 1) if unit.stride(at) == 0 else slice(None) for at in range(unit.ndim - 1))]
    rows = thin.reshape(-1, unit.shape[-1]).numpy()
    return unit.shape[-1], value.low[rows].min(axis=0), value.high[rows].max(axis=0)


def by_module(rows: Sequence[TensorRange]) -> tuple[list[TensorRange], set[str]]:
    """One row for each layer, also if it is called several times; and which are."""
    calls: dict[tuple[str, str | None], list[TensorRange]] = {}
    for row in rows:
        calls.setdefault((row.layer, row.weight), []).append(row)
    made = [_hull(each) if len(each) > 1 else each[0] for each in calls.values()]
    return made, {layer for (layer, _), each in calls.items() if len(each) > 1}


def _hull(rows: Sequence[TensorRange]) -> TensorRange:
    """The ranges of all calls of a layer together."""
    loose = next((row for row in rows if not row.bounded), None)
    if loose is not None:
        return replace(loose, why=f"{loose.why} (in {sum(not row.bounded for row in rows)} of {len(rows)} calls)")
    first = max(rows, key=lambda row: abs(row.bound or 0.0))
    lows = [row.lows for row in rows if row.lows is not None]
    highs = [row.highs for row in rows if row.highs is not None]
    norms = {row.norm for row in rows}
    return replace(
        first,
        low=min(row.low for row in rows if row.low is not None),
        high=max(row.high for row in rows if row.high is not None),
        norm=first.norm if len(norms) == 1 else None,
        neurons=_of_all_calls(rows),
        grade=first.grade if first.grade != "tight" else "quadratic",
        lows=frozen(np.min(lows, axis=0)) if len(lows) == len(rows) else None,
        highs=frozen(np.max(highs, axis=0)) if len(highs) == len(rows) else None,
    )


def _of_all_calls(rows: Sequence[TensorRange]) -> Neurons | None:
    """The neurons of a layer that is called several times: dead ones are so in every call."""
    seen = [row.neurons for row in rows if row.neurons is not None]
    if len(seen) != len(rows):
        return None
    return replace(seen[0], dead=tuple(sorted(set.intersection(*(set(each.dead) for each in seen)))))


def with_text(row: TensorRange, seen: Seen | None) -> TensorRange:
    if seen is None or row.bound is None:
        return row
    largest = float(np.maximum(np.abs(seen.low), np.abs(seen.high)).max())
    if row.lows is None or row.highs is None or len(row.lows) != len(seen.low):
        return replace(row, observed=largest, used=largest / abs(row.bound) if row.bound else None)
    room = np.stack(
        [seen.high / np.where(row.highs > 0, row.highs, np.inf), seen.low / np.where(row.lows < 0, row.lows, -np.inf)]
    )
    return replace(row, observed=largest, used=float(room.max()))
