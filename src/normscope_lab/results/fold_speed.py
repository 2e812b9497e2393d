"""`normscope bench fold`: speed of a GPT-2 before and after folding."""

from dataclasses import dataclass
from typing import Annotated

from normscope.results.describe import Column, Table
from normscope.results.result import Result
from normscope_lab.bench.timing import Machine, duration


@dataclass(frozen=True)
class Pass:
    """CPU seconds of one way through the model, or through its norms alone."""

    what: Annotated[str, Column("measured", "A whole pass through the model, or its norms alone.")]
    batch: Annotated[int, Column("batch", "Sequences in a batch.")]
    tokens: Annotated[int, Column("tokens", "Tokens in each sequence.")]
    mode: Annotated[str, Column("mode", "Eager, or compiled by torch.compile.")]
    variant: Annotated[str, Column("model", "The original, folded, or folded to RMSNorms of torch or normscope.")]
    rounds: Annotated[int, Column("rounds", "How often it ran.", brief=False)]
    seconds: Annotated[float, Column("time", "CPU time, median over rounds.", duration)]
    speed: Annotated[
        float, Column("speed", "Time of the original over this one, median over rounds: above 1 is faster.", ".3f")
    ]


@dataclass(frozen=True, repr=False)
class FoldSpeed(Result, kind="fold_speed"):
    """Times of a GPT-2, original and folded."""

    machine: Machine
    malloc_keeps: bool  # whether malloc could be told to keep its memory
    layers: int
    width: int
    passes: Annotated[
        tuple[Pass, ...],
        Table("A GPT-2 of {0.layers} layers and {0.width} channels: CPU time, one thread, models in turn"),
    ]

    def __repr__(self) -> str:
        return f"FoldSpeed({self.layers} layers of {self.width} channels: {len(self.passes)} timings)"
