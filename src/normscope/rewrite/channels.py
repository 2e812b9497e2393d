"""Effects of graph operations on the channels of a value: sums, factors, moves, and the resulting axis."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from normscope.models.graph_operations import after_move, handed_on, is_float, kind_of, looks_at_values, sizes_of

LIKE_ANOTHER = {"type_as", "view_as", "reshape_as", "expand_as"}  # the first argument, in the form of the second


def counts(user: Node, value: Node) -> bool:
    """Whether a user of a value depends on its numbers: False if it needs only its shape or dtype."""
    if kind_of(user) in LIKE_ANOTHER and user.args[0] is not value:
        return False
    return user.op == "output" or looks_at_values(user) or is_mutable(user)


def is_mutable(user: Node) -> bool:
    """Whether an operation changes a value in place."""
    schema = getattr(user.target, "_schema", None)
    return schema is not None and bool(schema.is_mutable)


def hands_on(user: Node, value: Node) -> bool:
    """Whether a user passes a value on, as floating-point numbers."""
    return handed_on(user) is value and (is_float(user) or not isinstance(user.meta["val"], Tensor))


def terms_of(node: Node, axis: int) -> list[Any] | None:
    """The terms of a sum, also over tokens, a join or choice of tokens, or a product with one factor for all channels.

    None for anything else.
    """
    kind = kind_of(node)
    if kind in ("add", "sub"):
        return list(node.args[:2])
    if kind in ("cat", "concat", "stack"):
        parts: Any = node.args[0]
        dimension: Any = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)
        along = _from_the_end(dimension, node)
        return list(parts) if along < axis or (along > axis and kind != "stack") else None
    if kind in ("mul", "div"):
        for value in node.args[:2]:
            if isinstance(value, Node) and scaling(node, value, axis) is not None:
                return [value]
    return _of_tokens(node, kind, axis)


def _of_tokens(node: Node, kind: str, axis: int) -> list[Any] | None:
    """The values whose tokens a node adds up, puts into others, chooses or repeats."""
    if kind == "sum" and len(node.args) > 1 and isinstance(node.args[1], (list, tuple)):
        value: Any = node.args[0]
        dimensions = [_from_the_end(dimension, value) for dimension in node.args[1]]
        return [value] if dimensions and max(dimensions) < axis else None
    if kind == "index_add" and not node.kwargs:
        into, dimension, _, added = node.args
        return [into, added] if _from_the_end(dimension, into) != axis else None
    if axis != -1:
        return None
    if kind == "index_put":
        return None if _takes_channels(node) else [node.args[0], node.args[2]]
    source = rows_from(node)
    return None if source is None else [source]


def rows_from(node: Node) -> Node | None:
    """The value from which a node takes or repeats tokens, each with all its channels in the last axis."""
    kind, source = kind_of(node), node.args[0] if node.args else None
    if not isinstance(source, Node) or not is_float(source):
        return None
    if kind == "index":
        return None if _takes_channels(node) else source
    if kind in ("index_select", "repeat_interleave"):
        place = 1 if kind == "index_select" else 2
        dimension: Any = node.args[place] if len(node.args) > place else node.kwargs.get("dim")
        return source if dimension is not None and _from_the_end(dimension, source) < -1 else None
    return None


def _takes_channels(node: Node) -> bool:
    """Whether indices select something in the last axis; a mask selects in as many axes as it has."""
    source, indices = node.args[:2]
    taken = 0
    for place, index in enumerate(indices):  # type: ignore[arg-type]
        if isinstance(index, Node):
            values = index.meta["val"]
            masks = values.dtype in (torch.bool, torch.uint8)
            if masks and place != len(indices) - 1:  # type: ignore[arg-type]
                return True  # the places of the others depend on it
            taken = place + (values.ndim if masks else 1)
    return bool(taken >= source.meta["val"].ndim)  # type: ignore[union-attr]


def _from_the_end(dimension: Any, value: Any) -> int:
    """An axis of a value, counted from the last."""
    return int(dimension if dimension < 0 else dimension - value.meta["val"].ndim)


def scaling(node: Node, value: Node, axis: int) -> float | None:
    """The factor by which a node multiplies all channels of a value equally, NaN if it is unknown."""
    if kind_of(node) not in ("mul", "div") or node.kwargs or node.meta["val"].shape[axis] != _extent(value, axis):
        return None
    left, right = node.args[:2]
    other = right if left is value else left
    if other is value or (kind_of(node) == "div" and left is not value):
        return None
    if isinstance(other, Node):
        return math.nan if isinstance(other.meta.get("val"), Tensor) and _extent(other, axis) == 1 else None
    if isinstance(other, bool) or not isinstance(other, (int, float)) or other == 0:
        return None
    return float(other) if kind_of(node) == "mul" else 1.0 / float(other)


def _extent(value: Node, axis: int) -> int:
    """How long an axis is, counted from the last; 1 if it is only broadcast."""
    shape = value.meta["val"].shape
    if len(shape) < -axis:
        return 1
    return shape[axis] if isinstance(shape[axis], int) else 0  # it depends on the numbers


def axes_of(value: Node, size: int) -> list[int]:
    """The axes that could hold the channels."""
    shape = value.meta["val"].shape
    return [axis for axis in range(-len(shape), 0) if isinstance(shape[axis], int) and shape[axis] == size]


def numbered(value: Node, axis: int) -> Tensor:
    """A tensor of the shape of a value that holds the number of its channel everywhere."""
    shape = sizes_of(value)
    numbers = torch.arange(shape[axis]).view(-1, *[1] * (-axis - 1))
    return numbers.expand(shape).contiguous()


def move_of(node: Node) -> tuple[Node, Callable[[Node, int], int | None]] | None:
    """The value that a node passes on, and a map of its channel axis; a split and its parts count as one move."""
    steps = [node]
    source = handed_on(node)
    while source is not None and not isinstance(source.meta["val"], Tensor):
        steps.append(source)
        source = handed_on(source)
    if source is None or not is_float(node) or not is_float(source):
        return None

    def moved(value: Node, axis: int) -> int | None:
        channels: Any = numbered(value, axis)
        for step in reversed(steps):
            channels = after_move(step, channels)
            if channels is None:
                return None
        return _axis_in(channels, value.meta["val"].shape[axis])

    return source, moved


def axis_after(move: Node, source: Node, axis: int, size: int) -> int | None:
    channels = after_move(move, numbered(source, axis))
    return None if channels is None else _axis_in(channels, size)


def _axis_in(channels: Tensor, size: int) -> int | None:
    """The axis along which channels are numbered in order."""
    for axis in range(-channels.ndim, 0):
        if channels.shape[axis] == size:
            in_place = torch.arange(size).view(-1, *[1] * (-axis - 1))
            if bool((channels == in_place).all()):
                return axis
    return None
