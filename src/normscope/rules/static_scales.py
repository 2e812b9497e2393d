"""What stands out in static scales, in sentences."""

from collections.abc import Iterator
from statistics import median

from normscope.results.static_scales import StaticScale, StaticScales


def remarks(result: StaticScales) -> Iterator[str]:
    """How many there are; what they cost on the text; which is the loosest; what a text would pass."""
    if not result.scales:
        return
    yield (
        f"{len(result.scales)} scales, one per tensor; no input of the model is cut off by them"
        + (f". {len(result.left_out)} left out." if result.left_out else ".")
    )
    seen = [row for row in result.scales if row.looseness is not None]
    if not seen:
        return
    for kind, own, theirs in (("e4m3", "e4m3", "e4m3_observed"), ("int8", "int8", "int8_observed")):
        mine, others = _values(seen, own), _values(seen, theirs)
        if mine and others:
            yield (
                f"Rounding the text's values to {kind} with certified scales: median error {median(mine):.2%}, "
                f"largest {max(mine):.2%}; with scales from the text itself: {median(others):.2%}, {max(others):.2%}."
            )
    loosest = max(seen, key=lambda row: row.looseness or 0.0)
    yield (
        f"Certified maxima are {median([row.looseness or 0.0 for row in seen]):.3g} times those of the text (median); "
        f"the loosest is {loosest.name}, {loosest.looseness:.3g} times."
    )


def _values(rows: list[StaticScale], name: str) -> list[float]:
    return [value for row in rows if (value := getattr(row, name)) is not None]
