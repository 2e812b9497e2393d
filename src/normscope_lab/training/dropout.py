"""Dropout whose random numbers are drawn four at a time.

torch draws one random number for each entry: a fifth of a training step of a narrow transformer. One draw of 64 bits is
four numbers of 16 bits, so that rates are multiples of 1/65,536.
"""

import torch
from torch import Tensor, nn

from normscope.errors import InputError

STEPS = 2**16  # values of a number of 16 bits


class Dropout(nn.Module):
    """torch's Dropout, with other random numbers."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        if not 0 <= rate <= 1:
            raise InputError(f"dropout must be from 0 to 1, got {rate}")
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        return dropped(x, self.rate) if self.training else x

    def extra_repr(self) -> str:
        return f"rate={self.rate}"


def dropped(x: Tensor, rate: float) -> Tensor:
    """x with a share of its entries, at random, set to 0, and the others divided by what is left of the share.

    >>> dropped(torch.ones(3), 0.0), dropped(torch.ones(3), 1.0)
    (tensor([1., 1., 1.]), tensor([0., 0., 0.]))
    """
    lost = round(rate * STEPS)
    if lost in (0, STEPS):
        return x if lost == 0 else torch.zeros_like(x)
    drawn = torch.empty(-(-x.numel() // 4), dtype=torch.int64, device=x.device).random_(-(2**63), None)
    kept = drawn.view(torch.int16)[: x.numel()].view(x.shape) >= lost - STEPS // 2
    return x * kept.to(x.dtype).mul_(STEPS / (STEPS - lost))
