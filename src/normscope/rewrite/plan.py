"""What is to be done to a model, decided and not yet done: verdicts for people, changes for the stored tensors.

centring   W ← ΠW,  b ← Πb                                                       of everything that writes a stream
affine     W·(g∘z + b) + c  =  (W·diag(t))·((g∘z + b − s)/t) + (W·s + c)          t, s: what readers take over
"""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from normscope.rewrite.results import Verdict


@dataclass(frozen=True)
class TakenBy:
    """A linear layer that takes over gain and bias of the norm that it reads."""

    layer: str
    weight: str
    axis: int  # of the weight, along its inputs
    bias: str | None  # the tensor that takes W·s; None if s is 0
    factor: float  # between the norm and the layer


@dataclass(frozen=True, eq=False)
class Taken:
    """What all readers of a norm take over from it."""

    norm: str
    gain: Tensor  # t, of float64: 1 where the norm keeps its own
    bias: Tensor  # s
    readers: tuple[TakenBy, ...]
    gain_tensor: str | None  # where the norm stores its own,
    bias_tensor: str | None
    adds_one: bool  # and whether its gain is 1 + w of the stored w


@dataclass(frozen=True)
class LookUp:
    """A table that stays as it is, in a stream of which all else is centred."""

    module: str
    tensor: str
    can_be_wrapped: bool  # all that the module makes is part of the stream


@dataclass(frozen=True)
class Plan:
    """What becomes of every norm, and of the tensors of a model, each by the first of its names."""

    verdicts: tuple[Verdict, ...]
    centred: Mapping[str, int]  # tensor → the axis over which its mean becomes zero
    taken: tuple[Taken, ...]
    look_ups: tuple[LookUp, ...]
