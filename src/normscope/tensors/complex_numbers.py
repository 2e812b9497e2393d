"""Operations of a traced call on complex numbers, by their real and imaginary parts: rotary embeddings as phases.

view_as_complex      entries 0 and 1 of the last axis
polar(r, φ)          r·cos φ, r·sin φ
(a + bi)·(c + di)    ac − bd, ad + bc: a rotation where c + di is a phase, so pairs keep their length
view_as_real         both parts, as entries of a last axis
"""

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.fx import Node

from normscope.models.graph_operations import COPIES, handed_on, kind_of
from normscope.tensors import elementwise as entries
from normscope.tensors.traced_nodes import Known, UnknownError, anywhere_along, argument
from normscope.tensors.values import Value, joined_values

if TYPE_CHECKING:
    from normscope.tensors.walk import Walk


@dataclass(frozen=True, eq=False)
class Complex:
    """A tensor of complex numbers."""

    real: Value
    imaginary: Value

    def each(self, change: Callable[[Value], Value]) -> "Complex":
        return Complex(change(self.real), change(self.imaginary))

    def anywhere_along(self, axes: tuple[int, ...]) -> "Complex":
        return self.each(lambda part: anywhere_along(part, axes))


def is_complex(node: Any) -> bool:
    value = node.meta.get("val") if isinstance(node, Node) else None
    return isinstance(value, Tensor) and value.is_complex()


def complex_operation(walk: "Walk", node: Node) -> Known:  # noqa: PLR0911  (a line for each operation)
    """What is known of an operation that reads or makes complex numbers."""
    kind = kind_of(node)
    if kind == "view_as_complex":
        pairs = walk.value(node.args[0])
        return Complex(*(pairs.moved(lambda entry, at=at: entry.select(-1, at)) for at in (0, 1)))  # type: ignore[misc]
    if kind == "polar":
        size, angle = walk.value(argument(node, "abs")), walk.value(argument(node, "angle"))
        waves = entries.unary("cos", torch.cos, angle), entries.unary("sin", torch.sin, angle)
        return Complex(*(entries.product_of(size, wave, operator.mul) for wave in waves))
    if kind == "mul":
        return _product(walk, *node.args[:2])
    if kind == "view_as_real":
        found = _numbers(walk, node.args[0])
        return joined_values([found.real, found.imaginary], lambda parts: torch.stack(parts, -1))
    if kind in ("real", "imag"):
        found = _numbers(walk, node.args[0])
        return found.real if kind == "real" else found.imaginary
    if kind in COPIES and is_complex(node):
        return _numbers(walk, node.args[0])
    if handed_on(node) is not None and is_complex(node) and kind != "as_strided":
        return _numbers(walk, node.args[0]).each(lambda part: part.moved(lambda entry: _moved(node, entry)))
    raise UnknownError(f"the operation {kind or node.target} on complex numbers")


def _numbers(walk: "Walk", given: Any) -> Complex:
    known = walk.argument(given)
    if not isinstance(known, Complex):
        raise UnknownError("complex numbers of which nothing is known")
    return known


def _product(walk: "Walk", one: Any, other: Any) -> Complex:
    if not is_complex(one) or not is_complex(other):
        number, factor = (one, other) if is_complex(one) else (other, one)
        if isinstance(factor, complex):
            raise UnknownError("a product with a complex constant")
        real = walk.value(factor)
        return _numbers(walk, number).each(lambda part: entries.product_of(part, real, operator.mul))
    a, b = _numbers(walk, one), _numbers(walk, other)

    def product(x: Value, y: Value) -> Value:
        return entries.product_of(x, y, operator.mul)

    turned = product(a.imaginary, b.imaginary)
    turned = entries.times(turned, -np.ones(len(turned.low)))
    return Complex(
        entries.sum_of(product(a.real, b.real), turned, operator.add),
        entries.sum_of(product(a.real, b.imaginary), product(a.imaginary, b.real), operator.add),
    )


def _moved(node: Node, entry: Tensor) -> Any:
    if kind_of(node) in ("view", "_unsafe_view"):
        return entry.reshape(node.args[1])  # type: ignore[arg-type]
    return node.target(entry, *node.args[1:], **node.kwargs)  # type: ignore[operator]
