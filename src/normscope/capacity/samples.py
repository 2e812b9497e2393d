"""Samples that can be memorised: finite numbers, a label for each, two classes or more, and no contradictions."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from normscope.checks import Floats, as_floats, shortened
from normscope.errors import InputError

NAMED = 3  # contradictions that a message names


class Samples(NamedTuple):
    """Samples as a network of some dtype reads them, and their classes."""

    inputs: Floats  # (m, d), rounded to the dtype
    classes: NDArray[Any]  # (C,), ascending
    labels: NDArray[np.int64]  # (m,): places in classes


def checked_samples(samples: Any, labels: Any, dtype: str) -> Samples:
    """Samples and labels in the form that everything here works on.

    >>> checked_samples([[0, 1], [2, 3]], ["a", "b"], "float64").labels
    array([0, 1])
    """
    given = as_floats(samples, "samples")
    if given.ndim != 2 or 0 in given.shape:
        raise InputError(f"samples must be a matrix, one row per sample, got shape {given.shape}")
    with np.errstate(over="ignore"):
        inputs = given.astype(dtype).astype(np.float64) + 0.0  # −0 and 0 are the same sample
    if not np.isfinite(inputs).all():
        raise InputError(f"samples must fit into {dtype}, got values up to {np.abs(given).max():.3g}")
    names = exact_labels(labels)
    if names.shape != (len(inputs),):
        raise InputError(f"labels must have one entry per sample, shape ({len(inputs)},), got shape {names.shape}")
    if names.dtype.kind not in "biuUf" or (
        names.dtype.kind == "f" and not (names.dtype.itemsize <= 8 and np.isfinite(names).all())
    ):
        raise InputError(
            "labels must be whole numbers, text or finite numbers of up to 64 bits, "
            f"got values of dtype {names.dtype}{': decode them' if names.dtype.kind == 'S' else ''}"
        )
    classes, places = np.unique(names, return_inverse=True)
    if len(classes) < 2:
        raise InputError(f"labels must name two or more classes, got only {shortened(str(classes[0]), 80)}")
    pairs = contradictions(inputs, names)
    if pairs:
        rounded = any((given[one] != given[other]).any() for one, other in pairs)
        where = f"equal rows (from 0){f' once they are rounded to {dtype}' if rounded else ''}"
        refuse_contradictions(pairs, names, where, range(len(names)))
    return Samples(inputs, classes, places.astype(np.int64))


def exact_labels(labels: Any) -> NDArray[Any]:
    """Labels as an array that has kept every one of them: not 1 as '1', nor a large whole number as a float."""
    names = np.asarray(labels)
    if hasattr(labels, "dtype") or names.ndim != 1:
        return names
    if names.dtype.kind in "fO" and all(isinstance(one, int) and 0 <= one < 2**64 for one in labels):
        return np.array(labels, np.uint64)  # beyond int64, numpy would take floats for some of them
    if names.dtype.kind in "Uf" and _changed(labels, names):
        raise InputError(
            "labels must all be text, or all be numbers that one dtype holds exactly, "
            f"got a mixture that became {names.dtype}"
        )
    return names


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _changed(labels: Any, names: NDArray[Any]) -> bool:
    """Whether a label is not what it was; what is no number is refused later."""
    return any(one != other and not _is_nan(other) for one, other in zip(labels, names.tolist(), strict=True))


def contradictions(inputs: Floats, names: NDArray[Any]) -> list[tuple[int, int]]:
    """Rows that equal an earlier one and have another label, with that earlier one."""
    first: dict[bytes, int] = {}
    pairs = []
    for row, sample in enumerate(inputs):
        earlier = first.setdefault(sample.tobytes(), row)
        if names[earlier] != names[row]:
            pairs.append((earlier, row))
    return pairs


def refuse_contradictions(
    pairs: Sequence[tuple[int, int]], names: NDArray[Any], where: str, numbers: Sequence[int]
) -> None:
    """Equal samples with different labels can't be told apart by any network."""
    named = [[f"{numbers[row]} ({shortened(str(names[row]), 40)})" for row in pair] for pair in pairs[:NAMED]]
    shown = ", ".join(" and ".join(pair) for pair in named)
    more = f", and {len(pairs) - NAMED} more" if len(pairs) > NAMED else ""
    raise InputError(f"samples with different labels must differ, got {where}: {shown}{more}")
