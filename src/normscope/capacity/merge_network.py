"""Projection merge [1]: layer by layer, two points of one class are laid onto each other, until every class is in one
piece. In ball arithmetic, with as many bits as it takes: about one for every two layers.

    p' = 1/√(d² + 1)        d = (p − c)/s,  c = (pᵢ + pⱼ)/2,  s ≈ (pⱼ − pᵢ)/2, a power of two

takes the smallest point pᵢ and the next of its class, pⱼ, to one value. Between the two there are only other classes,
so with two classes nothing else can meet that should not. With more it can: every pair with the same mean meets too.
Then the layer is shifted [1]: points of the circle are projected along another chord than a horizontal one,

    p' = n·u        u = (d, 1)/√(d² + 1) for some other c,  n ⟂ uᵢ − uⱼ

so that i and j meet, and pairs that would have met with them do not.

The numbers c/s and n are rounded to the working precision, and the network is the one with these numbers: two
points that meet are then as near as rounding leaves them, and one ball holds both from there on. Which points have met
is remembered, never read off values.

[1] Ni et al., On the Nonlinearity of Layer Normalization, ICML 2024.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from normscope.capacity.balls import Ball, BallMap, as_floats_of, as_linear, ball, images, precision
from normscope.capacity.line import Line
from normscope.capacity.samples import Samples
from normscope.capacity.scaling_layer import against, layer_norm, linear_of
from normscope.certificates.check_networks import GUARD, HIGHEST, Exact, Indices, decided, scores_after
from normscope.checks import Floats
from normscope.errors import InputError

if TYPE_CHECKING:
    import torch
    from torch import nn

ROUNDING = 128  # bits beyond those of the weights, so that each weight of the module is rounded once
LEAST = 64  # bits to begin with
SHIFTS = (0, 4, -4, 7, -7, 3)  # sixteenths of s that the centre is moved by; 0 is the plain merge


class TooFewBitsError(Exception):
    """Balls overlap that must not: to be tried again with more bits."""


class Cluster(NamedTuple):
    """Samples of one class that have been laid onto each other."""

    place: Ball
    label: int
    members: Indices


class MergeNetwork(NamedTuple):
    """A network whose weights are binary fractions of many bits."""

    line: Line
    maps: list[BallMap]  # the first of p, the others of points of the circle
    eps: float
    bits: int

    def exact_labels(self, inputs: Floats) -> Exact:
        """The classes of samples in real arithmetic."""

        def scores(chosen: Indices, bits: int) -> list[list[Ball]]:
            first = list(zip(self.maps[0].matrix, self.maps[0].shift, strict=True))
            rows = [[row[0] * place + shift for row, shift in first] for place in places(self.line, inputs[chosen])]
            return scores_after(self.maps[1:], rows, self.eps, bits)

        return decided(scores, len(inputs), start=self.bits)

    def rounded(self, dtype: "torch.dtype") -> "nn.Sequential":
        """The network as a module, every weight rounded once to float64 and then to the dtype: the same everywhere."""
        import torch
        from torch import nn

        layers: list[nn.Module] = []
        for place, affine in enumerate(self.maps):
            writes = place < len(self.maps) - 1
            with precision(self.bits + ROUNDING):
                weight, shift = _layer(affine, None if place else self.line, scaled=self.eps == 0, writes=writes)
            layers += [layer_norm(self.eps)] if layers else []
            layers.append(linear_of(torch.tensor(weight, dtype=dtype), torch.tensor(shift, dtype=dtype)))
        return nn.Sequential(*layers)

    def to_dict(self) -> dict[str, Any]:
        """Every weight to the last bit, as a mantissa and a power of two."""
        line = {"weight": self.line.weight.tolist(), "bias": self.line.bias}
        maps = [[[_digits(value) for value in row] for row in (*affine.matrix, affine.shift)] for affine in self.maps]
        return {"line": line, "maps": maps}

    @classmethod
    def from_dict(cls, stored: dict[str, Any], eps: float) -> "MergeNetwork":
        """What `to_dict` gave; ValueError, TypeError or KeyError if it did not."""
        weight, bias = np.array(stored["line"]["weight"], dtype=np.float64), float(stored["line"]["bias"])
        if weight.ndim != 1 or not np.isfinite([*weight, bias]).all() or stored.keys() != {"line", "maps"}:
            raise InputError("the line of exact weights must be finite numbers, one for each channel")
        maps = []
        for rows in stored["maps"]:
            *matrix, shift = [[_exactly(digits) for digits in row] for row in rows]
            maps.append(BallMap(matrix, shift))
        for place, affine in enumerate(maps):
            entries = {len(row) for row in affine.matrix}
            outputs = len(affine.matrix) if place == len(maps) - 1 else 2
            if entries != {2 if place else 1} or not len(affine.matrix) == len(affine.shift) == outputs:
                raise InputError("exact weights must be maps of the plane")
        bits = max(int(value.man_exp()[0]).bit_length() for value in _numbers(maps))
        return cls(Line(weight, bias, np.empty(0), 0, 0.0), maps, eps, max(LEAST, bits))


class Merging:
    """Building a network; iterate over it to do the work, one step for each layer. `network` is there afterwards."""

    def __init__(self, samples: Samples, line: Line, *, eps: float, bits: int) -> None:
        self.network: MergeNetwork | None = None
        self.journey: list[Floats] = []
        self._samples, self._line, self._eps, self._bits = samples, line, eps, bits
        self._maps: list[BallMap] = []

    def __len__(self) -> int:
        """Layers, at most."""
        return len(self._samples.labels) - len(self._samples.classes)

    def __iter__(self) -> Iterator[None]:
        """Raises TooFewBitsError where the bits do not suffice to tell classes apart."""
        classes, bits = len(self._samples.classes), self._bits
        with precision(bits):
            clusters = self._clusters()
        direction = [ball(1)]  # p itself
        while True:
            self._note(clusters)
            if sum(a.label != b.label for a, b in pairwise(clusters)) == classes - 1:
                break
            with precision(bits):
                clusters, direction = self._merged(clusters, direction)
            accuracy = max(cluster.place.rel_accuracy_bits() for cluster in clusters)
            bits = max(GUARD, min(bits, accuracy + GUARD))
            yield
        with precision(bits):
            self._maps.append(_readout(clusters, direction))
        self.network = MergeNetwork(self._line, self._maps, self._eps, self._bits)

    def _clusters(self) -> list[Cluster]:
        """Equal samples are one cluster from the start."""
        _, first, home = np.unique(self._samples.inputs, axis=0, return_index=True, return_inverse=True)
        where = places(self._line, self._samples.inputs[first])
        members = np.argsort(home, kind="stable")
        groups = np.split(members, np.cumsum(np.bincount(home))[:-1])
        labels = self._samples.labels[first].tolist()
        return _in_order([Cluster(*entry) for entry in zip(where, labels, groups, strict=True)])

    def _merged(self, clusters: list[Cluster], direction: list[Ball]) -> tuple[list[Cluster], list[Ball]]:
        """One layer: the clusters after it, and the direction that they are projected along."""
        i, j = _pair(clusters)
        half = (clusters[j].place - clusters[i].place) / 2
        stretch = _power_of_two_near(1 / half.mid())
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
            members = np.concatenate([clusters[i].members, clusters[j].members])
            both = Cluster(laid[i].union(laid[j]), clusters[i].label, members)
            rest = [
                Cluster(place, cluster.label, cluster.members)
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

    def _note(self, clusters: list[Cluster]) -> None:
        """Remember where the samples are, on a line from 0 to 1."""
        first, last = clusters[0].place.mid(), clusters[-1].place.mid()
        where = np.empty(len(self._samples.labels))
        for cluster in clusters:
            where[cluster.members] = float((cluster.place.mid() - first) / (last - first))
        self.journey.append(where)


def places(line: Line, inputs: Floats) -> list[Ball]:
    """p = w·x + b of the samples."""
    affine = BallMap([[ball(value) for value in line.weight.tolist()]], [ball(line.bias)])
    return [row[0] for row in images(affine, inputs)]


def _in_order(clusters: list[Cluster]) -> list[Cluster]:
    """The clusters by their places, once balls show that neighbours of different classes are apart."""
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


def _power_of_two_near(value: Ball) -> Ball:
    mantissa, exponent = value.mid().man_exp()
    return ball(2) ** (exponent + int(mantissa).bit_length() - 1)


def _layer(affine: BallMap, line: Line | None, *, scaled: bool, writes: bool) -> tuple[Floats, Floats]:
    """Weights and biases of one map as nn.Linear has them; of the first, which reads samples, with their line.

    Scaled so that no number is beyond floats, where it writes for a LayerNorm without eps and only directions matter.
    """
    matrix, shift = affine
    if scaled and writes:
        factor = 1 / _power_of_two_near(
            max((abs(value) for value in _numbers([affine])), key=lambda value: value.mid())
        )
        matrix, shift = [[factor * value for value in row] for row in matrix], [factor * value for value in shift]
    if line is not None:
        shift = [value + row[0] * ball(line.bias) for value, row in zip(shift, matrix, strict=True)]
        matrix = [[row[0] * ball(value) for value in line.weight.tolist()] for row in matrix]
    weight, bias = as_linear(BallMap(matrix, shift), reads=line is None, writes=writes)
    return np.array([as_floats_of(row) for row in weight]), as_floats_of(bias)


def _numbers(maps: Sequence[BallMap]) -> list[Ball]:
    return [value for affine in maps for row in (*affine.matrix, affine.shift) for value in row]


def _digits(value: Ball) -> list[Any]:
    mantissa, exponent = value.man_exp()
    return [hex(int(mantissa)), int(exponent)]


def _exactly(digits: list[Any]) -> Ball:
    """The number that `_digits` wrote, whatever the working precision is."""
    mantissa, exponent = int(digits[0], 16), digits[1]
    if len(digits) != 2 or not isinstance(exponent, int) or mantissa.bit_length() > HIGHEST or abs(exponent) > 2**24:
        raise InputError(f"an exact weight must be a mantissa of up to {HIGHEST} bits and a power of two")
    with precision(max(2, mantissa.bit_length())):
        return ball(mantissa) * ball(2) ** exponent


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
