"""Where the real inputs of a norm land, gathered batch by batch in constant memory.

For each input x (Πx its projection): how close its output is to the surface of the ellipsoid; its share along the ones
vector, |x − Πx|²/|x|²; |mean|/σ, which half precision must subtract away; the angle between Πx and x, by which a
LayerNorm differs from an RMSNorm there; and how much the norm bends there, H, with the factor for other groups.
For all inputs: the share of the output's variance that no affine map explains.
"""

import numpy as np

from normscope.capacity.second_derivative import admissible_groups, nonlinearity
from normscope.checks import Floats
from normscope.norm import Norm
from normscope.results.inspection import GroupFactor, Landing, LargestInput
from normscope.studies.affine_fit import AffineFitter
from normscope.studies.sampled_inputs import InputSample, Reservoir, landed_sample, spread_of

TURN = np.tan(np.radians(10.0))  # of a step, over the length of what is normalized
LARGEST = np.finfo(float).max  # stands for infinity, which JSON lacks


class LandingGatherer:
    """Add the inputs of a norm in pieces, then take the result."""

    def __init__(self, norm: Norm, eps_place: str | None = "inside", seed: int = 0, full_fit: bool = True) -> None:
        self._norm = norm
        self._eps_place = eps_place or "inside"
        self._dead = norm.ellipsoid.dead_direction
        self._origin: Floats | None = None  # the first input: sums of squares about it keep their digits
        self._inputs = 0
        self._sum = np.zeros(norm.size)
        self._squares = 0.0
        self._along, self._along_squares = 0.0, 0.0
        self._highest = 0.0
        figures = ("nearness", "ones_share", "mean_over_sigma", "rms_angle", "nonlinearity", "step")
        self._figures = {name: Reservoir(seed) for name in figures}
        self._factors = {groups: Reservoir(seed) for groups in admissible_groups(norm)}
        self._sample = InputSample(norm.size, seed)
        self._fitter = AffineFitter(norm.size, norm.groups, full_fit) if norm.scales else None

    def add(self, x: Floats) -> None:
        """Inputs of shape (n, N)."""
        norm = self._norm
        bent = nonlinearity(norm, x, "all", eps_place=self._eps_place)
        self._figures["nonlinearity"].add(np.minimum(bent.nonlinearity, LARGEST))
        for groups, factor in bent.factors.items():
            self._factors[groups].add(np.minimum(factor[~np.isnan(factor)], LARGEST))
        grouped = x.reshape(len(x), norm.groups, norm.size // norm.groups)
        mean, sigma = _mean_and_sigma(grouped)
        ones, rest = np.linalg.norm(mean, axis=1), np.linalg.norm(sigma, axis=1)  # |x − Πx| and |Πx|, over √c
        size = np.hypot(ones, rest)
        self._figures["ones_share"].add((ones[size > 0] / size[size > 0]) ** 2)
        self._figures["rms_angle"].add(np.degrees(np.arctan2(ones, rest))[rest > 0])
        risk = _ratio_of_worst(np.abs(mean), sigma)
        self._figures["mean_over_sigma"].add(risk)
        self._highest = max(self._highest, float(risk.max(initial=0.0)))
        if norm.scales:
            root = sigma if norm.projects else np.hypot(mean, sigma)
            self._figures["step"].add(np.minimum(TURN * np.sqrt(norm.size // norm.groups) * root.min(axis=-1), LARGEST))
            divisor = self._divisor(root)
            nearness = np.divide(root, divisor, out=np.zeros(root.shape), where=divisor > 0)
            self._figures["nearness"].add(nearness.min(axis=-1))
            self._fit(x, grouped - mean[..., None] if norm.projects else grouped, divisor)
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
        self._sample.add(x)

    def result(self) -> Landing | None:
        """The figures over all inputs; None without inputs."""
        if not self._inputs:
            return None
        spread = {name: reservoir.spread() for name, reservoir in self._figures.items()}
        x, numbers = self._sample.inputs()
        value, channel, _ = self._sample.largest
        sample = landed_sample(self._norm, x, numbers, self._distances(x))
        return Landing(
            inputs=self._inputs,
            nearness=spread["nearness"],
            ones_share=spread["ones_share"],
            mean_over_sigma=spread["mean_over_sigma"],
            mean_over_sigma_max=self._highest,
            dead_variance=self._dead_variance(),
            rms_angle=spread["rms_angle"],
            nonlinearity=spread["nonlinearity"],
            group_factors=tuple(
                GroupFactor(groups, factor)
                for groups, reservoir in self._factors.items()
                if (factor := reservoir.spread()) is not None
            ),
            affine_fit=None if self._fitter is None else self._fitter.result(),
            largest=LargestInput(value, channel, None),
            typical=float(np.median(np.abs(x))),
            step=spread["step"],
            axes_used=None if sample.axes_used is None else spread_of(sample.axes_used),
            sample=sample,
            points=self._points(x),
        )

    @property
    def inputs(self) -> int:
        """How many inputs were added."""
        return self._inputs

    @property
    def largest_number(self) -> int:
        """The number of the input with the largest entry, in the order in which inputs were added."""
        return self._sample.largest[2]

    def _points(self, x: Floats) -> Floats | None:
        """Outputs minus the center, along the three longest axes: (n, 3)."""
        ellipsoid = self._norm.ellipsoid
        if not ellipsoid.bounded or ellipsoid.dimension < 3:
            return None
        return (self._norm(x) - self._norm.bias) @ ellipsoid.axes(3)

    def _distances(self, x: Floats) -> Floats | None:
        """From the outputs to the surface, relative: 1 − σ/divisor without cancellation; None without a surface."""
        norm = self._norm
        if not norm.scales:
            return None
        mean, sigma = _mean_and_sigma(x.reshape(len(x), norm.groups, norm.size // norm.groups))
        root = sigma if norm.projects else np.hypot(mean, sigma)
        divisor = self._divisor(root)
        short = {
            "inside": np.divide(norm.eps, divisor + root, out=np.zeros(root.shape), where=divisor > 0),
            "outside": np.full(root.shape, norm.eps),
            "floor": np.maximum(norm.eps - root, 0.0),
        }[self._eps_place]  # divisor − root
        distances: Floats = np.divide(short, divisor, out=np.ones(root.shape), where=divisor > 0)
        farthest: Floats = distances.max(axis=-1)
        return farthest

    def _divisor(self, root: Floats) -> Floats:
        """Of groups with this root mean square; eps is where the module has it."""
        eps = self._norm.eps
        divisors: dict[str, Floats] = {
            "inside": np.hypot(root, np.sqrt(eps)),
            "outside": root + eps,
            "floor": np.maximum(root, eps),
        }
        return divisors[self._eps_place]

    def _fit(self, x: Floats, projected: Floats, divisor: Floats) -> None:
        """Add inputs and outputs, without the bias: a constant changes no share of variance."""
        assert self._fitter is not None
        scaled = np.divide(projected, divisor[..., None], out=np.zeros(projected.shape), where=divisor[..., None] > 0)
        gain = self._norm.gain
        self._fitter.add(x, gain * projected.reshape(x.shape), gain * scaled.reshape(x.shape))

    def _dead_variance(self) -> float | None:
        """Variance along the first dead direction over the mean variance of a channel; None without either."""
        n = self._inputs
        per_channel = (self._squares - float(self._sum @ self._sum) / n) / n / self._norm.size
        if self._dead is None or per_channel <= 0:
            return None
        return max(0.0, (self._along_squares - self._along**2 / n) / n) / per_channel


def _mean_and_sigma(grouped: Floats) -> tuple[Floats, Floats]:
    """Of each group, (n, groups). From its first channel on: what differs keeps its digits beside a large mean."""
    shifted = grouped - grouped[..., :1]
    centre = np.mean(shifted, axis=-1, keepdims=True)
    sigma = np.sqrt(np.mean((shifted - centre) ** 2, axis=-1))
    return (grouped[..., :1] + centre)[..., 0], sigma


def _ratio_of_worst(mean: Floats, sigma: Floats) -> Floats:
    """|mean|/σ of the worst group, (n,); for a constant that is not zero the largest float stands for infinity."""
    risk = np.divide(mean, sigma, out=np.where(mean > 0, LARGEST, 0.0), where=sigma > 0)
    worst: Floats = np.minimum(risk, LARGEST).max(axis=-1)
    return worst
