"""Processes of this machine, each with one thread. With one worker, all is done in this process.

A worker is started by the name of its module and not as a copy of the running program, so a script needs no guard
around its own code. It ends when this process does, also if that is killed.
"""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

from normscope.engine.packing import Parts, packed
from normscope.engine.pieces import Engine, LostError
from normscope.engine.shared_values import SharedValue, as_sent
from normscope.engine.worker_process import KEPT_MEMORY, receive, send, widen

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")

MAIN = "from normscope.engine.worker_process import main; main()"


class LocalProcesses(Engine):
    """Bundles wait in one line, and a worker that is free takes the first. Workers are started when bundles wait for
    them, and live until the engine is closed.
    """

    name: ClassVar[str] = "local"

    def __init__(self, workers: int) -> None:
        super().__init__(workers)
        self._workers: set[_Worker] = set()
        self._unfinished: set[_Bundle] = set()
        self._line: SimpleQueue[_Bundle | None] = SimpleQueue()  # None ends a worker
        self._heard: SimpleQueue[tuple[_Worker, _Bundle | None]] = SimpleQueue()
        self._folder: TemporaryDirectory[str] | None = None
        self._shared = 0

    def seconds_here(self, patience: float) -> float:
        if self.workers == 1:
            return float("inf")
        return 0.0 if self._workers else patience

    @contextmanager
    def shared(self, value: Any) -> Iterator[SharedValue]:
        self._folder = self._folder or TemporaryDirectory(prefix="normscope-")
        self._shared += 1
        kept = SharedValue(value, Path(self._folder.name) / f"value-{self._shared}")
        try:
            yield kept
        finally:
            kept.remove()

    def start(self, message: Parts, given: tuple[Any, ...]) -> "_Bundle":
        bundle = _Bundle(message, packed(as_sent(given)))
        self._unfinished.add(bundle)
        self._line.put(bundle)
        self._start_workers()
        return bundle

    def finished(self, handles: Collection["_Bundle"], seconds: float) -> list["_Bundle"]:
        try:
            worker, bundle = self._heard.get(timeout=seconds)
        except Empty:
            return []
        if bundle is not None:
            self._unfinished.discard(bundle)
        if bundle is None or bundle.answer is None:
            ended = self._end(worker)
            self._start_workers()
            if bundle is not None:
                bundle.ended = ended
        return [bundle] if bundle is not None and bundle in handles else []

    def outcome(self, handle: "_Bundle") -> Parts:
        if handle.answer is None:
            raise LostError(handle.ended)
        return handle.answer

    def cancel(self, handles: Collection["_Bundle"]) -> None:
        for bundle in handles:
            bundle.cancelled = True
        self._unfinished.difference_update(handles)
        for worker in [worker for worker in self._workers if worker.bundle in handles]:
            self._end(worker)

    def close(self) -> None:
        workers = list(self._workers)
        for worker in workers:
            self._line.put(None)
            self._end(worker)
        for worker in workers:
            worker.join()
        if self._folder is not None:
            self._folder.cleanup()

    def _start_workers(self) -> None:
        while len(self._workers) < min(self.workers, len(self._unfinished)):
            self._workers.add(_Worker(self._line, self._heard))

    def _end(self, worker: "_Worker") -> str:
        self._workers.discard(worker)
        return worker.end()


class _Bundle:
    """What a worker is given, and its answer."""

    def __init__(self, message: Parts, given: Parts) -> None:
        self.message, self.given = message, given
        self.answer: Parts | None = None
        self.ended = ""
        self.cancelled = False


class _Worker:
    """A process, and a thread that gives it one bundle after the other."""

    def __init__(
        self, line: "SimpleQueue[_Bundle | None]", heard: "SimpleQueue[tuple[_Worker, _Bundle | None]]"
    ) -> None:
        path = os.pathsep.join(each or os.getcwd() for each in sys.path)
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", MAIN],  # -P: nothing is imported from the current folder
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=KEPT_MEMORY | os.environ | ONE_THREAD | {"PYTHONPATH": path},
        )
        self.bundle: _Bundle | None = None
        self._thread = threading.Thread(target=self._serve, args=(line, heard), daemon=True)
        self._thread.start()

    def _serve(self, line: "SimpleQueue[_Bundle | None]", heard: "SimpleQueue[tuple[_Worker, _Bundle | None]]") -> None:
        if hasattr(signal, "pthread_sigmask"):  # the command line ends by SIGPIPE, but not by that of a worker
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGPIPE})
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._process.stdout as answers, suppress(OSError), self._process.stdin as questions:
            widen(questions)
            widen(answers)
            while (bundle := line.get()) is not None:
                self.bundle = bundle
                if bundle.cancelled:
                    continue
                if self._process.poll() is not None:  # it died while it was idle: another one will take the bundle
                    line.put(bundle)
                    heard.put((self, None))
                    return
                with suppress(OSError):  # it has ended, which `receive` sees
                    send(questions, bundle.message)
                    send(questions, bundle.given)
                bundle.answer = receive(answers)
                heard.put((self, bundle))
                if bundle.answer is None:
                    return

    def end(self) -> str:
        """End the process if it has not ended; returns how it did."""
        self._process.kill()
        code = self._process.wait()
        return f"signal {-code}" if code < 0 else f"exit code {code}"

    def join(self) -> None:
        self._thread.join()
