"""`normscope.inspect`: the geometry of every norm of a model, and where its real inputs land."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from normscope.certificates.key_certificates import Ints
from normscope.checks import Floats
from normscope.results.describe import IN_ROW, NOT_IN_JSON, Column, InRow, Table
from normscope.results.inventory import FoundNorm
from normscope.results.result import Result
from normscope.results.rows import Spread

READERS_SHOWN = 3
FACTORS_SHOWN = 4


@dataclass(frozen=True)
class Channel:
    """A channel and its weight in a unit vector."""

    channel: int
    weight: float


@dataclass(frozen=True)
class Gains:
    """The gains of a norm. A dead gain is zero within rounding: at most 1.2e-7 of the largest, as in float32."""

    dead: tuple[int, ...]  # their channels
    exactly_zero: int
    near_zero: Annotated[
        int, Column("near-zero gains", "Gains below 0.001 of the median |gain|, without zero gains.", brief=False)
    ]
    negative: Annotated[int, Column("negative gains", "Gains below zero.", brief=False)]
    dead_direction: tuple[Channel, ...] | None  # the channels that weigh most in the first dead direction

    @property
    def zero(
        self,
    ) -> Annotated[
        int,
        Column(
            "zero gains",
            "Gains that are zero within float32 rounding of the largest: dimensions and axes are those of the others.",
            brief=False,
        ),
    ]:
        return len(self.dead)


@dataclass(frozen=True)
class Axes:
    """The semi-axes of the ellipsoid, dead gains counted as zero; `raw` figures are those of the gains as stored."""

    longest: Annotated[float, Column("longest axis", "Longest semi-axis, in units of the output.", ".4g")]
    median: Annotated[float, Column("median axis", "Median semi-axis, in units of the output.", ".4g", brief=False)]
    shortest: Annotated[float, Column("shortest axis", "Shortest semi-axis, in units of the output.", ".4g")]
    anisotropy: Annotated[
        float | None, Column("longest / shortest", "Longest over shortest semi-axis.", ".4g", brief=False)
    ]  # None on overflow, like raw_anisotropy
    effective: Annotated[
        float,
        Column("effective axes", "How many axes carry the spread: the participation ratio (Σℓ²)²/Σℓ⁴.", ".4g"),
    ]
    longest_channels: tuple[Channel, ...]  # the channels that weigh most in the longest axis
    low: Annotated[float, Column("lowest output", "No output of any channel is below this.", ".4g", brief=False)]
    high: Annotated[float, Column("highest output", "No output of any channel is above this.", ".4g", brief=False)]
    low_channel: int  # the channels that can go that far
    high_channel: int
    raw_shortest: float
    raw_anisotropy: float | None
    lengths: Annotated[Floats | None, NOT_IN_JSON] = field(default=None, repr=False, compare=False)  # descending
    channel_ranges: Annotated[Floats | None, NOT_IN_JSON] = field(default=None, repr=False, compare=False)  # (N, 2)


@dataclass(frozen=True)
class GroupFactor:
    """The factor by which H would change with this number of groups, all else equal."""

    groups: int
    factor: Spread


@dataclass(frozen=True)
class AffineFit:
    """The share of the output's variance that an affine map, fitted on half of the inputs, leaves on the others."""

    fit: Literal["full", "frozen scale"]  # the best affine map, or the norm with one number in place of its divisor
    unexplained: float  # share of the variance over the held-out inputs; a measurement, not a bound
    fitted: int  # inputs
    held_out: int

    def __float__(self) -> float:
        return self.unexplained

    def __str__(self) -> str:
        return f"{'' if self.fit == 'full' else '~'}{100 * self.unexplained:.3g}%"


def factors_shown(factors: tuple[GroupFactor, ...]) -> str:
    """Medians for some numbers of groups, the least and the largest among them.

    >>> spread = Spread(1.0, 2.0, 3.0)
    >>> factors_shown(tuple(GroupFactor(groups, spread) for groups in (2, 3, 4, 6, 8, 12, 16)))
    '2: 2×, 4: 2×, 8: 2×, 16: 2×'
    """
    count = min(len(factors), FACTORS_SHOWN)
    shown = [factors[round(place * (len(factors) - 1) / max(1, count - 1))] for place in range(count)]
    return ", ".join(f"{entry.groups}: {entry.factor:.3g}×" for entry in shown)


@dataclass(frozen=True)
class TokenAt:
    """A token of the text, by its place in the run."""

    sequence: int
    position: int  # in it, special tokens counted
    text: str | None  # None without a tokenizer


@dataclass(frozen=True)
class LargestInput:
    """The entry of largest absolute value among all inputs of a norm. A table shows its absolute value."""

    value: float
    channel: int
    token: TokenAt | None  # None where inputs are not tokens, one for one

    def __float__(self) -> float:
        return abs(self.value)

    def __format__(self, form: str) -> str:
        return format(abs(self.value), form)


@dataclass(frozen=True, eq=False)
class LandedSample:
    """About 200 inputs of a norm, for pictures; u are the coordinates of its output along the axes, over their lengths.

    None where the norm has no surface, or too many axes to be listed.
    """

    numbers: Ints  # (n,), of the inputs in the run, ascending
    peaks: Floats  # (n,), largest absolute entry of each input
    input_shares: Floats  # (N,), median share of each channel in the squared length of an input
    distances: Floats | None = None  # (n,), from the output to the surface, relative: 0 is on it, 1 is the center
    shares: Floats | None = None  # (d, 3), of uᵢ² over outputs: median, 95%, largest; longest axis first
    axis_channels: Ints | None = None  # (d,), the channel that weighs most in each axis
    axis_weights: Floats | None = None  # (d,), its weight, 1 if the axis is that channel
    axes_used: Floats | None = None  # (n,), as if an output used that many axes evenly
    plane_axes: Ints | None = None  # (6,), axes by rank: two longest, two flattest, two busiest
    planes: Floats | None = None  # (n, 6), u along these


@dataclass(frozen=True)
class Landing:
    """Where the real inputs of a norm land, over all tokens of a text. Tables show medians."""

    inputs: Annotated[int, Column("inputs", "How many inputs were measured.", ",", brief=False)]
    nearness: Annotated[
        Spread | None,  # None without a surface
        Column("closeness to surface", "How near the outputs lie to the ellipsoid's surface: 1 is on it.", ".4g"),
    ]
    ones_share: Annotated[
        Spread | None,  # None if every x is 0
        Column("share of the mean", "Share of |x|² along the ones vector, which a projection removes.", ".4g"),
    ]
    mean_over_sigma: Annotated[
        Spread | None, Column("|mean|/σ", "Mean of the input over its standard deviation.", ".4g", brief=False)
    ]
    mean_over_sigma_max: Annotated[
        float,
        Column("largest |mean|/σ", "The same at its worst: a risk in half precision above 30.", ".4g", brief=False),
    ]
    dead_variance: Annotated[
        float | None,
        Column(
            "variance in dead direction",
            "Variance of the input along the dead direction over its mean variance per channel.",
            ".4g",
            brief=False,
        ),
    ]
    rms_angle: Annotated[
        Spread | None,
        Column("angle to RMSNorm", "Degrees between LayerNorm and RMSNorm of the same input.", ".3g", brief=False),
    ]
    nonlinearity: Annotated[
        Spread | None,
        Column(
            "H",
            "How much it bends at its inputs, in their units: squared size of the second derivative, 0 if affine.",
            ".3g",
            brief=False,
        ),
    ]
    group_factors: Annotated[
        tuple[GroupFactor, ...],  # for every admissible number of groups, in ascending order
        Column(
            "H in g groups",
            "By what factor H would grow with g groups of channels and the same weights, as in LN-G.",
            factors_shown,
            brief=False,
        ),
    ]
    affine_fit: Annotated[
        AffineFit | None,  # None without the scale step, and where outputs do not differ
        Column(
            "not affine",
            "Share of the output's variance on held-out inputs that the best affine map leaves unexplained "
            "(~: the norm with a frozen scale, where inputs are too few or the model too wide for a full fit).",
            brief=False,
        ),
    ] = None
    largest: Annotated[
        LargestInput | None,
        Column("largest input", "The largest absolute entry of any input.", ".4g", brief=False),
    ] = None
    typical: Annotated[
        float | None, Column("median input", "Median absolute entry of about 200 inputs.", ".3g", brief=False)
    ] = None
    step: Annotated[
        Spread | None,  # None without the scale step
        Column(
            "step for 10°",
            "How long a step at the input turns the normalized vector by 10°: its length times tan 10°.",
            ".3g",
            brief=False,
        ),
    ] = None
    axes_used: Annotated[
        Spread | None,
        Column("axes used", "As if a token used that many axes evenly: (Σs)²/Σs² of its shares.", ".3g", brief=False),
    ] = None
    sample: Annotated[LandedSample | None, NOT_IN_JSON] = field(default=None, repr=False, compare=False)
    points: Annotated[Floats | None, NOT_IN_JSON] = field(default=None, repr=False, compare=False)
    # Some outputs minus the center, along the three longest axes: (n, 3), n ≤ 400


def short_names(names: tuple[str, ...]) -> str:
    """The last part of each module's name, the first few of many.

    >>> short_names(("h.0.attn.q", "h.0.attn.k", "h.0.attn.v", "h.0.mlp"))
    'q, k, v, +1'
    """
    last = [name.rpartition(".")[2] for name in names]
    more = [f"+{len(last) - READERS_SHOWN}"] if len(last) > READERS_SHOWN else []
    return ", ".join(last[:READERS_SHOWN] + more)


@dataclass(frozen=True)
class NormGeometry:
    """One norm: what was found, then the set that its outputs fill.

    `dimension` and `gains` are None for an unknown norm; `axes` is None if the set is unbounded or a point; `landing`
    is None unless the model was run; `reads` and `read_by` are None where only weights are available.
    """

    found: Annotated[FoundNorm, InRow(brief=("name", "kind"))]
    dimension: Annotated[int | None, Column("dimensions", "Dimension of the set that the outputs fill.")] = None
    raw_dimension: int | None = None  # counting only exact zeros as dead gains
    gains: Annotated[Gains | None, IN_ROW] = None
    axes: Annotated[Axes | None, IN_ROW] = None
    landing: Annotated[Landing | None, IN_ROW] = None
    reads: tuple[str, ...] | None = None  # modules that write its input
    read_by: Annotated[
        tuple[str, ...] | None, Column("read by", "Modules that read its output.", short_names, brief=False)
    ] = None

    @property
    def name(self) -> Annotated[str, NOT_IN_JSON]:
        return self.found.name

    @property
    def kind(self) -> Annotated[str, NOT_IN_JSON]:
        return self.found.kind


@dataclass(frozen=True, repr=False)
class Inspection(
    Result,
    kind="inspection",
    schema_version=4,
    plotted_by="normscope.report.pictures:geometry_picture",
    remarked_by="normscope.rules.inspection:remarks",
):
    """The geometry of every norm of a model, in the order in which the model holds them."""

    model: str
    placement: Literal["pre-norm", "post-norm", "both"] | None  # None where only weights are available
    tied_embeddings: bool | None
    qk_norm: bool
    parameters: int | None
    norm_parameters: int
    norms: Annotated[tuple[NormGeometry, ...], Table("Norms of {0.model}")]
    untraced: str | None = None  # why the model was not traced; then function calls were not searched
    text: str | None = None  # description of the text that was run
    notes: tuple[str, ...] = ()  # what in the model's config.json is not supported

    def __repr__(self) -> str:
        kinds = [norm.kind for norm in self.norms]
        counts = ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds)) or "no norms"
        landed = sum(norm.landing is not None for norm in self.norms)
        return f"Inspection({self.model}: {counts}{f'; inputs of {landed} measured' if landed else ''})"
