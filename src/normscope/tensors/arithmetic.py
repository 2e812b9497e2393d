"""Operations of a traced call that compute with entries, one by one: sums, products, powers, choices, activations.

a ± b,  a·b,  a / b,  aⁿ        bounds and forms by `elementwise`
x / √(mean of x² + eps)         squares are remembered, so that no entry is above √(entries)
where, masked_fill              an entry of one or of the other
"""

import operator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.fx import Node

from normscope.models.graph_operations import kind_of
from normscope.tensors import elementwise as entries
from normscope.tensors.entry_forms import Squares
from normscope.tensors.interval_arithmetic import INTERVALS
from normscope.tensors.traced_nodes import Known, Operation, UnknownError, argument, has_floats, noted, shape_of
from normscope.tensors.values import Value, aligned, constant, mask_of, numbered

if TYPE_CHECKING:
    from normscope.tensors.walk import Walk


def _add(walk: "Walk", node: Node) -> Known:
    if not has_floats(node):
        return walk.whole_numbers(node)
    one, other = walk.with_mask(node.args[0]), walk.with_mask(node.args[1])
    if (factor := argument(node, "alpha", 1)) != 1:
        other = entries.product_of(other, constant(float(factor)), operator.mul)
    return entries.sum_of(one, other, operator.add)


def _sub(walk: "Walk", node: Node) -> Known:
    if not has_floats(node):
        return walk.whole_numbers(node)
    one, other = walk.with_mask(node.args[0]), walk.with_mask(node.args[1])
    if kind_of(node) == "rsub":
        one, other = other, one
    factor = constant(-float(argument(node, "alpha", 1)))
    return entries.sum_of(one, entries.product_of(other, factor, operator.mul), operator.add)


def _mul(walk: "Walk", node: Node) -> Known:
    if not has_floats(node):
        return walk.whole_numbers(node)
    one, other = walk.with_mask(node.args[0]), walk.with_mask(node.args[1])
    for value, root, source in ((one, other, node.args[0]), (other, one, node.args[1])):
        if (scaled := entries.scaled_by_root(value, root, walk.identity(source))) is not None:
            return scaled
    return entries.product_of(one, other, operator.mul)


def _div(walk: "Walk", node: Node) -> Known:
    if not has_floats(node):
        return walk.whole_numbers(node)
    if node.kwargs.get("rounding_mode") is not None:
        raise UnknownError("a rounded quotient")
    one, other = walk.with_mask(node.args[0]), walk.with_mask(node.args[1])
    return entries.quotient_of(one, other, operator.truediv, walk.identity(node.args[0]))


def _pow(walk: "Walk", node: Node) -> Known:
    exponent = node.args[1]
    if not isinstance(exponent, (int, float)):
        raise UnknownError("a power with a computed exponent")
    made = entries.power(walk.value(node.args[0]), float(exponent), lambda t: torch.pow(t, exponent))
    return made if exponent != 2 else _with_squares(walk, node, made)


def _square_of(walk: "Walk", node: Node) -> Known:
    return _with_squares(walk, node, entries.unary("square", torch.square, walk.value(node.args[0])))


def _with_squares(walk: "Walk", node: Node, made: Value) -> Value:
    """The squares of values without a form are remembered as that."""
    return made if made.form else noted(made, Squares(walk.identity(node.args[0])), numbered(made.shape))


def _clamp(walk: "Walk", node: Node) -> Known:
    if not has_floats(node):
        return walk.whole_numbers(node)
    least, most = argument(node, "min"), argument(node, "max")
    if any(isinstance(limit, Node) for limit in (least, most)):
        made = walk.value(node.args[0])
        for limit, pick in ((least, np.maximum), (most, np.minimum)):  # as torch does: where they cross, the upper one
            made = made if limit is None else _picked(made, walk.value(limit), pick)
        return made
    return entries.clamped(walk.value(node.args[0]), least, most, lambda t: torch.clamp(t, least, most))


def _where(walk: "Walk", node: Node) -> Known:
    if not has_floats(node):
        return walk.whole_numbers(node)
    made = entries.either(*(walk.with_mask(each) for each in node.args[1:3]))
    return made.moved(lambda entry: entry.expand(shape_of(node)))


def _masked_fill(walk: "Walk", node: Node) -> Known:
    if not has_floats(node):
        return walk.whole_numbers(node)
    value, filled = walk.with_mask(node.args[0]), walk.with_mask(node.args[2])
    return entries.either(value, filled).moved(lambda entry: entry.expand(shape_of(node)))


def extreme(walk: "Walk", node: Node) -> Known:
    """maximum, minimum of two values."""
    if not has_floats(node):
        return walk.whole_numbers(node)
    values = [walk.with_mask(node.args[0]), walk.with_mask(node.args[1])]
    largest = kind_of(node) in ("maximum", "max")
    if largest and any(value.exact and not value.stored and mask_of(value.low).all() for value in values):
        return entries.either(*values)  # masked entries are so at the lowest number
    return _picked(values[0].opened(), values[1].opened(), np.maximum if largest else np.minimum)


def _picked(one: Value, other: Value, pick: Any) -> Value:
    """The larger, or the smaller, of two values."""
    unit, (a, b) = aligned([one, other])
    low, high = pick(a.low, b.low), pick(a.high, b.high)
    bounded = np.isfinite(low).all() and np.isfinite(high).all()
    return Value(unit, low, high, None if bounded else a.why or b.why)


def unary(walk: "Walk", node: Node, kind: str) -> Value:
    if kind == "gelu" and (node.kwargs.get("approximate") == "tanh" or "tanh" in node.args):
        kind = "gelu_tanh"
    if kind == "softplus" and (len(node.args) > 1 or node.kwargs):
        value, steepness = walk.value(node.args[0]), float(argument(node, "beta", 1))
        if steepness <= 0:
            raise UnknownError("a softplus that falls")
        low, high = INTERVALS["relu"](value.low, value.high)
        return replace(value.plain(), low=low, high=high + 0.7 / steepness)  # at most log 2 above it
    rest = node.args[1:]
    source = walk.value(node.args[0])
    made = entries.unary(kind, lambda t: node.target(t.clone(), *rest, **node.kwargs), source)  # type: ignore[operator]
    squares = source.form
    if kind == "rsqrt" and isinstance(squares, Squares) and squares.count and not squares.inverted:
        return noted(made, replace(squares, inverted=True), source.places[0])
    return made


ARITHMETIC: dict[str, Operation] = {
    "square": _square_of, "add": _add, "sub": _sub, "rsub": _sub, "mul": _mul, "div": _div, "pow": _pow,
    "clamp": _clamp, "clamp_min": _clamp, "clamp_max": _clamp, "where": _where, "masked_fill": _masked_fill,
    "maximum": extreme, "minimum": extreme,
}  # fmt: skip
