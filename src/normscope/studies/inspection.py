"""Result types of `inspect`: what is known of every norm of a model. Plain values; nothing is computed here."""

from dataclasses import asdict, dataclass, field
from typing import Any

from normscope.checks import Floats

SCHEMA_VERSION = 2


@dataclass(frozen=True)
class Spread:
    """Quantiles of a figure over many inputs."""

    low: float  # 5%
    median: float
    high: float  # 95%


@dataclass(frozen=True)
class GroupFactor:
    """By what factor a norm would bend more in this number of groups: H with them over H as it is, all else equal."""

    groups: int
    factor: Spread


@dataclass(frozen=True)
class AffineFit:
    """What an affine map of the input, fitted on half of the inputs, leaves of the output's variance on the others."""

    fit: str  # "full": the best affine map; "frozen scale": the norm with one number in place of its divisor
    unexplained: float  # share of the variance over the held-out inputs; a measurement, and no bound
    fitted: int  # inputs
    held_out: int


@dataclass(frozen=True)
class Landing:
    """Where the real inputs of a norm land, over all tokens of a text."""

    inputs: int
    nearness: Spread | None  # 1 is on the surface of the ellipsoid; None without a surface
    ones_share: Spread | None  # share of |x|² along the ones vector, which projection removes; None if every x is 0
    mean_over_sigma: Spread | None  # |mean|/σ of the input: large values are a risk in half precision
    mean_over_sigma_max: float
    dead_variance: float | None  # variance of the input along the dead direction over its mean variance per channel
    rms_angle: Spread | None  # degrees between the input and its projection: LayerNorm against RMSNorm
    nonlinearity: Spread | None  # H, the squared size of the second derivative, with gains and eps
    group_factors: tuple[GroupFactor, ...]  # for every admissible number of groups, in ascending order
    affine_fit: AffineFit | None = None  # None without the scale step, and where outputs do not differ


@dataclass(frozen=True)
class Channel:
    """A channel and its weight in a unit vector."""

    channel: int
    weight: float


@dataclass(frozen=True)
class Profile:
    """What pictures need of a norm, of bounded size whatever N is; not part of the JSON."""

    gains: Floats  # sorted ascending, at most 256 of them, evenly spaced in rank
    lengths: Floats  # semi-axes, descending, at most 256 of them, evenly spaced in rank
    longest: Floats  # the three longest semi-axes (fewer where the dimension is less)
    points: Floats | None = None  # real outputs minus the center, along those axes: (n, 3), n ≤ 400


@dataclass(frozen=True)
class NormGeometry:
    """One norm. What has no value is None: axes of an unbounded set or of a point, anything of an unknown norm."""

    name: str
    kind: str  # layernorm, rmsnorm, lng, projection, unknown
    size: int | None  # None if only its use shows it
    groups: int | None
    eps: float | None
    eps_place: str | None  # "inside" the root, "outside" it, or as a "floor"
    axis: int  # of its input, that it normalizes
    has_bias: bool | None
    gain_convention: str | None  # "w", "1+w", None without a gain
    assumed: tuple[str, ...]  # what could not be observed, for example ("kind", "eps")
    problem: str | None  # of an unknown norm: the check that failed
    dimension: int | None  # of the set that the outputs fill, as are the axes: dead gains count as zero
    zero_gains: int | None
    near_zero_gains: int | None  # |g| below 1e-3 of the median |g|, dead ones not counted
    negative_gains: int | None
    axis_max: float | None
    axis_median: float | None
    axis_min: float | None
    anisotropy: float | None  # longest over shortest axis
    participation_ratio: float | None  # (Σℓ²)²/Σℓ⁴: how many axes carry the spread
    dead_channels: tuple[Channel, ...] | None  # the channels that weigh most in the first dead direction
    longest_axis_channels: tuple[Channel, ...] | None  # the channels that weigh most in the longest axis
    range_low: float | None  # no output of any channel is below this,
    range_high: float | None  # or above this, whatever the input;
    range_low_channel: int | None  # the channels that can go so far
    range_high_channel: int | None
    reads: tuple[str, ...] | None  # modules that write its input; None when only weights are at hand
    read_by: tuple[str, ...] | None  # modules that read its output
    gate: str | None = None  # of a gated norm, as norm(x ∘ silu(gate)): everything here is about the norm in it
    function: str | None = None  # of a call of torch's function, which no module holds: its file and line
    unchecked: str | None = None  # why what it computes inside the model was not checked; None if it was
    stored_as: str | None = None  # its name in the checkpoint, where that is not the name of the module
    dead_gains: tuple[int, ...] | None = None  # channels with |g| within float32 rounding (1.2e-7) of the largest |g|
    raw_dimension: int | None = None  # as if no gain were dead but those that are exactly zero
    raw_axis_min: float | None = None
    raw_anisotropy: float | None = None
    landing: Landing | None = None  # with a text
    channel_ranges: Floats | None = field(default=None, repr=False, compare=False)  # (N, 2); not part of the JSON
    profile: Profile | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class Inspection:
    """The geometry of every norm of a model, in the order in which the model holds them."""

    model: str
    placement: str | None  # "pre-norm", "post-norm", "both"; None when only weights are at hand
    tied_embeddings: bool | None
    qk_norm: bool
    parameters: int | None
    norm_parameters: int
    norms: tuple[NormGeometry, ...]
    untraced: str | None = None  # why the model was not traced; then calls of functions were not looked for
    text: str | None = None  # the text that was run, if any
    notes: tuple[str, ...] = ()  # what of the model's config.json could not be followed

    def to_dict(self) -> dict[str, Any]:
        """Exactly what `normscope inspect --json` prints; schema: normscope/schemas/inspect.json."""
        result = {"schema_version": SCHEMA_VERSION, **asdict(self, dict_factory=_with_lists)}
        for norm in result["norms"]:
            del norm["profile"], norm["channel_ranges"]
        return result

    def _repr_html_(self) -> str:
        """A table for notebooks."""
        from normscope.report.norm_columns import norms_html

        return norms_html(self)


def _with_lists(fields: list[tuple[str, Any]]) -> dict[str, Any]:
    """A dict as JSON has it, where tuples are lists."""
    return {key: list(value) if isinstance(value, tuple) else value for key, value in fields}
