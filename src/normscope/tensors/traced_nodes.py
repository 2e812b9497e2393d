"""Nodes of a traced call: arguments, shapes, and what is known of a node before an operation is followed.

A node has a tensor, or several; each is a `Value`, or a `Whole` if its numbers are whole, or `Stored` while it was not
read. Operations are functions of the walk and of a node, and raise `UnknownError` where they can't be followed.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.fx import Node

from normscope.models.graph_operations import sizes_of
from normscope.tensors.entry_forms import Weighted
from normscope.tensors.values import Angle, Shares, Value, Whole, anything, constant, mask_of, merged, within

if TYPE_CHECKING:
    from normscope.tensors.walk import Walk

Known = Value | Whole | tuple["Known", ...] | Any
Operation = Callable[["Walk", Node], Known]  # what is known of the result of an operation


class UnknownError(Exception):
    """Why an operation cannot be followed."""


@dataclass(frozen=True)
class Stored:
    """A parameter or buffer that has not been read."""

    name: str
    shape: tuple[int, ...]
    floating: bool


def argument(node: Node, name: str, default: Any = None) -> Any:
    """An argument of an operation of torch, however it was given."""
    names = [each.name for each in node.target._schema.arguments]  # type: ignore[union-attr]
    given = dict(zip(names, node.args, strict=False)) | dict(node.kwargs)
    return given.get(name, default)


def shape_of(node: Node) -> tuple[int, ...]:
    return tuple(node.meta["val"].shape)


def has_floats(node: Node) -> bool:
    value = node.meta.get("val")
    leaves = value if isinstance(value, (list, tuple)) else [value]
    return any(isinstance(each, Tensor) and (each.is_floating_point() or each.is_complex()) for each in leaves)


def is_plain(value: Any) -> bool:
    """Whether all sizes are numbers: where they depend on the input, nothing is followed."""
    leaves = value if isinstance(value, (list, tuple)) else [value]
    return all(isinstance(size, int) for each in leaves if isinstance(each, Tensor) for size in each.shape)


def along(count: int, shape: tuple[int, ...], axis: int) -> Tensor:
    """Units that are numbered along one axis."""
    return torch.arange(count).reshape([count if at == axis else 1 for at in range(len(shape))]).expand(shape)


def as_value(whole: Whole) -> Value:
    """Whole numbers as floating-point ones. Positions are any numbers, of which cos and sin are taken."""
    if whole.known is None:
        return anything(whole.shape, "whole numbers that depend on the input")
    if whole.known.dtype == torch.bool:
        return within(whole.shape, 0.0, 1.0)
    if not whole.varies:
        return constant(whole.known)
    value = within(whole.shape, -np.inf, np.inf, "positions, which have no largest")
    return replace(value, form=Angle(whole, np.zeros(1, dtype=np.intp)), places=(whole.known.long(),))


def anywhere_along(value: Value, axes: tuple[int, ...]) -> Value:
    """Bounds that hold anywhere along axes of any size: no unit depends on where it is there.

    Weights of a mean are kept apart: how many there are is nothing that their bounds depend on.
    """
    if not axes or isinstance(value.form, (Shares, Weighted)) or is_alike(value.unit, axes):
        return value
    if value.exact and not value.stored and (hidden := mask_of(value.low)).any():
        low = np.where(hidden, value.low[~hidden].min(initial=0.0), value.low)
        value = replace(value.plain(), low=low, high=low.copy(), masked=True)
    return merged(value.plain(), axes)


def is_alike(unit: Tensor, axes: tuple[int, ...]) -> bool:
    """Whether entries along these axes are all the same."""
    flat = [axis for axis in axes if unit.stride(axis) != 0 and unit.shape[axis] > 1]
    return all(bool((unit == unit.narrow(axis, 0, 1)).all()) for axis in flat)


def noted(value: Value, form: object, place: Tensor) -> Value:
    return replace(value, form=form, places=(place,))  # type: ignore[arg-type]


def nothing_known(value: Any, why: str) -> Known:
    if not isinstance(value, Tensor):
        return None
    return anything(value.shape, why) if value.is_floating_point() else Whole(tuple(value.shape))


def of_any_length(node: Node, module: str) -> Known:
    """What is known of a tensor with as many rows as the numbers decide, such as the tokens that one expert gets."""
    tensor = node.meta.get("val")
    if not isinstance(tensor, Tensor) or not has_floats(node) or is_plain(tensor):
        return None
    where = f" in {module}" if module else ""
    return nothing_known(torch.empty(sizes_of(node), device="meta"), f"as many rows as the numbers decide{where}")
