"""What proves the bound of one output of a layer: where its numbers are stored, and the multipliers.

reader   t = scale·(W[rows]·y + bias[rows])         y: the output of a norm, b + √N·G·Π·u with |u| ≤ 1
linear   output = w·t + shift                        bound: its largest value over the ball, in closed form
neurons  output = factor·Σ wⱼ·act(tⱼ)·vⱼ + shift     bound: by multipliers, see `neuron_certificates`
"""

from dataclasses import dataclass, field
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray

from normscope.certificates.neuron_certificates import HIDDEN, Division
from normscope.checks import Floats


@dataclass(frozen=True)
class Matrix:
    """A stored matrix: (outputs, inputs), or transposed; of a stack of experts, one of them."""

    weight: str
    transposed: bool
    expert: int | None = None


@dataclass(frozen=True)
class Reader:
    """Linear functions of a norm's output: some rows of a stored matrix, scaled, with a stored bias."""

    matrix: Matrix
    bias: str | None
    rows: Annotated[NDArray[np.int64] | None, HIDDEN] = field(default=None, repr=False, compare=False)
    scale: Annotated[Floats | None, HIDDEN] = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class RangeCertificate:
    """Output `channel` of a layer, times `sign`, is at most `bound`, whatever the norm reads.

    Where `activation` is None the layer reads the norm, and `gate` is None; otherwise it reads neurons.
    """

    layer: str
    channel: int
    sign: Literal[-1, 1]
    bound: float
    reached: float  # sign × what the model's own operations gave for `input`
    norm: str
    matrix: Matrix
    shift: float  # the layer's own bias at this channel
    bias: str | None  # its name
    activation: str | None = None
    factor: float = 1.0
    gate: Reader | None = None
    up: Reader | None = None
    kind: Literal["quadratic", "divided", "intervals", "exact"] = "exact"
    lam: float = 0.0
    s: float = 0.0
    division: Division | None = None
    first: Annotated[Floats | None, HIDDEN] = field(default=None, repr=False, compare=False)
    second: Annotated[Floats | None, HIDDEN] = field(default=None, repr=False, compare=False)
    input: Annotated[Floats | None, HIDDEN] = field(default=None, repr=False, compare=False)  # of the norm
