"""Majority: at every token, say which token of the sequence is the most frequent.

Attending to all tokens equally solves it. After LayerNorm all keys are orthogonal to (1, …, 1), so a query along that
line attends to all of them equally; without the projection there is no such direction for free [1].

[1] Brody et al., On the Expressivity Role of LayerNorm in Transformers' Attention, ACL Findings 2023.
"""

from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, cross_entropy

from normscope.nn import Norm
from normscope_lab.engine.cell_state import CellState
from normscope_lab.engine.experiment import Settings
from normscope_lab.engine.tidy_rows import Row
from normscope_lab.training.training_loop import best_device, descend, hits, in_parts, linear_decay, train
from normscope_lab.training.transformer import Attention, Block, FeedForward

VARIANTS = ("with projection", "without projection")
PER_PARTITION = 10  # sequences that share their counts
DIFFERENT = (
    "counts of classes uniform among their partitions (the paper: partitions as a search meets them), batches drawn "
    "with replacement (the paper: by epochs), maps of attention begun as torch begins them (the paper: Xavier's way)"
)
TRAINING = 0.8  # the share of the sequences that is trained on


class Majority(nn.Module):
    """One transformer layer of one head; its scores are products with the embedding."""

    def __init__(self, classes: int, width: int, variant: str) -> None:
        super().__init__()
        self.embedding = nn.Embedding(classes, width)
        norm = Norm(width, affine=False, eps=0.0) if variant == VARIANTS[0] else OnlyScaling(width)
        feed_forward = FeedForward(width, width, nn.ReLU())
        self.block = Block(Attention(width, 1, bias=False), feed_forward, norm, Norm(width, eps=0.0))

    def forward(self, tokens: Tensor) -> Tensor:
        scores: Tensor = self.block(self.embedding(tokens)) @ self.embedding.weight.T
        return scores

    def keys(self) -> Tensor:
        """What the attention is given for each class, (classes, width)."""
        given: Tensor = self.block.norm1(self.embedding.weight)
        return given

    def queries(self) -> Tensor:
        """For each class, the vector whose products with `keys` are its scores in attention, (classes, width)."""
        attention = self.block.attention
        width = self.embedding.embedding_dim
        turned: Tensor = self.keys() @ attention.query.weight.T @ attention.key.weight / width**0.5
        return turned


class OnlyScaling(nn.Module):
    """x/|x|/√d, the paper's norm without projection."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.norm = Norm(width, project=False, affine=False, eps=0.0)

    def forward(self, x: Tensor) -> Tensor:
        scaled: Tensor = self.norm(x) / self.width
        return scaled


def trained(settings: Settings, seed: int, state: CellState) -> tuple[list[Row], Majority]:
    """Train one variant: every few steps a row with its loss, and after each epoch its accuracy and angles."""
    device = best_device()
    tokens, target = (part.to(device) for part in sequences(settings, seed))
    parting = int(TRAINING * len(tokens))
    model = Majority(settings["classes"], settings["width"], settings["variant"]).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=settings["learning_rate"])
    schedule = linear_decay(optimizer, settings["decay_steps"])

    def epoch(number: int) -> list[Row]:
        rows, losses = [], []
        for step in range(number * settings["epoch"] + 1, (number + 1) * settings["epoch"] + 1):
            batch = torch.randint(parting, (settings["batch"],)).to(device)
            loss = loss_of(model, tokens[batch], target[batch])
            losses.append(descend(loss, optimizer, schedule))
            if step % settings["every"] == 0:
                rows.append({**place, "step": step, "loss": sum(losses) / len(losses)})
                losses = []
        rows[-1] |= judged(model, tokens[parting:], target[parting:])
        return rows

    place: Row = {"variant": settings["variant"], "seed": seed}
    return train(state, (model, optimizer, schedule), settings["steps"] // settings["epoch"], epoch), model


def loss_of(model: Majority, tokens: Tensor, target: Tensor) -> Tensor:
    """Cross-entropy at every token."""
    return cross_entropy(model(tokens).flatten(0, 1), target.repeat_interleave(tokens.shape[1]))


@torch.no_grad()
def judged(model: Majority, tokens: Tensor, target: Tensor) -> Row:
    """Accuracy over the tokens of unseen sequences, and the mean angle of their queries."""
    right = torch.cat([hits(model(part), goal[:, None]) for part, goal in in_parts(tokens, target, 4096)])
    angles = angle_to_ones(model.queries())[tokens]
    return {"test_accuracy": right.mean().item(), "angle": angles.mean().item()}


def angle_to_ones(vectors: Tensor) -> Tensor:
    """Degrees between each vector and the line of (1, …, 1), from 0 to 90.

    >>> [round(angle.item()) for angle in angle_to_ones(torch.tensor([[-2.0, -2.0], [1.0, -1.0], [1.0, 0.0]]))]
    [0, 90, 45]
    """
    cosine = cosine_similarity(vectors, torch.ones_like(vectors), dim=-1)
    return torch.rad2deg(torch.acos(cosine.abs().clamp(max=1)))


def sequences(settings: Settings, seed: int) -> tuple[Tensor, Tensor]:
    """Tokens (samples, length) and the class (samples,) that leads by `lead` or more in each.

    Counts are uniform among the partitions of the length into at most `classes` parts that have such a lead.
    """
    length, classes, samples = settings["length"], settings["classes"], settings["samples"]
    draw = np.random.default_rng([seed, length, classes])
    tokens, target = np.empty((samples, length), np.int64), np.empty(samples, np.int64)
    row = 0
    while row < samples:
        counts = random_partition(length, classes, draw)
        if len(counts) == 1 or counts[0] - counts[1] < settings["lead"]:
            continue
        for _ in range(min(PER_PARTITION, samples - row)):
            named = draw.permutation(classes)[: len(counts)]
            tokens[row], target[row] = np.repeat(named, counts), named[0]
            row += 1
    order = draw.permutation(samples)
    return torch.from_numpy(tokens[order]), torch.from_numpy(target[order])


def random_partition(total: int, most: int, draw: np.random.Generator) -> NDArray[np.int64]:
    """Whole numbers in descending order that add up to `total`, at most `most` of them, all such equally likely.

    >>> random_partition(3, 1, np.random.default_rng(0))
    array([3])
    """
    columns: list[int] = []  # of the Young diagram: a partition into at most `most` parts, read the other way
    while total:
        columns.append(1 + int(np.searchsorted(_shares(total, columns[-1] if columns else most), draw.random())))
        total -= columns[-1]
    parts: NDArray[np.int64] = (np.array(columns)[:, None] > np.arange(columns[0])).sum(axis=0)
    return parts


@cache
def _shares(total: int, largest: int) -> NDArray[np.float64]:
    """Of the ways to write `total` as a sum of numbers up to `largest`, the share whose largest is 1, up to 2, …"""
    ways = [_ways(total - size, size) for size in range(1, min(largest, total) + 1)]
    return np.cumsum(np.array(ways, float)) / sum(ways)


@cache
def _ways(total: int, largest: int) -> int:
    """How many ways there are to write `total` as a sum of numbers up to `largest`, the order left aside."""
    return 1 if total == 0 else sum(_ways(total - size, size) for size in range(1, min(largest, total) + 1))
