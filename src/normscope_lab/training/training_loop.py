"""A training loop that can be killed at any moment, and ends as if it had not been when it is resumed."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import cos, pi
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from normscope_lab.engine.cell_state import CellState
from normscope_lab.engine.tidy_rows import Row


class Stateful(Protocol):
    """What torch's modules, optimizers and schedules have."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> Any: ...


def train(state: CellState, parts: Sequence[Stateful], epochs: int, epoch: Callable[[int], list[Row]]) -> list[Row]:
    """The rows of epoch(0), epoch(1), …; after each, `parts`, random numbers and rows are saved.

    An epoch may use torch's random numbers and the parts, and nothing else that it changes itself.
    """
    rows: list[Row] = []
    begin = 0
    saved = state.load()
    if saved is not None:
        for part, values in zip(parts, saved["parts"], strict=True):
            part.load_state_dict(values)
        set_random_state(saved["random"])
        rows, begin = saved["rows"], saved["epochs"]
    for number in range(begin, epochs):
        rows = rows + epoch(number)
        values = [part.state_dict() for part in parts]
        saved = {"parts": values, "random": random_state(), "rows": rows, "epochs": number + 1}
        state.save(saved, done=(number + 1) / epochs)
    return rows


def descend(loss: Tensor, optimizer: Optimizer, schedule: LambdaLR | None = None) -> float:
    """One step of an optimizer against the gradient of a loss, which is returned as a number."""
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    if schedule is not None:
        schedule.step()
    return loss.item()


def shuffled(count: int, size: int) -> Sequence[Tensor]:
    """The numbers below `count` in random order, in batches."""
    batches: Sequence[Tensor] = torch.randperm(count).split(size)  # type: ignore[no-untyped-call]
    return batches


def hits(scores: Tensor, target: Tensor) -> Tensor:
    """1 where the highest score, over the last axis, is that of the target, 0 elsewhere; nan if the network diverged.

    >>> hits(torch.tensor([[0.5, 0.1], [0.2, 0.3]]), torch.tensor([0, 0])).tolist()
    [1.0, 0.0]
    """
    right = (scores.argmax(-1) == target).float()
    return torch.where(scores.isfinite().all(-1), right, torch.nan)


def in_parts(x: Tensor, y: Tensor, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Two tensors of as many rows, some rows at a time, in order."""
    return ((x[begin : begin + size], y[begin : begin + size]) for begin in range(0, len(x), size))


def padded(sentences: Sequence[list[int]], filler: int) -> Tensor:
    """Sentences of tokens as one tensor (sentences, tokens of the longest).

    >>> padded([[5, 6], [7]], filler=0).tolist()
    [[5, 6], [7, 0]]
    """
    return pad_sequence([torch.tensor(sentence) for sentence in sentences], batch_first=True, padding_value=filler)


def random_state() -> dict[str, Tensor]:
    states = {"cpu": torch.get_rng_state()}
    return states | ({"cuda": torch.cuda.get_rng_state()} if torch.cuda.is_available() else {})


def set_random_state(states: Mapping[str, Tensor]) -> None:
    torch.set_rng_state(states["cpu"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])


def best_device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def linear_decay(optimizer: Optimizer, steps: int, warmup: int = 0) -> LambdaLR:
    """From 0 up over the warm-up, then down to 0 at `steps`."""
    return LambdaLR(optimizer, lambda step: min((step + 1) / (warmup + 1), max(0.0, 1 - step / steps)))


def cosine_decay(optimizer: Optimizer, steps: int, warmup: int = 0) -> LambdaLR:
    """From 0 up over the warm-up, then down to 0 at `steps` along half a cosine."""
    return LambdaLR(
        optimizer, lambda step: min((step + 1) / (warmup + 1), 0.5 * (1 + cos(pi * min(1.0, step / steps))))
    )


def root_decay(optimizer: Optimizer, warmup: int) -> LambdaLR:
    """From 0 up over the warm-up, then down as 1/√step."""
    return LambdaLR(optimizer, lambda step: min((step + 1) / warmup, (warmup / (step + 1)) ** 0.5))
