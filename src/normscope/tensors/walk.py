"""Follow every operation of a traced call and say what its tensors can hold, for all inputs.

Each norm starts afresh: whatever reaches it, its output is b + √N·G·u with |u| ≤ 1. From there on operations are
followed one by one (`operations`). An operation that is not known gives a tensor of which nothing is known, and what
depends on it says so, up to the next norm.
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

from normscope.checks import Floats
from normscope.errors import InputError
from normscope.models.graph import ModelGraph
from normscope.models.graph_operations import (
    COPIES,
    DROPOUTS,
    handed_on,
    is_float,
    kind_of,
    overwritten_by,
    storage_of,
)
from normscope.models.multiplications import is_grouped
from normscope.models.second_trace import TwoSizes
from normscope.norm import Norm
from normscope.tensors import products
from normscope.tensors.arithmetic import unary
from normscope.tensors.complex_numbers import Complex, complex_operation, is_complex
from normscope.tensors.contractions import experts, mask_of_attention
from normscope.tensors.interval_arithmetic import INTERVALS
from normscope.tensors.linear_rows import Ball, Linear, NormRows
from normscope.tensors.operations import CUTS, SPECIAL, move
from normscope.tensors.traced_nodes import (
    Known,
    Stored,
    UnknownError,
    along,
    anywhere_along,
    as_value,
    has_floats,
    is_plain,
    nothing_known,
    shape_of,
)
from normscope.tensors.values import Value, Whole, anything, constant, numbered, within
from normscope.tensors.written_parts import WrittenParts, is_empty

MOST_NUMBERS = 2**26  # of a constant that is held entry by entry
DEBUG = False
MOVES = {"roll", "flip", "repeat_interleave", "tile", "expand_as", "numpy_T", "t", "unflatten", "unfold", "meshgrid"}
ENTRY_BY_ENTRY = {
    "le", "lt", "ge", "gt", "eq", "ne", "__and_", "__or_", "bitwise_not", "logical_not", "logical_and", "isin",
    "add", "sub", "rsub", "mul", "div", "floor_divide", "remainder", "neg", "abs", "sign", "clamp", "clamp_min",
    "minimum", "maximum", "where", "masked_fill", "index", "cat", "stack", "bitwise_and", "bitwise_or", "logical_or",
    "zeros", "ones", "full", "zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full",
}  # fmt: skip


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
    `sizes` compares the call with one of inputs of another size. Without it, bounds hold for the size of the call.
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
        sizes: TwoSizes | None = None,
    ) -> None:
        self._refused = dict(refused or {})
        self.graph, self._read, self._norms, self._given = graph, stored, norms, dict(given or {})
        self._watch, self.scores, self.sizes = watch, scores, sizes
        self._made: dict[Node, Known] = {}
        self._changes: Counter[Node] = Counter()  # in place, by the node whose memory is changed
        self._parts = WrittenParts(self.is_whole)

    def steps(self) -> Iterator[tuple[Node, Known]]:
        """Every node with what is known of it, in the order in which they run; each is dropped after its last use."""
        nodes = self.graph.nodes
        empty: set[Node] = set()
        last = {used: node for node in nodes for used in node.all_input_nodes}
        ends: dict[Node, list[Node]] = {}
        for used, node in last.items():
            ends.setdefault(node, []).append(used)
        for node in nodes:
            if node.op == "output":
                continue
            self._made[node] = self._known(node)
            changes = overwritten_by(node)
            if is_empty(node) and has_floats(node):
                empty.add(node)  # it is a tensor once it was written, and no view of it is before
            elif changes or storage_of(node) not in empty:
                yield node, self._made[node]
            for changed in changes:
                self._overwrite(node, changed)
                storage = storage_of(changed)
                if storage in empty and isinstance(whole := self._made.get(storage), Value) and whole.why is None:
                    empty.remove(storage)
                    yield storage, whole
            for used in ends.get(node, ()):
                if used in empty:
                    yield used, self._made[used]
                self._made.pop(used, None)

    def _overwrite(self, node: Node, changed: Node) -> None:
        """After an operation in place the value that it changed is its result; what shares its memory is unknown."""
        storage = storage_of(changed)
        self._changes[storage] += 1
        whole = self._parts.write(node, changed, self._made[node]) if is_empty(storage) else None
        for other, known in self._made.items():
            if known is not None and other is not node and storage_of(other) is storage:
                self._made[other] = self._unknown(other, f"{other.name} is changed in place through a view")
        self._made[changed] = self._made[node]
        if whole is not None:
            self._made[storage] = anywhere_along(whole, self.varying(storage))

    def is_whole(self, node: Node, axis: int) -> bool:
        """Whether a part of a value has all of an axis at every size, or the axis has one size."""
        source = node.all_input_nodes[0]
        pair = None if self.sizes is None else self.sizes.pair(node)
        if pair is None or not self.varies(source, axis):
            return self.sizes is None or pair is not None
        sides = (source, node), (pair.all_input_nodes[0], pair)
        return all(shape_of(one) == shape_of(other) for one, other in sides)

    def stored(self, name: str) -> Tensor:
        """A parameter or buffer, as it was before the call."""
        if any(self.graph.stored_name(node) == name for node in self._changes):
            raise UnknownError(f"{name} is changed in place")
        return self._read(name)

    def identity(self, node: Any) -> object:
        """What tells the present numbers of a node apart from others: equal only for equal numbers."""
        while isinstance(node, Node) and kind_of(node) in COPIES and not self._changes[storage_of(node)]:
            if self._changes[storage_of(node.all_input_nodes[0])]:
                break
            node = node.all_input_nodes[0]
        return (node, self._changes[storage_of(node)]) if isinstance(node, Node) else object()

    def _known(self, node: Node) -> Known:
        why = None if self.sizes is None else self.sizes.differs(node)
        if node.op == "placeholder":
            return self._placeholder(node) if why is None else self._unknown(node, why)
        if node in self._norms and self._is_over_channels(node, self._norms[node]):
            return self._norm_output(node, self._norms[node])
        if node.op != "call_function" or not is_plain(node.meta.get("val")):
            return None
        try:
            if why is not None:
                raise UnknownError(why)
            made = self._computed(node)
        except UnknownError as unknown:
            made = self._unknown(node, str(unknown))
        except InputError as error:  # weights that are not finite, or can't be read
            raise InputError(f"{self.graph.module_of(node) or node.name}: {error}") from None
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
        if isinstance(made, Complex):
            return made.anywhere_along(self.varying(node))
        return anywhere_along(made, self.varying(node)) if isinstance(made, Value) else made

    def _unknown(self, node: Node, what: str) -> Known:
        where = self.graph.module_of(node)
        why = f"{what} in {where}" if where else what
        value = node.meta.get("val")
        if isinstance(value, (list, tuple)):
            return tuple(nothing_known(each, why) for each in value)
        return nothing_known(value, why)

    def _placeholder(self, node: Node) -> Known:
        value = node.meta.get("val")
        name = self.graph.stored_name(node)
        if not isinstance(value, Tensor) or not is_plain(value):
            return value if not isinstance(value, Tensor) else None
        if name is not None:
            return Stored(name, tuple(value.shape), value.is_floating_point())
        lifted = self.graph.program.graph_signature.inputs_to_lifted_tensor_constants
        if node.name in lifted:
            held = self.graph.program.constants[lifted[node.name]]
            if not held.is_meta:
                return constant(held) if value.is_floating_point() else Whole(tuple(value.shape), held.cpu())
        if not value.is_floating_point():
            return Whole(tuple(value.shape))
        if node.name in self._given:
            return within(value.shape, *self._given[node.name])
        return anything(value.shape, f"the range of the input {node.name} is not known")

    def _is_over_channels(self, node: Node, call: NormCall) -> bool:
        """Whether a norm has as many channels at every size of the inputs."""
        if self.sizes is not None and self.sizes.second is not None and self.sizes.pair(node) is None:
            # in code that runs otherwise at another size, a function without a gain may be over any number of entries
            return kind_of(node) not in ("layer_norm", "rms_norm") or len(node.all_input_nodes) > 1
        return not self.varies(node, call.axis)

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

    def argument(self, argument: Any) -> Any:
        if isinstance(argument, Node):
            return self._made.get(argument)
        if isinstance(argument, (list, tuple)):
            return [self.argument(each) for each in argument]
        return argument

    def value(self, argument: Any) -> Value:
        """An argument as a floating-point tensor, masked entries within its bounds."""
        return self.with_mask(argument).opened()

    def with_mask(self, argument: Any) -> Value:
        """An argument as a floating-point tensor, of which entries may be masked."""
        known = self._made.get(argument) if isinstance(argument, Node) else argument
        if isinstance(known, Value):
            return known
        if isinstance(known, Stored):
            if not known.floating or math.prod(known.shape) > MOST_NUMBERS:
                raise UnknownError(f"the tensor {known.name}, which is too large to be used entry by entry,")
            made = constant(self.stored(known.name), stored=True)
            if np.isnan(made.low).any():
                raise InputError(f"{known.name} must be numbers, got {np.isnan(made.low).sum()} NaN")
            return made
        if isinstance(known, Whole):
            return as_value(known)
        if isinstance(known, (bool, int, float)):
            return constant(float(known))
        raise UnknownError(f"an argument of type {type(known).__name__}")

    def numbers(self, argument: Any) -> Floats:
        """The entries of an argument that is a constant."""
        value = self.value(argument)
        if not value.exact:
            raise UnknownError("a bias that is computed")
        return np.asarray(value.low[value.unit.numpy()])

    def whole(self, argument: Any) -> Whole:
        """An argument as a tensor of whole numbers."""
        known = self._made.get(argument) if isinstance(argument, Node) else argument
        if isinstance(known, Stored) and not known.floating:
            return Whole(known.shape, self.stored(known.name).cpu())
        if isinstance(known, Whole):
            return known
        if isinstance(known, Value):
            return Whole(known.shape)
        return Whole((), torch.as_tensor(known))

    # ---- operations ------------------------------------------------------------------------------------------

    def _computed(self, node: Node) -> Known:  # noqa: PLR0911  (a line for each kind of operation)
        kind = kind_of(node)
        if node.target is operator.getitem:
            source, at = self.argument(node.args[0]), node.args[1]
            return source[at] if isinstance(source, tuple) and isinstance(at, int) else None
        if node.meta.get("val") is None and kind:
            return None
        if is_complex(node) or any(is_complex(each) for each in node.all_input_nodes):
            return complex_operation(self, node)
        if is_grouped(node):
            return experts(self, node)
        special = SPECIAL.get(kind)
        if special is not None:
            return special(self, node)
        if not has_floats(node):
            return self.whole_numbers(node)
        if kind in COPIES or (kind in DROPOUTS and node.args[2] is False):
            return self.with_mask(node.args[0])
        if kind in INTERVALS:
            return unary(self, node, kind)
        if self._is_move(node):
            return move(self, node)
        raise UnknownError(f"the operation {kind or node.target}")

    def _is_move(self, node: Node) -> bool:
        return handed_on(node) is not None or kind_of(node) in MOVES

    def varying(self, node: Any) -> tuple[int, ...]:
        """The axes of a node that have another size for inputs of another size."""
        return () if self.sizes is None else self.sizes.varying(node)

    def varies(self, node: Any, axis: int) -> bool:
        """Whether an axis of a node has another size for inputs of another size."""
        axes = self.varying(node)
        return bool(axes) and axis % node.meta["val"].ndim in axes

    @cached_property
    def second(self) -> "Walk | None":
        """What the masks of the second trace are made of, to look at them there too."""
        if self.sizes is None or self.sizes.second is None:
            return None
        walk = Walk(self.sizes.second, self._read, {})
        walk.follow_masks()
        return walk

    def follow_masks(self) -> None:
        """Follow only what the masks of attention are made of, unless that takes a product with weights."""
        pending = [mask for node in self.graph.nodes if isinstance(mask := mask_of_attention(node), Node)]
        needed: set[Node] = set()
        while pending:
            node = pending.pop()
            if node not in needed and node not in self.graph.products:
                needed.add(node)
                pending += node.all_input_nodes
        for node in self.graph.nodes:
            if node in needed:
                self._made[node] = self._known(node)

    def whole_numbers(self, node: Node) -> Known:
        """Whole numbers and truth values: computed where all arguments are known."""
        found = node.meta.get("val")
        arguments = [
            self.argument(each) for each in pytree.tree_leaves((node.args, dict(node.kwargs))) if isinstance(each, Node)
        ]
        wholes = [self.whole(each) if isinstance(each, (Stored, Whole, Value)) else None for each in arguments]
        if not isinstance(found, Tensor):
            return tuple(nothing_known(each, "") for each in found) if isinstance(found, (list, tuple)) else None
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
        cut = cut or (self.sizes is not None and self.sizes.picks_otherwise(node))
        varies = cut or not (kind in ENTRY_BY_ENTRY or self._is_move(node)) or any(each.varies for each in given)
        return Whole(tuple(made.shape), made, varies, orders.pop() if orders else None)

    def _keeps_order(self, node: Node, wholes: list[Whole]) -> bool:
        """Whether whole numbers in an unknown order are in that order still: each was changed, or picked, by itself."""
        ordered = [each for each in wholes if each.order is not None]
        others = [each for each in wholes if each.order is None]
        if len(ordered) > 1 or len(ordered[0].shape) != 1 or shape_of(node)[:1] != ordered[0].shape:
            return False
        if kind_of(node) == "index":  # rows of something else
            return wholes[0] is not ordered[0] and isinstance(node.args[1], (list, tuple)) and len(node.args[1]) == 1
        numbers = all(math.prod(each.shape) == 1 for each in others)
        return numbers and (kind_of(node) in ENTRY_BY_ENTRY or kind_of(node) in COPIES)

    def seen(self, node: Node) -> Callable[[products.Outputs], None] | None:
        watch = self._watch
        return None if watch is None else lambda found: watch(node, found)
