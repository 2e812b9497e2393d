"""Samples of values and of the inputs of a norm, and what pictures need of these: shares of axes, distances, planes.

    y − b = Σᵢ lengthᵢ·uᵢ·axisᵢ,   Σ uᵢ² = 1 on the surface

The share uᵢ² says how much of its way to the surface an output goes along axis i. The shares of an output add up to 1
(to 1 for each group, where there are several: they are divided by the number of groups).
"""

import numpy as np
from numpy.typing import NDArray

from normscope.checks import Floats
from normscope.norm import Norm
from normscope.results.inspection import LandedSample
from normscope.results.rows import Spread

KEPT = 4096  # values of a figure kept for its quantiles: all of them, or a random sample
SAMPLED = 200  # inputs, beside the first and the one with the largest entry
MOST_AXES = 2048  # of a norm that projects; of a wider one no shares are taken, as its axes would fill the memory


class InputSample:
    """A uniform random sample of inputs, with the first one and the one with the largest entry always in it."""

    def __init__(self, size: int, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._rows, self._numbers = np.empty((SAMPLED, size)), np.empty(SAMPLED, np.int64)
        self._seen = 0
        self._first: Floats | None = None
        self._highest: tuple[float, int, int, Floats] | None = None  # |entry|, channel, number of the input, input

    def add(self, x: Floats) -> None:
        """Inputs (n, N)."""
        if not len(x):
            return
        if self._first is None:
            self._first = x[0].copy()
        row, channel = np.unravel_index(np.abs(x).argmax(), x.shape)
        if self._highest is None or abs(x[row, channel]) > self._highest[0]:
            self._highest = abs(float(x[row, channel])), int(channel), self._seen + int(row), x[row].copy()
        numbers = self._seen + np.arange(len(x))
        places = np.where(numbers < SAMPLED, numbers, SAMPLED)
        later = numbers >= SAMPLED
        places[later] = self._rng.integers(0, numbers[later] + 1)  # a random place among all seen so far
        for place in np.flatnonzero(places < SAMPLED).tolist():
            self._rows[places[place]], self._numbers[places[place]] = x[place], numbers[place]
        self._seen += len(x)

    @property
    def largest(self) -> tuple[float, int, int]:
        """The largest entry of any input, with its sign; its channel; the number of the input, -1 if there is none."""
        if self._highest is None:
            return 0.0, 0, -1
        _, channel, number, row = self._highest
        return float(row[channel]), channel, number

    def inputs(self) -> tuple[Floats, NDArray[np.int64]]:
        """The sampled inputs in the order in which they came (n, N), and their numbers."""
        assert self._first is not None
        assert self._highest is not None
        count = min(self._seen, SAMPLED)
        numbers = np.concatenate([self._numbers[:count], [0, self._highest[2]]])
        rows = np.concatenate([self._rows[:count], self._first[None], self._highest[3][None]])
        numbers, places = np.unique(numbers, return_index=True)
        return rows[places], numbers


def landed_sample(norm: Norm, x: Floats, numbers: NDArray[np.int64], distances: Floats | None) -> LandedSample:
    """What pictures need of sampled inputs; `distances` of their outputs to the surface, None where there is none."""
    squares = np.sum(x**2, axis=1, keepdims=True)
    shares = np.divide(x**2, squares, out=np.zeros(x.shape), where=squares > 0)
    common = {
        "numbers": numbers,
        "peaks": np.abs(x).max(axis=1),
        "input_shares": np.median(shares, axis=0),
        "distances": distances,
    }
    found = None if distances is None else _along_axes(norm, x)
    if found is None:
        return LandedSample(**common)
    u, channels, weights = found
    shares = u**2 / norm.groups
    order = np.array([np.median(shares, axis=0), np.quantile(shares, 0.95, axis=0), shares.max(axis=0)])
    planes = _plane_axes(order)
    return LandedSample(
        **common,
        shares=order.T.copy(),
        axis_channels=channels,
        axis_weights=weights,
        axes_used=_participation(shares),
        plane_axes=planes,
        planes=None if planes is None else u[:, planes],
    )


def _along_axes(norm: Norm, x: Floats) -> tuple[Floats, NDArray[np.int64], Floats] | None:
    """u of each output (n, d), longest axis first; the main channel of each axis and its weight there."""
    ellipsoid = norm.ellipsoid
    if not ellipsoid.bounded or not ellipsoid.dimension:
        return None
    if not norm.projects:  # the axes are channels
        order = np.argsort(-np.abs(norm.gain), kind="stable")[: ellipsoid.dimension]
        reach = np.sqrt(norm.size // norm.groups) * np.abs(norm.gain[order])
        return (norm(x) - norm.bias)[:, order] / reach, order, np.ones(len(order))
    if ellipsoid.dimension > MOST_AXES:
        return None
    axes = ellipsoid.axes()
    channels = np.abs(axes).argmax(axis=0)
    weights = axes[channels, np.arange(len(channels))]
    return (norm(x) - norm.bias) @ axes / ellipsoid.lengths, channels, np.abs(weights)


def _participation(shares: Floats) -> Floats:
    """As if how many axes were used evenly, for each output: (Σs)²/Σs², at least 1; 0 at the center."""
    squares = np.sum(shares**2, axis=1)
    used: Floats = np.divide(shares.sum(axis=1) ** 2, squares, out=np.zeros(len(shares)), where=squares > 0)
    return used


def _plane_axes(order: Floats) -> NDArray[np.int64] | None:
    """Axes of three planes: the two longest; the two flattest; the one a median output uses most, and any output."""
    count = order.shape[1]
    if count < 2:
        return None
    usual = int(order[0].argmax())
    others = order[2].copy()
    others[usual] = -1.0
    return np.array([0, 1, count - 2, count - 1, usual, int(others.argmax())])


class Reservoir:
    """A uniform random sample of KEPT of all values seen; all of them as long as they are fewer."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._values = np.empty(KEPT)
        self._seen = 0

    def add(self, values: Floats) -> None:
        fits = max(0, min(KEPT - self._seen, len(values)))
        self._values[self._seen : self._seen + fits] = values[:fits]
        later = values[fits:]
        order = self._seen + fits + 1 + np.arange(len(later))  # each takes a random place among all seen so far
        places = self._rng.integers(0, order)
        chosen = places < KEPT
        self._values[places[chosen]] = later[chosen]
        self._seen += len(values)

    @property
    def values(self) -> Floats:
        return self._values[: min(self._seen, KEPT)]

    def spread(self) -> Spread | None:
        return spread_of(self.values) if self._seen else None


def spread_of(values: Floats) -> Spread:
    """Quantiles of some values, at least one."""
    low, median, high = np.quantile(values, (0.05, 0.5, 0.95))
    return Spread(float(low), float(median), float(high))
