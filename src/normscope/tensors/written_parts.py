"""Tensors that are made empty and then written part by part, in place: known once every entry was written.

k = x.new_empty(…);  k[..., :n] = a;  k[..., n:] = b        the same as cat([a, b])
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from normscope.models.graph_operations import handed_on, kind_of, storage_of
from normscope.tensors.traced_nodes import argument, shape_of
from normscope.tensors.values import Value, joined_values

PARTS = {"slice", "narrow", "select", "split", "split_with_sizes", "chunk", "unfold", "tensor_split"}


def is_empty(node: Node) -> bool:
    """Whether a node makes a tensor without values."""
    kind = kind_of(node)
    return kind.startswith("empty") or kind.startswith("new_empty")


class WrittenParts:
    """What was written to tensors that were made empty. `whole` tells whether a part has all of an axis at any size."""

    def __init__(self, whole: Callable[[Node, int], bool]) -> None:
        self._whole = whole
        self._parts: dict[Node, list[tuple[Tensor, Value]]] = {}

    def write(self, node: Node, changed: Node, value: Any) -> Value | None:
        """The whole tensor after an operation in place; None while entries are missing, or if it can't be followed."""
        storage = storage_of(changed)
        parts = self._parts.setdefault(storage, [])
        places = self._places(changed, storage) if kind_of(node) == "copy" and isinstance(value, Value) else None
        if places is None or value.masked or value.order is not None:
            parts.append((torch.empty(0, dtype=torch.int64), value))  # from now on it is not known
            return None
        parts.append((places, value))
        shape = shape_of(storage)
        taken = torch.cat([places.flatten() for places, _ in parts])
        if len(taken) != math.prod(shape) or len(torch.unique(taken)) != len(taken):
            return None
        if any(not len(places) for places, _ in parts):
            return None
        order = torch.argsort(taken)
        return joined_values(
            [value for _, value in parts],
            lambda entries: torch.cat([entry.flatten() for entry in entries])[order].reshape(shape),
        )

    def _places(self, changed: Node, storage: Node) -> Tensor | None:
        """The entries of a tensor that a view of it shares; None if they depend on the size of the inputs."""
        views: list[Node] = []
        while changed is not storage:
            source = handed_on(changed)
            if source is None or len(changed.all_input_nodes) > 1 or kind_of(changed) == "as_strided":
                return None
            if kind_of(changed) in PARTS and not self._whole(changed, int(argument(changed, "dim", 0))):
                return None
            views.append(changed)
            changed = source
        shape = shape_of(storage)
        places = torch.arange(math.prod(shape)).reshape(shape)
        for view in reversed(views):
            places = view.target(places, *view.args[1:], **view.kwargs)  # type: ignore[operator]
        return places if isinstance(places, Tensor) else None
