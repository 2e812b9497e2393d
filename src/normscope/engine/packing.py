"""Values as they are sent: pickled, with their arrays beside, which are copied neither before nor afterwards."""

import pickle
from collections.abc import Sequence
from pickle import PickleBuffer
from typing import Any

Parts = Sequence[
    bytes | bytearray | memoryview | PickleBuffer
]  # the pickled value, then the memory of each of its arrays


def packed(value: Any) -> Parts:
    """The parts of a value; arrays stay where they are.

    >>> import numpy as np
    >>> parts = packed({"rows": np.arange(3.0)})
    >>> len(parts), size(parts[1:]), unpacked(parts)["rows"]
    (2, 24, array([0., 1., 2.]))
    """
    arrays: list[PickleBuffer] = []
    body = pickle.dumps(value, protocol=5, buffer_callback=arrays.append)
    return [body, *arrays]


def unpacked(parts: Parts) -> Any:
    """The value; its arrays are in the memory of the parts."""
    return pickle.loads(parts[0], buffers=parts[1:])


def views(parts: Parts) -> list[memoryview]:
    """The bytes of each part."""
    return [part.raw() if isinstance(part, PickleBuffer) else memoryview(part) for part in parts]


def size(parts: Parts) -> int:
    return sum(view.nbytes for view in views(parts))
