"""CPU time of a few functions, called in turn so that a noisy machine disturbs all of them alike."""

import ctypes
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version

import torch

KEEP, NEVER_TRIM = -3, -1  # M_MMAP_THRESHOLD and M_TRIM_THRESHOLD of glibc


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
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def interleaved(functions: dict[str, Callable[[], object]], rounds: int, repeats: dict[str, int]) -> dict[str, float]:
    """Median CPU seconds of each function; in each round, function f is called repeats[f] times (once if not named)."""
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(rounds):
        for name, function in functions.items():
            for _ in range(repeats.get(name, 1)):
                start = time.process_time()
                function()
                seconds[name].append(time.process_time() - start)
    return {name: statistics.median(times) for name, times in seconds.items()}


def keep_memory() -> bool:
    """Ask malloc to take large blocks from its own memory and to give none of it back; False where it has no ears."""
    try:
        library = ctypes.CDLL(None)
        return all(library.mallopt(setting, 2**30) == 1 for setting in (KEEP, NEVER_TRIM))
    except (OSError, AttributeError):
        return False


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as info:
            return next(line.split(":", 1)[1].strip() for line in info if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
