"""Processes of this machine, each with one thread. With one worker, all is done in this process.

A worker is started by the name of its module and not as a copy of the running program, so a script needs no guard
around its own code. It ends when this process does, also if that is killed.
"""

import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

from normscope.engine.pieces import Engine, LostError
from normscope.engine.shared_values import SharedValue, as_sent
from normscope.engine.worker_process import receive, send

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")

MAIN = "from normscope.engine.worker_process import main; main()"


class LocalProcesses(Engine):
    """Workers are started when a piece needs them, and live until the engine is closed."""

    name: ClassVar[str] = "local"

    def __init__(self, workers: int) -> None:
        super().__init__(workers)
        self._idle: list[_Worker] = []
        self._busy: dict[_Worker, _Bundle] = {}
        self._heard: SimpleQueue[tuple[_Worker, bytes | None]] = SimpleQueue()
        self._folder: TemporaryDirectory[str] | None = None
        self._shared = 0

    def seconds_here(self, patience: float) -> float:
        if self.workers == 1:
            return float("inf")
        return 0.0 if self._idle or self._busy else patience

    @contextmanager
    def shared(self, value: Any) -> Iterator[SharedValue]:
        self._folder = self._folder or TemporaryDirectory(prefix="normscope-")
        self._shared += 1
        kept = SharedValue(value, Path(self._folder.name) / f"value-{self._shared}")
        try:
            yield kept
        finally:
            kept.remove()

    def start(self, message: bytes, given: tuple[Any, ...]) -> "_Bundle":
        worker = self._idle.pop() if self._idle else _Worker(self._heard)
        bundle = self._busy[worker] = _Bundle()
        worker.give(message, pickle.dumps(as_sent(given)))
        return bundle

    def finished(self, handles: Collection["_Bundle"], seconds: float) -> list["_Bundle"]:
        try:
            worker, answer = self._heard.get(timeout=seconds)
        except Empty:
            return []
        if answer is None:
            worker.end()
            if worker in self._idle:
                self._idle.remove(worker)
        bundle = self._busy.pop(worker, None)
        if bundle is None:
            return []
        bundle.answer = answer
        bundle.ended = worker.how_it_ended() if answer is None else ""
        if answer is not None:
            self._idle.append(worker)
        return [bundle] if bundle in handles else []

    def outcome(self, handle: "_Bundle") -> bytes:
        if handle.answer is None:
            raise LostError(handle.ended)
        return handle.answer

    def cancel(self, handles: Collection["_Bundle"]) -> None:
        for worker in [worker for worker, bundle in self._busy.items() if bundle in handles]:
            del self._busy[worker]
            worker.end()

    def close(self) -> None:
        for worker in [*self._idle, *self._busy]:
            worker.end()
        self._idle.clear()
        self._busy.clear()
        if self._folder is not None:
            self._folder.cleanup()


class _Bundle:
    """What a worker was given, and its answer."""

    answer: bytes | None = None
    ended: str = ""


class _Worker:
    """A process, and a thread that waits for its answers."""

    def __init__(self, heard: "SimpleQueue[tuple[_Worker, bytes | None]]") -> None:
        path = os.pathsep.join(each or os.getcwd() for each in sys.path)
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", MAIN],  # -P: nothing is imported from the current folder
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | ONE_THREAD | {"PYTHONPATH": path},
        )
        self._heard = heard
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def give(self, *parts: bytes) -> None:
        assert self._process.stdin is not None
        with suppress(OSError):  # it has ended, which `_listen` reports
            for part in parts:
                send(self._process.stdin, part)

    def _listen(self) -> None:
        assert self._process.stdout is not None
        answer: bytes | None = b""
        with self._process.stdout as answers:
            while answer is not None:
                answer = receive(answers)
                self._heard.put((self, answer))

    def end(self) -> None:
        """End the process and forget it."""
        self._process.kill()
        self._process.wait()
        self._listener.join()
        if self._process.stdin is not None:
            with suppress(OSError):  # what was not yet sent
                self._process.stdin.close()

    def how_it_ended(self) -> str:
        code = self._process.returncode
        return f"signal {-code}" if code < 0 else f"exit code {code}"
