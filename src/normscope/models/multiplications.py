"""Values times stored weights: by one matrix, or by a stack of matrices such as the experts of a mixture.

    linear(x, W), x @ W            one matrix
    linear(x, W[e])                one matrix of a stack
    bmm(x, W), einsum(…, x, W)     all matrices of a stack, side by side
    bmm(W[chosen], x)              a matrix of a stack for every row
    grouped_mm(x, W, ends)         the same, with rows sorted by the matrix that they are sent to

Which axis of the stored tensor is summed over follows from the operations, never from sizes, which may all be equal:
the moves between the tensor and the product are applied to a tensor of its shape without memory, and the strides of
the result show which axis went where.
"""

import math
import operator
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import Node

from normscope.models.graph_operations import (
    COPIES,
    after_move,
    handed_on,
    is_float,
    kind_of,
    looks_at_values,
    sizes_of,
)

if TYPE_CHECKING:
    from normscope.models.graph import ModelGraph, Product

COUNTS = {"cumsum", "histc", "bincount"}  # from the matrix of each row to the row where each matrix ends


class Axes(NamedTuple):
    """An axis of a value, counted from the last, and the axis of the stored weights that belongs to it."""

    value: int
    weight: int


class Multiplication(NamedTuple):
    """A value times stored weights, and the bias that follows."""

    module: str
    weight: str  # a matrix, or a stack of them
    bias: str | None  # a vector, or as many as there are matrices, with the outputs in the last axis
    value: Node  # what is multiplied
    inputs: Axes | None  # of the value: what is summed over; None if that is more than one axis
    total: Node  # the product, with the bias if there is one
    outputs: tuple[Axes, ...]  # of the total: what the weights bring in
    nodes: tuple[Node, ...]  # the operations that use the weights and the bias


class _Operands(NamedTuple):
    """What an operation multiplies; axes are counted from the last."""

    value: Node
    factor: Node
    summed: tuple[tuple[int, int], ...]  # axes of the value and of the factor
    outputs: dict[int, int]  # axes that only the factor has, and their places in the output
    shared: dict[int, int]  # axes that the value has too
    bias: Any = None


class _Part(NamedTuple):
    """A stored tensor behind a value: moved, a part of it, or rows chosen from it."""

    name: str
    shape: tuple[int, ...]
    axes: dict[int, int]  # by axis of the value, counted from the last: that of the stored tensor, if it is all there
    entry: int | None  # the entry of the first axis that it is, if it is one
    chosen_by: Node | None  # the entries of the first axis that its rows are, if they are chosen
    node: Node | None  # the operation that chooses


def multiplications(graph: "ModelGraph") -> dict[Node, Multiplication]:
    """Every product of an activation with stored weights, by the operation that multiplies."""
    found: dict[Node, Multiplication] = {}
    for node in graph.nodes:
        product = graph.products.get(node)
        made = _by_a_stack(graph, node) if product is None else _by_a_matrix(node, product)
        if made is not None:
            found[node] = made
    return found


def is_grouped(node: Node) -> bool:
    """Whether an operation sends every row through the matrix of its group."""
    return kind_of(node) == "_grouped_mm" or str(node.target).startswith("transformers.grouped_mm")


def sent_to(ends: Any) -> Any:
    """The node that holds the number of the matrix of each row, behind the rows where the matrices end."""
    while isinstance(ends, Node) and kind_of(ends) in COPIES | COUNTS:
        ends = ends.args[0]
    return ends


def _by_a_matrix(node: Node, product: "Product") -> Multiplication:
    reader = product.reader
    inputs, outputs = (0, 1) if reader.transposed else (1, 0)
    return Multiplication(
        module=reader.name,
        weight=reader.weight_name,
        bias=reader.bias_name,
        value=product.value,
        inputs=Axes(-1, inputs),
        total=product.total,
        outputs=(Axes(-1, outputs),),
        nodes=tuple(dict.fromkeys((node, product.total))),
    )


def _by_a_stack(graph: "ModelGraph", node: Node) -> Multiplication | None:
    for operands in _operands(node):
        if not is_float(operands.value) or operands.value in graph.constants:
            continue
        stack = _part(graph, operands.factor)
        if stack is None or len(stack.shape) < 3 or any(axis not in stack.axes for _, axis in operands.summed):
            continue
        summed = [Axes(of_value, stack.axes[axis]) for of_value, axis in operands.summed]
        outputs = tuple(Axes(to, stack.axes[axis]) for axis, to in operands.outputs.items() if axis in stack.axes)
        bare = Multiplication(
            module=graph.module_of(node),
            weight=stack.name,
            bias=None,
            value=operands.value,
            inputs=summed[0] if len(summed) == 1 else None,
            total=node,
            outputs=outputs,
            nodes=(node,) if stack.node is None else (stack.node, node),
        )
        which = _which(node, stack, operands.outputs | operands.shared)
        if operands.bias is None:
            return _with_bias(graph, bare, which) or bare
        bias = _bias(graph, operands.bias, bare.outputs, which)  # a part of the operation itself
        return None if bias is None else bare._replace(bias=bias.name, nodes=(*bare.nodes, *_choosing(bias)))
    return None


def _operands(node: Node) -> Iterator[_Operands]:
    """The ways to see an operation as a value times a factor."""
    kind, given = kind_of(node), list(node.args)
    if is_grouped(node):
        if all(isinstance(each, Node) for each in given[:3]) and len(given) == 3:
            value, factor = given[:2]
            if value.meta["val"].ndim == 2 and factor.meta["val"].ndim == 3:  # type: ignore[union-attr]
                yield _Operands(value, factor, ((-1, -2),), {-1: -1}, {})  # type: ignore[arg-type]
    elif kind == "einsum":
        yield from _einsum(node)
    elif kind in ("linear", "mm", "matmul", "bmm", "addmm", "baddbmm") and not node.kwargs:
        bias = given.pop(0) if kind in ("addmm", "baddbmm") else None
        bias = given.pop() if kind == "linear" and len(given) == 3 else bias
        if not all(isinstance(each, Node) and each.meta["val"].ndim >= 2 for each in given):
            return
        one, other = given
        batch = {axis: axis for axis in range(-node.meta["val"].ndim, -2)}
        if kind == "linear":
            yield _Operands(one, other, ((-1, -1),), {-2: -1}, {}, bias)  # type: ignore[arg-type]
        else:
            yield _Operands(one, other, ((-1, -2),), {-1: -1}, batch, bias)  # type: ignore[arg-type]
            yield _Operands(other, one, ((-2, -1),), {-2: -2}, batch, bias)  # type: ignore[arg-type]


def _einsum(node: Node) -> Iterator[_Operands]:
    formula, factors = str(node.args[0]).replace(" ", ""), node.args[1]
    left, arrow, out = formula.partition("->")
    names = left.split(",")
    if not arrow or len(names) != 2 or "." in formula or any(len(set(name)) < len(name) for name in (*names, out)):
        return
    for one, other in ((0, 1), (1, 0)):
        value, factor = names[one], names[other]
        places = {letter: place - len(factor) for place, letter in enumerate(factor)}
        summed = tuple((value.index(x) - len(value), at) for x, at in places.items() if x in value and x not in out)
        placed = {x: out.index(x) - len(out) for x in factor if x in out}
        if all(x in out or x in value for x in factor) and all(x in out or x in factor for x in value):
            outputs = {places[x]: at for x, at in placed.items() if x not in value}
            shared = {places[x]: at for x, at in placed.items() if x in value}
            yield _Operands(factors[one], factors[other], summed, outputs, shared)  # type: ignore[index, arg-type]


def _part(graph: "ModelGraph", value: Any) -> _Part | None:
    """The stored tensor behind a value, if there is one, and what the moves in between did to its axes."""
    moves: list[Node] = []
    while isinstance(value, Node) and graph.stored_name(value) is None and _chosen(value) is None:
        moves.append(value)
        value = handed_on(value)
    if not isinstance(value, Node):
        return None
    chosen = _chosen(value)
    stored = value if chosen is None else chosen[0]
    name = graph.stored_name(stored)
    if name is None or (chosen is not None and any(not _has_one_user(each) for each in (value, *moves))):
        return None
    shape = tuple(stored.meta["val"].shape)
    moved = _moved(value, moves)
    if moved is None:
        return None
    axes, view = moved
    if chosen is not None:
        before = chosen[1].meta["val"].ndim - 1  # axes that the choice adds before the others
        return _Part(name, shape, {at: axis - before for at, axis in axes.items() if axis > before}, None, *chosen[1:])
    size = math.prod(shape[1:])
    is_entry = set(axes.values()) == set(range(1, len(shape))) and view.numel() == size > 0
    return _Part(name, shape, axes, view.storage_offset() // size if is_entry else None, None, None)


def _chosen(node: Node) -> tuple[Node, Node, Node] | None:
    """The tensor from which an operation chooses entries of the first axis, the node with their numbers, and itself."""
    kind = kind_of(node)
    if kind == "index" and len(node.args) == 2:
        source, numbers = node.args
        numbers = numbers[0] if isinstance(numbers, Sequence) and len(numbers) == 1 else None
    elif kind == "index_select" and node.args[1] == 0:
        source, _, numbers = node.args
    else:
        return None
    while isinstance(source, Node) and kind_of(source) in COPIES:
        source = handed_on(source)
    whole = isinstance(numbers, Node) and numbers.meta["val"].dtype in (torch.int32, torch.int64)
    return (source, numbers, node) if isinstance(source, Node) and whole else None  # type: ignore[return-value]


def _moved(source: Node, moves: list[Node]) -> tuple[dict[int, int], Tensor] | None:
    """By axis after moves, the last move first: the axis of the value that is there as a whole; and the view they give.

    None if they give more than a view.
    """
    probe = torch.empty(sizes_of(source), device="meta")
    moved: Any = probe
    for move in reversed(moves):
        moved = after_move(move, moved)
        if moved is None:
            return None
    if not isinstance(moved, Tensor) or (moved is not probe and moved._base is not probe):
        return None
    known = list(zip(probe.shape, probe.stride(), strict=True))
    axes: dict[int, int] = {}
    for place, each in enumerate(zip(moved.shape, moved.stride(), strict=True)):
        if known.count(each) == 1:
            axes[place - moved.ndim] = known.index(each)
    return axes, moved


def _has_one_user(node: Node) -> bool:
    return sum(looks_at_values(user) or user.op == "output" for user in node.users) == 1


def _which(node: Node, stack: _Part, placed: dict[int, int]) -> object:
    """Which matrix of a stack meets a row: an entry, the node with the entry for each row, or an axis of the output."""
    if is_grouped(node):
        key = sent_to(node.args[2])
        known = isinstance(key, Node) and _is_sorted(key) and _counts_all(node.args[2], stack.shape[0])
        return key if known and stack.axes.get(-3) == 0 else None
    return _which_entry(stack, placed)


def _which_entry(part: _Part, placed: dict[int, int]) -> object:
    if part.chosen_by is not None:
        return part.chosen_by
    if part.entry is not None:
        return f"entry {part.entry}"
    return next((placed[at] for at, axis in part.axes.items() if axis == 0 and at in placed), None)


def _is_sorted(node: Node) -> bool:
    """Whether numbers come from a sort, in rising order."""
    sort = node.args[0] if node.target is operator.getitem and node.args[1] == 0 else None
    return isinstance(sort, Node) and kind_of(sort) == "sort" and len(sort.args) < 3 and not sort.kwargs


def _counts_all(ends: Any, groups: int) -> bool:
    """Whether rows are counted by their number, from 0 to that of the last group."""
    while isinstance(ends, Node) and kind_of(ends) in COPIES | {"cumsum"}:
        ends = ends.args[0]
    return isinstance(ends, Node) and kind_of(ends) == "histc" and ends.args[1:] == (groups, 0, groups - 1)


def _with_bias(graph: "ModelGraph", bare: Multiplication, which: object) -> Multiplication | None:
    """The same with the bias that the module adds next, possibly after a move of the product."""
    product = node = bare.total
    moves: list[Node] = []
    while _has_one_user(node):
        user = next(user for user in node.users if looks_at_values(user) or user.op == "output")
        if handed_on(user) is node:
            moves.insert(0, user)
            node = user
            continue
        terms = [term for term in user.all_input_nodes if term is not node]
        if kind_of(user) != "add" or user.kwargs or len(terms) != 1 or graph.module_of(user) != bare.module:
            return None
        moved = _moved(product, moves)
        if moved is None or sizes_of(user) != sizes_of(node):
            return None
        after = {axis - product.meta["val"].ndim: at for at, axis in moved[0].items()}
        outputs = tuple(Axes(after[axes.value], axes.weight) for axes in bare.outputs if axes.value in after)
        bias = _bias(graph, terms[0], outputs, after.get(which) if isinstance(which, int) else which)
        if bias is None:
            return None
        return bare._replace(bias=bias.name, total=user, outputs=outputs, nodes=(*bare.nodes, user, *_choosing(bias)))
    return None


def _bias(graph: "ModelGraph", term: Any, outputs: tuple[Axes, ...], which: object) -> _Part | None:
    """A stored matrix of biases, one row for each matrix of a stack, where each row meets that of its matrix."""
    part = _part(graph, term)
    to = [axes.value for axes in outputs if axes.weight != 0]
    if part is None or which is None or len(part.shape) != 2 or len(to) != 1 or part.axes.get(to[0]) != 1:
        return None
    return part if _which_entry(part, {axis: axis for axis in part.axes}) == which else None


def _choosing(part: _Part) -> tuple[Node, ...]:
    return () if part.node is None else (part.node,)
