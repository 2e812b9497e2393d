"""Operations of a traced call that pick entries: by number, by size, from a table.

known numbers          these entries
unknown numbers        any entry along the axis: bounds are those of all
an unknown order       remembered, until its inverse is taken: rows that were sorted by expert, and put back
"""

import operator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.fx import Node

from normscope.checks import Floats, as_floats
from normscope.models.graph_operations import COPIES, kind_of
from normscope.tensors import elementwise as entries
from normscope.tensors import products
from normscope.tensors.arithmetic import extreme
from normscope.tensors.entry_forms import Choice
from normscope.tensors.traced_nodes import Known, Operation, Stored, UnknownError, along, argument, has_floats, shape_of
from normscope.tensors.values import Shares, Value, Whole, merged, within

if TYPE_CHECKING:
    from normscope.tensors.walk import Walk


def _embedding(walk: "Walk", node: Node) -> Known:
    """Any row of a table, whatever the token or position."""
    known, why = walk.argument(node.args[0]), None
    if isinstance(known, Stored):
        low, high = _column_range(walk.stored(known.name))
    else:
        value = merged(walk.value(node.args[0]), [0])
        row, why = value.unit[0].numpy(), value.why
        low, high = value.low[row], value.high[row]
    return Value(torch.arange(len(low)).expand(shape_of(node)), low, high, why)


def _column_range(table: Tensor) -> tuple[Floats, Floats]:
    low, high = np.full(table.shape[1], np.inf), np.full(table.shape[1], -np.inf)
    step = max(1, 2**22 // max(1, table.shape[1]))
    for start in range(0, len(table), step):
        block = as_floats(table[start : start + step], "embedding")
        low, high = np.minimum(low, block.min(axis=0)), np.maximum(high, block.max(axis=0))
    return low, high


def _largest(walk: "Walk", node: Node) -> Known:
    """max, min, topk, sort along an axis: some entries of it; and whole numbers."""
    found = node.meta["val"]
    kind = kind_of(node)
    if kind in ("max", "min") and len(node.args) > 1 and isinstance(node.args[1], Node):
        return extreme(walk, node)
    value = walk.with_mask(node.args[0]) if has_floats(node) else None
    if not isinstance(found, (list, tuple)):
        if value is None:
            return walk.whole_numbers(node)
        return replace(within(found.shape, *value.hull(), value.why), masked=value.masked)
    if value is None:
        if kind == "sort":
            size = tuple(found[1].shape)
            known = torch.arange(size[0]) if len(size) == 1 else None
            return Whole(size), Whole(size, known, varies=True, order=node)
        return tuple(Whole(tuple(each.shape)) for each in found)
    shape, axis = tuple(found[0].shape), int(argument(node, "dim", -1)) % value.unit.ndim
    common = merged(value.plain(), [axis])
    picked = common.unit.narrow(axis, 0, 1)
    picked = picked.expand(shape) if len(shape) == picked.ndim else picked.squeeze(axis)
    first = replace(common, unit=picked)
    if kind == "topk" and isinstance(value.form, Shares) and products.parts_of_mean(value, axis):
        # the largest of weights are weights again, of sum at most their total
        less = entries.shares(shape, axis, complete=False, order=value.order)
        first = entries.times(less, np.full(len(less.low), value.form.total))
    return first, Whole(tuple(found[1].shape))


def _gather(walk: "Walk", node: Node) -> Known:
    """Entries along an axis, at places that are not known."""
    if not has_floats(node):
        return walk.whole_numbers(node)
    value, shape = walk.value(node.args[0]), shape_of(node)
    axis = int(argument(node, "dim")) % max(1, len(shape))
    common = merged(value.plain(), [axis])
    others = [at for at in range(len(shape)) if at != axis]
    if all(shape[at] == common.shape[at] for at in others):
        return replace(common, unit=common.unit.narrow(axis, 0, 1).expand(shape))
    return within(shape, *value.hull(), value.why)


def _scatter(walk: "Walk", node: Node) -> Known:
    """Entries that are written at unknown places along an axis: those of one value or of the other."""
    if not has_floats(node):
        return walk.whole_numbers(node)
    if argument(node, "reduce") is not None:
        raise UnknownError("a scatter that computes")
    value, source = walk.with_mask(node.args[0]), argument(node, "src", argument(node, "value"))
    if not isinstance(source, Node):
        return entries.either(value, walk.value(source))
    written = walk.with_mask(source)
    axis = int(argument(node, "dim")) % max(1, value.unit.ndim)
    if any(written.shape[at] != value.shape[at] for at in range(value.unit.ndim) if at != axis):
        hull = within(value.shape, *written.opened().hull(), written.why)
        return entries.either(value.plain(), hull)
    common = merged(written.plain(), [axis])
    return entries.either(value.plain(), common.moved(lambda entry: entry.narrow(axis, 0, 1).expand(value.shape)))


def _index(walk: "Walk", node: Node) -> Known:
    """Rows by number: known rows are taken, for unknown ones any row will do."""
    if not has_floats(node):
        return walk.whole_numbers(node)
    value, picks = walk.value(node.args[0]), argument(node, "indices")
    if kind_of(node) == "index_select":
        picks = [None] * (int(argument(node, "dim")) % value.unit.ndim) + [argument(node, "index")]
    wholes = [None if each is None else walk.whole(each) for each in picks]
    given = [each for each in wholes if each is not None]
    if all(each.known is not None and not each.varies for each in given):
        known = tuple(slice(None) if each is None else each.known for each in wholes)
        moved = value.moved(lambda entry: entry[known])
        return moved if value.order is None else replace(moved.plain(), order=None)
    if len(given) == 1 and wholes[0] is given[0] and given[0].known is not None:
        return _in_order(value, given[0])
    if len(given) == 1 and value.exact and len(given[0].shape) == 1 and _is_sorted(picks[0]):
        rows = products.listed(value, picks[0])
        shape = (given[0].shape[0], *rows.shape)
        row = along(shape[0], shape, 0)
        return replace(rows.moved(lambda entry: entry.expand(shape)), places=(row,))
    axes = [at for at, each in enumerate(wholes) if each is not None]
    common = merged(value.plain(), axes)
    shape = shape_of(node)
    if axes == list(range(axes[0], axes[-1] + 1)):
        lead, tail = common.unit.shape[: axes[0]], common.unit.shape[axes[-1] + 1 :]
        one = common.unit
        for axis in axes:
            one = one.narrow(axis, 0, 1)
        middle = shape[len(lead) : len(shape) - len(tail)]
        one = one.reshape(*lead, *([1] * len(middle)), *tail)
        return replace(common, unit=one.expand(shape))
    return within(shape, *value.hull(), value.why)


def _is_sorted(index: Any) -> bool:
    """Whether whole numbers are in rising order: those of experts, to each of which its rows are sent together."""
    while isinstance(index, Node) and kind_of(index) in COPIES:
        index = index.args[0]
    if not isinstance(index, Node) or index.target is not operator.getitem or index.args[1] != 0:
        return False
    source = index.all_input_nodes[0]
    return kind_of(source) == "sort" and not argument(source, "descending", False)


def _in_order(value: Value, rows: Whole) -> Value:
    """Rows that are known but for an unknown order, or that are put back into their own."""
    assert rows.known is not None
    if value.order is not None and rows.inverse_of is value.order:
        if isinstance(value.form, Choice):
            value = value.plain()  # its rows are no longer those of experts
        return replace(value.moved(lambda entry: entry[rows.known]), order=None)
    if isinstance(value.form, Shares) and value.order is None and rows.order is not None:
        # weights of a mean have the same bounds in every row: which row is where does not matter
        return replace(value.moved(lambda entry: entry[rows.known]), order=rows.order)
    if value.unit.stride(0) != 0 and value.shape[0] > 1:
        kept = merged(value, [0])
        value = replace(kept, form=value.form, places=value.places) if kept is value else kept
    moved = value.moved(lambda entry: entry[rows.known])
    if rows.order is None or value.order is not None:
        return moved.plain()
    return replace(moved, unit=value.unit[:1].expand(moved.unit.shape), order=rows.order)


def _index_put(walk: "Walk", node: Node) -> Known:
    """The inverse of a permutation; other uses are not followed."""
    if not has_floats(node):
        picks, numbers = argument(node, "indices"), walk.whole(node.args[2])
        order = walk.whole(picks[0]) if len(picks) == 1 and not argument(node, "accumulate") else Whole(())
        if order.order is not None and order.known is not None and numbers.known is not None:
            every = torch.arange(len(order.known))
            if torch.equal(order.known, every) and torch.equal(numbers.known, every):
                return Whole(order.shape, every, varies=True, inverse_of=order.order)
        return Whole(shape_of(node))
    if argument(node, "accumulate"):
        raise UnknownError("sums at unknown places")
    value, filled = walk.value(node.args[0]), walk.value(node.args[2])
    low, high = zip(value.hull(), filled.hull(), strict=True)
    return within(shape_of(node), min(low), max(high), value.why or filled.why)


PICKS: dict[str, Operation] = {
    "embedding": _embedding, "max": _largest, "min": _largest, "topk": _largest, "sort": _largest, "gather": _gather,
    "scatter": _scatter, "index": _index, "index_select": _index, "index_put": _index_put,
}  # fmt: skip
