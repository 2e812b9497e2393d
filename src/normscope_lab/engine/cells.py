"""Cells of a run, side by side: each leaves its rows in a file, and its state while it runs."""

import json
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from normscope.engine import Engine, FailedPiece, failed
from normscope.files import write_atomically
from normscope_lab.engine.cell_state import CellState
from normscope_lab.engine.experiment import Cell, experiment_named

Told = Callable[[float, int, int], None]  # the share that is done, finished cells, all cells


def run_cells(
    name: str, cells: Sequence[Cell], folder: Path, engine: Engine, progress: Told, total: int, before: int = 0
) -> None:
    """Run the cells of an experiment that are not finished; those that were interrupted are resumed.

    They are some of `total` cells, of which `before` were finished before. Workers must see the folder.
    """
    missing = [cell for cell in cells if not cell_file(folder, cell).exists()]

    def tell() -> None:
        left = [cell for cell in missing if not cell_file(folder, cell).exists()]
        done = before + len(cells) - len(left)
        parts = done + sum(CellState(folder, cell.key).fraction for cell in left)
        progress(parts / max(1, total), done, total)

    if not cells:
        return
    place = folder.resolve()
    results = engine.run(run_cell, missing, given=(name, place), named=lambda cell: cell.key, tick=tell)
    if lost := [result for result in results if isinstance(result, FailedPiece)]:
        raise failed(lost, len(cells), "cells", "the others are kept: the same command tries again")


def run_cell(cell: Cell, name: str, folder: Path) -> None:
    """Run one cell, and write its rows to a file."""
    if cell_file(folder, cell).exists():  # by a worker that was lost after it
        return
    state = CellState(folder, cell.key)
    torch.manual_seed(cell.seed)
    start = time.process_time()
    rows = experiment_named(name).run(cell, state)
    seconds = time.process_time() - start
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
