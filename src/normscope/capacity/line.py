"""Samples on a line: a direction that keeps samples of different classes apart, and the runs of labels along it.

    p = w·x + b        between 0 and 1

Directions are drawn at random, after the channels have been brought to one scale, and that with the fewest runs of
equal labels is taken. They are not fitted: with as many channels as samples, a fitted direction would separate any
labels by itself, and the network behind it would have nothing to do.

A direction counts only if its gaps between different labels exceed what rounding can do to a product of floats:
|fl(w·x + b) − (w·x + b)| ≤ (d + 2)·2⁻⁵³·(|w|·|x| + |b|) up to higher terms, so that they are gaps in truth.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from normscope.checks import Floats
from normscope.errors import InputError

DIRECTIONS = 64
LONGEST = np.finfo(np.float64).max
SHORTEST = 1 / LONGEST  # a line is scaled by the inverse of its length
NARROW = 1e-9  # gaps below it are avoided while wider ones are to be had


class Line(NamedTuple):
    """Where samples lie along a direction."""

    weight: Floats  # (d,)
    bias: float
    places: Floats  # (m,), from 0 to 1
    runs: int  # of equal labels, in ascending order
    gap: float  # the least between different labels, after rounding is taken off


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
            "samples must be laid on a line by numbers that floats have, but in every direction they spread by less "
            f"than {SHORTEST:.1e} or more than {LONGEST:.1e}, got values from {inputs.min():.3g} to "
            f"{inputs.max():.3g}: multiply them by a number that brings them near 1"
        )
    return min(lines, key=lambda line: (line.gap <= 0, line.gap < NARROW, line.runs, -line.gap))


def count_runs(labels: NDArray[np.int64]) -> int:
    """Runs of equal labels in the order given.

    >>> count_runs(np.array([0, 0, 1, 0]))
    3
    """
    return 1 + int(np.count_nonzero(labels[1:] != labels[:-1]))


def _directions(inputs: Floats, seed: int) -> Floats:
    channels = inputs.shape[1]
    largest = np.abs(inputs).max(axis=0)
    if channels == 1:
        return np.full((1, 1), 1.0 if largest[0] < LONGEST / 4 else 0.25)  # their difference is to be a float too
    largest[largest == 0] = 1.0
    spread = (inputs / largest).std(axis=0)  # squares of huge or tiny values would not be floats
    spread[spread == 0] = np.inf
    drawn: Floats = np.random.default_rng(seed).standard_normal((DIRECTIONS, channels)) / spread / largest
    drawn[:, ~np.isfinite(drawn).all(axis=0)] = 0.0  # channels too small to be brought to the scale of the others
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
