"""Divide rows among threads, as many as torch is set to use."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise

GRAIN = 32768  # numbers: with fewer, waking another thread takes longer than the work


def shares(rows: int, size: int, threads: int) -> list[tuple[int, int]]:
    """Where the part of each thread starts and stops, for rows of `size` numbers.

    >>> shares(101, 1024, threads=2), shares(3, 1024, threads=2), shares(0, 8, threads=2)
    ([(0, 51), (51, 101)], [(0, 3)], [(0, 0)])
    """
    parts = min(threads, rows * size // GRAIN, rows)
    if parts <= 1:
        return [(0, rows)]
    ends = [-(-rows * part // parts) for part in range(parts + 1)]
    return list(pairwise(ends))


def on_threads(work: Callable[[int, int, int], None], parts: list[tuple[int, int]]) -> None:
    """Call work(part, start, stop) for all parts at once, the first of them on this thread."""
    if len(parts) == 1:
        return work(0, *parts[0])
    pool = _pool(len(parts) - 1)
    others = [pool.submit(work, part, *parts[part]) for part in range(1, len(parts))]
    work(0, *parts[0])
    for other in others:
        other.result()


@cache
def _pool(workers: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(workers, thread_name_prefix="normscope")


if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(after_in_child=_pool.cache_clear)  # threads do not survive it
