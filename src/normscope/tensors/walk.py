"""Follow every operation of a traced call and say what its tensors can hold, for all inputs.

Each norm starts afresh: whatever reaches it, its output is b + √N·G·u with |u| ≤ 1. From there on operations are
followed one by one (`elementwise`, `products`). An operation that is not known gives a tensor of which nothing is
known, and what depends on it says so, up to the next norm.
"""

import math
import operator
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.fx import Node
from torch.utils import _pytree as pytree

from normscope.checks import Floats, as_floats
from normscope.errors import InputError
from normscope.models.graph import ModelGraph
from normscope.models.graph_operations import COPIES, DROPOUTS, handed_on, is_float, kind_of, overwritten_by
from normscope.norm import Norm
from normscope.tensors import elementwise as entries
from normscope.tensors import products
from normscope.tensors.linear_rows import Ball, Linear, NormRows, widened
from normscope.tensors.values import (
    Angle,
    Shares,
    Value,
    Whole,
    aligned,
    anything,
    constant,
    interval_product,
    joined_values,
    mask_of,
    merged,
    numbered,
    within,
)

Known = Value | Whole | tuple["Known", ...] | Any
MOST_NUMBERS = 2**26  # of a constant that is held entry by entry


@dataclass(frozen=True)
class NormCall:
    """One call of a norm: its output is that of `norm`, over the given axis."""

    name: str
    norm: Norm
    axis: int


class Walk:
    """The walk over a graph. `stored` reads a parameter or buffer by its name; `norms` are the outputs of norm calls.

    `given` has bounds of floating-point inputs by name. `watch` sees what every layer writes, and may tighten it;
    `scores` sees the scores inside attention operations; `refused` are outputs of norms that bound nothing, and why.
    """

    def __init__(
        self,
        graph: ModelGraph,
        stored: Callable[[str], Tensor],
        norms: Mapping[Node, NormCall],
        given: Mapping[str, tuple[float, float]] | None = None,
        watch: Callable[[Node, products.Outputs], None] | None = None,
        scores: Callable[[Node, Value], None] | None = None,
        refused: Mapping[Node, str] | None = None,
    ) -> None:
        self._refused = dict(refused or {})
        self._graph, self._read, self._norms, self._given = graph, stored, norms, dict(given or {})
        self._watch, self._scores = watch, scores
        self._made: dict[Node, Known] = {}
        self._changes: Counter[Node] = Counter()  # in place, by the node whose memory is changed

    def steps(self) -> Iterator[tuple[Node, Known]]:
        """Every node with what is known of it, in the order in which they run; each is dropped after its last use."""
        nodes = self._graph.nodes
        last = {used: node for node in nodes for used in node.all_input_nodes}
        ends: dict[Node, list[Node]] = {}
        for used, node in last.items():
            ends.setdefault(node, []).append(used)
        for node in nodes:
            if node.op == "output":
                continue
            self._made[node] = self._known(node)
            yield node, self._made[node]
            for changed in overwritten_by(node):
                self._overwrite(node, changed)
            for used in ends.get(node, ()):
                self._made.pop(used, None)

    def _overwrite(self, node: Node, changed: Node) -> None:
        """After an operation in place the value that it changed is its result; what shares its memory is unknown."""
        storage = _storage(changed)
        self._changes[storage] += 1
        for other, known in self._made.items():
            if known is not None and other is not node and _storage(other) is storage:
                self._made[other] = self._unknown(other, f"{other.name} is changed in place through a view")
        self._made[changed] = self._made[node]

    def _stored(self, name: str) -> Tensor:
        """A parameter or buffer, as it was before the call."""
        if any(self._graph.stored_name(node) == name for node in self._changes):
            raise _UnknownError(f"{name} is changed in place")
        return self._read(name)

    def identity(self, node: Any) -> object:
        """What tells the present numbers of a node apart from others: equal only for equal numbers."""
        while isinstance(node, Node) and kind_of(node) in COPIES and not self._changes[_storage(node)]:
            if self._changes[_storage(node.all_input_nodes[0])]:
                break
            node = node.all_input_nodes[0]
        return (node, self._changes[_storage(node)]) if isinstance(node, Node) else object()

    def _known(self, node: Node) -> Known:
        if node.op == "placeholder":
            return self._placeholder(node)
        if node in self._norms:
            return self._norm_output(node, self._norms[node])
        if node.op != "call_function" or not _is_plain(node.meta.get("val")):
            return None
        try:
            made = self._computed(node)
        except _UnknownError as unknown:
            made = self._unknown(node, str(unknown))
        except InputError as error:  # weights that are not finite, or can't be read
            raise InputError(f"{self._graph.module_of(node) or node.name}: {error}") from None
        except (RuntimeError, IndexError, ValueError, TypeError, KeyError, AttributeError) as error:
            if DEBUG:
                raise
            made = self._unknown(node, f"{kind_of(node) or node.name} could not be followed ({type(error).__name__})")
        if isinstance(made, Value) and made.why is not None and node in self._refused:
            made = replace(made, why=self._refused[node])
        if isinstance(made, Value):
            inputs = [self._made.get(each) for each in node.all_input_nodes]
            depth = max((each.depth for each in inputs if isinstance(each, Value)), default=0)
            made = replace(made, depth=depth + (handed_on(node) is None))
        if isinstance(made, Value) and is_float(node) and tuple(made.unit.shape) != tuple(node.meta["val"].shape):
            return self._unknown(node, f"{kind_of(node)} gave another shape than expected")
        return made

    def _unknown(self, node: Node, what: str) -> Known:
        where = self._graph.module_of(node)
        why = f"{what} in {where}" if where else what
        value = node.meta.get("val")
        if isinstance(value, (list, tuple)):
            return tuple(_nothing(each, why) for each in value)
        return _nothing(value, why)

    def _placeholder(self, node: Node) -> Known:
        value = node.meta.get("val")
        name = self._graph.stored_name(node)
        if not isinstance(value, Tensor) or not _is_plain(value):
            return value if not isinstance(value, Tensor) else None
        if name is not None:
            return _Stored(name, tuple(value.shape), value.is_floating_point())
        lifted = self._graph.program.graph_signature.inputs_to_lifted_tensor_constants
        if node.name in lifted:
            held = self._graph.program.constants[lifted[node.name]]
            if not held.is_meta:
                return constant(held) if value.is_floating_point() else Whole(tuple(value.shape), held.cpu())
        if not value.is_floating_point():
            return Whole(tuple(value.shape))
        if node.name in self._given:
            return within(value.shape, *self._given[node.name])
        return anything(value.shape, f"the range of the input {node.name} is not known")

    def _norm_output(self, node: Node, call: NormCall) -> Value:
        shape, norm = tuple(node.meta["val"].shape), call.norm
        axis = call.axis % len(shape)
        unit = along(norm.size, shape, axis)
        place = numbered(shape, axis)
        ball = Ball(norm.size, call.name, norm.groups, source=node)
        form = Linear(
            NormRows(norm, ball), np.arange(norm.size), np.ones(norm.size), np.asarray(norm.bias, dtype=float)
        )
        low, high = form.bounds()
        source = self._made.get(node.all_input_nodes[0]) if node.all_input_nodes else None
        order = source.order if isinstance(source, Value) else None
        return Value(unit, low, high, form=form, places=(place,), order=order, depth=4)

    # ---- arguments -------------------------------------------------------------------------------------------

    def _argument(self, argument: Any) -> Any:
        if isinstance(argument, Node):
            return self._made.get(argument)
        if isinstance(argument, (list, tuple)):
            return [self._argument(each) for each in argument]
        return argument

    def value(self, argument: Any) -> Value:
        """An argument as a floating-point tensor, masked entries within its bounds."""
        return self.with_mask(argument).opened()

    def with_mask(self, argument: Any) -> Value:
        """An argument as a floating-point tensor, of which entries may be masked."""
        known = self._made.get(argument) if isinstance(argument, Node) else argument
        if isinstance(known, Value):
            return known
        if isinstance(known, _Stored):
            if not known.floating or math.prod(known.shape) > MOST_NUMBERS:
                raise _UnknownError(f"the tensor {known.name}, which is too large to be used entry by entry,")
            made = constant(self._stored(known.name), stored=True)
            if np.isnan(made.low).any():
                raise InputError(f"{known.name} must be numbers, got {np.isnan(made.low).sum()} NaN")
            return made
        if isinstance(known, Whole):
            return as_value(known)
        if isinstance(known, (bool, int, float)):
            return constant(float(known))
        raise _UnknownError(f"an argument of type {type(known).__name__}")

    def numbers(self, argument: Any) -> Floats:
        """The entries of an argument that is a constant."""
        value = self.value(argument)
        if not value.exact:
            raise _UnknownError("a bias that is computed")
        return np.asarray(value.low[value.unit.numpy()])

    def whole(self, argument: Any) -> Whole:
        """An argument as a tensor of whole numbers."""
        known = self._made.get(argument) if isinstance(argument, Node) else argument
        if isinstance(known, _Stored) and not known.floating:
            return Whole(known.shape, self._stored(known.name).cpu())
        if isinstance(known, Whole):
            return known
        if isinstance(known, Value):
            return Whole(known.shape)
        return Whole((), torch.as_tensor(known))

    # ---- operations ------------------------------------------------------------------------------------------

    def _computed(self, node: Node) -> Known:  # noqa: PLR0911  (a line for each kind of operation)
        kind = kind_of(node)
        if node.target is operator.getitem:
            source, at = self._argument(node.args[0]), node.args[1]
            return source[at] if isinstance(source, tuple) and isinstance(at, int) else None
        if node.meta.get("val") is None and kind:
            return None
        if str(node.target).startswith("transformers.grouped_mm"):
            return self._experts(node)
        special = SPECIAL.get(kind)
        if special is not None:
            return special(self, node)
        if not _has_floats(node):
            return self._whole_numbers(node)
        if kind in COPIES or (kind in DROPOUTS and node.args[2] is False):
            return self.with_mask(node.args[0])
        if kind in entries.INTERVALS:
            return self._unary(node, kind)
        if self._is_move(node):
            return self._move(node)
        raise _UnknownError(f"the operation {kind or node.target}")

    def _is_move(self, node: Node) -> bool:
        return handed_on(node) is not None or kind_of(node) in MOVES

    def _move(self, node: Node) -> Known:
        value = self.with_mask(node.args[0])
        if kind_of(node) == "as_strided":
            raise _UnknownError("a view by strides")
        if kind_of(node) in CUTS and value.stored and value.exact:
            value = self._of_any_length(node, value)

        def move(entry: Tensor) -> Any:
            if kind_of(node) in ("view", "_unsafe_view"):  # strides of the entries are not those of the tensor
                return entry.reshape(node.args[1])  # type: ignore[arg-type]
            return node.target(entry, *node.args[1:], **node.kwargs)  # type: ignore[operator]

        moved = move(value.unit)
        if isinstance(moved, Tensor):
            return self._reordered(node, value, value.moved(move))
        places = [move(place) for place in value.places]
        parts = [replace(value, unit=unit, places=tuple(each[at] for each in places)) for at, unit in enumerate(moved)]
        return tuple(self._reordered(node, value, part) for part in parts)

    def _of_any_length(self, node: Node, value: Value) -> Value:
        """A stored table of which as many rows are taken as the input has entries: any row, for other inputs."""
        sizes = zip(value.shape, _shape(node), strict=True)
        axes = [at for at, (whole, part) in enumerate(sizes) if whole != part and part in self._lengths]
        return merged(value, axes) if axes else value

    @cached_property
    def _lengths(self) -> set[int]:
        """The sizes of the inputs' axes; 1 is most often not that of a sequence."""
        inputs = [node for node in self._graph.nodes if node.name in self._graph.program.graph_signature.user_inputs]
        return {size for node in inputs if isinstance(node.meta.get("val"), Tensor) for size in _shape(node)} - {1}

    def _reordered(self, node: Node, before: Value, after: Value) -> Value:
        """A value in an unknown order of rows keeps it only while its first axis is still these rows."""
        moves_rows = kind_of(node) in ("transpose", "permute", "roll", "flip")
        if before.order is None or (before.shape[:1] == after.shape[:1] and not moves_rows):
            return after
        return replace(after.plain(), order=None)

    def _unary(self, node: Node, kind: str) -> Value:
        if kind == "gelu" and (node.kwargs.get("approximate") == "tanh" or "tanh" in node.args):
            kind = "gelu_tanh"
        if kind == "softplus" and (len(node.args) > 1 or node.kwargs):
            value, steepness = self.value(node.args[0]), float(argument(node, "beta", 1))
            if steepness <= 0:
                raise _UnknownError("a softplus that falls")
            low, high = entries.INTERVALS["relu"](value.low, value.high)
            return replace(value.plain(), low=low, high=high + 0.7 / steepness)  # at most log 2 above it
        rest = node.args[1:]
        source = self.value(node.args[0])
        made = entries.unary(kind, lambda t: node.target(t.clone(), *rest, **node.kwargs), source)  # type: ignore[operator]
        squares = source.form
        if kind == "rsqrt" and isinstance(squares, entries.Squares) and squares.count and not squares.inverted:
            return _noted(made, replace(squares, inverted=True), source.places[0])
        return made

    def _whole_numbers(self, node: Node) -> Known:
        """Whole numbers and truth values: computed where all arguments are known."""
        found = node.meta.get("val")
        arguments = [
            self._argument(each)
            for each in pytree.tree_leaves((node.args, dict(node.kwargs)))
            if isinstance(each, Node)
        ]
        wholes = [self.whole(each) if isinstance(each, (_Stored, Whole, Value)) else None for each in arguments]
        if not isinstance(found, Tensor):
            return tuple(_nothing(each, "") for each in found) if isinstance(found, (list, tuple)) else None
        kind, given = kind_of(node), [each for each in wholes if each is not None]
        unknown = "rand" in kind or kind in ("bernoulli", "multinomial") or kind.startswith("empty")
        unknown = unknown or len(given) < len(wholes) or any(each.known is None for each in given)
        orders = {each.order for each in given if each.order is not None}
        if unknown or (orders and not self._keeps_order(node, given)):
            return Whole(tuple(found.shape))

        def concrete(each: Node) -> Any:
            numbers = self.whole(each).known
            assert numbers is not None
            return numbers.clone() if overwritten_by(node) else numbers

        args, kwargs = torch.fx.map_arg((node.args, dict(node.kwargs)), concrete)
        kwargs = {name: torch.device("cpu") if name == "device" else each for name, each in kwargs.items()}
        args = tuple(torch.device("cpu") if isinstance(each, torch.device) else each for each in args)
        made = node.target(*args, **kwargs)  # type: ignore[operator]
        cut = kind in CUTS and given[0].shape != tuple(made.shape)
        varies = cut or not (kind in ENTRY_BY_ENTRY or self._is_move(node)) or any(each.varies for each in given)
        return Whole(tuple(made.shape), made, varies, orders.pop() if orders else None)

    def _keeps_order(self, node: Node, wholes: list[Whole]) -> bool:
        """Whether whole numbers in an unknown order are in that order still: each was changed, or picked, by itself."""
        ordered = [each for each in wholes if each.order is not None]
        others = [each for each in wholes if each.order is None]
        if len(ordered) > 1 or len(ordered[0].shape) != 1 or _shape(node)[:1] != ordered[0].shape:
            return False
        if kind_of(node) == "index":  # rows of something else
            return wholes[0] is not ordered[0] and isinstance(node.args[1], (list, tuple)) and len(node.args[1]) == 1
        numbers = all(math.prod(each.shape) == 1 for each in others)
        return numbers and (kind_of(node) in ENTRY_BY_ENTRY or kind_of(node) in COPIES)

    def _layer(self, node: Node) -> tuple[Value, products.Layer] | None:
        """The value and the stored matrix of a product, as the graph knows it."""
        product = self._graph.products.get(node)
        if product is None:
            return None
        name, transposed = product.reader.weight_name, product.reader.transposed
        source = product.value

        def matrix() -> Any:
            stored = self._stored(name)
            return stored.T if transposed else stored

        outputs = int(node.meta["val"].shape[-1])
        return self.value(source), products.Layer(matrix, outputs, name=name, transposed=transposed)

    def _experts(self, node: Node) -> Value:
        """Every row through the matrix of its expert; all are one tensor (experts, inputs, outputs), or transposed."""
        value, factor, offsets = self.value(node.args[0]), node.args[1], node.args[2]
        stored, turned = self._stored_experts(factor)
        count = int(node.meta["val"].shape[-1])

        def layer(expert: int) -> products.Layer:
            def matrix() -> Any:
                one = self._stored(stored)[expert]
                return one if turned else one.T

            return products.Layer(matrix, count, name=stored, transposed=not turned, expert=expert)

        number = int(factor.meta["val"].shape[0])  # type: ignore[union-attr]
        key = self._sent_to(offsets)
        return products.experts_of(value, [layer(each) for each in range(number)], key, self._seen(node))

    def _stored_experts(self, factor: Any) -> tuple[str, bool]:
        """The stored tensor behind a factor, and whether its last two axes are exchanged."""
        turned = False
        while isinstance(factor, Node) and self._graph.stored_name(factor) is None:
            source = handed_on(factor)
            if source is None or source.meta["val"].ndim != 3:
                raise _UnknownError("a product with weights that are computed")
            probe = torch.arange(24).reshape(2, 3, 4)
            moved = probe if kind_of(factor) in COPIES else factor.target(probe, *factor.args[1:], **factor.kwargs)  # type: ignore[operator]
            if torch.equal(moved, probe.transpose(1, 2)) if moved.shape == (2, 4, 3) else False:
                turned = not turned
            elif not (moved.shape == probe.shape and torch.equal(moved, probe)):
                raise _UnknownError("a product with weights that are rearranged")
            factor = source
        return str(self._graph.stored_name(factor)), turned

    def _sent_to(self, offsets: Any) -> object:
        """The node that says which expert each row was sent to, behind the numbers of rows of each."""
        while isinstance(offsets, Node) and kind_of(offsets) in COPIES | {"cumsum", "histc", "bincount"}:
            offsets = offsets.args[0]
        return offsets

    def _seen(self, node: Node) -> Callable[[products.Outputs], None] | None:
        watch = self._watch
        return None if watch is None else lambda found: watch(node, found)


class _UnknownError(Exception):
    """Why an operation cannot be followed."""


@dataclass(frozen=True)
class _Stored:
    """A parameter or buffer that has not been read."""

    name: str
    shape: tuple[int, ...]
    floating: bool


DEBUG = False
MOVES = {"roll", "flip", "repeat_interleave", "tile", "expand_as", "numpy_T", "t", "unflatten", "unfold", "meshgrid"}
CUTS = {"slice", "narrow"}
OWN_COPIES = {"clone", "_to_copy", "lift_fresh_copy", "repeat"}
ENTRY_BY_ENTRY = {
    "le", "lt", "ge", "gt", "eq", "ne", "__and_", "__or_", "bitwise_not", "logical_not", "logical_and", "isin",
    "add", "sub", "rsub", "mul", "div", "floor_divide", "remainder", "neg", "abs", "sign", "clamp", "clamp_min",
    "minimum", "maximum", "where", "masked_fill", "index", "cat", "stack", "bitwise_and", "bitwise_or", "logical_or",
    "zeros", "ones", "full", "zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full",
}  # fmt: skip


def _storage(node: Node) -> Node:
    """The node whose memory a node may share."""
    while True:
        source = next(iter(overwritten_by(node)), None)
        if source is None and kind_of(node) not in OWN_COPIES:
            source = handed_on(node)
        if source is None:
            return node
        node = source


def along(count: int, shape: tuple[int, ...], axis: int) -> Tensor:
    """Units that are numbered along one axis."""
    return torch.arange(count).reshape([count if at == axis else 1 for at in range(len(shape))]).expand(shape)


def argument(node: Node, name: str, default: Any = None) -> Any:
    """An argument of an operation of torch, however it was given."""
    names = [each.name for each in node.target._schema.arguments]  # type: ignore[union-attr]
    given = dict(zip(names, node.args, strict=False)) | dict(node.kwargs)
    return given.get(name, default)


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


def _nothing(value: Any, why: str) -> Known:
    if not isinstance(value, Tensor):
        return None
    return anything(value.shape, why) if value.is_floating_point() else Whole(tuple(value.shape))


def _is_plain(value: Any) -> bool:
    """Whether all sizes are numbers: where they depend on the input, nothing is followed."""
    leaves = value if isinstance(value, (list, tuple)) else [value]
    return all(isinstance(size, int) for each in leaves if isinstance(each, Tensor) for size in each.shape)


def _shape(node: Node) -> tuple[int, ...]:
    return tuple(node.meta["val"].shape)


def _has_floats(node: Node) -> bool:
    value = node.meta.get("val")
    leaves = value if isinstance(value, (list, tuple)) else [value]
    return any(isinstance(each, Tensor) and (each.is_floating_point() or each.is_complex()) for each in leaves)


# ---- operations by name ------------------------------------------------------------------------------------------


def _add(walk: Walk, node: Node) -> Known:
    if not _has_floats(node):
        return walk._whole_numbers(node)
    one, other = walk.with_mask(node.args[0]), walk.with_mask(node.args[1])
    if (factor := argument(node, "alpha", 1)) != 1:
        other = entries.product_of(other, constant(float(factor)), operator.mul)
    return entries.sum_of(one, other, operator.add)


def _sub(walk: Walk, node: Node) -> Known:
    if not _has_floats(node):
        return walk._whole_numbers(node)
    one, other = walk.with_mask(node.args[0]), walk.with_mask(node.args[1])
    if kind_of(node) == "rsub":
        one, other = other, one
    factor = constant(-float(argument(node, "alpha", 1)))
    return entries.sum_of(one, entries.product_of(other, factor, operator.mul), operator.add)


def _mul(walk: Walk, node: Node) -> Known:
    if not _has_floats(node):
        return walk._whole_numbers(node)
    one, other = walk.with_mask(node.args[0]), walk.with_mask(node.args[1])
    for value, root, source in ((one, other, node.args[0]), (other, one, node.args[1])):
        if (scaled := entries.scaled_by_root(value, root, walk.identity(source))) is not None:
            return scaled
    return entries.product_of(one, other, operator.mul)


def _div(walk: Walk, node: Node) -> Known:
    if not _has_floats(node):
        return walk._whole_numbers(node)
    if node.kwargs.get("rounding_mode") is not None:
        raise _UnknownError("a rounded quotient")
    one, other = walk.with_mask(node.args[0]), walk.with_mask(node.args[1])
    return entries.quotient_of(one, other, operator.truediv, walk.identity(node.args[0]))


def _pow(walk: Walk, node: Node) -> Known:
    exponent = node.args[1]
    if not isinstance(exponent, (int, float)):
        raise _UnknownError("a power with a computed exponent")
    made = entries.power(walk.value(node.args[0]), float(exponent), lambda t: torch.pow(t, exponent))
    return made if exponent != 2 else _with_squares(walk, node, made)


def _square_of(walk: Walk, node: Node) -> Known:
    return _with_squares(walk, node, entries.unary("square", torch.square, walk.value(node.args[0])))


def _with_squares(walk: Walk, node: Node, made: Value) -> Value:
    """The squares of values without a form are remembered as that."""
    return made if made.form else _noted(made, entries.Squares(walk.identity(node.args[0])), numbered(made.shape))


def _noted(value: Value, form: object, place: Tensor) -> Value:
    return replace(value, form=form, places=(place,))  # type: ignore[arg-type]


def _clamp(walk: Walk, node: Node) -> Known:
    if not _has_floats(node):
        return walk._whole_numbers(node)
    least, most = argument(node, "min"), argument(node, "max")
    if any(isinstance(limit, Node) for limit in (least, most)):
        raise _UnknownError("a clamp with computed limits")
    return entries.clamped(walk.value(node.args[0]), least, most, lambda t: torch.clamp(t, least, most))


def _where(walk: Walk, node: Node) -> Known:
    if not _has_floats(node):
        return walk._whole_numbers(node)
    made = entries.either(*(walk.with_mask(each) for each in node.args[1:3]))
    return made.moved(lambda entry: entry.expand(_shape(node)))


def _masked_fill(walk: Walk, node: Node) -> Known:
    if not _has_floats(node):
        return walk._whole_numbers(node)
    value, filled = walk.with_mask(node.args[0]), walk.with_mask(node.args[2])
    return entries.either(value, filled).moved(lambda entry: entry.expand(_shape(node)))


def _extreme(walk: Walk, node: Node) -> Known:
    """maximum, minimum of two values."""
    if not _has_floats(node):
        return walk._whole_numbers(node)
    values = [walk.with_mask(node.args[0]), walk.with_mask(node.args[1])]
    largest = kind_of(node) in ("maximum", "max")
    if largest and any(value.exact and not value.stored and mask_of(value.low).all() for value in values):
        return entries.either(*values)  # masked entries are so at the lowest number
    unit, (a, b) = aligned([value.opened() for value in values])
    pick = np.maximum if largest else np.minimum
    return Value(unit, pick(a.low, b.low), pick(a.high, b.high), a.why or b.why)


def _cat(walk: Walk, node: Node) -> Known:
    if not _has_floats(node):
        return walk._whole_numbers(node)
    parts = [walk.with_mask(each) for each in argument(node, "tensors")]
    parts = [part for part in parts if part.shape != (0,)]
    join, axis = torch.stack if kind_of(node) == "stack" else torch.cat, argument(node, "dim", 0)
    made = joined_values(parts, lambda tensors: join(tensors, axis))
    return made if join is torch.cat or made.order is None else replace(made.plain(), order=None)


def _made_alike(walk: Walk, node: Node) -> Known:
    """zeros, ones, full and their like."""
    kind = kind_of(node)
    value = node.meta["val"]
    fill = 0 if "zeros" in kind else 1 if "ones" in kind else argument(node, "fill_value", argument(node, "s"))
    if not value.is_floating_point():
        known = isinstance(fill, (int, float, bool)) and "empty" not in kind
        return Whole(tuple(value.shape), torch.full(value.shape, fill, dtype=value.dtype) if known else None)
    if "empty" in kind or "rand" in kind:
        raise _UnknownError("a tensor without values" if "empty" in kind else "random numbers")
    return walk.value(fill).moved(lambda entry: entry.expand(value.shape))


def _embedding(walk: Walk, node: Node) -> Known:
    """Any row of a table, whatever the token or position."""
    known, why = walk._argument(node.args[0]), None
    if isinstance(known, _Stored):
        low, high = _column_range(walk._stored(known.name))
    else:
        value = merged(walk.value(node.args[0]), [0])
        row, why = value.unit[0].numpy(), value.why
        low, high = value.low[row], value.high[row]
    return Value(torch.arange(len(low)).expand(_shape(node)), low, high, why)


def _column_range(table: Tensor) -> tuple[Floats, Floats]:
    low, high = np.full(table.shape[1], np.inf), np.full(table.shape[1], -np.inf)
    step = max(1, 2**22 // max(1, table.shape[1]))
    for start in range(0, len(table), step):
        block = as_floats(table[start : start + step], "embedding")
        low, high = np.minimum(low, block.min(axis=0)), np.maximum(high, block.max(axis=0))
    return low, high


def _linear(walk: Walk, node: Node) -> Known:
    found = walk._layer(node)
    if found is None:
        return _matmul(walk, node)
    value, layer = found
    kind = kind_of(node)
    bias = node.args[2] if kind == "linear" and len(node.args) > 2 else node.args[0] if kind == "addmm" else None
    if bias is not None:
        name = walk._graph.stored_name(bias) if isinstance(bias, Node) else None
        layer = replace(layer, bias=walk.numbers(bias), bias_name=name)
    return products.layer_of(value, layer, walk._seen(node))


def _matmul(walk: Walk, node: Node) -> Known:
    found = walk._layer(node) if kind_of(node) in ("mm", "matmul") else None
    if found is not None:
        return products.layer_of(*found, walk._seen(node))
    kind = kind_of(node)
    if kind in ("baddbmm", "addmm"):
        if node.kwargs.get("beta", 1) not in (0, 1):
            raise _UnknownError("a product with a factor")
        factors = node.args[1:3]
    else:
        factors = node.args[:2]
    one, other = (walk.value(each) for each in factors)
    if kind == "linear":
        other = other.moved(lambda entry: entry.transpose(-1, -2))
    if one.unit.ndim < 2 or other.unit.ndim < 2:
        raise _UnknownError("a product of a vector")
    made = products.mixture(one, other)
    if made is None:
        made = _angles(one, other)
    if made is None:
        made = products.scores_of(one, other)
    if kind in ("baddbmm", "addmm", "linear"):
        scale = float(argument(node, "alpha", 1))
        made = entries.times(made, np.full(len(made.low), scale))
        shift = node.args[0] if kind != "linear" else (node.args[2] if len(node.args) > 2 else None)
        if shift is not None and node.kwargs.get("beta", 1) == 1:
            made = entries.sum_of(made, walk.value(shift), operator.add)
    return made


def _angles(one: Value, other: Value) -> Value | None:
    """Frequencies times positions as a product over an axis of one entry."""
    if one.shape[-1] != 1 or not any(isinstance(value.form, Angle) for value in (one, other)):
        return None
    return entries.product_of(one, other, operator.mul)


def _attention(walk: Walk, node: Node) -> Known:
    query, key, value = (walk.value(argument(node, name)) for name in ("query", "key", "value"))
    if argument(node, "dropout_p"):
        raise _UnknownError("attention with dropout")
    if argument(node, "enable_gqa"):
        repeats = query.shape[-3] // key.shape[-3]
        key, value = (each.moved(lambda entry: entry.repeat_interleave(repeats, dim=-3)) for each in (key, value))
    scale = argument(node, "scale")
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else float(scale)
    scores = products.scores_of(query, key.moved(lambda entry: entry.transpose(-1, -2)))
    scores = entries.times(scores, np.full(len(scores.low), scale))
    mask = argument(node, "attn_mask")
    complete = True  # a row that sees nothing gets zeros
    if mask is not None:
        known = walk._argument(mask)
        if isinstance(known, Whole):
            complete = known.known is not None and bool(known.known.any(dim=-1).all())
        else:
            added = walk.with_mask(mask)
            scores = entries.sum_of(scores, added, operator.add)
            seen = (added.opened().low > -np.inf)[added.unit.numpy()]
            complete = bool(seen.any(axis=-1).all())
    if walk._scores is not None:
        walk._scores(node, scores)
    weights = entries.shares((*scores.shape,), len(scores.shape) - 1, complete=complete)
    made = products.mixture(weights, value)
    assert made is not None
    return made


def _softmax(walk: Walk, node: Node) -> Known:
    value = walk.with_mask(node.args[0])
    axis = int(argument(node, "dim")) % max(1, len(value.shape))
    return entries.shares(value.shape, axis, order=value.order if axis else None)


def _reduce(walk: Walk, node: Node) -> Known:
    if not _has_floats(node):
        return walk._whole_numbers(node)
    value = walk.value(node.args[0])
    axes, keep = _axes(node, value), bool(argument(node, "keepdim"))
    made = products.summed(value, axes, keep, mean=kind_of(node) == "mean")
    if kind_of(node) == "sum" and keep and len(axes) == 1 and (value.low >= 0).all():
        return _noted(made, entries.Total(walk.identity(node.args[0]), axes[0]), numbered(made.shape))
    squares = value.form
    if kind_of(node) == "mean" and keep and axes == [value.unit.ndim - 1] and isinstance(squares, entries.Squares):
        in_place = not squares.count and bool((value.places[0] == numbered(value.shape)).all())
        return _noted(made, replace(squares, count=value.shape[-1]), numbered(made.shape)) if in_place else made
    return made


def _axes(node: Node, value: Value) -> list[int]:
    """The axes that an operation reduces: all, if none is named."""
    named = argument(node, "dim")
    named = [named] if isinstance(named, int) else named or range(value.unit.ndim)
    return [axis % value.unit.ndim for axis in named]


def _norm_of(walk: Walk, node: Node) -> Known:
    """The length of vectors."""
    if argument(node, "ord", 2) != 2:
        raise _UnknownError("a norm of another kind than the length")
    value = walk.value(node.args[0])
    square = entries.unary("square", lambda t: t * t, value)
    made = products.summed(square, _axes(node, value), bool(argument(node, "keepdim")))
    return entries.unary("sqrt", torch.sqrt, replace(made, low=np.maximum(made.low, 0.0)))


def _largest(walk: Walk, node: Node) -> Known:
    """max, min, topk, sort along an axis: some entries of it; and whole numbers."""
    found = node.meta["val"]
    kind = kind_of(node)
    if kind in ("max", "min") and len(node.args) > 1 and isinstance(node.args[1], Node):
        return _extreme(walk, node)
    value = walk.with_mask(node.args[0]) if _has_floats(node) else None
    if not isinstance(found, (list, tuple)):
        if value is None:
            return walk._whole_numbers(node)
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


def _gather(walk: Walk, node: Node) -> Known:
    """Entries along an axis, at places that are not known."""
    if not _has_floats(node):
        return walk._whole_numbers(node)
    value, shape = walk.value(node.args[0]), _shape(node)
    axis = int(argument(node, "dim")) % max(1, len(shape))
    common = merged(value.plain(), [axis])
    others = [at for at in range(len(shape)) if at != axis]
    if all(shape[at] == common.shape[at] for at in others):
        return replace(common, unit=common.unit.narrow(axis, 0, 1).expand(shape))
    return within(shape, *value.hull(), value.why)


def _index(walk: Walk, node: Node) -> Known:
    """Rows by number: known rows are taken, for unknown ones any row will do."""
    if not _has_floats(node):
        return walk._whole_numbers(node)
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
    shape = _shape(node)
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
        if isinstance(value.form, entries.Choice):
            value = value.plain()  # its rows are no longer those of experts
        return replace(value.moved(lambda entry: entry[rows.known]), order=None)
    if value.unit.stride(0) != 0 and value.shape[0] > 1:
        kept = merged(value, [0])
        value = replace(kept, form=value.form, places=value.places) if kept is value else kept
    moved = value.moved(lambda entry: entry[rows.known])
    if rows.order is None or value.order is not None:
        return moved.plain()
    return replace(moved, unit=value.unit[:1].expand(moved.unit.shape), order=rows.order)


def _index_put(walk: Walk, node: Node) -> Known:
    """The inverse of a permutation; other uses are not followed."""
    if not _has_floats(node):
        picks, numbers = argument(node, "indices"), walk.whole(node.args[2])
        order = walk.whole(picks[0]) if len(picks) == 1 and not argument(node, "accumulate") else Whole(())
        if order.order is not None and order.known is not None and numbers.known is not None:
            every = torch.arange(len(order.known))
            if torch.equal(order.known, every) and torch.equal(numbers.known, every):
                return Whole(order.shape, every, varies=True, inverse_of=order.order)
        return Whole(_shape(node))
    if argument(node, "accumulate"):
        raise _UnknownError("sums at unknown places")
    value, filled = walk.value(node.args[0]), walk.value(node.args[2])
    low, high = zip(value.hull(), filled.hull(), strict=True)
    return within(_shape(node), min(low), max(high), value.why or filled.why)


def _copied(walk: Walk, node: Node) -> Known:
    if not _has_floats(node):
        return walk._whole_numbers(node)
    return walk.value(node.args[1]).moved(lambda entry: entry.expand(_shape(node)))


def _to(walk: Walk, node: Node) -> Known:
    known = walk._argument(node.args[0])
    if _has_floats(node):
        return known if isinstance(known, _Stored) and known.floating else walk.with_mask(node.args[0])
    if isinstance(known, (Whole, _Stored)):
        whole = walk.whole(known)
        dtype = node.meta["val"].dtype
        return replace(whole, known=None if whole.known is None else whole.known.to(dtype))
    return Whole(_shape(node))


def _pad(walk: Walk, node: Node) -> Known:
    if not _has_floats(node):
        return walk._whole_numbers(node)
    value = walk.value(node.args[0])
    if (mode := argument(node, "mode", "constant")) != "constant":
        raise _UnknownError(f"padding of kind {mode}")
    fill = float(argument(node, "value") or 0.0)
    unit = torch.nn.functional.pad(value.unit, list(argument(node, "pad")), value=len(value.low))
    return Value(unit, np.append(value.low, fill), np.append(value.high, fill), value.why)


def _triangle(walk: Walk, node: Node) -> Known:
    if not _has_floats(node):
        return walk._whole_numbers(node)
    value = walk.value(node.args[0])
    return entries.either(value.plain(), constant(0.0))


def _convolution(walk: Walk, node: Node) -> Known:
    """A convolution: every output is a sum over a window, whose entries are bounded channel by channel."""
    value = walk.value(node.args[0])
    known = walk._argument(node.args[1])
    if isinstance(known, _Stored):
        weight = walk._stored(known.name)
    elif isinstance(known, Value) and known.exact:
        weight = torch.from_numpy(known.low)[known.unit]
    else:
        raise _UnknownError("a convolution with computed weights")
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
    shape = _shape(node)
    why = None if np.isfinite(low).all() and np.isfinite(high).all() else value.why
    return Value(along(len(low), shape, len(shape) - space - 1), low, high, why)


def _einsum(walk: Walk, node: Node) -> Known:
    """A product of two tensors as a sum over axes, by moving it into a matrix product."""
    formula, factors = str(node.args[0]).replace(" ", ""), node.args[1]
    left, _, out = formula.partition("->")
    names = left.split(",")
    if len(names) != 2 or "." in formula or any(len(set(name)) < len(name) for name in names):
        raise _UnknownError(f"einsum {formula}")
    one, other = (walk.value(each) for each in factors)  # type: ignore[union-attr]
    a, b = names
    summed = [axis for axis in a if axis in b and axis not in out]
    shared = [axis for axis in a if axis in b and axis in out]
    if len(summed) != 1 or any(axis not in out for axis in a + b if axis not in summed):
        raise _UnknownError(f"einsum {formula}")
    rows, columns = [x for x in a if x not in b], [x for x in b if x not in a]
    first = _arranged(one, a, [*shared, *rows, *summed], len(rows))
    second = _arranged(other, b, [*shared, *summed, *columns], len(columns), last=True)
    made = products.mixture(first, second)
    if made is None:
        made = products.scores_of(first, second)
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


def _pooled(walk: Walk, node: Node) -> Known:
    value = walk.value(node.args[0])
    common = merged(value.plain(), [-1] if kind_of(node).endswith("1d") else [-1, -2])
    shape = _shape(node)
    one = common.unit[..., :1] if kind_of(node).endswith("1d") else common.unit[..., :1, :1]
    return replace(common, unit=one.expand(shape))


def _nothing_to_follow(walk: Walk, node: Node) -> Known:
    return None


SPECIAL: dict[str, Callable[[Walk, Node], Known]] = {
    "square": _square_of, "add": _add, "sub": _sub, "rsub": _sub, "mul": _mul, "div": _div, "pow": _pow,
    "clamp": _clamp, "clamp_min": _clamp, "where": _where, "masked_fill": _masked_fill,
    "maximum": _extreme, "minimum": _extreme, "cat": _cat, "concat": _cat, "concatenate": _cat, "stack": _cat,
    "embedding": _embedding, "linear": _linear, "addmm": _linear, "mm": _matmul, "matmul": _matmul, "bmm": _matmul,
    "baddbmm": _matmul, "scaled_dot_product_attention": _attention, "softmax": _softmax, "_softmax": _softmax,
    "sum": _reduce, "mean": _reduce, "linalg_vector_norm": _norm_of, "max": _largest, "min": _largest,
    "topk": _largest, "sort": _largest, "gather": _gather, "index": _index, "index_select": _index,
    "index_put": _index_put, "copy": _copied, "to": _to, "_to_copy": _to, "type_as": _to, "pad": _pad,
    "constant_pad_nd": _pad, "tril": _triangle, "triu": _triangle, "conv1d": _convolution, "conv2d": _convolution,
    "conv3d": _convolution, "einsum": _einsum, "adaptive_avg_pool1d": _pooled, "adaptive_avg_pool2d": _pooled,
    "_assert_tensor_metadata": _nothing_to_follow,
    "zeros": _made_alike, "ones": _made_alike, "full": _made_alike, "zeros_like": _made_alike,
    "ones_like": _made_alike, "full_like": _made_alike, "empty": _made_alike, "empty_like": _made_alike,
    "new_ones": _made_alike, "new_zeros": _made_alike, "new_full": _made_alike, "new_empty": _made_alike,
    "rand": _made_alike, "scalar_tensor": _made_alike,
}  # fmt: skip
