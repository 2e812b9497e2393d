"""A network built crease by crease: each layer is fitted to the measured positions of the samples before it.

The state of a sample is a point (x, y) of the unit circle; its place on the line is a ratio of two linear forms of it,

    q = N/D        N = n₀ + n₁x + n₂y,  D = d₀ + d₁x + d₂y > 0

A crease of q with centre c, roundness s, tilt κ and bend μ is one layer, without a division: with N' = (1 + μ)N and
D' = D + μN, the layer scales h = (N' − cD', sD') to length 1, and then

    s(1 + κx)/y = √((v − c)² + s²) + κ(v − c)        v = N'/D'

is the ratio of forms that the next layer reads. With eps > 0 the circle is slightly smaller, so positions are
measured, not computed from the crease.

Three ways to run the network are followed at once: in ball arithmetic, as a batch and one by one in torch. Each sample
is an interval around its exact place, several times as wide as the error of the floats; creases that would let
intervals of different labels touch are not considered. A sample whose floats drift into another label is dropped for
floats: after that only its exact place counts.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from normscope.capacity.crease_cost import WORST
from normscope.capacity.crease_search import BEND, CENTRE, COST, TILT, TIP, best_creases, best_moves
from normscope.capacity.plane_scaling import AffineMap, against, layer_norm, layers_of, linear_layer
from normscope.capacity.samples import Line, Samples
from normscope.certificates.balls import Point, ball, ball_map, images, mapped, precision, scaled
from normscope.certificates.check_networks import count_runs
from normscope.certificates.network_weights import BASIS, WIDTH
from normscope.checks import Floats

if TYPE_CHECKING:
    from torch import nn

BITS = 256
WIDENED = 4.0  # safety factor on the measured error of a float
JOINED = 0.02  # neighbours of one label closer than this share of a run are one item
GAP_PRICE, ROOM = 0.05, 1.0 / 3.0  # cost of narrow gaps while runs are creased away
SPREAD_PRICE, SPREAD_ROOM = 1.0, 1.0  # and while a run is moved
SHRUNK = (2.0, 10.0, 100.0, 1000.0)  # factors below the floor that a layer may shrink gaps to, if needed
FAR = 0.05  # a line whose middle boundary is closer than this to an end is bent again
STEEPEST = 1.0 - 1e-9
FEW = 0.25  # share of a crease's tries that is enough for a move
NARROW, NARROWED = 1e-3, 1e-4  # an end run up to this share of its gap can be moved; the share after squashing


class Limits(NamedTuple):
    """Limits that keep floats apart."""

    roundness: float  # s is at least this share of the mean run
    tilt: float  # the largest |κ|
    floor: float  # the least gap, as a share of the line


LIMITS = {"float64": Limits(0.15, 0.9, 1e-10), "float32": Limits(0.5, 0.8, 3e-6)}


class Items(NamedTuple):
    """Intervals of the line, ascending, with samples of one label in each."""

    low: Floats
    high: Floats
    label: NDArray[np.int64]

    def joined(self, near: float) -> "Items":
        """Join neighbours of one label that are closer than this; overlapping intervals are always joined."""
        reach, begin = np.maximum.accumulate(self.high), np.minimum.accumulate(self.low[::-1])[::-1]
        apart = (self.label[1:] != self.label[:-1]) | (begin[1:] - reach[:-1] > near)
        first = np.flatnonzero(np.concatenate([[True], apart]))
        last = np.append(first[1:], len(self.low)) - 1
        return Items(begin[first], reach[last], self.label[first])


class Creasing:
    """Building a network; iterate over it to do the work, one step for each run that is creased away.

    Afterwards `layers` are those of the network if it is `finished`; if not, the search got stuck.
    """

    def __init__(self, samples: Samples, line: Line, *, dtype: str, eps: float, seed: int, tries: int) -> None:
        self.layers: list[nn.Module] = []
        self.depth = 0
        self.finished = False
        self._samples, self._line, self._dtype, self._eps = samples, line, dtype, eps
        self._seed, self._tries = seed, tries
        self._places = line.places
        self._limits = LIMITS[dtype]
        self._runs = ThreeRuns(samples.inputs, dtype, eps)
        self._upper, self._lower = np.array([0.0, 1.0]), np.array([1.0, 0.0])  # N = p, D = 1

    def __len__(self) -> int:
        """The number of runs to crease away."""
        return self._line.runs - len(self._samples.classes)

    def __iter__(self) -> Iterator[None]:
        classes, fewest = len(self._samples.classes), self._line.runs
        rounding = (np.abs(self._samples.inputs) @ np.abs(self._line.weight) + abs(self._line.bias)) * self._runs.unit
        error = rounding * np.sqrt(self._samples.inputs.shape[1])
        followed = np.ones(len(error), bool)
        while True:
            spread = np.where(followed, WIDENED * error + 4 * self._runs.unit, 0.0)
            items = apart(self._places, spread, self._samples.labels, followed)
            if items is None:
                return
            runs = count_runs(items.label)
            if runs < fewest:
                yield from (None for _ in range(fewest - runs))
                fewest = runs
            if runs == classes:
                self._read_out(items.joined(np.inf))
                self.finished = True
                return
            crease = self._next_crease(items, runs)
            if crease is None and spread.max() > 0:
                followed &= spread < spread.max() / 4  # the floats with the largest error may be in the way
                continue
            if crease is None or self.depth >= len(error):
                return
            self._add_layer(crease)
            error = self._measure(crease)

    def _next_crease(self, items: Items, runs: int) -> Floats | None:
        """The best crease that leaves fewer runs; or one that prepares it; or None."""
        seed = hash((self._seed, self.depth)) % 2**63
        roundness, tilt, floor = self._limits
        whole = items.joined(np.inf)
        joined = items.joined(JOINED / runs)
        least = min(floor, float((whole.low[1:] - whole.high[:-1]).min()))
        for shrunk in SHRUNK:
            limits = (roundness / runs, tilt, least / shrunk)
            crease: Floats = best_creases(*joined, runs - 2, self._tries, limits, GAP_PRICE, ROOM, seed)[0]
            if crease[COST] < WORST:
                return crease
        limits = (np.sqrt(self._runs.unit), STEEPEST, floor)
        for most in (runs - 2, runs - 1):  # boundaries; a move that leaves as many prepares a crease that leaves fewer
            if most == runs - 1:
                squashed = _squashed(whole, np.sqrt(self._runs.unit))
                if squashed is not None:
                    return squashed
            crease = best_moves(*whole, most, int(FEW * self._tries), limits, SPREAD_PRICE, SPREAD_ROOM, seed)[0]
            if crease[COST] < WORST:
                return crease
        return None

    def _add_layer(self, crease: Floats) -> None:
        """h = (N' − cD', sD') as a Linear, and a LayerNorm."""
        c, s, mu = crease[CENTRE], crease[TIP], crease[BEND]
        upper, lower = (1 + mu) * self._upper, self._lower + mu * self._upper
        forms = np.stack([upper - c * lower, s * lower])
        forms *= against(self._eps) / np.abs(forms).max()
        linear = self._linear(forms, writes=True)
        self.layers += [linear, layer_norm(self._eps)]
        self._runs.advance(linear)
        self.depth += 1

    def _measure(self, crease: Floats) -> Floats:
        """The places of the samples now, on a line from 0 to 1; and the error of their floats."""
        s, k = crease[TIP], crease[TILT]
        upper, lower = np.array([s, s * k, 0.0]), np.array([0.0, 0.0, 1.0])
        values, _ = self._runs.ratios(upper, lower)
        first, last = values.min(), values.max()
        bend = _balance((values - first) / (last - first), self._samples.labels)
        upper, lower = upper - first * lower, (last - first) * lower
        self._upper, self._lower = (1 + bend) * upper, lower + bend * upper
        self._places, error = self._runs.ratios(self._upper, self._lower)
        return error

    def _read_out(self, runs: Items) -> None:
        """Scores that are highest in one run each: place k along the line scores kN − (θ₁ + … + θₖ)D, with thresholds θ
        between the runs."""
        thresholds = np.concatenate([[0.0], np.cumsum((runs.high[:-1] + runs.low[1:]) / 2)])
        places = np.arange(len(thresholds))
        forms = np.empty((len(places), len(self._upper)))
        forms[runs.label] = np.outer(places, self._upper) - np.outer(thresholds, self._lower)
        forms -= (forms.max(axis=0) + forms.min(axis=0)) / 2
        self.layers.append(self._linear(forms / np.abs(forms).max(), writes=False))

    def _linear(self, forms: Floats, *, writes: bool) -> "nn.Linear":
        """Linear forms of (1, p), or of (1, x, y) after the first layer, as an nn.Linear of the layer's input."""
        import torch

        matrix, shift = forms[:, 1:], forms[:, 0]
        if not self.layers:
            matrix, shift = np.outer(forms[:, 1], self._line.weight), shift + forms[:, 1] * self._line.bias
        dtype = getattr(torch, self._dtype)
        return linear_layer(AffineMap(matrix, shift), reads=bool(self.layers), writes=writes, dtype=dtype)


class ThreeRuns:
    """The samples after the layers so far, followed three ways: in balls, as a batch in torch, and one by one in torch.

    Only the midpoints of the 256-bit balls are kept: accurate enough to choose the next layer. The proof is made
    afterwards, by `check_networks`.
    """

    def __init__(self, inputs: Floats, dtype: str, eps: float) -> None:
        import torch

        self.unit = float(np.finfo(dtype).eps)
        self._eps, self._inputs = eps, inputs
        self._exact: list[Point] = []
        self._batch = torch.from_numpy(inputs).to(getattr(torch, dtype))
        self._single = [self._batch[row : row + 1] for row in range(len(inputs))]

    def advance(self, linear: "nn.Linear") -> None:
        """Through a Linear and the LayerNorm after it."""
        import torch
        from torch.nn.functional import layer_norm
        from torch.nn.functional import linear as apply

        with torch.inference_mode():
            weight, bias, shape = linear.weight, linear.bias, (WIDTH,)
            self._batch = layer_norm(apply(self._batch, weight, bias), shape, eps=self._eps)
            self._single = [layer_norm(apply(row, weight, bias), shape, eps=self._eps) for row in self._single]
        with precision(BITS):
            affine = ball_map(layers_of([linear])[0], reads=bool(self._exact), writes=True)
            rows = mapped(affine, self._exact) if self._exact else images(affine, self._inputs)
            self._exact = [(x.mid(), y.mid()) for x, y in scaled(rows, self._eps)]

    def ratios(self, upper: Floats, lower: Floats) -> tuple[Floats, Floats]:
        """(n₀ + n₁x + n₂y)/(d₀ + d₁x + d₂y) of each sample, and the largest error of its two floats."""
        import torch

        n, d = [ball(value) for value in upper.tolist()], [ball(value) for value in lower.tolist()]
        with precision(BITS):
            exact = np.array(
                [float((n[0] + n[1] * x + n[2] * y) / (d[0] + d[1] * x + d[2] * y)) for x, y in self._exact]
            )
        error = np.zeros(len(exact))
        for outputs in (self._batch, torch.cat(self._single)):
            points = outputs.double().numpy() @ BASIS / np.sqrt(WIDTH)
            error = np.maximum(error, np.abs((points @ upper[1:] + upper[0]) / (points @ lower[1:] + lower[0]) - exact))
        return exact, error


def apart(places: Floats, spread: Floats, labels: NDArray[np.int64], followed: NDArray[np.bool_]) -> Items | None:
    """Each sample as an interval, ordered by place; None if two labels share a place.

    Where intervals of different labels touch, the widest of them are no longer followed: their spread becomes 0.
    """
    order = np.argsort(places, kind="stable")
    spread, label = spread[order], labels[order]
    places = places[order]
    while True:
        items = Items(places - spread, places + spread, label)
        change = np.flatnonzero(label[1:] != label[:-1])
        reaches, begins = (
            np.maximum.accumulate(items.high)[change],
            np.minimum.accumulate(items.low[::-1])[::-1][change + 1],
        )
        touching = np.flatnonzero(reaches >= begins)
        if not len(touching):
            return items
        low, high = begins[touching[0]], reaches[touching[0]]
        widest = int(np.argmax(np.where((items.low <= high) & (items.high >= low), spread, -1.0)))
        if spread[widest] <= 0:
            return None
        spread[widest], followed[order[widest]] = 0.0, False


def _balance(places: Floats, labels: NDArray[np.int64]) -> float:
    """The bend μ of a line from 0 to 1 that moves its middle boundary to 1/2."""
    order = np.argsort(places, kind="stable")
    place, label = places[order], labels[order]
    before = np.flatnonzero(label[1:] != label[:-1])
    boundaries = (place[before] + place[before + 1]) / 2
    middle = boundaries[len(boundaries) // 2]
    return float((1 - 2 * middle) / middle) if not FAR < middle < 1 - FAR else 0.0


def _squashed(runs: Items, least: float) -> Floats | None:
    """A crease that narrows the first run and leaves the others unchanged; None if already narrow or too close."""
    width, gap = runs.high[0] - runs.low[0], runs.low[1] - runs.high[0]
    if width <= NARROW * gap or gap * np.sqrt(NARROWED) < least:
        return None
    crease = np.zeros(6)
    crease[CENTRE], crease[TIP] = runs.high[0] + gap / 2, gap * np.sqrt(NARROWED)
    crease[TILT] = max(1.0 - NARROWED * gap / width, 0.0)
    return crease
