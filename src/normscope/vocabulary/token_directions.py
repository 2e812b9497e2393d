"""Tokens of a large table that win along their own direction: a fast screen, in single precision.

Coordinates in which most tokens win that way are, with center, axes and variances of the points,

    y = T(p)ᵀ(point − center),   T(p) = axes · variances^(−p/2)

p = 1 makes the cloud of points round, p = 0 only turns it. p = 1 keeps rivals farthest apart and p = 0 scores the token
itself highest; in between is best, where heights have to be overcome. Token i is asked as v = yᵢ, rounded to single
precision, which stands for the hidden vector along T·v, or for u = T·v/n, n ≥ |T·v|, where vectors must be reachable.
Then token i wins iff

    v·yᵢ + n·hᵢ > v·yⱼ + n·hⱼ      for all j ≠ i                    (h: heights; no such term where there are none)

Only tokens with |yⱼ| + (n/|v|)·hⱼ ≥ |v| + (n/|v|)·hᵢ can be in the way, so that tokens are put in that order, and a
block of them meets those before its end: half of all products. With R products to a score and unit roundoff s = 2⁻²⁴,
a score is off by at most

    |v|·(1.01·(R + 2)·s·max|y| + e) + n·(1.01·(R + 2)·s·max|h| + e')

where e and e' bound the double-precision errors of y and h before rounding. A token that wins by more than twice
that provably wins; one that wins or loses by less is a near tie, which `certificates.token_scores` decides.

Axes and coordinates take V·N² products, which for a large table is more than the time that is given. Then single
channels serve as axes: nothing has to be multiplied, and the rest holds as it is.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from normscope.certificates.key_certificates import Ints
from normscope.certificates.token_certificates import Frame
from normscope.certificates.token_table import UNIT
from normscope.checks import Floats
from normscope.vocabulary.token_view import View

SCORES = 2**24  # held at a time: 64 MB
SINGLE = 2.0**-24  # unit roundoff
SHARE = 0.2  # of the time that is left: more is not spent on principal axes
PROBED = 128  # points of which products are timed
SAMPLED = 4096  # points that a frame of channels is made from
NOTHING = 1e-12  # variance over the largest, that counts as none
VANISHING = 1e-36  # more than what single precision loses of coordinates and products that are too small for it


@dataclass(frozen=True, eq=False)
class Asked:
    """What a block of tokens has shown."""

    proven: NDArray[np.bool_]
    near: NDArray[np.bool_]  # neither proven to win nor to lose along itself
    rivals: Ints  # a token that scores high along each


class OwnDirections:
    """The tokens of a view in the coordinates of a frame, to be asked block by block; by their number in the view.

    It holds arrays of its own and not the table, so that engines can share it with workers.
    """

    def __init__(self, view: View, frame: Frame, power: float) -> None:
        self._reachable, self._map, self._unit = view.reachable, coordinate_map(frame, power), scale_of(frame)
        rank = self._map.shape[1]
        heights = np.zeros(len(view)) if view.heights is None else view.heights / self._unit
        coordinates = np.empty((len(view), rank + (view.heights is not None)), np.float32)
        lengths, asking = np.empty(len(view)), np.zeros(len(view))
        longest_asked = None if view.heights is None else self._longest_asked()
        farthest, channels = 0.0, channels_of(frame)
        for part in view.parts():
            centred = view.points(part) - frame.center
            farthest = max(farthest, float(np.sqrt(np.einsum("ij,ij->i", centred, centred).max())))
            if channels is None:
                coordinates[part, :rank] = centred @ self._map
            else:
                spread = centred if rank == len(frame.center) else centred[:, channels]
                coordinates[part, :rank] = spread * self._map[channels, np.arange(rank)]
            squares = coordinates[part, :rank].astype(np.float64) ** 2
            lengths[part] = np.sqrt(squares.sum(axis=1))
            if longest_asked is not None:
                asking[part] = longest_asked(squares)
        coordinates[:, rank:] = heights[:, None]
        size = view.table.channels
        moved = (size + 2) * UNIT * farthest + view.point_error
        self._point_error = 1.01 * float(np.linalg.norm(self._map)) * moved + VANISHING
        self._height_error = 1.01 * view.height_error / self._unit + 2 * UNIT * float(np.abs(heights).max()) + VANISHING
        self._order_by_reach(coordinates, lengths, asking)

    def _order_by_reach(self, coordinates: NDArray[np.float32], lengths: Floats, asking: Floats) -> None:
        """Put first what can be in the way of most."""
        heights = coordinates[:, self._map.shape[1] :].astype(np.float64).sum(axis=1)
        typical = np.median(asking / np.maximum(lengths, VANISHING))
        self._order = np.argsort(-(lengths + typical * heights), kind="stable")
        self._place = np.empty(len(self._order), np.int64)
        self._place[self._order] = np.arange(len(self._order))
        reorder(coordinates, self._order)
        self._coordinates = coordinates
        self._lengths, self._heights, self._n = lengths[self._order], heights[self._order], asking[self._order]
        share = 1.01 * (coordinates.shape[1] + 2) * SINGLE
        off = share * self._lengths.max() + self._point_error
        off_heights = share * np.abs(self._heights).max() + self._height_error
        self._bounds = self._lengths * off + self._n * off_heights + VANISHING

    def _longest_asked(self) -> Callable[[Floats], Floats]:
        """n ≥ |T·v| in units of the frame, as a number of single precision, from the squares of v: (m, r) to (m,)."""
        square = self._unit**2 * (self._map.T @ self._map)
        diagonal = square.diagonal().copy()
        beside = np.linalg.norm(square - np.diag(diagonal)) + 2 * len(self._map) * UNIT * diagonal.sum()

        def longest(squares: Floats) -> Floats:
            lengths = np.sqrt(squares @ diagonal + beside * squares.sum(axis=1)) * (1 + 1e-12)
            return np.asarray(np.nextafter(lengths.astype(np.float32), np.float32(np.inf)), np.float64)

        return longest

    def blocks(self, tokens: Ints) -> list[Ints]:
        """Tokens in blocks that are asked together."""
        places = np.sort(self._place[tokens])
        step = max(1, SCORES // len(self._order))
        return [self._order[places[start : start + step]] for start in range(0, len(places), step)]

    def ask(self, tokens: Ints) -> Asked:
        """Which tokens of a block win along themselves."""
        places, rank = self._place[tokens], self._map.shape[1]
        v = self._coordinates[places]
        v[:, rank:] = self._n[places, None]
        own = self._lengths[places] ** 2 + self._n[places] * self._heights[places]
        bounds = 2 * self._bounds[places]
        scores = v @ self._coordinates[: self._stop(places, own - bounds)].T
        line = np.arange(len(places))
        scores[line, places] = -np.inf
        best = scores.argmax(axis=1)
        lead = own - scores[line, best]
        return Asked(lead > bounds, np.abs(lead) <= bounds, self._order[best])

    def _stop(self, places: Ints, needed: Floats) -> int:
        """Where in the order the tokens end that can reach what is needed, by Cauchy and Schwarz."""
        lengths = self._lengths[places]
        if lengths.min() < VANISHING:  # a token at the center, along which all score alike
            return len(self._order)
        steepness = self._n[places] / lengths
        most = np.maximum(steepness.min() * self._heights, steepness.max() * self._heights)
        in_the_way = np.flatnonzero((1 + 1e-9) * self._lengths + most >= (needed / lengths).min())
        return int(max(places.max(), in_the_way.max(initial=0))) + 1

    def queries(self, tokens: Ints) -> Floats:
        """What tokens are asked as, in double precision: hidden vectors T·v, or the u of reachable ones, (m, N)."""
        places, rank = self._place[tokens], self._map.shape[1]
        along = self._coordinates[places, :rank].astype(np.float64) @ self._map.T
        if not self._reachable:
            return np.asarray(along)
        lengths = np.linalg.norm(along, axis=1, keepdims=True)
        return np.asarray(along * ((1 - 1e-12) / np.where(lengths > 0, lengths, 1.0)))


def scale_of(frame: Frame) -> float:
    """The standard deviation along the first axis: coordinates and heights are measured in it."""
    return float(np.sqrt(frame.variances[0]))


def coordinate_map(frame: Frame, power: float) -> Floats:
    """T(p), in units that give the first coordinate a variance of 1: (N, r)."""
    relative = frame.variances / frame.variances[0]
    return np.asarray(frame.axes * (relative ** (-power / 2) / scale_of(frame)))


def frame_of(view: View, deadline: float | None = None) -> Frame:
    """Center and axes of the points of a view; directions in which they do not spread are left out.

    Principal axes; single channels if these would take more than a part of the time until the deadline.
    """
    if deadline is not None and seconds_for_axes(view) > SHARE * (deadline - time.monotonic()):
        return _channel_frame(view)
    total = np.zeros(view.table.channels)
    for part in view.parts():
        total += view.points(part).sum(axis=0)
    center = total / len(view)
    scatter = np.zeros((len(center), len(center)))
    for part in view.parts():
        centred = view.points(part) - center
        scatter += centred.T @ centred
    variances, axes = np.linalg.eigh(scatter / len(view))
    kept = np.flatnonzero(variances > NOTHING * max(variances[-1], 0.0))[::-1]
    if not len(kept):  # all points coincide
        return Frame(center, axes[:, :1].copy(), np.ones(1))
    return Frame(center, np.ascontiguousarray(axes[:, kept]), variances[kept])


def seconds_for_axes(view: View) -> float:
    """How long principal axes would take, from a small part of their products; the coordinates take as long again."""
    some = view.points(slice(0, PROBED))
    start = time.monotonic()
    _ = some.T @ some
    return (time.monotonic() - start) * len(view) / len(some)


def _channel_frame(view: View) -> Frame:
    """Channels as axes, in their order. Any frame is right, so that some points are enough."""
    some = view.points(np.linspace(0, len(view) - 1, min(len(view), SAMPLED)).astype(np.int64))
    center, variances = some.mean(axis=0), some.var(axis=0)
    kept = np.flatnonzero(variances > NOTHING * variances.max())
    if not len(kept):  # all of them coincide
        return Frame(center, np.eye(len(center)), np.ones(len(center)))
    return Frame(center, np.eye(len(center))[:, kept], variances[kept])


def channels_of(frame: Frame) -> Ints | None:
    """The channel of each axis, in increasing order; None unless all axes are such channels."""
    if (np.count_nonzero(frame.axes, axis=0) != 1).any():
        return None
    channels = np.abs(frame.axes).argmax(axis=0)
    units = (frame.axes[channels, np.arange(len(channels))] == 1).all() and (np.diff(channels) > 0).all()
    return channels if units else None


def reorder(rows: NDArray[np.float32], order: Ints) -> None:
    """rows[order], in place: a second copy of a large table would not fit."""
    left = order.copy()
    for start in range(len(order)):
        if left[start] < 0:
            continue
        first, place = rows[start].copy(), start
        while left[place] != start:
            source = int(left[place])
            rows[place], left[place] = rows[source], -1
            place = source
        rows[place], left[place] = first, -1
