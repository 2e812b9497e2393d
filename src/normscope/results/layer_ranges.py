"""`normscope.ranges`: the range of each output of a linear layer that reads a norm."""

from dataclasses import dataclass, field
from typing import Annotated

from normscope.checks import Floats
from normscope.results.describe import IN_ROW, NOT_IN_JSON, Column, Table
from normscope.results.result import Result
from normscope.results.rows import NotCovered

NEAR_ENOUGH = 1e-6  # relative gap between a bound and the output for its witness
FLOAT16_MAX = 65504.0


@dataclass(frozen=True)
class Witness:
    """An input of the norm that drives the worst output of a layer to its bound, run in float64."""

    attained: float  # the output of the model's own norm and layer
    gap: Annotated[
        float, Column("distance to bound", "How near a tried input came to the largest bound, relative.", ".0e")
    ]
    input: Annotated[Floats | None, NOT_IN_JSON] = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class LayerRange:
    """A linear layer that reads a norm; bounds are None where the norm does not scale, so outputs are unbounded."""

    layer: Annotated[str, Column("layer", "The linear layer or, where its module does more than multiply, its matrix.")]
    weight: Annotated[str, Column("weight", "Its matrix.", brief=False)]
    norm: Annotated[str, Column("norm", "The norm whose output it reads.")]
    outputs: Annotated[int, Column("outputs", "How many outputs it has.")]
    low: Annotated[
        float | None,
        Column("lowest output", "No output is below this, whatever the norm reads.", ".4g"),
    ]
    high: Annotated[float | None, Column("highest output", "No output is above this, whatever the norm reads.", ".4g")]
    worst_row: Annotated[
        int | None, Column("largest at", "The output whose bound is largest in absolute value.", brief=False)
    ]
    worst_bound: Annotated[float | None, Column("largest bound", "The bound of that output.", ".6g", brief=False)]
    rows_beyond_float16: Annotated[
        int | None, Column("outputs beyond float16", "Outputs whose bound is beyond ±65504.")
    ]
    witness: Annotated[Witness | None, IN_ROW]
    lows: Annotated[Floats | None, NOT_IN_JSON] = field(default=None, repr=False, compare=False)  # of every output
    highs: Annotated[Floats | None, NOT_IN_JSON] = field(default=None, repr=False, compare=False)

    @property
    def bounded(self) -> bool:
        return self.low is not None

    @property
    def fits_float16(self) -> Annotated[bool | None, Column("fits float16", "No output leaves ±65504.", brief=False)]:
        return None if self.rows_beyond_float16 is None else not self.rows_beyond_float16


@dataclass(frozen=True, repr=False)
class LayerRanges(Result, kind="layer_ranges", schema_version=2):
    """The certified range of every linear layer that reads a norm, in the order in which they run."""

    model: str
    layers: Annotated[
        tuple[LayerRange, ...],
        Table("Ranges of linear layers of {0.model}, over all inputs", empty="No linear layer reads a norm."),
    ]
    not_covered: Annotated[tuple[NotCovered, ...], Table("Not covered")]

    @property
    def holds(self) -> bool:
        """Whether every witness comes within tolerance of its bound."""
        return all(layer.witness is None or layer.witness.gap <= NEAR_ENOUGH for layer in self.layers)

    def __repr__(self) -> str:
        bounded = [layer for layer in self.layers if layer.worst_bound is not None]
        worst = max(bounded, key=lambda layer: abs(layer.worst_bound or 0.0), default=None)
        parts = [f"{len(self.layers)} layers read a norm, {len(self.not_covered)} are not covered"]
        if worst is not None:
            parts.append(f"largest bound {worst.worst_bound:.6g} at {worst.layer}[{worst.worst_row}]")
        parts.append(f"{sum(layer.fits_float16 is False for layer in self.layers)} can exceed float16")
        return f"LayerRanges({self.model}: {'; '.join(parts)})"
