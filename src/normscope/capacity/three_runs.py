"""Samples on their way through a network that is being built, followed three ways: in exact arithmetic, as a batch in
torch, and one by one in torch.

Exact means the midpoints of balls of 256 bits: near enough to choose the next layer by. The proof is made afterwards,
by `certify`.
"""

from typing import TYPE_CHECKING

import numpy as np

from normscope.capacity.balls import Point, ball, ball_map, images, mapped, precision, scaled
from normscope.capacity.scaling_layer import BASIS, WIDTH
from normscope.checks import Floats

if TYPE_CHECKING:
    from torch import nn

BITS = 256


class ThreeRuns:
    """The samples after the layers so far."""

    def __init__(self, inputs: Floats, dtype: str, eps: float) -> None:
        import torch

        self.unit = float(np.finfo(dtype).eps)
        self._eps, self._inputs = eps, inputs
        self._exact: list[Point] = []
        self._batch = torch.from_numpy(inputs).to(getattr(torch, dtype))
        self._single = [self._batch[row : row + 1] for row in range(len(inputs))]

    def advance(self, linear: "nn.Linear") -> None:
        """Through a Linear and the LayerNorm after it."""
        import torch
        from torch.nn.functional import layer_norm
        from torch.nn.functional import linear as apply

        with torch.inference_mode():
            weight, bias, shape = linear.weight, linear.bias, (WIDTH,)
            self._batch = layer_norm(apply(self._batch, weight, bias), shape, eps=self._eps)
            self._single = [layer_norm(apply(row, weight, bias), shape, eps=self._eps) for row in self._single]
        with precision(BITS):
            affine = ball_map(linear, reads=bool(self._exact), writes=True)
            rows = mapped(affine, self._exact) if self._exact else images(affine, self._inputs)
            self._exact = [(x.mid(), y.mid()) for x, y in scaled(rows, self._eps)]

    def ratios(self, upper: Floats, lower: Floats) -> tuple[Floats, Floats]:
        """(n₀ + n₁x + n₂y)/(d₀ + d₁x + d₂y) of each sample, and how far its two floats are from that at most."""
        import torch

        n, d = [ball(value) for value in upper.tolist()], [ball(value) for value in lower.tolist()]
        with precision(BITS):
            exact = np.array(
                [float((n[0] + n[1] * x + n[2] * y) / (d[0] + d[1] * x + d[2] * y)) for x, y in self._exact]
            )
        error = np.zeros(len(exact))
        for outputs in (self._batch, torch.cat(self._single)):
            points = outputs.double().numpy() @ BASIS / np.sqrt(WIDTH)
            error = np.maximum(error, np.abs((points @ upper[1:] + upper[0]) / (points @ lower[1:] + lower[0]) - exact))
        return exact, error
