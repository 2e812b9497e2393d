"""Where factors of the outputs of a linear layer end up: whether the columns of other layers can undo them.

    up:  down(act(gate) ∘ up)        a product with something that does not depend on the layer
    v:   o(softmax(…) v)             sums over tokens, channel by channel
    fc1: fc2(relu(fc1))              relu, as factors are positive

Followed channel by channel: moves, products, sums over tokens in attention, and relu pass a positive factor on. Every
other operation is an obstacle. An output that two columns read, as with grouped queries, is one too: one
factor then belongs to several columns.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from normscope.models.graph import ModelGraph
from normscope.models.graph_operations import after_move, is_float, kind_of
from normscope.models.multiplications import Multiplication
from normscope.rewrite.channels import counts, hands_on, is_mutable, numbered, rows_from

ATTENTION = "scaled_dot_product_attention"


@dataclass(frozen=True)
class PathEnd:
    """A linear layer at the end of a path, with the output of the first layer that each of its inputs is."""

    by: Multiplication
    channels: Tensor

    @property
    def axis(self) -> int:
        """The axis of its weights along its inputs."""
        assert self.by.inputs is not None
        return self.by.inputs.weight


@dataclass(frozen=True)
class ScaledPath:
    """The layers that read what a layer writes, and the first obstacle, if there is one.

    Where only the last of its outputs are read by another layer, `first` is the first of these.
    """

    first: int
    ends: tuple[PathEnd, ...]
    obstacle: str | None


def scaled_path(graph: ModelGraph, layer: Multiplication, words: Any) -> ScaledPath:
    """Where factors of the outputs of a layer end up; `words` describes an operation."""
    size = layer.total.meta["val"].shape[-1]
    touched = _touched(graph, layer.total)
    pending: list[tuple[Node, Any]] = [(layer.total, numbered(layer.total, -1))]
    ends: list[PathEnd] = []
    others: list[tuple[Node, set[int]]] = []
    while pending:
        source, channels = pending.pop(0)
        for user in source.users:
            if not counts(user, source):
                continue
            product = graph.multiplications.get(user)
            if product is not None and product.value is source and product.inputs is not None:
                read = _read(channels, product.inputs.value)
                if read is not None:
                    ends.append(PathEnd(product, read))
                    continue
            passed = [(after, moved) for after, moved in _after(user, source, channels, touched) if moved is not None]
            pending += passed
            if not passed:
                others.append((user, _numbers(channels) if isinstance(channels, Tensor) else set()))
    if not ends:
        return ScaledPath(0, (), f"its output is read by {words(others[0][0])}" if others else "no layer reads it")
    first = size - max(len(end.channels) for end in ends)
    wanted = torch.arange(first, size)
    relevant = [end for end in ends if bool((end.channels >= first).any())]
    if any(not torch.equal(end.channels, wanted) for end in relevant) or first < 0:
        several = relevant[0].by.module
        return ScaledPath(
            0, tuple(relevant), f"an output of it is read by several columns of {several}, or out of order"
        )
    in_the_way = [node for node, touched in others if not touched or max(touched) >= first]
    obstacle = None if not in_the_way else f"its output is also read by {words(in_the_way[0])}"
    return ScaledPath(first, tuple(relevant), obstacle)


def _touched(graph: ModelGraph, start: Node) -> dict[Node, set[int]]:
    """Everything that is computed from a value, with the channels that it depends on."""
    channels: dict[Node, Any] = {start: numbered(start, -1)}
    touched = {start: set(range(start.meta["val"].shape[-1]))}
    for node in graph.nodes:
        sources = [source for source in node.all_input_nodes if source in touched]
        if node is start or not sources:
            continue
        touched[node] = set().union(*(touched[source] for source in sources))
        if len(sources) == 1 and sources[0] in channels and hands_on(node, sources[0]):
            moved = after_move(node, channels[sources[0]])
            if moved is not None:
                channels[node] = moved
                touched[node] = _numbers(moved) if isinstance(moved, Tensor) else touched[node]
    return touched


def _numbers(channels: Tensor) -> set[int]:
    return set(channels.reshape(-1).tolist())


def _read(channels: Any, axis: int) -> Tensor | None:
    """The channel that each input of a layer is, if it is the same for all tokens."""
    if not isinstance(channels, Tensor) or channels.ndim < -axis or not channels.numel():
        return None
    rows = channels.movedim(axis, -1).reshape(-1, channels.shape[axis])
    return rows[0] if bool((rows == rows[0]).all()) else None


def _after(user: Node, source: Node, channels: Any, touched: dict[Node, set[int]]) -> Iterator[tuple[Node, Any]]:
    """What a user of a value makes of its channels; None where it is an obstacle."""
    kind = kind_of(user)
    if is_mutable(user):
        return
    if hands_on(user, source):
        yield user, after_move(user, channels)
        return
    if not isinstance(channels, Tensor) or not is_float(user):
        return
    own = _numbers(channels)
    others = [each for each in user.all_input_nodes if each is not source]
    if any(own & touched.get(each, set()) for each in others):
        return  # not linear in the layer
    times = sum(each is source for each in user.args)
    if kind == "mul" and not user.kwargs:
        yield user, channels if times == 1 and user.meta["val"].shape == channels.shape else None
    elif kind == "relu":
        yield user, channels
    elif (kind in ("matmul", "bmm") and user.args[1] is source) or (kind == ATTENTION and user.args[2] is source):
        yield user, _over_tokens(channels, user) if times == 1 else None
    elif rows_from(user) is source and _read(channels, -1) is not None:
        yield user, channels.reshape(-1, channels.shape[-1])[0].expand(user.meta["val"].shape)


def _over_tokens(channels: Tensor, user: Node) -> Tensor | None:
    """The channels of a sum over tokens: those of every token, if they are the same."""
    one, shape = channels[..., :1, :], user.meta["val"].shape
    if not bool((channels == one).all()) or one.shape[-1] != shape[-1] or one.ndim != len(shape):
        return None
    if any(have not in (1, want) for have, want in zip(one.shape[:-2], shape[:-2], strict=True)):
        return None  # heads that share values
    return one.expand(shape)
