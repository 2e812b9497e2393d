"""Inputs of a norm that drive an output as far as it goes: √N·G·u, with u along the output's direction.

The norm scales its input to length √N in each group, so that any length will do; eps shortens the output by less than
1e-7 if the input is large enough.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.fx import Node

from normscope.certificates.range_certificates import Matrix
from normscope.checks import Floats
from normscope.norm import Norm
from normscope.results.layer_ranges import Grade
from normscope.tensors.linear_rows import Ball


@dataclass(frozen=True, eq=False)
class Written:
    """What is kept of a layer's outputs: where they come from, and the best witness."""

    grade: Grade
    ball: Ball | None
    channel: int
    sign: int
    direction: Floats | None  # of the norm, for that channel
    weights: Floats | None  # the layer's row, where it reads the norm as it is
    matrix: Matrix | None = None  # where that row is stored


@dataclass(frozen=True, eq=False)
class Driven:
    """A witness: an input of a norm, and the output of the layer for it."""

    input: Floats
    reached: float
    grade: Grade


def driving_input(norm: Norm, direction: Floats) -> Floats:
    """An input that a norm takes to b + √N·G·u, u along the direction (in each group), to within 1e-7.

    Its root mean square is so large that eps is negligible, inside or outside the root.

    >>> driving_input(Norm(gain=[1, 2], eps=1e-12), np.array([3.0, -3.0]))
    array([ 1., -1.])
    """
    size = max(1.0, 1e4 * math.sqrt(norm.eps), 1e7 * norm.eps)
    along = norm.project(direction).reshape(norm.groups, -1)
    # Where a group cannot move the output, any input will do; not zero, which has no direction.
    anything = norm.project(np.resize([1.0, -1.0], norm.size)).reshape(norm.groups, -1)
    along = np.where(~along.any(axis=1, keepdims=True), anything, along)
    along = along / np.maximum(np.abs(along).max(axis=1, keepdims=True), np.finfo(float).tiny)
    root = np.sqrt(np.mean(along**2, axis=1, keepdims=True))
    driven: Floats = (size * along / np.where(root == 0.0, 1.0, root)).reshape(norm.size)
    return driven


def along_axis(x: Floats, value: Node, axis: int) -> Tensor:
    """A vector along one axis of a tensor, the same everywhere else."""
    shape = value.meta["val"].shape
    view = [len(x) if at == axis % len(shape) else 1 for at in range(len(shape))]
    return torch.from_numpy(x).reshape(view).expand(shape)
