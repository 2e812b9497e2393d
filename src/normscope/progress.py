"""Progress of long computations: public functions take `progress`, which is silent by default.

A progress function takes an iterable and a description of it, and returns the same items:

>>> list(silent([1, 2, 3], "layers"))
[1, 2, 3]
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

Progress = Callable[[Iterable[Any], str], Iterable[Any]]


def silent(things: Iterable[Any], what: str) -> Iterable[Any]:
    """No report."""
    return things


def sized(things: Iterable[Any], total: int) -> Iterable[Any]:
    """An iterable that knows its length, for progress bars.

    >>> len(sized(iter("abc"), 3)), list(sized(iter("abc"), 3))
    (3, ['a', 'b', 'c'])
    """
    return _Sized(things, total)


class _Sized:
    def __init__(self, things: Iterable[Any], total: int) -> None:
        self._things, self._total = things, total

    def __len__(self) -> int:
        return self._total

    def __iter__(self) -> Iterator[Any]:
        return iter(self._things)
