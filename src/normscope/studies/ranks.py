"""Processes that torchrun started: each runs its share of the batches, and looks after its share of the norms.

Batch k runs on rank k mod W, and the inputs of norm j go to rank j mod W in the order of the batches, so that every
figure is computed from the same numbers in the same order as in one process, and is the same bit for bit. What one
process does is the case W = 1. Messages are tensors over gloo; nothing is pickled.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

import numpy as np
import torch
from torch import distributed

from normscope.checks import Floats
from normscope.errors import InputError

Item = TypeVar("Item")
NOT_CALLED, DOES_NOT_FIT = -1, -2  # in place of a number of rows


@dataclass(frozen=True)
class Ranks:
    """The number of this process, and how many there are."""

    rank: int = 0
    count: int = 1

    def rounds(self, things: Iterable[Item]) -> Iterator[tuple[Item, ...]]:
        """All things in groups of one for each process; in the last group there may be fewer."""
        left = iter(things)
        while group := tuple(islice(left, self.count)):
            yield group

    def looks_after(self, number: int) -> bool:
        return number % self.count == self.rank

    def hand_over(self, rows: "Floats | int | None", source: int, number: int, size: int) -> "Floats | int | None":
        """Rows (n, size) of a batch, from the rank that ran it to the one that looks after this number; None elsewhere.

        In place of rows there may be a whole number below 0, which is handed over as it is.
        """
        target = number % self.count
        if source == target:
            return rows
        if self.rank == source:
            assert rows is not None
            _send(rows, target)
        return _received(source, size) if self.rank == target else None

    def gathered(self, content: bytes) -> list[bytes]:
        """The contents of all ranks, on the first; nothing on others."""
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.count)]
        distributed.all_gather(sizes, torch.tensor([len(content)]))
        if self.rank:
            distributed.send(torch.frombuffer(bytearray(content), dtype=torch.uint8), 0)
            return []
        contents = [content]
        for source in range(1, self.count):
            received = torch.empty(int(sizes[source].item()), dtype=torch.uint8)
            distributed.recv(received, source)
            contents.append(received.numpy().tobytes())
        return contents


ALONE = Ranks()


def _send(rows: Floats | int, target: int) -> None:
    count = rows if isinstance(rows, int) else len(rows)
    distributed.send(torch.tensor([count]), target)
    if not isinstance(rows, int) and rows.size:
        distributed.send(torch.from_numpy(np.ascontiguousarray(rows)), target)


def _received(source: int, size: int) -> Floats | int:
    count = torch.zeros(1, dtype=torch.int64)
    distributed.recv(count, source)
    if count.item() < 0:
        return int(count.item())
    rows = torch.empty((int(count.item()), size), dtype=torch.float64)
    if rows.numel():
        distributed.recv(rows, source)
    received: Floats = rows.numpy()
    return received


@contextmanager
def ranks_of_torchrun() -> Iterator[Ranks]:
    """The processes that torchrun started, found by the variables that it sets, and connected by gloo."""
    if not distributed.is_available() or not distributed.is_gloo_available():
        raise InputError("torchrun needs a torch with gloo, and this one is built without: run it in one process")
    distributed.init_process_group("gloo")
    try:
        yield Ranks(distributed.get_rank(), distributed.get_world_size())
    finally:
        distributed.destroy_process_group()
