"""CPU time of a few functions, called in turn so that a noisy machine disturbs all of them alike; times as text."""

import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, TypeVar

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Machine:
    """Where a measurement was made."""

    processor: str
    cores: int
    python: str
    numpy: str
    torch: str
    numba: str


def this_machine() -> Machine:
    return Machine(
        processor=_processor(),
        cores=os.cpu_count() or 1,
        python=platform.python_version(),
        numpy=version("numpy"),
        torch=version("torch"),
        numba=version("numba"),
    )


@contextmanager
def one_thread() -> Iterator[None]:
    """torch on one thread, as it was afterwards."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def interleaved(
    functions: dict[str, Callable[[], object]],
    rounds: int,
    repeats: dict[str, int],
    clock: Callable[[], float] = time.process_time,
) -> dict[str, float]:
    """Median CPU seconds of each function; in each round, function f is called repeats[f] times (once if not named)."""
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(rounds):
        for name, function in functions.items():
            for _ in range(repeats.get(name, 1)):
                start = clock()
                function()
                seconds[name].append(clock() - start)
    return {name: statistics.median(times) for name, times in seconds.items()}


def gpu_time() -> float:
    """Wall time when the GPU has done all that it was given."""
    import torch

    torch.cuda.synchronize()
    return time.perf_counter()


def cpu_seconds(work: Callable[..., Answer], *arguments: Any) -> tuple[Answer, float]:
    """What a function returns, and its CPU time."""
    start = time.process_time()
    result = work(*arguments)
    return result, time.process_time() - start


def duration(seconds: float) -> str:
    """Seconds in the unit that reads best, to two or three digits.

    >>> duration(1.26), duration(0.0123), duration(4.5e-5)
    ('1.3 s', '12.3 ms', '45 µs')
    """
    if seconds >= 1:
        return f"{seconds:.1f} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} µs"


def times(ratio: float) -> str:
    """How many times, to two digits below ten and to whole numbers above.

    >>> times(0.715), times(8.35), times(1634.2)
    ('0.71×', '8.3×', '1634×')
    """
    return f"{ratio:.2g}×" if ratio < 10 else f"{ratio:.0f}×"


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as info:
            return next(line.split(":", 1)[1].strip() for line in info if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
