"""When a search stops, when it saves, and rows of a table that read the clock whenever they are read.

A pass over a large table takes longer than a question about a block of tokens, so that passes must be able to end
before they are done: nothing that was shown until then is lost.
"""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from normscope.certificates.token_table import Rows

BETWEEN_SAVES = 30.0  # seconds


class TimeIsUp(Exception):  # noqa: N818  (no error: what was found stands)
    """The deadline of a search has passed."""


@dataclass(eq=False)
class Clock:
    """When to stop, when to save, and the CPU seconds of each phase in this process."""

    deadline: float | None = None  # on time.monotonic
    keep: Callable[[], None] = lambda: None
    seconds: dict[str, float] = field(default_factory=dict)
    kept: float = field(default_factory=time.monotonic)

    def is_up(self) -> bool:
        """Whether time is up; called before every piece of work."""
        now = time.monotonic()
        if now - self.kept > BETWEEN_SAVES:
            self.keep()
            self.kept = time.monotonic()
        return self.deadline is not None and now >= self.deadline

    def go_on(self) -> None:
        """Raise TimeIsUp if it is."""
        if self.is_up():
            raise TimeIsUp

    def left(self) -> float:
        """Seconds until the deadline."""
        return math.inf if self.deadline is None else self.deadline - time.monotonic()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        start = time.process_time()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.process_time() - start


@dataclass(frozen=True, eq=False)
class WatchedRows:
    """The rows of a table; to read some raises TimeIsUp once time is up.

    >>> table = np.ones((3, 2), np.float32)
    >>> WatchedRows(table, Clock())[1:].shape
    (2, 2)
    >>> WatchedRows(table, Clock(deadline=0.0))[1:]
    Traceback (most recent call last):
    normscope.vocabulary.clock.TimeIsUp
    """

    rows: Rows
    clock: Clock

    @property
    def shape(self) -> tuple[int, ...]:
        return self.rows.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.rows.dtype

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, which: Any, /) -> Any:
        self.clock.go_on()
        return self.rows[which]
