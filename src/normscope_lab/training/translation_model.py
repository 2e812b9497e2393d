"""An encoder and a decoder with one table of embeddings for both languages and the output, and its beam search."""

import math
from collections.abc import Iterable, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from normscope.nn import Norm
from normscope_lab.engine.experiment import Settings
from normscope_lab.training.dropout import Dropout
from normscope_lab.training.transformer import Attention, Block, DecoderBlock, FeedForward, KeysValues

SPECIAL = ("<pad>", "<begin>", "<end>")
PAD, BEGIN, END = range(len(SPECIAL))
LONGEST = 1024  # tokens of a sentence


class Translator(nn.Module):
    def __init__(self, vocabulary: int, settings: Settings) -> None:
        super().__init__()
        width, heads, hidden = settings["width"], settings["heads"], settings["hidden"]
        dropout, first = settings["dropout"], settings["norm_first"]
        groups = width // (settings["channels"] or width)

        def norm() -> nn.Module:
            return Norm(width, groups=groups)

        def feed_forward() -> nn.Module:
            return FeedForward(width, hidden, nn.ReLU(), dropout)

        self.embedding = nn.Embedding(vocabulary, width, padding_idx=PAD)
        nn.init.normal_(self.embedding.weight, std=width**-0.5)
        self.positions: Tensor
        self.register_buffer("positions", waves(LONGEST, width), persistent=False)
        self.dropout = Dropout(dropout)
        self.encoder = nn.ModuleList(
            Block(Attention(width, heads, dropout=dropout), feed_forward(), norm(), norm(), dropout, first)
            for _ in range(settings["layers"])
        )
        self.decoder = nn.ModuleList(
            DecoderBlock(
                Attention(width, heads, dropout=dropout),
                Attention(width, heads, dropout=dropout),
                feed_forward(),
                (norm(), norm(), norm()),
                dropout,
                first,
            )
            for _ in range(settings["layers"])
        )
        self.encoded = norm() if first else nn.Identity()
        self.decoded = norm() if first else nn.Identity()

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Scores of the next token at every token of the target."""
        return self.decode(target, *self.encode(source)) @ self.embedding.weight.T

    def encode(self, source: Tensor) -> tuple[Tensor, Tensor]:
        """The memory of a sentence, and which of its tokens are there."""
        there = source != PAD
        x = self._embedded(source)
        for block in self.encoder:
            x = block(x, allowed=there)
        return self.encoded(x), there

    def decode(self, target: Tensor, memory: Tensor, there: Tensor) -> Tensor:
        x = self._embedded(target)
        for block in self.decoder:
            x = block(x, memory, there)
        decoded: Tensor = self.decoded(x)
        return decoded

    def read(self, memory: Tensor) -> list[KeysValues]:
        """Keys and values of the memory, for every block of the decoder."""
        return [block.across.keys_values(memory) for block in self._blocks()]

    def decode_next(
        self,
        token: Tensor,
        place: int,
        before: Sequence[KeysValues | None],
        memory: Sequence[KeysValues],
        there: Tensor,
    ) -> tuple[Tensor, list[KeysValues]]:
        """The same for one more token (sentences, 1) at a place, with keys and values of every block."""
        x, now = self._embedded(token, place), []
        for block, old, read in zip(self._blocks(), before, memory, strict=True):
            x, new = block.next(x, old, read, there)
            now.append(new)
        return self.decoded(x), now

    def _blocks(self) -> Iterable[DecoderBlock]:
        return cast(Iterable[DecoderBlock], self.decoder)

    def _embedded(self, tokens: Tensor, place: int = 0) -> Tensor:
        """Of tokens that begin at a place."""
        width, end = self.embedding.embedding_dim, place + tokens.shape[1]
        embedded: Tensor = self.dropout(self.embedding(tokens) * width**0.5 + self.positions[place:end])
        return embedded


def waves(length: int, width: int) -> Tensor:
    """Sines and cosines of each position at frequencies from 1 down to 1/10,000, (length, width)."""
    angles = torch.arange(length)[:, None] * torch.exp(torch.arange(0, width, 2) * (-math.log(10_000) / width))
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)


@torch.no_grad()
def translated(model: Translator, source: Tensor, beam: int, most: int) -> list[list[int]]:
    """For each sentence (sentences, tokens) the best translation that a beam search finds, by mean log-probability.

    It ends at END or after `most` tokens; special tokens are left out.
    """
    encoded, there = (part.repeat_interleave(beam, dim=0) for part in model.encode(source))
    memory = model.read(encoded)
    past: list[KeysValues | None] = [None] * len(memory)
    count, device = len(source), source.device
    tokens = torch.full((count, beam, 1), BEGIN, device=device)
    scores = torch.full((count, beam), -torch.inf, device=device)
    scores[:, 0] = 0  # all begin alike: only one of them counts
    ended = torch.zeros(count, beam, dtype=torch.bool, device=device)
    lengths = torch.ones(count, beam, device=device)
    first = beam * torch.arange(count, device=device)[:, None]  # line of each sentence in what is kept by beams
    for place in range(most):
        last, now = model.decode_next(tokens[..., -1].reshape(-1, 1), place, past, memory, there)
        chances = (last[:, 0] @ model.embedding.weight.T).log_softmax(-1).view(count, beam, -1)
        chances[ended] = -torch.inf
        chances[..., PAD] = torch.where(ended, 0.0, -torch.inf)  # what has ended stays as it is
        scores, chosen = (scores[..., None] + chances).flatten(1).topk(beam)
        parent, token = chosen // chances.shape[-1], chosen % chances.shape[-1]
        lines = (first + parent).flatten()
        past = [(key[lines], value[lines]) for key, value in now]
        ended, lengths = ended.gather(1, parent), lengths.gather(1, parent)
        tokens = torch.cat([tokens.gather(1, parent[..., None].expand_as(tokens)), token[..., None]], dim=-1)
        lengths = lengths + (~ended).float()
        ended = ended | (token == END)
        if ended.all():
            break
    best = (scores / lengths).argmax(dim=1)
    kept = tokens[torch.arange(count, device=device), best]
    return [[token for token in sentence if token >= len(SPECIAL)] for sentence in kept.tolist()]
