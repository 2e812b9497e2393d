"""The state of a cell that is not finished, written atomically: a run that is killed at any moment can be resumed."""

import io
from pathlib import Path
from typing import Any

from normscope.errors import InputError
from normscope.files import write_atomically


class CellState:
    """Where one cell saves its state and its progress.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     CellState(Path(folder), "seed-0").save({"epoch": 3}, done=0.5)
    ...     CellState(Path(folder), "seed-0").load(), CellState(Path(folder), "seed-0").fraction
    ({'epoch': 3}, 0.5)
    """

    def __init__(self, folder: Path, key: str) -> None:
        self._state = folder / f"{key}.state"
        self._done = folder / f"{key}.done"

    def load(self) -> dict[str, Any] | None:
        """What was saved last, or None. Only tensors and plain values are read: nothing in the file is executed."""
        import torch

        if not self._state.exists():
            return None
        try:
            state = torch.load(self._state, map_location="cpu", weights_only=True)
        except Exception as error:  # a damaged pickle can fail anywhere
            raise InputError(
                f"{self._state} is damaged ({type(error).__name__}): remove it to start the cell again"
            ) from None
        if not isinstance(state, dict):
            raise InputError(f"{self._state} is damaged (no dictionary): remove it to start the cell again")
        return state

    def save(self, state: dict[str, Any], done: float) -> None:
        """Save tensors and plain values, and the share of the cell that is done."""
        import torch

        file = io.BytesIO()
        torch.save(state, file)
        write_atomically(file.getvalue(), self._state)
        self.tell(done)

    def tell(self, done: float) -> None:
        """Record the share of the cell that is done, from 0 to 1."""
        write_atomically(f"{done:.6f}".encode(), self._done)

    @property
    def fraction(self) -> float:
        try:
            return min(1.0, max(0.0, float(self._done.read_text(encoding="utf-8"))))
        except (FileNotFoundError, ValueError):  # not started, or finished, or damaged: only the progress bar needs it
            return 0.0

    def remove(self) -> None:
        """Remove the state of a finished cell."""
        self._state.unlink(missing_ok=True)
        self._done.unlink(missing_ok=True)
