"""Operations of a traced call over axes that leave no sum of products: sums, means, extremes, variances, softmax.

Σ, mean over tokens        a sum has no bound where there may be any number of terms, a mean has
log Σ exp                  between the largest and log(entries) above it
variance                   at most n/(n − correction)·(high − low)²/4
group_norm                 within √(entries − 1) of 0, before gain and bias
"""

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.fx import Node

from normscope.models.graph_operations import kind_of
from normscope.tensors import elementwise as entries
from normscope.tensors import products
from normscope.tensors.entry_forms import Squares, Total
from normscope.tensors.linear_rows import widened
from normscope.tensors.traced_nodes import Known, Operation, UnknownError, along, argument, has_floats, noted, shape_of
from normscope.tensors.values import Value, merged, numbered

if TYPE_CHECKING:
    from normscope.tensors.walk import Walk


def _softmax(walk: "Walk", node: Node) -> Known:
    value = walk.with_mask(node.args[0])
    axis = int(argument(node, "dim")) % max(1, len(value.shape))
    return entries.shares(value.shape, axis, order=value.order if axis else None)


def _reduce(walk: "Walk", node: Node) -> Known:
    if not has_floats(node):
        return walk.whole_numbers(node)
    value = walk.value(node.args[0])
    axes, keep = _axes(node, value), bool(argument(node, "keepdim"))
    many = _any_number(walk, node, axes)
    made = products.summed(value, axes, keep, mean=kind_of(node) == "mean", many=many)
    if kind_of(node) == "sum" and keep and len(axes) == 1 and (value.low >= 0).all():
        return noted(made, Total(walk.identity(node.args[0]), axes[0]), numbered(made.shape))
    squares = value.form
    if kind_of(node) == "mean" and keep and axes == [value.unit.ndim - 1] and isinstance(squares, Squares) and not many:
        in_place = not squares.count and bool((value.places[0] == numbered(value.shape)).all())
        return noted(made, replace(squares, count=value.shape[-1]), numbered(made.shape)) if in_place else made
    return made


def _axes(node: Node, value: Value) -> list[int]:
    """The axes that an operation reduces: all, if none is named."""
    named = argument(node, "dim")
    named = [named] if isinstance(named, int) else named or range(value.unit.ndim)
    return [axis % value.unit.ndim for axis in named]


def _largest_over(walk: "Walk", node: Node) -> Known:
    """amax, amin over axes: at least, or at most, each of the entries."""
    if not has_floats(node):
        return walk.whole_numbers(node)
    value = walk.value(node.args[0])
    members, made = products.groups_of(value, _axes(node, value), bool(argument(node, "keepdim")))
    low, high = value.low[members], value.high[members]
    pick = np.max if kind_of(node) == "amax" else np.min
    low, high = pick(low, axis=1), pick(high, axis=1)
    return Value(made, low, high, None if np.isfinite([low, high]).all() else value.why)


def _any_number(walk: "Walk", node: Node, axes: list[int]) -> bool:
    """Whether there are more entries along these axes for larger inputs."""
    return any(walk.varies(node.args[0], axis) for axis in axes)


def _norm_of(walk: "Walk", node: Node) -> Known:
    """The length of vectors."""
    if argument(node, "ord", 2) != 2:
        raise UnknownError("a norm of another kind than the length")
    value = walk.value(node.args[0])
    square = entries.unary("square", lambda t: t * t, value)
    axes = _axes(node, value)
    many = _any_number(walk, node, axes)
    made = products.summed(square, axes, bool(argument(node, "keepdim")), many=many)
    return entries.unary("sqrt", torch.sqrt, replace(made, low=np.maximum(made.low, 0.0)))


def _log_sum(walk: "Walk", node: Node) -> Known:
    """log Σ exp: rising in every entry, above the largest and at most log(entries) above it."""
    value = walk.value(node.args[0])
    axes = _axes(node, value)
    many = _any_number(walk, node, axes)
    members, made = products.groups_of(value, axes, bool(argument(node, "keepdim")))
    with np.errstate(divide="ignore"):
        low, high = (np.logaddexp.reduce(end[members], axis=1) for end in (value.low, value.high))
    if many:
        low, high = value.low[members].max(axis=1), np.full(len(high), np.inf)
    low, high = widened(low, high, members.shape[1] + 1.0)
    why = value.why or (products.MANY_TOKENS if many else None)
    return Value(made, low, high, None if np.isfinite([low, high]).all() else why)


def _variance(walk: "Walk", node: Node) -> Known:
    """Variances of entries within [low, high]: at most n/(n − correction)·(high − low)²/4."""
    value = walk.value(node.args[0])
    axes, keep = _axes(node, value), bool(argument(node, "keepdim"))
    correction = argument(node, "correction", argument(node, "unbiased", True))
    correction = 1.0 if correction is None else float(correction)
    members, made = products.groups_of(value, axes, keep)
    count = members.shape[1]
    if correction < 0 or count <= correction:
        raise UnknownError(f"a variance of {count} entries")
    many = _any_number(walk, node, axes)
    if many:
        count = int(correction) + 1  # the fewest of which there is a variance: the factor falls with their number
    with np.errstate(invalid="ignore", over="ignore"):
        spread = value.high[members].max(axis=1) - value.low[members].min(axis=1)
        high = widened(spread, spread**2 / 4 * (count / (count - correction)), 0.0)[1]
    why = None if np.isfinite(high).all() else value.why or "a variance of unbounded values"
    square = Value(made, np.zeros(len(high)), high, why)
    found = square if kind_of(node).startswith("var") else entries.unary("sqrt", torch.sqrt, square)
    if not kind_of(node).endswith("_mean"):
        return found
    return found, products.summed(value, axes, keep, mean=True, many=many)


def _group_norm(walk: "Walk", node: Node) -> Known:
    """Groups of channels with all positions: each entry is within √(entries − 1) of 0 before the gain."""
    groups = int(argument(node, "num_groups", argument(node, "group")))
    shape = shape_of(node)
    if _any_number(walk, node, list(range(1, len(shape)))):
        raise UnknownError("a norm over positions, of which there may be any number")
    reach = math.sqrt(max(0, math.prod(shape[1:]) // groups - 1)) * (1 + 1e-12)
    gain, bias = (argument(node, name) for name in ("weight", "bias"))
    size = np.full(shape[1], reach) if gain is None else reach * np.abs(walk.numbers(gain))
    center = np.zeros(shape[1]) if bias is None else walk.numbers(bias)
    low, high = widened(center - size, center + size, np.abs(center) + size)
    return Value(along(shape[1], shape, 1), low, high)


def _pooled(walk: "Walk", node: Node) -> Known:
    value = walk.value(node.args[0])
    common = merged(value.plain(), [-1] if kind_of(node).endswith("1d") else [-1, -2])
    shape = shape_of(node)
    one = common.unit[..., :1] if kind_of(node).endswith("1d") else common.unit[..., :1, :1]
    return replace(common, unit=one.expand(shape))


REDUCTIONS: dict[str, Operation] = {
    "softmax": _softmax, "_softmax": _softmax, "sum": _reduce, "mean": _reduce, "amax": _largest_over,
    "amin": _largest_over, "linalg_vector_norm": _norm_of, "logsumexp": _log_sum, "var": _variance, "std": _variance,
    "var_mean": _variance, "std_mean": _variance, "group_norm": _group_norm, "adaptive_avg_pool1d": _pooled,
    "adaptive_avg_pool2d": _pooled,
}  # fmt: skip
