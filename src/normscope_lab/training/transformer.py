"""A transformer's parts, with its norms given from outside: x + attention(norm1(x)), then + feed-forward(norm2(x)).

With norm_first=False, as the first transformers had it: norm1(x + attention(x)), then norm2(x + feed-forward(x)).

torch's own encoder layer would do, were it not for its fast path: in eval mode it reads gain and bias of norm1 and
norm2 and computes a LayerNorm with them, even if they are other modules.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from normscope_lab.training.dropout import Dropout, dropped

KeysValues = tuple[Tensor, Tensor]


class Attention(nn.Module):
    """Attention of several heads, from x to itself or to a memory."""

    def __init__(self, width: int, heads: int, *, bias: bool = True, dropout: float = 0.0) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.query = nn.Linear(width, width, bias=bias)
        self.key = nn.Linear(width, width, bias=bias)
        self.value = nn.Linear(width, width, bias=bias)
        self.out = nn.Linear(width, width)

    def forward(
        self, x: Tensor, memory: Tensor | None = None, *, allowed: Tensor | None = None, causal: bool = False
    ) -> Tensor:
        """`allowed`: (batch, keys), which keys may be attended to; None: all."""
        return self.mixed(x, *self.keys_values(x if memory is None else memory), allowed=allowed, causal=causal)

    def keys_values(self, source: Tensor) -> KeysValues:
        """(batch, heads, tokens, channels) each."""
        return self._split(self.key(source)), self._split(self.value(source))

    def mixed(
        self, x: Tensor, key: Tensor, value: Tensor, *, allowed: Tensor | None = None, causal: bool = False
    ) -> Tensor:
        """What the queries of x make of keys and values that are there already."""
        query = self._split(self.query(x))
        mask = None if allowed is None else allowed[:, None, None, :]
        if self.training and self.dropout:
            mixed = dropped(attention_weights(query, key, mask, causal=causal), self.dropout) @ value
        else:
            mixed = scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=causal)
        joined: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return joined

    def _split(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)  # (batch, heads, tokens, channels)


def attention_weights(query: Tensor, key: Tensor, mask: Tensor | None, *, causal: bool) -> Tensor:
    """Softmax of queries with keys, (…, queries, keys), where a mask allows it and, if causal, no key comes later."""
    scores = (query * query.shape[-1] ** -0.5) @ key.mT
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    if causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(later, -torch.inf)
    weights: Tensor = scores.softmax(-1)
    return weights


class FeedForward(nn.Sequential):
    def __init__(self, width: int, hidden: int, activation: nn.Module, dropout: float = 0.0) -> None:
        super().__init__(nn.Linear(width, hidden), activation, Dropout(dropout), nn.Linear(hidden, width))


class Block(nn.Module):
    """One layer of an encoder, or of a decoder without a memory."""

    def __init__(
        self,
        attention: Attention,
        feed_forward: nn.Module,
        norm1: nn.Module,
        norm2: nn.Module,
        dropout: float = 0.0,
        norm_first: bool = True,
    ) -> None:
        super().__init__()
        self.attention, self.feed_forward = attention, feed_forward
        self.norm1, self.norm2 = norm1, norm2
        self.added = Added(dropout, norm_first)

    def forward(self, x: Tensor, *, allowed: Tensor | None = None, causal: bool = False) -> Tensor:
        x = self.added(x, self.norm1, lambda given: self.attention(given, allowed=allowed, causal=causal))
        x = self.added(x, self.norm2, self.feed_forward)
        return x


class DecoderBlock(nn.Module):
    """One layer of a decoder, which also attends to a memory."""

    def __init__(
        self,
        attention: Attention,
        across: Attention,
        feed_forward: nn.Module,
        norms: tuple[nn.Module, nn.Module, nn.Module],
        dropout: float = 0.0,
        norm_first: bool = True,
    ) -> None:
        super().__init__()
        self.attention, self.across, self.feed_forward = attention, across, feed_forward
        self.norm1, self.norm2, self.norm3 = norms
        self.added = Added(dropout, norm_first)

    def forward(self, x: Tensor, memory: Tensor, allowed: Tensor) -> Tensor:
        x = self.added(x, self.norm1, lambda given: self.attention(given, causal=True))
        return self._after_attention(x, self.across.keys_values(memory), allowed)

    def next(
        self, x: Tensor, before: KeysValues | None, memory: KeysValues, allowed: Tensor
    ) -> tuple[Tensor, KeysValues]:
        """The same for one more token, (batch, 1, width): its output, and keys and values with its own at the end.

        `before`: keys and values of the tokens before it, `memory`: those of the memory.
        """
        all_now: list[KeysValues] = []

        def attended(given: Tensor) -> Tensor:
            own = self.attention.keys_values(given)
            key, value = own if before is None else (torch.cat(pair, dim=2) for pair in zip(before, own, strict=True))
            all_now.append((key, value))
            return self.attention.mixed(given, key, value)

        x = self.added(x, self.norm1, attended)
        return self._after_attention(x, memory, allowed), all_now[0]

    def _after_attention(self, x: Tensor, memory: KeysValues, allowed: Tensor) -> Tensor:
        x = self.added(x, self.norm2, lambda given: self.across.mixed(given, *memory, allowed=allowed))
        x = self.added(x, self.norm3, self.feed_forward)
        return x


class Added(nn.Module):
    """What a part makes of x, added to it, with the norm before the part or after the sum."""

    def __init__(self, dropout: float, norm_first: bool) -> None:
        super().__init__()
        self.dropout, self.norm_first = Dropout(dropout), norm_first

    def forward(self, x: Tensor, norm: nn.Module, part: Callable[[Tensor], Tensor]) -> Tensor:
        total: Tensor = x + self.dropout(part(norm(x))) if self.norm_first else norm(x + self.dropout(part(x)))
        return total


def small_weights(module: nn.Module, deviation: float = 0.02) -> None:
    """Weights of linear maps and embeddings from N(0, deviation²), biases 0: how GPT-2, BERT and ViT begin."""
    if isinstance(module, (nn.Linear, nn.Embedding)):
        nn.init.normal_(module.weight, std=deviation)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
