"""Values that all workers read: written to a file once, and mapped into the memory of each.

    8 bytes   length of the head
    head      pickled: the value without its arrays, and where each array is
    arrays    at multiples of 64 bytes

The files are ours: they are in a folder that only this user can read, and are removed at the end.
"""

import mmap
import os
import pickle
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from normscope.engine.packing import packed, unpacked, views

ALIGNED = 64
KEPT = 2  # values that a worker keeps open


@dataclass(frozen=True)
class SharedFile:
    """Where a value is."""

    path: str

    def load(self) -> Any:
        """The value; its arrays are read-only, and read from the file when they are used."""
        return _loaded(self.path)


def write_shared(value: Any, path: Path) -> SharedFile:
    """Write a value, for workers to load.

    >>> import tempfile, numpy as np
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     loaded = write_shared({"rows": np.arange(3.0)}, Path(folder) / "value").load()
    >>> loaded["rows"], loaded["rows"].flags.writeable
    (array([0., 1., 2.]), False)
    """
    body, *arrays = views(packed(value))
    places, at = [], 0
    for view in arrays:
        places.append((at, view.nbytes))
        at += view.nbytes + -view.nbytes % ALIGNED
    head = pickle.dumps((bytes(body), places))
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        begin = _aligned(8 + len(head))
        for (place, _), view in zip(places, arrays, strict=True):
            file.seek(begin + place)
            file.write(view)
        file.truncate(begin + at)
    return SharedFile(str(path))


@lru_cache(KEPT)
def _loaded(path: str) -> Any:
    with open(path, "rb") as file:
        whole = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    size = int.from_bytes(whole[:8], "little")
    body, places = pickle.loads(whole[8 : 8 + size])
    begin = _aligned(8 + size)
    return unpacked([body, *(whole[begin + at : begin + at + length] for at, length in places)])


def _aligned(size: int) -> int:
    return size + -size % ALIGNED


class SharedValue:
    """A value in the process that shares it; the file is written when the first worker needs it."""

    def __init__(self, value: Any, path: Path) -> None:
        self.value, self._path = value, path
        self._file: SharedFile | None = None

    def load(self) -> Any:
        return self.value

    def file(self) -> SharedFile:
        if self._file is None:
            self._file = write_shared(self.value, self._path)
        return self._file

    def remove(self) -> None:
        self._path.unlink(missing_ok=True)


def loaded(given: Iterable[Any]) -> tuple[Any, ...]:
    """Arguments, with shared ones read."""
    return tuple(each.load() if isinstance(each, SharedFile | SharedValue) else each for each in given)


def as_sent(given: Iterable[Any]) -> tuple[Any, ...]:
    """Arguments, with the files of shared ones in their place."""
    return tuple(each.file() if isinstance(each, SharedValue) else each for each in given)
