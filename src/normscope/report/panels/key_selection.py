"""Panels of keys: which tokens a head can't look at, and how near heads come to seeing all keys alike."""

from collections import Counter
from collections.abc import Iterator
from math import acos, degrees, sqrt
from typing import Any

from normscope.report.marks import Framed, Grid, Lane, Line, Panel, Series, Tokens
from normscope.report.places import block_labels, short_place
from normscope.results.key_selection import EqualAttention, KeyAt, KeySelection, Place
from normscope.rules.prose import count, quoted_token

NORMAL_QUARTILE = 0.6745  # median of |z| of a normal variable
HULL = "A key k is selected by no query iff it is a weighted mean of the others: then q·k ≤ max q·k' for every q."
EQUAL = "q scores all outputs alike iff W_Kᵀq is along 1/g, the dead direction of the norm before the keys."


def panels(result: KeySelection) -> Iterator[Panel]:
    """Lost keys as a grid and in their text, then equal attention."""
    places = result.places
    lost = [(place, key) for place in places for key in place.never_selected_keys]
    yield _grid(result, len(lost))
    yield _in_text(result, lost)
    if result.equal_attention:
        yield _equal(result.equal_attention)


def _grid(result: KeySelection, lost: int) -> Panel:
    places = result.places
    total = sum(place.keys for place in places)
    layers = list(dict.fromkeys(place.layer for place in places))
    known: list[int | None] = sorted({place.head for place in places if place.head is not None})  # type: ignore[assignment]
    heads = known or [None]
    counts = {(place.layer, place.head): place.never_selected for place in places}
    title = (
        f"No key is lost, of {total:,}"
        if not lost
        else f"{count(lost, 'key')} of {total:,} can’t be selected by any query"
    )
    see = "Every head can put every token of this text first. Each answer has a query that shows it."
    if lost:
        worst = max(places, key=lambda place: place.never_selected)
        where = short_place(worst.layer) + ("" if worst.head is None else f", head {worst.head}")
        see = "Each number counts tokens that a head can’t put first, whatever its query. "
        see += f"Most of them: {worst.never_selected:,} in {where}."
    grid = Grid(
        tuple(tuple(counts.get((layer, head)) for layer in layers) for head in heads),
        tuple("" if head is None else str(head) for head in heads),
        tuple(block_labels(layers)),
        "head",
        "block",
        "keys that no query can select",
    )
    notes = tuple(f"Not covered: {short_place(each.layer)} {each.reason}." for each in result.not_covered[:3])
    return Panel("heads", "heads", title, see, (grid,), notes, "brody", HULL, wide=False)


def _in_text(result: KeySelection, lost: list[tuple[Place, KeyAt]]) -> Panel:
    asked = "Asked here: all keys of a sequence against each other, by any query."
    more = "normscope keys MODEL --text FILE --rivals causal"
    common: dict[str, Any] = {
        "id": "lost",
        "section": "heads",
        "paper": "brody",
        "formula": HULL,
        "command": more,
        "wide": False,
    }
    if not lost:
        see = "There are none. In many channels, keys of real text hardly ever surround one of them."
        return Panel(title="The lost keys, in the text", see=see, notes=(asked,), **common)
    words = Counter("a token" if key.token is None else quoted_token(key.token) for _, key in lost)
    most = ", ".join(f"{word} {times}×" if times > 1 else word for word, times in words.most_common(4))
    items = tuple(
        Framed(
            f"token {key.position}" if key.token is None else key.token,
            key.before or "",
            key.after or "",
            f"{short_place(place.layer)}{'' if place.head is None else f', head {place.head}'} · token {key.position} "
            f"of sequence {key.sequence}",
        )
        for place, key in lost
    )
    return Panel(
        title=f"They are {most}",
        see="Framed in the text around them. Such a token gets attention only together with others.",
        marks=(Tokens(items, first=12),),
        notes=(asked,),
        **common,
    )


def _equal(heads: tuple[EqualAttention, ...]) -> Panel:
    layers = list(dict.fromkeys(head.layer for head in heads))
    exact = any(head.query_angle is not None for head in heads)
    angles = {layer: [_angle(head, exact) for head in heads if head.layer == layer] for layer in layers}
    seen = tuple(tuple(angle for angle in angles[layer] if angle is not None) for layer in layers)
    possible = tuple(
        tuple(head.angle for head in heads if head.layer == layer and head.angle is not None) for layer in layers
    )
    common: dict[str, Any] = {"id": "equal", "section": "heads", "paper": "brody", "formula": EQUAL}
    if not any(seen):
        reason = next((head.reason for head in heads if head.reason), "no angle could be measured")
        return Panel(
            title="How near heads come to seeing all keys alike is not known", see=f"Because {reason}.", **common
        )
    channels = next((head.channels for head in heads if head.channels), None)
    chance = None if channels is None else degrees(acos(min(1.0, NORMAL_QUARTILE / sqrt(channels))))
    least, layer = min((min(each), layer) for layer, each in zip(layers, seen, strict=True) if each)
    series = [Series("real queries", "seen", seen)]
    if exact:
        series.append(Series("possible", "limit", possible, "rings"))
        see = (
            "One dot per head: the angle between its real queries (the median) and the query that scores all keys "
            "alike. Rings: how near to that direction the head can come at all. Up means near equal attention."
        )
    else:
        see = (
            "These norms subtract no mean, so no query scores all outputs alike. Shown instead, one dot per head: the "
            "angle between real queries (the median) and the direction in which the real keys spread least. Up means "
            "near equal attention."
        )
    lane = Lane(
        "Angle to equal attention",
        tuple(series),
        tuple(block_labels(layers)),
        by="block",
        unit="°",
        log=False,
        upside_down=True,
        lines=() if chance is None else (Line(chance, f"a random query, {chance:.0f}°", "soft"),),
    )
    title = f"The head nearest to seeing all keys alike is {least:.0f}° away, in {short_place(layer)}"
    return Panel(title=title, see=see, marks=(lane,), **common)


def _angle(head: EqualAttention, exact: bool) -> float | None:
    spread = head.query_angle if exact else head.least_query_angle
    return None if spread is None else spread.median
