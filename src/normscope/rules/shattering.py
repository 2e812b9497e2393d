"""Sentences on the labellings of points that networks of LayerNorms realise."""

from collections.abc import Iterator

from normscope.results.shattering import Shattering

SHOWN = 10  # labellings that are left open


def remarks(result: Shattering) -> Iterator[str]:
    """What was certified, what is promised and what is possible, and which labellings are left open."""
    count, norms = len(result.points), f"{result.depth} LayerNorm{'s' * (result.depth != 1)}"
    yield (
        f"{result.certified:,} of {result.labellings:,} labellings certified: shown in ball arithmetic for the weights "
        "that the module stores, which are right on every point in float64 as well."
    )
    if result.shatters:
        yield f"Networks of {norms} of width 3 shatter these {count} points of a line."
    else:
        yield f"That these {count} points of a line are shattered is not shown."
    yield f"L + 2 = {result.promised} are promised; more than 2^L + 1 = {result.bound} points of a line can't be."
    if not result.shatters:
        more = len(result.open) - SHOWN
        left = ", ".join(result.open[:SHOWN]) + (f", and {more:,} more: --json lists all" if more > 0 else "")
        yield f"Left open: {left}."
    if result.seconds is not None:
        yield f"CPU time: {result.seconds:.1f} s."
