"""Single operations of an exported graph: which ones pass their value on, and what that does to its channels."""

import operator
from collections.abc import Container, Iterable
from typing import Any

import torch
from torch.fx import Node
from torch.utils import _pytree as pytree

COPIES = {"to", "_to_copy", "type_as", "clone", "contiguous", "alias", "detach", "lift_fresh_copy"}
OWN_COPIES = {"clone", "_to_copy", "lift_fresh_copy", "repeat"}  # in new memory, always
DROPOUTS = {"dropout", "feature_dropout", "alpha_dropout"}
MOVES_THAT_ARE_NO_VIEWS = {"_unsafe_view", "repeat"}
SHAPE_ONLY = ("new_", "empty_like", "full_like", "ones_like", "rand_like", "randn_like", "zeros_like")


def kind_of(node: Node) -> str:
    """The name of an operation of torch, in place or not; empty for anything else."""
    schema = getattr(node.target, "_schema", None) if node.op == "call_function" else None
    if schema is None or not schema.name.startswith("aten::"):
        return ""
    return str(schema.name).removeprefix("aten::").removesuffix("_")


def handed_on(node: Node) -> Node | None:
    """The value that a node passes on, moved, copied or cast, if it does nothing else."""
    if node.target is operator.getitem:
        return node.all_input_nodes[0]
    kind = kind_of(node)
    moves = kind in COPIES | MOVES_THAT_ARE_NO_VIEWS or (kind and getattr(node.target, "is_view", False))
    if moves or (kind in DROPOUTS and node.args[2] is False):
        source = node.all_input_nodes[0]
        return None if _has_fractions(source) and not _has_fractions(node) else source
    return None


def _has_fractions(value: Node) -> bool:
    """Whether a value is not of integers or booleans: a cast to those loses a part of the value."""
    tensor = value.meta.get("val")
    return not isinstance(tensor, torch.Tensor) or tensor.is_floating_point() or tensor.is_complex()


def overwritten_by(node: Node) -> list[Node]:
    """The values that an operation, of torch or custom, changes in place; in-place moves change no number."""
    schema = getattr(node.target, "_schema", None) if node.op == "call_function" else None
    if schema is None or not schema.is_mutable or handed_on(node) is not None:
        return []
    names = [argument.name for argument in schema.arguments]
    given = dict(zip(names, node.args, strict=False)) | node.kwargs
    written = [argument.name for argument in schema.arguments if argument.alias_info and argument.alias_info.is_write]
    leaves = pytree.tree_leaves([given[name] for name in written if name in given])
    return [leaf for leaf in leaves if isinstance(leaf, Node)]


def overwritten(nodes: Iterable[Node]) -> set[Node]:
    """Values that operations change in place, and the values that these are a part or a view of."""
    changed: set[Node] = set()
    for node in nodes:
        for value in overwritten_by(node):
            source: Node | None = value
            while source is not None:
                changed.add(source)
                source = handed_on(source)
    return changed


def storage_of(node: Node) -> Node:
    """The node whose memory a node may share."""
    while True:
        source = next(iter(overwritten_by(node)), None)
        if source is None and kind_of(node) not in OWN_COPIES:
            source = handed_on(node)
        if source is None:
            return node
        node = source


def handed_in(node: Node, call: Container[Node]) -> bool:
    """Whether a value of a call is one of its inputs, possibly moved, copied or cast."""
    source: Node | None = node
    while source is not None and source in call:
        source = handed_on(source)
    return source is not None


def looks_at_values(node: Node) -> bool:
    """False for checks of a shape or dtype, for tensors made like another, and for the output of the graph."""
    return node.meta.get("val") is not None and not kind_of(node).startswith(SHAPE_ONLY)


def is_float(value: Node) -> bool:
    tensor = value.meta.get("val")
    return isinstance(tensor, torch.Tensor) and tensor.is_floating_point()


def sizes_of(value: Node) -> tuple[int, ...]:
    """The shape of a value, with 2 for sizes that depend on the numbers in it, as how many tokens go to an expert."""
    return tuple(size if isinstance(size, int) else 2 for size in value.meta["val"].shape)


def after_move(node: Node, channels: Any) -> Any:
    """A move applied to a tensor that holds the number of its channel everywhere; None if that fails."""
    if node.target is operator.getitem:
        return channels[node.args[1]]
    if kind_of(node) in COPIES | DROPOUTS:
        return channels
    if len(node.all_input_nodes) > 1:
        return None
    try:
        return node.target(channels, *node.args[1:], **node.kwargs)  # type: ignore[operator]
    except (RuntimeError, IndexError):
        return None


def in_order(channels: Any, size: int) -> bool:
    return bool(channels.shape[-1:] == (size,) and (channels == torch.arange(size)).all())


def transposes(move: Node, source: Node) -> bool | None:
    """Whether a move of a matrix transposes it; None if it does anything else to it."""
    if not all(isinstance(node.meta["val"], torch.Tensor) for node in (move, source)):
        return None  # a part of it
    before, after = tuple(source.meta["val"].shape), tuple(move.meta["val"].shape)
    if len(before) != 2 or sorted(before) != sorted(after):
        return None
    small = torch.arange(6).view(2, 3)  # a move without shape arguments acts on it as on the matrix
    moved = after_move(move, small)
    if moved is None:
        return None
    turned = [turned for turned, like in ((False, small), (True, small.T)) if torch.equal(moved, like)]
    return turned[0] if turned else None
