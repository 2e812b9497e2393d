"""Progress of long computations: public functions take `progress`, which is silent by default.

A progress function takes an iterable and a description of it, and returns the same items:

>>> list(silent([1, 2, 3], "layers"))
[1, 2, 3]
"""

from collections.abc import Callable, Iterable
from typing import Any

Progress = Callable[[Iterable[Any], str], Iterable[Any]]


def silent(things: Iterable[Any], what: str) -> Iterable[Any]:
    """No report."""
    return things
