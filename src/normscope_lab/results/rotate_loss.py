"""`normscope bench rotate`: what rounding costs a language model as it is, folded, and rotated."""

from dataclasses import dataclass
from typing import Annotated

from normscope.results.describe import Column, Table
from normscope.results.result import Result
from normscope_lab.bench.timing import Machine

NEAR, ALL = "norms' readers", "all layers"


@dataclass(frozen=True)
class Loss:
    """The loss of one model under one rounding, mean over seeds; a bit width is None where nothing is rounded."""

    layers: Annotated[str, Column("rounded", "Layers that read a norm, or all linear layers; never the head.")]
    weight_bits: Annotated[int | None, Column("weight bits", "Weights are rounded to this, row by row.")]
    input_bits: Annotated[int | None, Column("input bits", "Inputs are rounded to this, token by token.")]
    variant: Annotated[str, Column("model", "The model as it is, folded, or folded and rotated.")]
    seeds: Annotated[int, Column("seeds", "Rotations that the loss is the mean of.")]
    added: Annotated[float, Column("added loss", "Loss above that of the model as it is, in nats per token.", ".4f")]
    error: Annotated[
        float | None, Column("standard error", "Of the added loss, over pieces of the text; none of one piece.", ".4f")
    ]
    worst: Annotated[float, Column("worst seed", "Added loss of the worst rotation.", ".4f")]


@dataclass(frozen=True)
class Channels:
    """Outliers among the channels of the stream: each counts by its largest absolute value, where norms read it."""

    variant: Annotated[str, Column("model", "The model as it is, folded, or folded and rotated.")]
    seeds: Annotated[int, Column("seeds", "Rotations that all figures are the mean of.")]
    median: Annotated[float, Column("largest / median", "Largest over median channel, median over norms.", ".1f")]
    worst: Annotated[float, Column("worst norm", "Largest over median channel, where that is largest.", ".1f")]
    later_median: Annotated[float, Column("later tokens", "The median without the first tokens of a piece.", ".1f")]
    later_worst: Annotated[float, Column("their worst norm", "The worst norm without these tokens.", ".1f")]


@dataclass(frozen=True, repr=False)
class RotateLoss(Result, kind="rotate_loss"):
    """Loss after rounding, and channels of the stream, of a model before and after exact rewrites."""

    machine: Machine
    model: str
    matrix: str  # the kind of rotation
    tokens: int
    length: int  # tokens of each piece of the text
    skipped: int  # tokens at the start of a piece that `later_median` and `later_worst` leave out
    stream_tokens: int  # tokens on which the stream was measured
    loss: float  # of the model as it is, in nats per token
    certified: bool  # whether every rewrite has a certificate that holds
    readers: int  # linear layers that read a norm, without the head
    layers: int  # linear layers, without the head
    left_out: tuple[str, ...]  # modules with weight matrices that are not rounded
    losses: Annotated[tuple[Loss, ...], Table("Added loss of {0.model} after rounding, {0.tokens} tokens")]
    channels: Annotated[tuple[Channels, ...], Table("Largest over median channel of the stream")]

    @property
    def holds(self) -> bool:
        """Whether all models that were compared are the same function."""
        return self.certified

    def __repr__(self) -> str:
        return f"RotateLoss({self.model}: {len(self.losses)} losses on {self.tokens} tokens)"
