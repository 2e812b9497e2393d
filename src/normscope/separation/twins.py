"""Keys that occur twice: none of them beats the other, whatever the query, unless its bias is higher."""

from collections.abc import Iterable
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from normscope.certificates.key_certificates import Ints
from normscope.checks import Floats

LONG = 1024  # bytes of a key beyond which 16 bytes of digest stand for it


def set_twins_apart(blocks: Iterable[NDArray[np.floating]], heights: Floats | None) -> tuple[Ints, dict[int, int]]:
    """The best of each kind of equal keys (n, d), and for each key that has one a twin of at least its height.

    Keys come in blocks, so that not all of them need be there at once.

    >>> set_twins_apart([np.array([[1.0], [2.0]]), np.array([[1.0]])], None)
    (array([0, 1]), {0: 2, 2: 0})
    >>> set_twins_apart([np.array([[1.0], [2.0], [1.0]])], np.array([0.0, 0.0, 3.0]))
    (array([1, 2]), {0: 2})
    """
    kinds: dict[bytes, list[int]] = {}
    for number, name in enumerate(name for block in blocks for name in _names(block)):
        kinds.setdefault(name, []).append(number)
    count = sum(len(twins) for twins in kinds.values())
    if len(kinds) == count:
        return np.arange(count), {}
    best: list[int] = []
    twin_of: dict[int, int] = {}
    for twins in kinds.values():
        if len(twins) == 1:
            best += twins
            continue
        rank = np.zeros(len(twins)) if heights is None else heights[twins]
        first, second = (int(place) for place in np.argsort(-rank, kind="stable")[:2])
        best.append(twins[first])
        for place, number in enumerate(twins):
            other = second if place == first else first
            if rank[other] >= rank[place]:
                twin_of[number] = twins[other]
    return np.sort(np.array(best)), twin_of


def _names(keys: NDArray[np.floating]) -> list[bytes]:
    """What equal keys share: all their bytes, or a digest of them."""
    some = np.ascontiguousarray(keys + 0.0)  # −0 equals 0
    contents: list[bytes] = some.view(f"V{some.shape[1] * some.itemsize}").ravel().tolist()
    if len(contents[0]) <= LONG:
        return contents
    return [blake2b(content, digest_size=16).digest() for content in contents]
