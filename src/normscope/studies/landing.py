"""Where the real inputs of a norm land, gathered piece by piece in constant memory.

Of each input x (Πx its projection): how near the surface of the ellipsoid its output lies; its share along the ones
vector, |x − Πx|²/|x|²; |mean|/σ, which half precision must subtract away; and the angle between Πx and x, by which a
LayerNorm differs from an RMSNorm there.
"""

import numpy as np

from normscope.checks import Floats
from normscope.norm import Norm
from normscope.studies.inspection import Landing, Spread

KEPT = 4096  # values of a figure of which quantiles are taken: all of them, or a random sample
POINTS = 400  # outputs kept for a picture


class LandingGatherer:
    """Give it the inputs of a norm in pieces, then ask for the result."""

    def __init__(self, norm: Norm, eps_place: str | None = "inside", seed: int = 0) -> None:
        self._norm = norm
        self._eps_place = eps_place
        self._projection = Norm(gain=np.ones(norm.size), scale=False, groups=norm.groups)
        self._dead = norm.ellipsoid.dead_direction
        self._origin: Floats | None = None  # the first input: sums of squares about it keep their digits
        self._inputs = 0
        self._sum = np.zeros(norm.size)
        self._squares = 0.0
        self._along, self._along_squares = 0.0, 0.0
        self._highest = 0.0
        self._figures = {name: _Reservoir(seed) for name in ("nearness", "ones_share", "mean_over_sigma", "rms_angle")}
        self._outputs: list[Floats] = []

    def add(self, x: Floats) -> None:
        """Inputs of shape (n, N)."""
        norm = self._norm
        projected = self._projection(x)
        size, rest = np.linalg.norm(x, axis=1), np.linalg.norm(projected, axis=1)
        some = size > 0
        share = 1 - (rest[some] / size[some]) ** 2
        self._figures["ones_share"].add(np.clip(share, 0.0, 1.0))
        risk = _mean_over_sigma(x.reshape(len(x), norm.groups, -1))
        self._figures["mean_over_sigma"].add(risk)
        self._highest = max(self._highest, float(risk.max(initial=0.0)))
        self._figures["rms_angle"].add(_angles(projected, x))
        if norm.scales:
            self._figures["nearness"].add(self._nearness(x).min(axis=-1))
        if self._origin is None and len(x):
            self._origin = x[0]
        self._inputs += len(x)
        moved = x if self._origin is None else x - self._origin
        self._sum += moved.sum(axis=0)
        self._squares += float(np.sum(moved**2))
        if self._dead is not None:
            along = moved @ self._dead
            self._along += float(along.sum())
            self._along_squares += float(np.sum(along**2))
        room = POINTS - sum(map(len, self._outputs))
        if room > 0:
            self._outputs.append(norm(x[:room]))

    def result(self) -> Landing | None:
        """None if no input was given."""
        if not self._inputs:
            return None
        spread = {name: reservoir.spread() for name, reservoir in self._figures.items()}
        return Landing(
            inputs=self._inputs,
            nearness=spread["nearness"],
            ones_share=spread["ones_share"],
            mean_over_sigma=spread["mean_over_sigma"],
            mean_over_sigma_max=self._highest,
            dead_variance=self._dead_variance(),
            rms_angle=spread["rms_angle"],
        )

    def points(self) -> Floats | None:
        """Outputs minus the center, along the three longest axes: (n, 3)."""
        if not self._outputs or self._norm.ellipsoid.dimension < 3:
            return None
        return (np.concatenate(self._outputs) - self._norm.bias) @ self._norm.ellipsoid.axes(3)

    def _nearness(self, x: Floats) -> Floats:
        """Of each group, with eps where the module has it: inside the root, outside it, or as a floor."""
        if self._eps_place in (None, "inside"):
            return self._norm.nearness(x)
        projected = self._projection(x) if self._norm.projects else x
        root = np.sqrt(np.mean(projected.reshape(len(x), self._norm.groups, -1) ** 2, axis=-1))
        eps = self._norm.eps
        nearness: Floats = root / (root + eps) if self._eps_place == "outside" else root / np.maximum(root, eps)
        return nearness

    def _dead_variance(self) -> float | None:
        """Variance along the first dead direction over the mean variance of a channel; None without either."""
        n = self._inputs
        per_channel = (self._squares - float(self._sum @ self._sum) / n) / n / self._norm.size
        if self._dead is None or per_channel <= 0:
            return None
        return max(0.0, (self._along_squares - self._along**2 / n) / n) / per_channel


def _mean_over_sigma(grouped: Floats) -> Floats:
    """|mean|/σ of the worst group, (n,); for a constant that is not zero the largest float stands for infinity."""
    mean, sigma = np.abs(grouped.mean(axis=-1)), grouped.std(axis=-1)
    largest = np.finfo(float).max
    risk = np.divide(mean, sigma, out=np.where(mean > 0, largest, 0.0), where=sigma > 0)
    worst: Floats = np.minimum(risk, largest).max(axis=-1)
    return worst


class _Reservoir:
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

    def spread(self) -> Spread | None:
        if not self._seen:
            return None
        low, median, high = np.quantile(self._values[: min(self._seen, KEPT)], (0.05, 0.5, 0.95))
        return Spread(float(low), float(median), float(high))


def _angles(a: Floats, b: Floats) -> Floats:
    """Degrees between the rows of a and b; rows without a direction are left out."""
    sizes = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    some = sizes > 0
    cosines = np.sum(a[some] * b[some], axis=1) / sizes[some]
    angles: Floats = np.degrees(np.arccos(np.clip(cosines, -1.0, 1.0)))
    return angles
