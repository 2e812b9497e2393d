"""How long work reports where it is: every public function takes `progress`, and the default says nothing.

A progress function is given what is gone through and a word on what it is, and returns the same things:

>>> list(silent([1, 2, 3], "layers"))
[1, 2, 3]
"""

from collections.abc import Callable, Iterable
from typing import Any

Progress = Callable[[Iterable[Any], str], Iterable[Any]]


def silent(things: Iterable[Any], what: str) -> Iterable[Any]:
    """No report."""
    return things
