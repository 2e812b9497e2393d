"""Projection merge [1]: layer by layer, two points of one class are laid onto each other, until every class is in one
piece. In ball arithmetic, with as many bits as needed: about one for every two layers.

    p' = 1/√(d² + 1)        d = (p − c)/s,  c = (pᵢ + pⱼ)/2,  s ≈ (pⱼ − pᵢ)/2, a power of two

takes the smallest point pᵢ and the next of its class, pⱼ, to one value. Between the two there are only other classes,
so with two classes nothing else can meet that should not. With more it can: every pair with the same mean meets too.
Then the layer is shifted [1]: points of the circle are projected along another chord than a horizontal one,

    p' = n·u        u = (d, 1)/√(d² + 1) for some other c,  n ⟂ uᵢ − uⱼ

so that i and j meet, and pairs that would have met with them do not.

The numbers c/s and n are rounded to the working precision, and the network is the one with these numbers: two
points that meet are then as near as rounding leaves them, and one ball holds both from there on. Which points have met
is recorded, never inferred from values.

[1] Ni et al., On the Nonlinearity of Layer Normalization, ICML 2024.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from normscope.capacity.plane_scaling import against
from normscope.capacity.samples import Line, Samples
from normscope.certificates.balls import Ball, BallMap, ball, precision
from normscope.certificates.check_networks import GUARD
from normscope.certificates.network_weights import ExactNetwork, places_on, power_of_two_near

SHIFTS = (0, 4, -4, 7, -7, 3)  # sixteenths of s that the centre is moved by; 0 is the plain merge


class TooFewBitsError(Exception):
    """Balls overlap that must be disjoint: try again with more bits."""


class Cluster(NamedTuple):
    """Samples of one class that have been laid onto each other."""

    place: Ball
    label: int


class Merging:
    """Building a network; iterate over it to do the work, one step for each layer; then read `network`."""

    def __init__(self, samples: Samples, line: Line, *, eps: float, bits: int) -> None:
        self.network: ExactNetwork | None = None
        self._samples, self._line, self._eps, self._bits = samples, line, eps, bits
        self._maps: list[BallMap] = []

    def __len__(self) -> int:
        """The largest possible number of layers."""
        return len(self._samples.labels) - len(self._samples.classes)

    def __iter__(self) -> Iterator[None]:
        """Raises TooFewBitsError if the bits do not suffice to tell classes apart."""
        classes, bits = len(self._samples.classes), self._bits
        with precision(bits):
            clusters = self._clusters()
        direction = [ball(1)]  # p itself
        while True:
            if sum(a.label != b.label for a, b in pairwise(clusters)) == classes - 1:
                break
            with precision(bits):
                clusters, direction = self._merged(clusters, direction)
            accuracy = max(cluster.place.rel_accuracy_bits() for cluster in clusters)
            bits = max(GUARD, min(bits, accuracy + GUARD))
            yield
        with precision(bits):
            self._maps.append(_readout(clusters, direction))
        self.network = ExactNetwork(self._line.numbers, self._maps, self._eps, self._bits)

    def _clusters(self) -> list[Cluster]:
        """Equal samples are one cluster from the start."""
        _, first = np.unique(self._samples.inputs, axis=0, return_index=True)
        where = places_on(self._line.numbers, self._samples.inputs[first])
        return _in_order([Cluster(*entry) for entry in zip(where, self._samples.labels[first].tolist(), strict=True)])

    def _merged(self, clusters: list[Cluster], direction: list[Ball]) -> tuple[list[Cluster], list[Ball]]:
        """One layer: the clusters after it, and the direction that they are projected along."""
        i, j = _pair(clusters)
        half = (clusters[j].place - clusters[i].place) / 2
        stretch = power_of_two_near(1 / half.mid())
        middle = stretch * (clusters[i].place + clusters[j].place) / 2
        factor = ball(against(self._eps))
        extra = 3 * ball(self._eps) / factor**2 + 1
        for shift in SHIFTS:
            centre = (middle + ball(shift) / 16).mid()
            away = [stretch * cluster.place - centre for cluster in clusters]
            heights = [(d * d + extra).rsqrt() for d in away]
            chord = [ball(0), ball(1)]
            laid = heights
            if shift:
                along = [d * y for d, y in zip(away, heights, strict=True)]
                chord = [(heights[j] - heights[i]).mid(), (along[i] - along[j]).mid()]
                laid = [chord[0] * x + chord[1] * y for x, y in zip(along, heights, strict=True)]
            both = Cluster(laid[i].union(laid[j]), clusters[i].label)
            rest = [
                Cluster(place, cluster.label)
                for number, (place, cluster) in enumerate(zip(laid, clusters, strict=True))
                if number not in (i, j)
            ]
            try:
                merged = _in_order([both, *rest])
            except TooFewBitsError:
                continue
            zero = [ball(0)] * len(direction)
            rows = [[factor * stretch * entry for entry in direction], zero]
            self._maps.append(BallMap(rows, [-factor * centre, factor]))
            return merged, chord
        raise TooFewBitsError


def _in_order(clusters: list[Cluster]) -> list[Cluster]:
    """The clusters ordered by place, once balls show that neighbours of different classes are apart."""
    ordered = sorted(clusters, key=lambda cluster: cluster.place.mid())
    for a, b in pairwise(ordered):
        if a.label != b.label and not a.place < b.place:
            raise TooFewBitsError
    return ordered


def _pair(clusters: list[Cluster]) -> tuple[int, int]:
    """The first cluster whose class has another, and the next of that class."""
    following: dict[int, int] = {}
    pairs = []
    for number in reversed(range(len(clusters))):
        label = clusters[number].label
        if label in following:
            pairs.append((number, following[label]))
        following[label] = number
    return pairs[-1]


def _readout(clusters: list[Cluster], direction: list[Ball]) -> BallMap:
    """Scores that are highest in one run each: place k along the line scores k·p − (θ₁ + … + θₖ)."""
    runs: list[list[Cluster]] = []
    for cluster in clusters:
        if runs and runs[-1][-1].label == cluster.label:
            runs[-1].append(cluster)
        else:
            runs.append([cluster])
    rows: dict[int, tuple[list[Ball], Ball]] = {runs[0][0].label: ([0 * entry for entry in direction], ball(0))}
    total = ball(0)
    for number, (before, after) in enumerate(pairwise(runs), start=1):
        total = (total + (before[-1].place + after[0].place) / 2).mid()
        rows[after[0].label] = ([(number * entry).mid() for entry in direction], -total)
    ordered = [rows[label] for label in sorted(rows)]
    return BallMap([matrix for matrix, _ in ordered], [shift for _, shift in ordered])
