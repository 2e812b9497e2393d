"""Cross-entropy over a vocabulary, without the scores of all tokens at once.

    scores = hidden · tableᵀ,  p = softmax(scores)
    loss   = mean over tokens of −Σ goal·log p,  goal = (1 − s)·(the token that follows) + s/V
    d loss / d scores = (p − goal) / tokens

The scores of a batch are its largest tensor by far: they are made for some tokens at a time, which stay in the cache,
and the gradient is taken from them before the next.
"""

from typing import Any

import torch
from torch import Tensor

PART = 128  # tokens


def token_loss(hidden: Tensor, table: Tensor, following: Tensor, *, filler: int, smoothing: float = 0.0) -> Tensor:
    """The loss of hidden vectors (…, d) with a table (V, d), where the token that follows (…) is not `filler`.

    >>> hidden, table = torch.zeros(3, 2), torch.ones(4, 2)
    >>> token_loss(hidden, table, torch.tensor([1, 2, 0]), filler=0)   # log 4
    tensor(1.3863)
    """
    there = following != filler
    loss: Tensor = _TokenLoss.apply(hidden[there], table, following[there], smoothing)  # type: ignore[no-untyped-call]
    return loss


class _TokenLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, table: Tensor, following: Tensor, smoothing: float) -> Tensor:
        count, vocabulary = len(hidden), len(table)
        to_hidden, to_table = torch.empty_like(hidden), torch.zeros_like(table)
        total = hidden.new_zeros(())
        for begin in range(0, count, PART):
            part = slice(begin, begin + PART)
            chances = (hidden[part] @ table.T).log_softmax(-1)
            right = (torch.arange(len(chances), device=hidden.device), following[part])
            total -= (1 - smoothing) * chances[right].sum()
            if smoothing:
                total -= smoothing / vocabulary * chances.sum()
            change = chances.exp_()
            change[right] -= 1 - smoothing
            if smoothing:
                change -= smoothing / vocabulary
            torch.mm(change, table, out=to_hidden[part])
            to_table.addmm_(change.T, hidden[part])
        ctx.save_for_backward(to_hidden.div_(count), to_table.div_(count))
        return total / count

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        to_hidden, to_table = ctx.saved_tensors
        return gradients[0] * to_hidden, gradients[0] * to_table, None, None
