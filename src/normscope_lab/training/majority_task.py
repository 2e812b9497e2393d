"""Majority: at every token, say which token of the sequence is the most frequent.

Attending to all tokens equally solves it. After LayerNorm all keys are orthogonal to (1, …, 1), so a query along that
line attends to all of them equally; without the projection there is no such direction for free [1].

All tokens of a class are alike and there are no positions, so a sequence is its counts n of classes. Attention from
class c, and the mean loss over all tokens, are

    Σⱼ nⱼ exp(s_cj) vⱼ / Σⱼ nⱼ exp(s_cj)        Σ_c n_c loss_c / Σ_c n_c

The published comparison changes two things at once: LayerNorm gives keys of length √d, and the norm without projection
that it is compared with, x/|x|/√d, keys of length 1/√d, for which scores are d² times smaller. Here are all four.

[1] Brody et al., On the Expressivity Role of LayerNorm in Transformers' Attention, ACL Findings 2023.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, cross_entropy, scaled_dot_product_attention

from normscope.errors import InputError
from normscope.nn import Norm
from normscope_lab.engine.cell_state import CellState
from normscope_lab.engine.experiment import Settings
from normscope_lab.engine.tidy_rows import Row
from normscope_lab.training.training_loop import best_device, descend, linear_decay, train

LONG, SHORT = "√d", "1/√d"  # lengths of the keys
VARIANTS = tuple(f"{side} projection, keys of length {size}" for size in (LONG, SHORT) for side in ("with", "without"))
WITH_LONG, WITHOUT_LONG, WITH_SHORT, WITHOUT_SHORT = VARIANTS
PUBLISHED = (WITH_LONG, WITHOUT_SHORT)  # the variants that the paper compares
PER_PARTITION = 10  # sequences that share their counts
TRAINING = 0.8  # the share of the sequences that is trained on


class Majority(nn.Module):
    """One transformer layer of one head, initialised as torch's own; its scores are products with the embedding."""

    def __init__(self, classes: int, width: int, variant: str) -> None:
        super().__init__()
        self.width = width
        self.shrink = 1.0 if variant in (WITH_LONG, WITHOUT_LONG) else 1.0 / width
        self.embedding = nn.Parameter(torch.randn(classes, width))
        self.norm = Norm(width, project=variant in (WITH_LONG, WITH_SHORT), affine=False, eps=0.0)
        self.maps = nn.Parameter(nn.init.xavier_uniform_(torch.empty(3 * width, width)))  # queries, keys, values
        self.out = nn.Linear(width, width)
        nn.init.zeros_(self.out.bias)
        self.norm2 = Norm(width, eps=0.0)
        self.feed_forward = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))

    def keys(self) -> Tensor:
        """What the attention is given for each class, (classes, width)."""
        given: Tensor = self.norm(self.embedding) * self.shrink
        return given

    def queries(self) -> Tensor:
        """For each class, the vector whose products with `keys` are its scores in attention, (classes, width)."""
        query, key, _ = self.maps.chunk(3)
        turned: Tensor = self.keys() @ query.T @ key / self.width**0.5
        return turned

    def weights(self) -> Tensor:
        """exp(s), (query, key), where a factor for each query is free: the largest is 1."""
        scores = self.queries() @ self.keys().T
        return (scores - scores.amax(1, keepdim=True).detach()).exp()

    def forward(self, counts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """For each class that a sequence has: the scores of one such token, its sequence, and how many there are."""
        values = self.keys() @ self.maps.chunk(3)[2].T
        summands = torch.cat([values, torch.ones_like(values[:, :1])], 1)  # the denominator as one more channel
        mixed = counts @ (self.weights().T[:, :, None] * summands[:, None, :]).flatten(1)
        there = counts.flatten().nonzero()[:, 0]  # (sequence, class) as one number
        mixed = mixed.view(-1, self.width + 1)[there]
        tokens = self.embedding[there % len(self.embedding)]
        scores = self._after(tokens, mixed[:, :-1] / mixed[:, -1:])
        return scores, there // len(self.embedding), counts.flatten()[there]

    def tables(self) -> tuple[Tensor, ...]:
        """The same function as the small tables that `MajorityLoss` is given."""
        values = self.out(self.keys() @ self.maps.chunk(3)[2].T)
        gain, bias = self.norm2.parameters()
        first, first_bias, second, second_bias = self.feed_forward.parameters()
        return self.weights(), values, self.embedding, first * gain, first_bias + first @ bias, second, second_bias

    def at_tokens(self, tokens: Tensor) -> Tensor:
        """The scores at every token (sequences, length), computed token by token."""
        query, key, value = (self.keys()[tokens] @ self.maps.T).chunk(3, -1)
        return self._after(self.embedding[tokens], scaled_dot_product_attention(query, key, value))

    def _after(self, x: Tensor, mixed: Tensor) -> Tensor:
        x = x + self.out(mixed)
        scores: Tensor = (x + self.feed_forward(self.norm2(x))) @ self.embedding.T
        return scores


class Batches:
    """The numbers below `count` in random order, batch by batch, and again; its state can be saved."""

    def __init__(self, count: int, size: int) -> None:
        self.count, self.size, self.order = count, size, torch.empty(0, dtype=torch.int64)

    def next(self) -> Tensor:
        if not len(self.order):
            self.order = torch.randperm(self.count)
        batch, self.order = self.order[: self.size], self.order[self.size :]
        return batch

    def state_dict(self) -> dict[str, Any]:
        return {"order": self.order.clone()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.order = state_dict["order"]


def trained(settings: Settings, seed: int, state: CellState) -> tuple[list[Row], Majority]:
    """Train one variant: every few steps a row with its loss, and after each epoch its accuracy and angles."""
    device = best_device()
    counts, target = (part.to(device) for part in sequences(settings, seed))
    parting = int(TRAINING * len(counts))
    model = Majority(settings["classes"], settings["width"], settings["variant"]).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=settings["learning_rate"], fused=True)
    schedule, batches = linear_decay(optimizer, settings["decay_steps"]), Batches(parting, settings["batch"])

    def epoch(number: int) -> list[Row]:
        rows, losses = [], []
        for step in range(number * settings["epoch"] + 1, (number + 1) * settings["epoch"] + 1):
            batch = batches.next().to(device)
            loss = fast_loss_of(model, *(part.index_select(0, batch) for part in (counts, target)))
            losses.append(descend(loss, optimizer, schedule))
            if step % settings["every"] == 0:
                rows.append({**place, "step": step, "loss": sum(losses) / len(losses)})
                losses = []
        rows[-1] |= judged(model, counts[parting:], target[parting:])
        return rows

    place: Row = {"variant": settings["variant"], "seed": seed}
    parts = (model, optimizer, schedule, batches)
    return train(state, parts, settings["steps"] // settings["epoch"], epoch), model


def loss_of(model: Majority, counts: Tensor, target: Tensor) -> Tensor:
    """Cross-entropy, the mean over all tokens."""
    scores, sequence, many = model(counts)
    loss: Tensor = (many * cross_entropy(scores, target[sequence], reduction="none")).sum() / many.sum()
    return loss


def fast_loss_of(model: Majority, counts: Tensor, target: Tensor) -> Tensor:
    """`loss_of`; on the CPU compiled, and its gradient is computed with it: several times as fast."""
    if not counts.is_cpu:
        return loss_of(model, counts, target)
    from normscope_lab.training.majority_kernel import MajorityLoss  # numba only where it is needed

    loss: Tensor = MajorityLoss.apply(counts, target, *model.tables())  # type: ignore[no-untyped-call]
    return loss


@torch.no_grad()
def judged(model: Majority, counts: Tensor, target: Tensor) -> Row:
    """Accuracy over the tokens of unseen sequences, and the mean angle of their queries."""
    scores, sequence, many = model(counts)
    right = (many * (scores.argmax(-1) == target[sequence])).sum() / many.sum()
    frequencies = counts.sum(0)
    angle = (angle_to_ones(model.queries()) * frequencies).sum() / frequencies.sum()
    finite = bool(scores.isfinite().all())
    return {"test_accuracy": right.item() if finite else float("nan"), "angle": angle.item()}


def angle_to_ones(vectors: Tensor) -> Tensor:
    """Degrees between each vector and the line of (1, …, 1), from 0 to 90.

    >>> [round(angle.item()) for angle in angle_to_ones(torch.tensor([[-2.0, -2.0], [1.0, -1.0], [1.0, 0.0]]))]
    [0, 90, 45]
    """
    cosine = cosine_similarity(vectors, torch.ones_like(vectors), dim=-1)
    return torch.rad2deg(torch.acos(cosine.abs().clamp(max=1)))


def sequences(settings: Settings, seed: int) -> tuple[Tensor, Tensor]:
    """Counts (samples, classes) and the class (samples,) that leads by `lead` or more in each.

    Partitions of the length are those that a depth-first search meets, as in the paper's code.
    """
    length, classes, samples = settings["length"], settings["classes"], settings["samples"]
    draw = np.random.default_rng([seed, length, classes])
    counts, target = np.zeros((samples, classes), np.float32), np.empty(samples, np.int64)
    row = 0
    while row < samples:  # once, unless there are fewer partitions than are needed
        for parts in _partitions(length, 1, classes, draw):
            if len(parts) == 1 or parts[-1] - parts[-2] < settings["lead"]:
                continue
            for _ in range(min(PER_PARTITION, samples - row)):
                named = draw.permutation(classes)[: len(parts)]
                counts[row, named], target[row] = parts, named[-1]
                row += 1
            if row == samples:
                break
        if row == 0:
            raise InputError(
                f"lead must leave a partition of {length} into at most {classes} parts, got {settings['lead']}"
            )
    order = draw.permutation(samples)
    return torch.from_numpy(counts[order]), torch.from_numpy(target[order])


def _partitions(total: int, least: int, most: int, draw: np.random.Generator) -> Iterator[list[int]]:
    """Parts of at least `least` in ascending order that add up to `total`, at most `most`: depth first, at random.

    >>> sorted(_partitions(5, 1, 3, np.random.default_rng(0)))
    [[1, 1, 3], [1, 2, 2], [1, 4], [2, 3], [5]]
    """
    if total == 0:
        yield []
    elif most and total >= least:
        for part in draw.permutation(np.arange(least, total + 1)).tolist():
            for rest in _partitions(total - part, part, most - 1, draw):
                yield [part, *rest]
