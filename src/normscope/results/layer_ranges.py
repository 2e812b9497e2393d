"""`normscope.ranges`: how far every tensor of a model can go, over all inputs."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from normscope.certificates.range_certificates import RangeCertificate
from normscope.checks import Floats
from normscope.results.describe import NOT_IN_JSON, Column, Table
from normscope.results.result import Result
from normscope.results.rows import NotCovered, path_text

NEAR_ENOUGH = 1e-6  # relative gap between an exact bound and the output for its witness
TYPES = {"float16": 65504.0, "bfloat16": 3.3895313892515355e38, "float8_e4m3": 448.0, "float32": 3.4028234663852886e38}
UNITS = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float8_e4m3": 2.0**-4, "float32": 2.0**-24}  # unit roundoff
What = Literal[
    "output",
    "queries",
    "keys",
    "values",
    "scores",
    "heads",
    "hidden",
    "stream",
    "branch",
    "norm input",
    "model output",
    "tensor",
]
Grade = Literal["exact", "heads", "tight", "quadratic", "intervals"]
Verdict = Literal["excluded", "too close to call", "not excluded", "reached", "unbounded"]


@dataclass(frozen=True)
class Neurons:
    """The neurons that a layer reads, over all its calls. A dead one never acts, whatever the input."""

    activation: str
    count: int
    dead: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.count} {self.activation}" + (f", {len(self.dead)} dead" if self.dead else "")


def share(value: float) -> str:
    """A share of a bound, as a table shows it."""
    return f"{value:.2f}" if value >= 0.005 or value == 0 else f"{value:.0e}"


@dataclass(frozen=True)
class TensorRange:
    """A tensor and its bounds; they are None where the tensor is unbounded, and `why` says because of what."""

    layer: Annotated[
        str, Column("layer", "The linear layer, its matrix where its module does more, or the module.", path_text)
    ]
    what: Annotated[What, Column("tensor", "Which of its tensors.")]
    channels: Annotated[int, Column("channels", "How many channels it has.", brief=False)]
    low: Annotated[float | None, Column("lowest", "No entry is below this, whatever the input.", ".4g")]
    high: Annotated[float | None, Column("highest", "No entry is above this, whatever the input.", ".4g")]
    channel: Annotated[int | None, Column("largest at", "The channel whose bound is largest in absolute value.")]
    bound: Annotated[float | None, Column("its bound", "The bound of that channel.", ".6g", brief=False)]
    reached: Annotated[
        float | None,
        Column("reached", "What the model's own operations gave there for an input of the norm before it.", ".4g"),
    ]
    grade: Annotated[
        Grade | None,
        Column(
            "bound is",
            "exact: approached by an input; heads: approached if every head sees a token of its own; tight: improved, "
            "with a certificate; quadratic, intervals: cheap.",
        ),
    ]
    verdict: Annotated[Verdict, Column("beyond the limit", "Whether an entry can pass the limit.", brief=False)]
    norm: Annotated[str | None, Column("norm", "The norm whose output it depends on.", brief=False)] = None
    weight: Annotated[str | None, Column("weight", "The matrix of a linear layer.", brief=False)] = None
    observed: Annotated[
        float | None, Column("on the text", "Its largest absolute value on the text.", ".4g", brief=False)
    ] = None
    used: Annotated[float | None, Column("used", "Largest share of a channel's bound on the text.", share)] = None
    neurons: Annotated[Neurons | None, Column("neurons", "The neurons that it reads.", brief=False)] = None
    why: Annotated[str | None, Column("unbounded because of", "What is not bounded.", brief=False)] = None
    input: Annotated[Floats | None, NOT_IN_JSON] = field(default=None, repr=False, compare=False)  # the witness
    lows: Annotated[Floats | None, NOT_IN_JSON] = field(default=None, repr=False, compare=False)  # of every channel
    highs: Annotated[Floats | None, NOT_IN_JSON] = field(default=None, repr=False, compare=False)

    @property
    def ratio(
        self,
    ) -> Annotated[float | None, Column("bound / reached", "1 where the bound is approached.", ".3g", brief=False)]:
        if self.bound is None or not self.reached:
            return None
        return self.bound / self.reached

    @property
    def bounded(self) -> bool:
        return self.low is not None


@dataclass(frozen=True)
class Limit:
    """What the bounds exclude for one type, over all tensors that are held in it."""

    type: Annotated[str, Column("type", "The type, or the number.")]
    largest: Annotated[float, Column("largest number", "The largest number of the type.", ".6g")]
    tensors: Annotated[int, Column("tensors", "Tensors that are held in this type.")]
    excluded: Annotated[int, Column("excluded", "Tensors that stay within it, whatever the input.")]
    close: Annotated[int, Column("too close to call", "Tensors whose bound is within rounding errors of it.")]
    open: Annotated[int, Column("not excluded", "Tensors whose bound is beyond it.")]
    reached: Annotated[int, Column("reached", "Tensors that pass it for an input of the norm before them.")]
    unbounded: Annotated[int, Column("unbounded", "Tensors without a bound.")]

    @property
    def sentence(self) -> str:
        """One line on the whole model."""
        if self.excluded == self.tensors:
            return f"{self.type}: excluded for every tensor, whatever the input: none can overflow"
        parts = [
            f"an overflow is not excluded for {self.open + self.reached + self.unbounded} of {self.tensors} tensors",
            f"{self.reached} of them reached" if self.reached else "",
            f"{self.unbounded} of them unbounded" if self.unbounded else "",
            f"too close to call for {self.close}" if self.close else "",
        ]
        return f"{self.type}: {', '.join(part for part in parts if part)}"


@dataclass(frozen=True, repr=False)
class LayerRanges(
    Result,
    kind="layer_ranges",
    schema_version=5,
    checked_by="normscope.certificates.check_ranges:check",
    reread_by="normscope.models.range_tensors:reread",
    remarked_by="normscope.rules.layer_ranges:remarks",
):
    """The certified range of every tensor of a model, in the order in which they are computed."""

    model: str
    path: str | None  # of the checkpoint
    limit: Limit
    layers: Annotated[
        tuple[TensorRange, ...],
        Table("Linear layers of {0.model}, over all inputs", empty="The model has no linear layer.", most=24),
    ]
    tensors: Annotated[tuple[TensorRange, ...], Table("Other tensors of {0.model}, over all inputs", most=24)]
    others: Annotated[tuple[TensorRange, ...], Table("Further tensors that can pass the limit", most=12)]
    certificates: tuple[RangeCertificate, ...] = ()
    text: str | None = None
    dtype: str | None = None  # it was read in; None: float32, or that of the module
    sizes: str | None = None  # of the inputs that were traced, in words

    @property
    def not_covered(self) -> tuple[NotCovered, ...]:
        """Linear layers without a bound."""
        return tuple(NotCovered(row.layer, row.why or "is unbounded") for row in self.layers if not row.bounded)

    @property
    def holds(self) -> bool:
        """Whether no witness passes its bound, and those of exact bounds come near them."""
        rows = [row for row in (*self.layers, *self.tensors) if row.reached is not None and row.bound is not None]
        inside = all(abs(row.reached or 0.0) <= abs(row.bound or 0.0) * (1 + 1e-9) + 1e-12 for row in rows)
        return inside and all(row.ratio is None or row.ratio <= 1 + NEAR_ENOUGH for row in rows if row.grade == "exact")

    def __repr__(self) -> str:
        bounded = [row for row in self.layers if row.bound is not None]
        worst = max(bounded, key=lambda row: abs(row.bound or 0.0), default=None)
        parts = [f"{len(bounded)} of {len(self.layers)} linear layers bounded"]
        if worst is not None:
            parts.append(f"largest {worst.bound:.6g} at {worst.layer}[{worst.channel}]")
        return f"LayerRanges({self.model}: {'; '.join([*parts, self.limit.sentence])})"
