"""What is known of the result of each operation of torch, by its name; and those that move, join or make entries.

moved entries          the operation itself, applied to the numbers of their units
joined entries         units of all parts
made entries           constants
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.fx import Node

from normscope.models.graph_operations import kind_of
from normscope.tensors import elementwise as entries
from normscope.tensors.arithmetic import ARITHMETIC
from normscope.tensors.contractions import CONTRACTIONS
from normscope.tensors.entry_forms import Weighted
from normscope.tensors.picking import PICKS
from normscope.tensors.reductions import REDUCTIONS
from normscope.tensors.traced_nodes import (
    Known,
    Operation,
    Stored,
    UnknownError,
    anywhere_along,
    argument,
    has_floats,
    shape_of,
)
from normscope.tensors.values import Shares, Value, Whole, constant, joined_values
from normscope.tensors.written_parts import PARTS

if TYPE_CHECKING:
    from normscope.tensors.walk import Walk

CUTS = {"slice", "narrow"}


def _cat(walk: "Walk", node: Node) -> Known:
    if not has_floats(node):
        return walk.whole_numbers(node)
    parts = [walk.with_mask(each) for each in argument(node, "tensors")]
    parts = [part for part in parts if part.shape != (0,)]
    join, axis = torch.stack if kind_of(node) == "stack" else torch.cat, argument(node, "dim", 0)
    made = joined_values(parts, lambda tensors: join(tensors, axis))
    return made if join is torch.cat or made.order is None else replace(made.plain(), order=None)


def _made_alike(walk: "Walk", node: Node) -> Known:
    """zeros, ones, full and their like."""
    kind = kind_of(node)
    value = node.meta["val"]
    fill = 0 if "zeros" in kind else 1 if "ones" in kind else argument(node, "fill_value", argument(node, "s"))
    if not value.is_floating_point():
        known = isinstance(fill, (int, float, bool)) and "empty" not in kind
        return Whole(tuple(value.shape), torch.full(value.shape, fill, dtype=value.dtype) if known else None)
    if "empty" in kind or "rand" in kind:
        raise UnknownError("a tensor without values" if "empty" in kind else "random numbers")
    return walk.value(fill).moved(lambda entry: entry.expand(value.shape))


def _copied(walk: "Walk", node: Node) -> Known:
    if not has_floats(node):
        return walk.whole_numbers(node)
    return walk.value(node.args[1]).moved(lambda entry: entry.expand(shape_of(node)))


def _to(walk: "Walk", node: Node) -> Known:
    known = walk.argument(node.args[0])
    if has_floats(node):
        return known if isinstance(known, Stored) and known.floating else walk.with_mask(node.args[0])
    if isinstance(known, (Whole, Stored)):
        whole = walk.whole(known)
        dtype = node.meta["val"].dtype
        return replace(whole, known=None if whole.known is None else whole.known.to(dtype))
    return Whole(shape_of(node))


def _pad(walk: "Walk", node: Node) -> Known:
    if not has_floats(node):
        return walk.whole_numbers(node)
    value = walk.value(node.args[0])
    if (mode := argument(node, "mode", "constant")) != "constant":
        raise UnknownError(f"padding of kind {mode}")
    fill = float(argument(node, "value") or 0.0)
    unit = torch.nn.functional.pad(value.unit, list(argument(node, "pad")), value=len(value.low))
    return Value(unit, np.append(value.low, fill), np.append(value.high, fill), value.why)


def _triangle(walk: "Walk", node: Node) -> Known:
    if not has_floats(node):
        return walk.whole_numbers(node)
    value = walk.value(node.args[0])
    return entries.either(value.plain(), constant(0.0))


def _nothing_to_follow(walk: "Walk", node: Node) -> Known:
    return None


def move(walk: "Walk", node: Node) -> Known:
    value = walk.with_mask(node.args[0])
    if kind_of(node) == "as_strided":
        raise UnknownError("a view by strides")
    value = _anywhere_picked(walk, node, value)

    def move(entry: Tensor) -> Any:
        if kind_of(node) in ("view", "_unsafe_view"):  # strides of the entries are not those of the tensor
            return entry.reshape(node.args[1])  # type: ignore[arg-type]
        return node.target(entry, *node.args[1:], **node.kwargs)  # type: ignore[operator]

    moved = move(value.unit)
    if isinstance(moved, Tensor):
        return _reordered(node, value, value.moved(move))
    places = [move(place) for place in value.places]
    parts = [replace(value, unit=unit, places=tuple(each[at] for each in places)) for at, unit in enumerate(moved)]
    return tuple(_reordered(node, value, part) for part in parts)


def _anywhere_picked(walk: "Walk", node: Node, value: Value) -> Value:
    """A value of which other entries are taken for inputs of another size: any, then; and only some of the weights."""
    if walk.sizes is None or kind_of(node) not in PARTS:
        return value
    axis = int(argument(node, "dim", 0)) % value.unit.ndim
    if walk.sizes.picks_otherwise(node):
        value = anywhere_along(value, (axis,))
    if isinstance(value.form, Shares) and not walk.is_whole(node, axis):
        return replace(value, form=replace(value.form, complete=False))
    if isinstance(value.form, Weighted) and not walk.is_whole(node, axis):
        return replace(value, form=replace(value.form, shares=replace(value.form.shares, complete=False)))
    return value


def _reordered(node: Node, before: Value, after: Value) -> Value:
    """A value in an unknown order of rows keeps it only while its first axis is still these rows."""
    moves_rows = kind_of(node) in ("transpose", "permute", "roll", "flip")
    if before.order is None or (before.shape[:1] == after.shape[:1] and not moves_rows):
        return after
    return replace(after.plain(), order=None)


SPECIAL: dict[str, Operation] = {
    **ARITHMETIC,
    **CONTRACTIONS,
    **PICKS,
    **REDUCTIONS,
    "cat": _cat, "concat": _cat, "concatenate": _cat, "stack": _cat, "copy": _copied, "to": _to, "_to_copy": _to,
    "type_as": _to, "pad": _pad, "constant_pad_nd": _pad, "tril": _triangle, "triu": _triangle,
    "_assert_tensor_metadata": _nothing_to_follow, "zeros": _made_alike, "ones": _made_alike, "full": _made_alike,
    "zeros_like": _made_alike, "ones_like": _made_alike, "full_like": _made_alike, "empty": _made_alike,
    "empty_like": _made_alike, "new_ones": _made_alike, "new_zeros": _made_alike, "new_full": _made_alike,
    "new_empty": _made_alike, "rand": _made_alike, "scalar_tensor": _made_alike,
}  # fmt: skip
