"""Keys that occur more than once: for no query does one beat the other, unless its bias is higher."""

from collections.abc import Iterable
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from normscope.certificates.key_certificates import Ints
from normscope.checks import Floats
from normscope.compiled import compiled

LONG = 1024  # bytes of a key beyond which 16 bytes of digest stand for it


def set_duplicates_apart(blocks: Iterable[NDArray[np.floating]], heights: Floats | None) -> tuple[Ints, dict[int, int]]:
    """The best of each kind of equal keys (n, d), and for each key that has one another of at least its height.

    Keys come in blocks, so that not all of them need to be in memory at once.

    >>> set_duplicates_apart([np.array([[1.0], [2.0]]), np.array([[1.0]])], None)
    (array([0, 1]), {0: 2, 2: 0})
    >>> set_duplicates_apart([np.array([[1.0], [2.0], [1.0]])], np.array([0.0, 0.0, 3.0]))
    (array([1, 2]), {0: 2})
    """
    kinds: dict[bytes, list[int]] = {}
    for number, name in enumerate(name for block in blocks for name in _names(block)):
        kinds.setdefault(name, []).append(number)
    count = sum(len(equal) for equal in kinds.values())
    if len(kinds) == count:
        return np.arange(count), {}
    best: list[int] = []
    equal_to: dict[int, int] = {}
    for equal in kinds.values():
        if len(equal) == 1:
            best += equal
            continue
        rank = np.zeros(len(equal)) if heights is None else heights[equal]
        first, second = (int(place) for place in np.argsort(-rank, kind="stable")[:2])
        best.append(equal[first])
        for place, number in enumerate(equal):
            other = second if place == first else first
            if rank[other] >= rank[place]:
                equal_to[number] = equal[other]
    return np.sort(np.array(best)), equal_to


def are_distinct(keys: Floats) -> bool:
    """Whether all keys (n, d) surely differ; False if in doubt. Sums of whole numbers made of their bits differ.

    >>> are_distinct(np.array([[1.0], [2.0]])), are_distinct(np.array([[0.0], [-0.0]]))
    (True, False)
    """
    bits = np.ascontiguousarray(keys + 0.0).view(np.uint64)  # −0 equals 0
    factors = np.random.default_rng(0).integers(2**63, size=keys.shape[1], dtype=np.uint64) | np.uint64(1)
    sums = np.sort(((bits ^ (bits >> np.uint64(32))) * factors).sum(axis=1))
    return bool((sums[1:] != sums[:-1]).all())


def _names(keys: NDArray[np.floating]) -> list[bytes]:
    """A name that equal keys share: all their bytes, or a digest of them."""
    some = np.ascontiguousarray(keys + 0.0)  # −0 equals 0
    contents: list[bytes] = some.view(f"V{some.shape[1] * some.itemsize}").ravel().tolist()
    if len(contents[0]) <= LONG:
        return contents
    return [blake2b(content, digest_size=16).digest() for content in contents]


@compiled
def have_duplicates(sets):  # type: ignore[no-untyped-def]
    """Which of the small sets (m, n, d) have two equal keys."""
    found = np.zeros(len(sets), np.bool_)
    for s in range(len(sets)):
        for i in range(1, sets.shape[1]):
            for j in range(i):
                k = 0
                while k < sets.shape[2] and sets[s, i, k] == sets[s, j, k]:
                    k += 1
                found[s] |= k == sets.shape[2]
    return found
