"""Operations of a traced call that sum products over an axis: layers, scores, attention, convolutions.

stored matrix · value      a layer, whose outputs are watched; every row through the matrix of its expert
weights · value            a mean, which stays where the values are
query · key                scores, by the forms of both
Σ over windows             intervals
"""

import math
import operator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.fx import Node

from normscope.models.graph_operations import kind_of
from normscope.models.multiplications import Axes, sent_to
from normscope.tensors import elementwise as entries
from normscope.tensors import products
from normscope.tensors.linear_rows import widened
from normscope.tensors.traced_nodes import (
    Known,
    Operation,
    Stored,
    UnknownError,
    along,
    argument,
    shape_of,
)
from normscope.tensors.values import Angle, Value, Whole, interval_product, merged

if TYPE_CHECKING:
    from normscope.tensors.walk import Walk


def _linear(walk: "Walk", node: Node) -> Known:
    found = _layer(walk, node)
    if found is None:
        return _matmul(walk, node)
    value, layer = found
    kind = kind_of(node)
    bias = node.args[2] if kind == "linear" and len(node.args) > 2 else node.args[0] if kind == "addmm" else None
    if bias is not None:
        name = walk.graph.stored_name(bias) if isinstance(bias, Node) else None
        layer = replace(layer, bias=walk.numbers(bias), bias_name=name)
    return products.layer_of(value, layer, walk.seen(node))


def _matmul(walk: "Walk", node: Node) -> Known:
    found = _layer(walk, node) if kind_of(node) in ("mm", "matmul") else None
    if found is not None:
        return products.layer_of(*found, walk.seen(node))
    kind = kind_of(node)
    if kind in ("baddbmm", "addmm"):
        if node.kwargs.get("beta", 1) not in (0, 1):
            raise UnknownError("a product with a factor")
        factors = node.args[1:3]
    else:
        factors = node.args[:2]
    one, other = (walk.value(each) for each in factors)
    if kind == "linear":
        other = other.moved(lambda entry: entry.transpose(-1, -2))
    if one.unit.ndim < 2 or other.unit.ndim < 2:
        raise UnknownError("a product of a vector")
    made = products.mixture(one, other)
    if made is None:
        made = _angles(one, other)
    if made is None:
        made = products.scores_of(one, other, many=walk.varies(factors[0], -1))
    if kind in ("baddbmm", "addmm", "linear"):
        scale = float(argument(node, "alpha", 1))
        made = entries.times(made, np.full(len(made.low), scale))
        shift = node.args[0] if kind != "linear" else (node.args[2] if len(node.args) > 2 else None)
        if shift is not None and node.kwargs.get("beta", 1) == 1:
            made = entries.sum_of(made, walk.value(shift), operator.add)
    return made


def _layer(walk: "Walk", node: Node) -> tuple[Value, products.Layer] | None:
    """The value and the stored matrix of a product, as the graph knows it."""
    product = walk.graph.products.get(node)
    if product is None:
        return None
    name, transposed = product.reader.weight_name, product.reader.transposed
    source = product.value

    def matrix() -> Any:
        stored = walk.stored(name)
        return stored.T if transposed else stored

    outputs = int(node.meta["val"].shape[-1])
    return walk.value(source), products.Layer(matrix, outputs, name=name, transposed=transposed)


def _angles(one: Value, other: Value) -> Value | None:
    """Frequencies times positions as a product over an axis of one entry."""
    if one.shape[-1] != 1 or not any(isinstance(value.form, Angle) for value in (one, other)):
        return None
    return entries.product_of(one, other, operator.mul)


def _attention(walk: "Walk", node: Node) -> Known:
    query, key, value = (walk.value(argument(node, name)) for name in ("query", "key", "value"))
    if argument(node, "dropout_p"):
        raise UnknownError("attention with dropout")
    if argument(node, "enable_gqa"):
        repeats = query.shape[-3] // key.shape[-3]
        key, value = (each.moved(lambda entry: entry.repeat_interleave(repeats, dim=-3)) for each in (key, value))
    scale = argument(node, "scale")
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else float(scale)
    scores = products.scores_of(query, key.moved(lambda entry: entry.transpose(-1, -2)))
    scores = entries.times(scores, np.full(len(scores.low), scale))
    mask = argument(node, "attn_mask")
    if mask is not None and not isinstance(walk.argument(mask), Whole):
        scores = entries.sum_of(scores, walk.with_mask(mask), operator.add)
    complete = _sees_something(walk, node)  # a row that sees nothing gets zeros
    pair = None if walk.sizes is None else walk.sizes.pair(node)
    if complete and pair is not None and walk.second is not None:
        complete = _sees_something(walk.second, pair)
    if walk.scores is not None:
        walk.scores(node, scores)
    weights = entries.shares((*scores.shape,), len(scores.shape) - 1, complete=complete)
    made = products.mixture(weights, value)
    assert made is not None
    return made


def mask_of_attention(node: Node) -> Any:
    """The mask of an attention operation; None where there is none."""
    return argument(node, "attn_mask") if kind_of(node) == "scaled_dot_product_attention" else None


def _sees_something(walk: "Walk", node: Node) -> bool:
    """Whether every row of attention is certain to see some token."""
    mask = mask_of_attention(node)
    if mask is None:
        return True
    known = walk.argument(mask)
    if isinstance(known, Whole):
        return known.known is not None and bool(known.known.any(dim=-1).all())
    if not isinstance(known, Value):
        return False
    seen = (known.opened().low > -np.inf)[known.unit.numpy()]
    return bool(seen.any(axis=-1).all())


def experts(walk: "Walk", node: Node) -> Value:
    """Every row through the matrix of its expert; all are one tensor (experts, inputs, outputs), or transposed."""
    found = walk.graph.multiplications.get(node)
    layouts = {(Axes(-1, inputs), (Axes(-1, 3 - inputs),)) for inputs in (1, 2)}  # the first axis is that of experts
    if found is None or found.inputs is None or (found.inputs, found.outputs) not in layouts:
        raise UnknownError("a product with weights that are computed or rearranged")
    value, stored, turned = walk.value(found.value), found.weight, found.inputs.weight == 2
    count = int(node.meta["val"].shape[-1])

    def layer(expert: int) -> products.Layer:
        def matrix() -> Any:
            one = walk.stored(stored)[expert]
            return one if turned else one.T

        return products.Layer(matrix, count, name=stored, transposed=not turned, expert=expert)

    number = int(node.args[1].meta["val"].shape[0])  # type: ignore[union-attr]
    return products.experts_of(value, [layer(each) for each in range(number)], sent_to(node.args[2]), walk.seen(node))


def _convolution(walk: "Walk", node: Node) -> Known:
    """A convolution: every output is a sum over a window, whose entries are bounded channel by channel."""
    value = walk.value(node.args[0])
    known = walk.argument(node.args[1])
    if isinstance(known, Stored):
        weight = walk.stored(known.name)
    elif isinstance(known, Value) and known.exact:
        weight = torch.from_numpy(known.low)[known.unit]
    else:
        raise UnknownError("a convolution with computed weights")
    space = weight.ndim - 2
    common = merged(value.plain(), range(value.unit.ndim - space, value.unit.ndim))
    if value.unit.ndim == space + 2:
        common = merged(common, [0])
    channels = common.unit.movedim(-space - 1, 0).reshape(value.shape[-space - 1], -1)[:, 0].numpy()
    low, high = common.low[channels], common.high[channels]
    if argument(node, "padding", 0) not in (0, [0] * space, [0], "valid"):
        low, high = np.minimum(low, 0.0), np.maximum(high, 0.0)
    groups = int(argument(node, "groups", 1))
    window = int(np.prod(weight.shape[2:]))
    parts = []
    for group in range(groups):
        rows = slice(group * len(weight) // groups, (group + 1) * len(weight) // groups)
        columns = slice(group * len(low) // groups, (group + 1) * len(low) // groups)
        matrix = weight[rows].reshape(rows.stop - rows.start, -1)
        parts.append(interval_product(matrix, np.repeat(low[columns], window), np.repeat(high[columns], window)))
    low, high = (np.concatenate([part[at] for part in parts]) for at in (0, 1))
    if argument(node, "bias") is not None:
        bias = walk.numbers(argument(node, "bias"))
        low, high = widened(low + bias, high + bias, np.abs(bias))
    shape = shape_of(node)
    why = None if np.isfinite(low).all() and np.isfinite(high).all() else value.why
    return Value(along(len(low), shape, len(shape) - space - 1), low, high, why)


def _einsum(walk: "Walk", node: Node) -> Known:
    """A product of two tensors as a sum over axes, by moving it into a matrix product."""
    formula, factors = str(node.args[0]).replace(" ", ""), node.args[1]
    left, _, out = formula.partition("->")
    names = left.split(",")
    if len(names) != 2 or "." in formula or any(len(set(name)) < len(name) for name in names):
        raise UnknownError(f"einsum {formula}")
    one, other = (walk.value(each) for each in factors)  # type: ignore[union-attr]
    a, b = names
    summed = [axis for axis in a if axis in b and axis not in out]
    shared = [axis for axis in a if axis in b and axis in out]
    if len(summed) != 1 or any(axis not in out for axis in a + b if axis not in summed):
        raise UnknownError(f"einsum {formula}")
    rows, columns = [x for x in a if x not in b], [x for x in b if x not in a]
    first = _arranged(one, a, [*shared, *rows, *summed], len(rows))
    second = _arranged(other, b, [*shared, *summed, *columns], len(columns), last=True)
    made = products.mixture(first, second)
    if made is None:
        made = products.scores_of(first, second, many=walk.varies(factors[0], a.index(summed[0])))  # type: ignore[index]
    sizes = {axis: size for name, value in ((a, one), (b, other)) for axis, size in zip(name, value.shape, strict=True)}
    names_out = [*shared, *rows, *columns]
    whole = [sizes[axis] for axis in names_out]
    order = [names_out.index(axis) for axis in out]
    return made.moved(lambda entry: entry.reshape(whole).permute(order))


def _arranged(value: Value, names: str, order: list[str], many: int, last: bool = False) -> Value:
    """Axes in an order, with the free ones (before or after the summed one) as one."""
    axes = [names.index(axis) for axis in order]

    def move(entry: Tensor) -> Tensor:
        moved = entry.permute(axes)
        keep = len(order) - many - 1
        shape = list(moved.shape)
        if last:
            return moved.reshape(*shape[: keep + 1], math.prod(shape[keep + 1 :]))
        return moved.reshape(*shape[:keep], math.prod(shape[keep : keep + many]), shape[-1])

    return value.moved(move)


CONTRACTIONS: dict[str, Operation] = {
    "linear": _linear, "addmm": _linear, "mm": _matmul, "matmul": _matmul, "bmm": _matmul, "baddbmm": _matmul,
    "scaled_dot_product_attention": _attention, "conv1d": _convolution, "conv2d": _convolution,
    "conv3d": _convolution, "einsum": _einsum,
}  # fmt: skip
