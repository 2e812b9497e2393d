"""`normscope bench lng`: the fused norms against those of torch."""

from dataclasses import dataclass
from typing import Annotated

from normscope.results.describe import Column, Table
from normscope.results.result import Result
from normscope_lab.bench.timing import Machine, duration


@dataclass(frozen=True)
class Timing:
    """How long one way to compute a norm takes: CPU time on one thread, or wall time on a GPU."""

    rows: Annotated[int, Column("rows", "Rows of the tensor.")]
    channels: Annotated[int, Column("channels", "Channels of the tensor, which are normalized.")]
    dtype: Annotated[str, Column("data type", "Floating-point type of the tensor.")]
    passes: Annotated[str, Column("passes", "Forward, or forward and backward.")]
    way: Annotated[str, Column("function", "What computes the norm; copy_ only copies the tensor.")]
    groups: Annotated[int, Column("groups", "Groups of channels that are normalized apart.")]
    rounds: Annotated[int, Column("rounds", "How often it ran.", brief=False)]
    median_seconds: Annotated[float, Column("time", "Median over rounds: CPU time, or wall time on a GPU.", duration)]
    least_seconds: Annotated[float, Column("least time", "The fastest round.", duration, brief=False)]
    ratio: Annotated[
        float, Column("over F.layer_norm", "Median time over that of F.layer_norm on the same tensor.", ".2f")
    ]
    least_ratio: Annotated[
        float, Column("least over F.layer_norm", "The same for the fastest rounds.", ".2f", brief=False)
    ]


@dataclass(frozen=True, repr=False)
class LngSpeed(Result, kind="lng_speed"):
    """Times of LayerNorm, RMSNorm and LN-G, by normscope and by torch, on the same tensors."""

    machine: Machine  # with the GPU as its processor, if one was measured
    malloc_keeps: bool  # whether malloc could be told to keep its memory
    timings: Annotated[tuple[Timing, ...], Table("Norms with gain and bias: median times, all functions in turn")]

    def __repr__(self) -> str:
        ours = [timing.ratio for timing in self.timings if timing.way.startswith("normscope")]
        return f"LngSpeed({len(ours)} timings of normscope, {min(ours):.2f} to {max(ours):.2f} of F.layer_norm)"
