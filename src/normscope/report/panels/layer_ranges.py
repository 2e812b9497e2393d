"""Panels of ranges: how far linear layers and the stream can go, and how far the text went."""

from collections.abc import Iterator
from typing import Any

from normscope.report.marks import DotsAndRange, Lane, Line, Panel, Row, Series
from normscope.report.places import short_place
from normscope.results.layer_ranges import LayerRanges, TensorRange
from normscope.rules.prose import count, listed, name, number, percent

INSIDE = ("queries", "keys", "values", "scores", "heads", "hidden", "branch")
TIGHT = ("exact", "heads", "tight")
FORMULA = (
    "w·b + c ± √N·|ΠGw| for a layer with weights w that reads a norm; behind activations and heads, certified bounds."
)


def panels(result: LayerRanges) -> Iterator[Panel]:
    """Linear layers, then the stream."""
    yield _layers(result)
    for what in ("norm input", "stream"):  # the stream as norms read it, or after the layers that write to it
        stream = [row for row in result.tensors if row.what == what]
        if len(stream) > 1:
            yield _stream(result, stream)
            break
    others = [row for row in result.tensors if row.what in INSIDE and row.bound is not None]
    if others:
        yield _others(result, others)


def _layers(result: LayerRanges) -> Panel:
    bounded = [row for row in result.layers if row.bound is not None]
    used = [row for row in bounded if row.used is not None]
    common: dict[str, Any] = {"id": "ranges", "section": "ranges", "paper": "riechers", "formula": FORMULA}
    unbounded = len(result.layers) - len(bounded)
    notes = [f"{result.limit.sentence}."]
    if result.limit.excluded == result.limit.tensors:
        notes = [f"None of {count(result.limit.tensors, 'tensor')} can leave {result.limit.type}, whatever the input."]
    if unbounded:
        notes.append(f"{count(unbounded, 'linear layer')} {'has' if unbounded == 1 else 'have'} no bound.")
    if not bounded:
        return Panel(title="No linear layer has a bound", see="", notes=tuple(notes), **common)
    worst = max(bounded, key=lambda row: abs(row.bound or 0.0))
    largest = f"The largest limit of all is {number(abs(worst.bound or 0.0))} ({name(worst.layer)})."
    if used:
        rows = sorted(used, key=lambda row: -(row.used or 0.0))
        mark = DotsAndRange(
            tuple(_row(row, share=True) for row in rows),
            0.0,
            1.0,
            "share of the limit",
            percent=True,
            headings=("limit", "used"),
        )
        title = f"The text used at most {percent(rows[0].used or 0.0)} of what a layer allows"
        see = (
            "Each row in units of its own limit: the bracket is what no input can exceed, the bar what the text used. "
        )
        see += largest
        return Panel(title=title, see=see, marks=(mark,), notes=tuple(notes), **common)
    rows = sorted(bounded, key=lambda row: -abs(row.bound or 0.0))
    mark, top = _by_limit(result, rows), abs(rows[0].bound or 0.0)
    title = f"Every one of {count(len(bounded), 'linear layer')} stays within ±{number(top)}, whatever the input"
    see = "The bracket is what no output of the layer can exceed. What a text uses of it, a text shows."
    return Panel(
        title=title, see=see, marks=(mark,), notes=tuple(notes), command="normscope report MODEL --text FILE", **common
    )


def _others(result: LayerRanges, rows: list[TensorRange]) -> Panel:
    """Queries, keys, values, scores and the like."""
    rows = sorted(rows, key=lambda row: -abs(row.bound or 0.0))
    kinds = list(dict.fromkeys(row.what for row in rows))
    worst = {kind: max(abs(row.bound or 0.0) for row in rows if row.what == kind) for kind in kinds}
    stay = f"{listed(kinds)} stay within ±{number(max(worst.values()))}, whatever the input"
    title = f"{stay[0].upper()}{stay[1:]}"
    missing = sum(row.what in INSIDE and row.bound is None for row in result.tensors)
    notes = (
        (f"{count(missing, 'tensor')} of these kinds {'has' if missing == 1 else 'have'} no bound.",) if missing else ()
    )
    limits = ", ".join(f"{kind} ±{number(worst[kind])}" for kind in kinds)
    see = f"The same for what is not the output of a linear layer. The largest limits: {limits}."
    return Panel("tensors", "ranges", title, see, (_by_limit(result, rows),), notes, paper="riechers", formula=FORMULA)


def _by_limit(result: LayerRanges, rows: list[TensorRange]) -> DotsAndRange:
    """Rows on one log scale, the largest limit first."""
    low = min((abs(row.bound) for row in rows if row.bound), default=1e-3)
    top, end = abs(rows[0].bound or 0.0), result.limit.largest
    near = end < 100 * top
    seen = any(row.observed is not None for row in rows)
    return DotsAndRange(
        tuple(_row(row, share=False) for row in rows),
        low / 2,
        2 * max(top, end if near else top),
        "largest value, log scale",
        log=True,
        lines=(Line(end, f"end of {result.limit.type}"),) if near else (),
        headings=("limit", "on the text" if seen else ""),
    )


def _row(row: TensorRange, *, share: bool) -> Row:
    size = abs(row.bound or 0.0)
    return Row(
        short_place(row.layer) + ("" if row.what == "output" else f" · {row.what}"),
        limit=1.0 if share else size,
        seen=row.used if share else None,
        text=f"±{number(size)}",
        more=percent(row.used or 0.0) if share else "" if row.observed is None else number(row.observed),
        tight=row.grade in TIGHT,
        norm=row.norm,
    )


def _stream(result: LayerRanges, rows: list[TensorRange]) -> Panel:
    bounds = [max(abs(row.low or 0.0), abs(row.high or 0.0)) if row.bounded else None for row in rows]
    tight = all(row.grade in TIGHT for row in rows if row.bounded)
    series = [Series("bound", "limit" if tight else "example", tuple(bounds), "line")]
    seen = tuple(row.observed for row in rows)
    if any(value is not None for value in seen):
        series.append(Series("seen", "seen", seen, "line"))
    known = [value for value in bounds if value is not None]
    highest = max((value for value in seen if value is not None), default=None)
    words = "has no bound" if not known else f"stays within ±{number(known[-1])} at the end of the model"
    title = f"The stream {words}" + ("" if highest is None else f"; the text reached {number(highest)}")
    see = "The largest value of the stream where each norm reads it: on the text, and what no input can exceed."
    if not tight:
        see += " The bound adds up worst cases of all layers: it holds for every input, but it is far from tight."
    near = any(value * 100 > result.limit.largest for value in (*known, highest or 0.0))
    lane = Lane(
        "Largest value of the stream",
        tuple(series),
        tuple(short_place(row.layer) for row in rows),
        by="place",
        lines=(Line(result.limit.largest, f"end of {result.limit.type}"),) if near else (),
    )
    return Panel(
        "stream",
        "ranges",
        title,
        see,
        (lane,),
        formula="|stream| ≤ Σ over layers of the largest value that each can write.",
    )
