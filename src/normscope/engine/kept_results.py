"""Results of finished pieces in a file, so that a run that was interrupted does not compute them again.

    MAGIC, then a record for each piece:
    32 bytes   SHA-256 of all that the piece depends on
    32 bytes   SHA-256 of the result
     8 bytes   length of the result
    result     pickled

A result is found by the content of its piece, so a file of another run does no harm: nothing in it is found. Records
are appended, and one that was not finished when the process ended is cut off. Of what a file names, only arrays and
dataclasses of normscope are made when it is read.
"""

import dataclasses
import hashlib
import io
import os
import pickle
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import IO, Any

from normscope import __version__
from normscope.engine.packing import packed, views
from normscope.errors import InputError

MAGIC = b"normscope pieces 1\n"
HEAD = 32 + 32 + 8
ARRAYS = {"_reconstruct", "_frombuffer", "scalar", "ndarray", "dtype"}  # names of numpy that pickled arrays contain


def digest(*things: Any) -> bytes:
    """SHA-256 of the content of things that can be pickled; arrays are not copied.

    >>> digest([1, 2]) == digest([1, 2]), digest([1, 2]) == digest([2, 1])
    (True, False)
    """
    found = hashlib.sha256()
    for view in views(packed((__version__, things))):
        found.update(view)
    return found.digest()


class KeptResults:
    """The results in a file, and those that are added to it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, kept_results(Path(folder) / "parts") as kept:
    ...     kept.add(digest("a piece"), pickle.dumps(3.5))
    ...     kept.find(digest("a piece")), kept.find(digest("another"))
    ((3.5,), None)
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[bytes] | None = None
        self._places: dict[bytes, tuple[int, int, bytes]] = {}  # start, length, SHA-256
        if path.exists():
            self._read()

    def find(self, key: bytes) -> tuple[Any] | None:
        """The result of a piece, in a tuple of its own; None if there is none, or if it was damaged."""
        if key not in self._places:
            return None
        start, length, expected = self._places[key]
        assert self._file is not None
        self._file.seek(start)
        content = self._file.read(length)
        return (_Plain(io.BytesIO(content)).load(),) if hashlib.sha256(content).digest() == expected else None

    def add(self, key: bytes, content: bytes) -> None:
        """Append a result; it is there if this process is killed now."""
        if self._file is None:
            self._file = open(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600), "r+b")  # noqa: SIM115
            self._file.write(MAGIC)
        start, proof = self._file.seek(0, os.SEEK_END) + HEAD, hashlib.sha256(content).digest()
        self._file.write(key + proof + len(content).to_bytes(8, "little") + content)
        self._file.flush()
        self._places[key] = start, len(content), proof

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _read(self) -> None:
        """Where every result is; what follows the last whole record is cut off."""
        self._file = open(self._path, "r+b")  # noqa: SIM115  (closed by `close`)
        if self._file.read(len(MAGIC)) != MAGIC:
            self._file.close()
            raise InputError(f"{self._path} does not hold the pieces of a run: remove it to begin the run again")
        size, at = self._path.stat().st_size, len(MAGIC)
        while len(head := self._file.read(HEAD)) == HEAD:
            length = int.from_bytes(head[64:], "little")
            if at + HEAD + length > size:
                break
            self._places[head[:32]] = at + HEAD, length, head[32:64]
            at = self._file.seek(at + HEAD + length)
        self._file.truncate(at)


@contextmanager
def kept_results(path: Path) -> Iterator[KeptResults]:
    kept = KeptResults(path)
    try:
        yield kept
    finally:
        kept.close()


class _Plain(pickle.Unpickler):
    """Makes arrays and dataclasses of normscope, and refuses everything else."""

    def find_class(self, module: str, name: str) -> Any:
        if module.partition(".")[0] == "numpy" and name in ARRAYS:
            return super().find_class(module, name)
        if module.startswith("normscope."):
            found = getattr(sys.modules.get(module) or import_module(module), name, None)
            if dataclasses.is_dataclass(found) and found.__module__ == module:
                return found
        raise InputError(f"kept results must hold arrays and results of normscope, got {module}.{name}")
