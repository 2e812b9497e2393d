"""Rows and values that several results share."""

from dataclasses import dataclass
from typing import Annotated

from normscope.results.describe import Column


@dataclass(frozen=True)
class NotCovered:
    """A layer that is not covered."""

    layer: Annotated[str, Column("layer", "What is left out.")]
    reason: Annotated[str, Column("because it", "Why nothing is said about it.")]


@dataclass(frozen=True)
class Spread:
    """Quantiles of a figure over many inputs. A table shows the median."""

    low: float  # 5%
    median: float
    high: float  # 95%

    def __float__(self) -> float:
        return self.median

    def __format__(self, form: str) -> str:
        return format(self.median, form)


def path_text(path: str) -> str:
    """The path of a module as a table shows it."""
    return path or "(the model)"


def several(names: tuple[str, ...]) -> str:
    """Names in few words.

    >>> several(("a", "b", "c")), several(("",))
    ('a and 2 others', '(the model)')
    """
    return path_text(names[0]) + (f" and {len(names) - 1} others" if len(names) > 1 else "")
