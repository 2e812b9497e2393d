"""Cells in parallel processes of one thread: each leaves its rows in a file, and its state while it runs."""

import json
import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from multiprocessing import active_children, connection, get_context, parent_process
from pathlib import Path

from normscope.files import write_atomically
from normscope_lab.engine.cell_state import CellState
from normscope_lab.engine.experiment import Cell, experiment_named

POLL_SECONDS = 0.5
Told = Callable[[float, int, int], None]  # the share that is done, finished cells, all cells


def run_cells(
    name: str, cells: Sequence[Cell], folder: Path, workers: int, progress: Told, total: int, before: int = 0
) -> None:
    """Run the cells of an experiment that are not finished; those that were interrupted are resumed.

    They are some of `total` cells, of which `before` were finished before.
    """
    missing = [cell for cell in cells if not cell_file(folder, cell).exists()]

    def tell() -> None:
        left = [cell for cell in missing if not cell_file(folder, cell).exists()]
        done = before + len(cells) - len(left)
        parts = done + sum(CellState(folder, cell.key).fraction for cell in left)
        progress(parts / max(1, total), done, total)

    if not cells:
        return
    tell()
    if workers == 1:
        for cell in missing:
            run_cell(name, cell, folder)
            tell()
        return
    others = set(active_children())
    with ProcessPoolExecutor(
        min(workers, max(1, len(missing))), mp_context=get_context("spawn"), initializer=_end_with_parent
    ) as pool:
        waiting: set[Future[None]] = {pool.submit(run_cell, name, cell, folder) for cell in missing}
        try:
            while waiting:
                done, waiting = wait(waiting, timeout=POLL_SECONDS, return_when=FIRST_COMPLETED)
                for future in done:
                    future.result()
                tell()
        except BaseException:  # the other cells can be resumed from what they saved
            for worker in set(active_children()) - others:
                worker.terminate()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _end_with_parent() -> None:
    """End a worker with the process that started it, even if that is killed."""
    parent = parent_process()

    def watch() -> None:
        if parent is not None:
            connection.wait([parent.sentinel])
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def run_cell(name: str, cell: Cell, folder: Path) -> None:
    """Run one cell on one thread, and write its rows to a file."""
    import torch
    from threadpoolctl import threadpool_limits

    state = CellState(folder, cell.key)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            torch.manual_seed(cell.seed)
            start = time.process_time()
            rows = experiment_named(name).run(cell, state)
            seconds = time.process_time() - start
    finally:
        torch.set_num_threads(before)
    rows = [{column: _finite(value) for column, value in row.items()} for row in rows]
    content = {"key": cell.key, "seed": cell.seed, "seconds": seconds, "rows": rows}
    write_atomically(json.dumps(content, allow_nan=False).encode(), cell_file(folder, cell))
    state.remove()


def _finite(value: str | int | float | None) -> str | int | float | None:
    """A value that JSON can hold: the loss of a run that diverged becomes None."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def cell_file(folder: Path, cell: Cell) -> Path:
    """Where a finished cell is."""
    return folder / f"{cell.key}.json"
