"""Keys that no query can select, layer by layer, and how near heads come to equal attention."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from statistics import median

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from normscope.report.norm_columns import Value, _table
from normscope.report.tables.shared import escape, new_table, readable, tables
from normscope.results.rows import Spread
from normscope.studies.key_results import EqualAttention, Keys, Place

TOKENS = 3  # named of a layer
KEYS_CAPTION = (
    "keys: of all heads and sequences; lost: shown to be selected by no query, with a certificate; twins: of these, "
    "equal to another key; degen.: answers without room to spare"
)
EQUAL_CAPTION = (
    "medians over heads; q*: the query that comes nearest to scoring all keys alike; angle: between the direction that "
    "would and what W_K can express; made: heads that can make q*; length: the longest, over a real query; spread: of "
    "its scores, over that of a real query; to q*: from real queries; least: the query of least spread on these keys"
)


@tables.register
def _(result: Keys) -> list[RenderableType]:
    layers: dict[str, list[Place]] = {}
    for place in result.places:
        layers.setdefault(place.layer, []).append(place)
    of_heads = result.at == "heads"
    table = new_table(f"Keys of {result.model}, {_at(result)}", KEYS_CAPTION, "layer", *([] if of_heads else ["norm"]))
    for heading in ("keys", "lost", "twins", "degen.", "share", *(["worst head"] if of_heads else [])):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("lost tokens", overflow="fold")
    for layer, places in layers.items():
        keys, lost = _total(places, "keys"), _total(places, "unselectable")
        counts = [keys, lost, _total(places, "twins"), _total(places, "degenerate")]
        worst = max(places, key=lambda place: place.share)
        named = [] if of_heads else [escape(places[0].norm or "")]
        most = [f"{_percent(worst.share)} ({worst.head})" if worst.unselectable else "–"] if of_heads else []
        tokens = escape(_tokens(places)) or "–"
        table.add_row(escape(layer), *named, *map(str, counts), _percent(lost / keys), *most, tokens)
    words = [Text.from_markup(escape(f"• {sentence}")) for sentence in _sentences(result)]
    return [table, *([_equal_table(result.equal_attention)] if result.equal_attention else []), *words]


def keys_html(result: Keys) -> str:
    """A table of all places, every string from the model escaped."""
    headings = [
        ("layer", "the attention layer"),
        ("head", "one of its heads"),
        ("norm", "the norm whose inputs or outputs the keys are"),
        ("keys", "over all sequences"),
        ("unselectable", "shown to be selected by no query"),
        ("twins", "of these, equal to another key"),
        ("degenerate", "answers without room to spare"),
        ("share", "unselectable / keys"),
        ("tokens", "most of the unselectable keys belong to"),
    ]
    rows: list[list[Value]] = [
        [
            place.layer,
            place.head,
            place.norm,
            place.keys,
            place.unselectable,
            place.twins,
            place.degenerate,
            place.share,
            _tokens([place]) or None,
        ]
        for place in result.places
    ]
    return _table(f"Keys of {result.model}, {_at(result)}", headings, rows)


def _at(result: Keys) -> str:
    return "as heads see them" if result.at == "heads" else f"at the {result.at} of the norm before attention"


def _total(places: Iterable[Place], figure: str) -> int:
    return sum(getattr(place, figure) for place in places)


def _percent(share: float) -> str:
    """A share as a reader wants it, never 0% where it is not zero.

    >>> _percent(0.0), _percent(0.000042), _percent(0.1234)
    ('0%', '0.0042%', '12.3%')
    """
    return f"{100 * share:.3g}%" if share >= 0.1 else f"{100 * share:.2g}%"


def _tokens(places: Iterable[Place]) -> str:
    """The tokens that most of the lost keys belong to, or positions where there is no tokenizer."""
    counts = Counter(
        f"position {key.position}" if key.token is None else readable(key.token)
        for place in places
        for key in place.lost
    )
    named = [f"{token} ×{count}" if count > 1 else token for token, count in counts.most_common(TOKENS)]
    more = [f"{len(counts) - TOKENS} more"] if len(counts) > TOKENS else []
    return ", ".join(named + more)


def _equal_table(heads: Sequence[EqualAttention]) -> Table:
    layers: dict[str, list[EqualAttention]] = {}
    for head in heads:
        layers.setdefault(head.layer, []).append(head)
    table = new_table("Equal attention", EQUAL_CAPTION, "layer")
    for heading in ("heads", "angle", "made", "length", "spread", "to q*", "least spread", "to it"):
        table.add_column(heading, justify="right", no_wrap=True)
    for layer, some in layers.items():
        known = [head for head in some if head.reachable is not None]
        made = f"{sum(head.reachable or False for head in known)}/{len(known)}" if known else "–"
        table.add_row(
            escape(layer),
            str(len(some)),
            _middle(some, lambda head: head.angle, "{:.0f}°"),
            made,
            _middle(some, lambda head: head.reach, "{:.2g}"),
            _middle(some, lambda head: head.spread, "{:.2g}"),
            _middle(some, lambda head: _median(head.query_angle), "{:.0f}°"),
            _middle(some, lambda head: head.least_spread, "{:.2g}"),
            _middle(some, lambda head: _median(head.least_query_angle), "{:.0f}°"),
        )
    return table


def _middle(heads: Sequence[EqualAttention], figure: Callable[[EqualAttention], float | None], form: str) -> str:
    values = [value for head in heads if (value := figure(head)) is not None]
    return form.format(median(values)) if values else "–"


def _median(angles: Spread | None) -> float | None:
    return None if angles is None else angles.median


def _sentences(result: Keys) -> Iterable[str]:
    """What was asked, what could not be, and what a reader of the figures must know."""
    pieces = "one sequence" if result.sequences == 1 else f"{result.sequences} sequences"
    if result.causal:
        yield f"Each key is asked at its own position, where it meets the fewest rivals: the keys up to it ({pieces})."
    else:
        yield f"A key competes with all keys of its sequence ({pieces})."
    if result.max_keys is not None:
        yield f"Only the first {result.max_keys} keys of a sequence are in it."
    if result.reachable:
        yield "Only queries that a head can make at the last position of a sequence count."
    undecided = _total(result.places, "open")
    if undecided:
        yield f"Nothing could be shown of {undecided} keys; they are counted as degenerate, not as lost."
    for missed in result.not_covered:
        yield f"{missed.layer} is not covered: {missed.reason}."
    if any(head.everywhere is False for head in result.equal_attention):
        yield (
            "Queries and keys depend on their positions here: q* is for keys where the query stands, "
            "at the last position of a sequence."
        )
    reasons = Counter(head.reason for head in result.equal_attention if head.reason)
    for reason, count in reasons.most_common(TOKENS):
        yield f"Not available for {count} of {len(result.equal_attention)} heads: {reason}."
    if len(reasons) > TOKENS:
        yield f"{len(reasons) - TOKENS} more reasons are in the JSON."
