"""Samples to memorise, and the line that they are laid on.

Samples are finite numbers, with a label for each, two classes or more, and no contradictions. The line is

    p = w·x + b        between 0 and 1

Directions are drawn at random, after scaling the channels to the same size, and the one with the fewest runs of
equal labels is chosen. They are not fitted: with as many channels as samples, a fitted direction would separate any
labels by itself, leaving nothing for the network to do.

A direction counts only if its gaps between different labels exceed the rounding error of a product of floats:
|fl(w·x + b) − (w·x + b)| ≤ (d + 2)·2⁻⁵³·(|w|·|x| + |b|) up to higher-order terms: they are gaps in exact arithmetic.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from normscope.checks import Floats, as_floats, shortened
from normscope.errors import InputError

NAMED = 3  # contradictions listed in a message
DIRECTIONS = 64
LONGEST = np.finfo(np.float64).max
SHORTEST = 1 / LONGEST  # a line is scaled by the inverse of its length
NARROW = 1e-9  # narrower gaps are avoided where wider ones exist


class Samples(NamedTuple):
    """Samples as a network of some dtype reads them, and their classes."""

    inputs: Floats  # (m, d), rounded to the dtype
    classes: NDArray[Any]  # (C,), ascending
    labels: NDArray[np.int64]  # (m,): indices into classes


def checked_samples(samples: Any, labels: Any, dtype: str) -> Samples:
    """Check samples and labels and convert them to `Samples`.

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
    """Labels as an array that holds each of them exactly: not 1 as '1', nor a large whole number as a float."""
    names = np.asarray(labels)
    if hasattr(labels, "dtype") or names.ndim != 1:
        return names
    if names.dtype.kind in "fO" and all(isinstance(one, int) and 0 <= one < 2**64 for one in labels):
        return np.array(labels, np.uint64)  # beyond int64, numpy would use floats for some of them
    if names.dtype.kind in "Uf" and _changed(labels, names):
        raise InputError(
            "labels must all be text, or all be numbers that one dtype holds exactly, "
            f"got a mixture that became {names.dtype}"
        )
    return names


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _changed(labels: Any, names: NDArray[Any]) -> bool:
    """Whether the conversion changed a label; values that are not numbers are refused later."""
    return any(one != other and not _is_nan(other) for one, other in zip(labels, names.tolist(), strict=True))


def contradictions(inputs: Floats, names: NDArray[Any]) -> list[tuple[int, int]]:
    """Rows that equal an earlier row but have another label, each with that earlier row."""
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


class Line(NamedTuple):
    """Where samples lie along a direction."""

    weight: Floats  # (d,)
    bias: float
    places: Floats  # (m,), from 0 to 1
    runs: int  # of equal labels, in ascending order
    gap: float  # the smallest gap between different labels, minus rounding

    @property
    def numbers(self) -> Floats:
        """w, then b."""
        return np.append(self.weight, self.bias)


def choose_line(inputs: Floats, labels: NDArray[np.int64], seed: int) -> Line:
    """The direction with the fewest runs among those drawn.

    >>> line = choose_line(np.array([[0.0], [1.0], [4.0], [2.0]]), np.array([0, 1, 0, 1]), seed=0)
    >>> line.places, line.runs
    (array([0.  , 0.25, 1.  , 0.5 ]), 3)
    """
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        lines = [_line_along(weight, inputs, labels) for weight in _directions(inputs, seed)]
    if not any(np.isfinite(line.weight).all() for line in lines):
        raise InputError(
            "samples must spread along a line within the range of floats, but in every direction they spread by less "
            f"than {SHORTEST:.1e} or more than {LONGEST:.1e}, got values from {inputs.min():.3g} to "
            f"{inputs.max():.3g}: multiply them by a number that brings them near 1"
        )
    return min(lines, key=lambda line: (line.gap <= 0, line.gap < NARROW, line.runs, -line.gap))


def _directions(inputs: Floats, seed: int) -> Floats:
    channels = inputs.shape[1]
    largest = np.abs(inputs).max(axis=0)
    if channels == 1:
        return np.full((1, 1), 1.0 if largest[0] < LONGEST / 4 else 0.25)  # their difference must be a float too
    largest[largest == 0] = 1.0
    spread = (inputs / largest).std(axis=0)  # squares of huge or tiny values would not be floats
    spread[spread == 0] = np.inf
    drawn: Floats = np.random.default_rng(seed).standard_normal((DIRECTIONS, channels)) / spread / largest
    drawn[:, ~np.isfinite(drawn).all(axis=0)] = 0.0  # channels too small to scale to the size of the others
    return drawn


def _line_along(weight: Floats, inputs: Floats, labels: NDArray[np.int64]) -> Line:
    along = inputs @ weight
    length = along.max() - along.min()
    weight, bias = weight / length if length > 0 else weight * np.nan, -float(along.min() / length)
    places = inputs @ weight + bias
    if not (np.isfinite(weight).all() and np.isfinite(places).all()):
        return Line(np.full_like(weight, np.nan), 0.0, np.zeros(len(inputs)), len(inputs), -np.inf)
    order = np.argsort(places, kind="stable")
    change = labels[order][1:] != labels[order][:-1]
    rounding = (inputs.shape[1] + 2) * 2.0**-52 * float((np.abs(inputs) @ np.abs(weight)).max() + abs(bias))
    gap = float(np.diff(places[order])[change].min()) - 2 * rounding
    return Line(weight, bias, places, 1 + int(change.sum()), gap)
