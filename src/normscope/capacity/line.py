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

DIRECTIONS = 64
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
    lines = [_line_along(weight, inputs, labels) for weight in _directions(inputs, seed)]
    return min(lines, key=lambda line: (line.gap <= 0, line.gap < NARROW, line.runs, -line.gap))


def count_runs(labels: NDArray[np.int64]) -> int:
    """Runs of equal labels in the order given.

    >>> count_runs(np.array([0, 0, 1, 0]))
    3
    """
    return 1 + int(np.count_nonzero(labels[1:] != labels[:-1]))


def _directions(inputs: Floats, seed: int) -> Floats:
    channels = inputs.shape[1]
    if channels == 1:
        return np.ones((1, 1))
    largest = np.abs(inputs).max(axis=0)
    largest[largest == 0] = 1.0
    spread = (inputs / largest).std(axis=0)  # squares of huge or tiny values would not be floats
    spread[spread == 0] = np.inf
    drawn: Floats = np.random.default_rng(seed).standard_normal((DIRECTIONS, channels)) / spread / largest
    return drawn


def _line_along(weight: Floats, inputs: Floats, labels: NDArray[np.int64]) -> Line:
    along = inputs @ weight
    length = along.max() - along.min()
    if not length > 0:
        return Line(weight, 0.0, np.zeros(len(inputs)), len(inputs), 0.0)
    weight, bias = weight / length, -float(along.min() / length)
    places = inputs @ weight + bias
    order = np.argsort(places, kind="stable")
    change = labels[order][1:] != labels[order][:-1]
    rounding = (inputs.shape[1] + 2) * 2.0**-52 * float((np.abs(inputs) @ np.abs(weight)).max() + abs(bias))
    gap = float(np.diff(places[order])[change].min()) - 2 * rounding
    return Line(weight, bias, places, 1 + int(change.sum()), gap)
