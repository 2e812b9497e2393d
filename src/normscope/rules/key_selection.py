"""Rules on keys and on equal attention; and sentences on how a study of keys was made and what it could not decide."""

import re
from collections import Counter
from collections.abc import Iterator

from normscope.results.key_selection import EqualAttention, KeySelection
from normscope.rules.prose import count, listed, name, number, part, percent, quoted_token
from normscope.rules.rule import Outcome, Skipped, Threshold, found, rule, titles

MOST_REASONS = 3
LAYER = re.compile(r"\.\d+\.")  # its number, in the name of a norm: layers with the same reason are counted together
NEARLY_EQUAL = 10.0  # degrees between real queries and the query of equal attention, median, below


@rule("NS204", "unselectable-keys")
def unselectable_keys(result: KeySelection) -> Outcome:
    """A head can never look at some tokens of the text alone, whatever the query.

    A key that is a weighted mean of other keys never has the largest score: some other key scores at least as high for
    every query. Such a token gets attention only together with others. Each verdict has a certificate.

    What to do: nothing, mostly. `normscope keys MODEL --text FILE -o keys.safetensors` saves the certificates, and
    `normscope verify` checks them.
    """
    keys = sum(place.keys for place in result.places)
    lost = [place for place in result.places if place.never_selected > place.duplicates]
    if not lost:
        same = sum(place.duplicates for place in result.places)
        twins = f"; {count(same, 'key')} equal another one" if same else ""
        undecided = sum(place.open for place in result.places)
        left = f"; {undecided:,} are open" if undecided else ""
        return f"Each of {keys:,} keys in {len(result.places)} places can be selected by some query{twins}{left}."
    never = sum(place.never_selected for place in lost)
    worst = max(lost, key=lambda place: place.never_selected)
    tokens = Counter(
        f"position {key.position}" if key.token is None else quoted_token(key.token)
        for place in lost
        for key in place.never_selected_keys
    )
    named = listed([f"{text} ×{many}" if many > 1 else text for text, many in tokens.most_common(3)], 3)
    more = f" and {len(tokens) - 3} more" if len(tokens) > 3 else ""
    head = "" if worst.head is None else f", head {worst.head}"
    return [
        found(
            "note",
            "proved, for this text",
            "heads",
            title=f"{count(never, 'key')} can't be selected by any query{' of their head' * (result.at == 'heads')}: "
            f"{named}{more}.",
            evidence=f"Of {keys:,} keys; {worst.never_selected:,} of them in {name(worst.layer)}{head}. Each is a "
            "weighted mean of other keys, with a certificate.",
            why="Such a token gets attention only together with others.",
            do="Nothing. To keep the certificates: normscope keys MODEL --text FILE -o keys.safetensors",
            sites=tuple(dict.fromkeys(place.layer for place in lost)),
            norms=tuple(dict.fromkeys(place.norm for place in lost if place.norm is not None)),
            figure=(never, None),
        )
    ]


def _angle(head: EqualAttention) -> float | None:
    return None if not head.reachable or head.query_angle is None else head.query_angle.median


def _least_angle(result: KeySelection) -> float | None:
    return min((angle for head in result.equal_attention if (angle := _angle(head)) is not None), default=None)


@rule(
    "NS307",
    "equal-attention",
    Threshold(
        NEARLY_EQUAL,
        _least_angle,
        "degrees between a head's queries and the one that sees all keys alike, median",
        below=True,
    ),
)
def equal_attention(result: KeySelection) -> Outcome:
    """The queries of a head are close to the one that scores all keys alike.

    Behind a norm that projects, all keys have one coordinate in common, and a query along it sees them all alike: the
    head then averages the values of all tokens. Whether a head can produce such a query follows from its weights; how
    near its queries come is measured on the text.

    What to do: nothing. Such a head is a candidate for replacing attention by a mean.
    """
    angles = [(head, angle) for head in result.equal_attention if (angle := _angle(head)) is not None]
    if not angles:
        reasons = Counter(LAYER.sub(".N.", head.reason) for head in result.equal_attention if head.reason)
        why = f": {reasons.most_common(1)[0][0]}" if reasons else ""
        return Skipped(f"no head is known to produce a query of equal attention{why}")
    nearest, angle = min(angles, key=lambda pair: pair[1])
    near = [head for head, each in angles if each < NEARLY_EQUAL]
    heads = part(angles, result.equal_attention, "head")
    if not near:
        return (
            f"{heads} can see all keys alike, and none does: the nearest queries are {number(angle)}° away "
            f"({name(nearest.layer)}, head {nearest.head})."
        )
    spread = "" if nearest.spread is None else f" Along it, scores spread {percent(nearest.spread)} as much as usual."
    return [
        found(
            "note",
            "seen on the text",
            "equal",
            title=f"{part(near, result.equal_attention, 'head')} nearly see all keys alike: the queries of "
            f"{name(nearest.layer)}, head {nearest.head}, are {number(angle)}° from equal attention.",
            evidence=f"{heads} can produce such a query; 90° is what a random query has.{spread}",
            why="Such a head takes the mean over all tokens instead of choosing among them.",
            do="Nothing; it may be replaced by a mean.",
            sites=tuple(dict.fromkeys(head.layer for head in near)),
            figure=(angle, NEARLY_EQUAL),
        )
    ]


def remarks(result: KeySelection) -> Iterator[str]:
    """What the rules find; then how the study was made."""
    yield from titles((unselectable_keys, equal_attention), result)
    pieces = "one sequence" if result.sequences == 1 else f"{result.sequences} sequences"
    if result.rivals == "causal":
        yield f"Each key competes at its own position, where it has the fewest rivals: the keys up to it ({pieces})."
    else:
        yield f"A key competes with all keys of its sequence ({pieces})."
    if result.max_keys is not None:
        yield f"Only the first {result.max_keys} keys of each sequence compete."
    if result.queries == "reachable":
        yield "Only queries that a head can produce at the last position of a sequence count."
    undecided = sum(place.open for place in result.places)
    if undecided:
        yield f"{undecided} keys are open: they count as near ties, not as never selected."
    if any(head.everywhere is False for head in result.equal_attention):
        yield (
            "Queries and keys depend on their positions here: q* is for keys where the query stands, "
            "at the last position of a sequence."
        )
    reasons = Counter(LAYER.sub(".N.", head.reason) for head in result.equal_attention if head.reason)
    for reason, many in reasons.most_common(MOST_REASONS):
        yield f"Equal attention: not available for {many} of {len(result.equal_attention)} heads: {reason}."
    if len(reasons) > MOST_REASONS:
        yield f"{len(reasons) - MOST_REASONS} more reasons are in the JSON."
