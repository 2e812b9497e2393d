"""Pieces and how an engine runs them: in order, lost ones again, and those that fail three times by their names.

An engine carries messages to workers and back; what a piece is, and what becomes of it, is decided here. A bundle is
what is sent at once: one piece, or several where each start of a worker takes long.
"""

import os
import pickle
import sys
import time
import traceback
import warnings
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence, Sized
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

from normscope.checks import shortened
from normscope.engine.kept_results import KeptResults, digest, kept_results
from normscope.engine.packing import Parts, packed, size, unpacked
from normscope.engine.shared_values import loaded
from normscope.errors import InputError, NormscopeError, PieceError, PieceWarning

TRIES = 3
PATIENCE = 2.0  # seconds of work for which it is not worth to start processes: that takes about as long
POLL_SECONDS = 0.5  # at most, between two calls of `tick`
BEFORE_YIELDED = 16  # pieces for each worker that may be finished before an earlier one is


class LostError(Exception):
    """The worker that held a bundle ended before it answered."""


@dataclass(frozen=True)
class FailedPiece:
    """What stands in the place of a result."""

    name: str
    reason: str  # in one line
    ours: bool = False  # an error that was raised on purpose, so it was not tried again
    trace: str = field(default="", repr=False, compare=False)


class _TraceError(Exception):
    """The traceback of another process."""


def failed(pieces: Sequence[FailedPiece], total: int, what: str, then: str = "") -> NormscopeError:
    """The error to raise where some pieces of a run failed; one that was raised on purpose keeps its message.

    >>> print(failed([FailedPiece("seed-3", "OSError: no space")], 10, "cells", "the others are kept"))
    1 of 10 cells failed, seed-3: OSError: no space; the others are kept
    """
    first = pieces[0]
    if all(piece.ours for piece in pieces):
        return InputError(first.reason)
    names = first.name if len(pieces) == 1 else f"the first is {first.name}"
    error = PieceError(f"{len(pieces)} of {total} {what} failed, {names}: {first.reason}{then and f'; {then}'}")
    error.__cause__ = _TraceError(f"\n{first.trace}") if first.trace else None
    return error


def warn_of(pieces: Sequence[FailedPiece], total: int, what: str, then: str) -> None:
    """Name the pieces that failed, where the result stands without them."""
    if pieces:
        others = [replace(piece, ours=False) for piece in pieces]
        warnings.warn(str(failed(others, total, what, then)), PieceWarning, stacklevel=2)


@dataclass
class _Task:
    piece: Any
    named: Callable[[Any], str]
    key: bytes = b""  # of its result, where results are kept
    tries: int = 0
    answer: tuple[Any] | None = None

    def judge(self, found: Any) -> None:
        """Take a result, or a failure that will not be tried again."""
        if not isinstance(found, _Raised):
            self.answer = (found,)
            return
        self.tries += 1
        if found.ours or self.tries == TRIES:
            self.answer = (FailedPiece(shortened(self.named(self.piece)), found.reason, found.ours, found.trace),)


class Engine(ABC):
    """Where pieces run. `sent` and `received` count bytes between this process and workers."""

    name: ClassVar[str]
    bundles: ClassVar[int | None] = None  # for each worker; None: every piece is sent by itself
    ahead: ClassVar[int] = 2  # bundles for each worker, so that the next one is there when it has done one

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.sent = self.received = 0
        self._kept: KeptResults | None = None
        self._here = 0.0  # seconds of work in this process

    def run(
        self,
        function: Callable[..., Any],
        pieces: Iterable[Any],
        *,
        given: Sequence[Any] = (),
        about: Any = None,
        named: Callable[[Any], str] = repr,
        patience: float = 0.0,
        tick: Callable[[], None] = lambda: None,
    ) -> Iterator[Any]:
        """The results of function(piece, *given) in the order of the pieces, a `FailedPiece` where there is none.

        Parameters
        ----------
        function
            Of an importable module: workers import it.
        pieces
            As many as there are; an iterator is read as results are taken, so that memory does not grow.
        given
            Further arguments, the same for all pieces; what `shared` gave is sent once.
        about
            What shared values in `given` hold, so that kept results are not taken for those of others.
        named
            The name of a piece in messages.
        patience
            Seconds of work in this process, over all runs, before processes are started for the rest.
        tick
            Called before each piece in this process, and while waiting, at least twice a second; an error that it
            raises ends the run, and finished results have been yielded.
        """
        tasks = self._tasks(function, pieces, given if about is None else about, named)
        while self._here < self.seconds_here(patience):
            tick()
            begun = time.monotonic()
            task = next(tasks, None)
            if task is None:
                return
            self._do_here(function, task, tuple(given))
            self._here += time.monotonic() - begun
            assert task.answer is not None
            yield task.answer[0]
        yield from self._results(function, tasks, tuple(given), self._in_bundle(pieces), tick)

    def seconds_here(self, patience: float) -> float:
        """For how long pieces are done in this process."""
        return 0.0

    @contextmanager
    def keeping(self, path: Path | None) -> Iterator[None]:
        """Inside `with`, results are kept in a file, and those that are there are not computed again."""
        if path is None:
            yield
            return
        with kept_results(path) as kept:
            self._kept = kept
            try:
                yield
            finally:
                self._kept = None

    @abstractmethod
    def shared(self, value: Any) -> AbstractContextManager[Any]:
        """A value for `given` that workers read from memory that they share, inside `with`."""

    @abstractmethod
    def start(self, message: Parts, given: tuple[Any, ...]) -> Any:
        """Send a bundle to a worker; returns a handle."""

    @abstractmethod
    def finished(self, handles: Collection[Any], seconds: float) -> Collection[Any]:
        """Handles that are finished or lost; waits that long for the first."""

    @abstractmethod
    def outcome(self, handle: Any) -> Parts:
        """The answer for a finished handle; LostError if its worker died."""

    @abstractmethod
    def cancel(self, handles: Collection[Any]) -> None:
        """Give up what is not finished."""

    @abstractmethod
    def close(self) -> None:
        """End all workers."""

    def _tasks(
        self, function: Callable[..., Any], pieces: Iterable[Any], about: Any, named: Callable[[Any], str]
    ) -> Iterator[_Task]:
        place = b"" if self._kept is None else digest(function, about)
        for piece in pieces:
            task = _Task(piece, named)
            if self._kept is not None:
                task.key = digest(place, piece)
                task.answer = self._kept.find(task.key)
            yield task

    def _keep(self, task: _Task) -> None:
        """Keep what was found for a task, unless it failed."""
        if self._kept is not None and task.answer is not None and not isinstance(task.answer[0], FailedPiece):
            self._kept.add(task.key, pickle.dumps(task.answer[0], protocol=5))

    def _do_here(self, function: Callable[..., Any], task: _Task, given: tuple[Any, ...]) -> None:
        if task.answer is not None:
            return
        arguments = loaded(given)
        while task.answer is None:
            with one_thread():
                task.judge(_tried(function, task.piece, arguments))
        self._keep(task)

    def _in_bundle(self, pieces: Iterable[Any]) -> int:
        """Pieces in a bundle."""
        if self.bundles is None or not isinstance(pieces, Sized):
            return 1
        return max(1, len(pieces) // (self.bundles * self.workers))

    def _results(
        self,
        function: Callable[..., Any],
        tasks: Iterator[_Task],
        given: tuple[Any, ...],
        in_bundle: int,
        tick: Callable[[], None],
    ) -> Iterator[Any]:
        order: deque[_Task] = deque()  # taken, and not yet yielded
        waiting: dict[Any, list[_Task]] = {}
        again: deque[_Task] = deque()  # each by itself: another of its bundle may have ended the worker
        try:
            while True:
                while len(waiting) < self.workers * self.ahead:
                    bundle = [again.popleft()] if again else []
                    if not bundle and len(order) < BEFORE_YIELDED * self.workers * in_bundle:
                        taken = list(islice(tasks, in_bundle))
                        order += taken
                        bundle = [task for task in taken if task.answer is None]
                        if taken and not bundle:
                            continue  # all of them were kept
                    if not bundle:
                        break
                    message = packed((function, [task.piece for task in bundle]))
                    self.sent += size(message)
                    waiting[self.start(message, given)] = bundle
                for handle in self.finished(waiting, POLL_SECONDS) if waiting else ():
                    again += self._settle(handle, waiting.pop(handle))
                if not order:
                    return
                while order and (answer := order[0].answer) is not None:
                    order.popleft()
                    yield answer[0]
                tick()
        finally:
            self.cancel(waiting)

    def _settle(self, handle: Any, bundle: Sequence[_Task]) -> list[_Task]:
        """Give the tasks of a bundle their answers; returns those that must be done again."""
        try:
            answer = self.outcome(handle)
            self.received += size(answer)
            found = unpacked(answer)
        except LostError as error:
            found = [_Raised(f"its worker ended without an answer ({error})")] * len(bundle)
        for task, each in zip(bundle, found, strict=True):
            task.judge(each)
            self._keep(task)
        return [task for task in bundle if task.answer is None]


@dataclass(frozen=True)
class _Raised:
    """An exception, as it is sent: not every exception can be pickled."""

    reason: str
    ours: bool = False
    trace: str = ""


def answered(message: Parts, given: Sequence[Any]) -> Parts:
    """What a worker does with a bundle."""
    os.environ[_WORKER] = "1"
    function, pieces = unpacked(message)
    with one_thread():
        results = [_tried(function, piece, loaded(given)) for piece in pieces]
    try:
        return packed(results)
    except Exception:
        return packed([_sendable(result) for result in results])


def _tried(function: Callable[..., Any], piece: Any, given: tuple[Any, ...]) -> Any:
    try:
        return function(piece, *given)
    except Exception as error:
        ours = isinstance(error, NormscopeError)
        reason = shortened(str(error) if ours else "".join(traceback.format_exception_only(error)))
        return _Raised(reason, ours, traceback.format_exc())


def _sendable(result: Any) -> Any:
    try:
        packed(result)
    except Exception as error:
        return _Raised(f"its result can't be sent: {shortened(str(error))}", trace=traceback.format_exc())
    return result


_WORKER = "NORMSCOPE_WORKER"  # set in workers, which start no others


def is_worker() -> bool:
    return _WORKER in os.environ


def processors() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread for BLAS, OpenMP and torch, as many as before afterwards: more would change the last bits."""
    torch = sys.modules.get("torch")
    before = torch.get_num_threads() if torch is not None else 0
    if torch is not None:
        torch.set_num_threads(1)
    try:
        with _thread_pools(len(sys.modules)).limit(limits=1):
            yield
    finally:
        if torch is not None:
            torch.set_num_threads(before)


@lru_cache(1)
def _thread_pools(modules: int) -> Any:
    """The thread pools of libraries; looked for again when modules were imported."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()
