"""Sentences on the settings of a study of keys, on what it could not decide, and on how to read its figures."""

from collections import Counter
from collections.abc import Iterator

from normscope.results.key_selection import KeySelection

MOST_REASONS = 3


def remarks(result: KeySelection) -> Iterator[str]:
    """Sentences under the tables."""
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
    reasons = Counter(head.reason for head in result.equal_attention if head.reason)
    for reason, count in reasons.most_common(MOST_REASONS):
        yield f"Equal attention: not available for {count} of {len(result.equal_attention)} heads: {reason}."
    if len(reasons) > MOST_REASONS:
        yield f"{len(reasons) - MOST_REASONS} more reasons are in the JSON."
