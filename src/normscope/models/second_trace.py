"""The same call of a model traced a second time, with inputs of another size: what holds at every size.

    sizes       another batch, other numbers of tokens, where the model takes them
    pairs       operations one by one, module by module: the same operation, on values that are pairs too
    varying     axes whose size is another one in the second trace
    differs     a number that is no size, or a value that is read, is another one: another function of the inputs

Tracing takes no longer for long inputs, so the second length is beyond the pieces in which models cut their inputs.
"""

import inspect
import io
import logging
import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Node
from torch.utils import _pytree as pytree

from normscope.models.graph import ModelGraph, trace
from normscope.models.graph_operations import kind_of, overwritten

LONGER = (255, 5, -3)  # tokens more than in the first trace: the first of these that can be traced
FEW = 16  # tokens more for a model that runs token by token: each takes time to trace
SIZES = {"size", "shape", "repeats", "pad", "output_size"}  # arguments that give or change a shape
PICKS = {"slice", "narrow", "select", "split", "split_with_sizes", "chunk", "unfold", "tensor_split"}


def traced_again(model: nn.Module, graph: ModelGraph, change: Callable[[Any], Any]) -> ModelGraph:
    """The traced call with every input changed."""
    args, kwargs = graph.program.example_inputs or ((), {})
    args, kwargs = pytree.tree_map(change, (tuple(args), dict(kwargs)))
    named = dict(zip(inspect.signature(model.forward).parameters, args, strict=False))
    with _quietly():
        return trace(model, {**kwargs, **named} if kwargs else args)


@contextmanager
def _quietly() -> Iterator[None]:
    """A context without what torch prints when a trace fails, which is no error here."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with redirect_stderr(io.StringIO()), redirect_stdout(io.StringIO()):
            yield
    finally:
        logging.disable(before)


class TwoSizes:
    """A traced call and a second one with inputs of another size; `second` is None where the model takes no other.

    >>> from normscope.models.graph import trace
    >>> class Mean(nn.Module):
    ...     def forward(self, x):
    ...         return x.sum(1) * (1 / x.shape[1])
    >>> graph = trace(Mean(), (torch.zeros(1, 4, 3),))
    >>> sizes = TwoSizes(Mean(), graph)
    >>> [sizes.differs(node) for node in graph.nodes if node.op == "call_function"]
    [None, 'a number that follows from the size of the input: 0.25 for x 1 × 4 × 3, 0.003861 for x 2 × 259 × 3']
    """

    def __init__(self, model: nn.Module, graph: ModelGraph) -> None:
        self.graph = graph
        self.second = _second(model, graph)
        self.first_size, self.second_size = _sizes(graph), "" if self.second is None else _sizes(self.second)
        self._pairs: dict[Node, Node] = {}
        if self.second is not None:
            self._pairs = _pairs(graph, self.second)

    @property
    def sentence(self) -> str:
        """Which sizes of inputs were compared."""
        if self.second is None:
            return f"Traced with {self.first_size}; the model takes inputs of no other size"
        return f"Traced with {self.first_size} and with {self.second_size}"

    def pair(self, node: Node) -> Node | None:
        """The same operation in the second trace."""
        return self._pairs.get(node)

    def varying(self, node: Any) -> tuple[int, ...]:
        """The axes of a node that have another size in the second trace."""
        other = self._pairs.get(node) if isinstance(node, Node) else None
        one, two = (None if each is None else each.meta.get("val") for each in (node, other))
        if not isinstance(one, Tensor) or not isinstance(two, Tensor):
            return ()
        if one.ndim != two.ndim:
            return tuple(range(one.ndim))
        return tuple(at for at, (a, b) in enumerate(zip(one.shape, two.shape, strict=True)) if a != b)

    def differs(self, node: Node) -> str | None:
        """Why a node is not the same function of the inputs at both sizes; None if it is."""
        return self._differences.get(node)

    def picks_otherwise(self, node: Node) -> bool:
        """Whether a node takes entries by numbers that follow from the size of the input."""
        other = self._pairs.get(node)
        return other is not None and kind_of(node) in PICKS and _numbers(node) != _numbers(other)

    @cached_property
    def _differences(self) -> dict[Node, str]:
        if self.second is None:
            return {}
        found = {}
        matched = set(self._pairs.values())
        changed = overwritten(node for node in self.second.nodes if node.op == "call_function" and node not in matched)
        for node in self.graph.nodes:
            if self._pairs.get(node) in changed:
                found[node] = f"it is changed in place by other operations for {self.second_size}"
            elif node.op == "placeholder" or (node.op == "call_function" and node.meta.get("val") is not None):
                why = self._difference(node)
                if why is not None:
                    found[node] = why
        returned = [graph.nodes[-1].all_input_nodes for graph in (self.graph, self.second)]
        if [self._pairs.get(node) for node in returned[0]] != returned[1]:
            found |= dict.fromkeys(returned[0], f"another value is returned for {self.second_size}")
        return found

    def _difference(self, node: Node) -> str | None:
        other = self._pairs.get(node)
        if other is None:
            return f"other operations for {self.second_size} than for {self.first_size}"
        if node.op == "placeholder":
            same = _same_constant(self.graph, node, other, self.second)
            return None if same else f"a constant that follows from the size of the input, {self.first_size}"
        one, two = _arguments(node), _arguments(other)
        if one.keys() != two.keys():
            return f"other arguments for {self.second_size} than for {self.first_size}"
        for name in one:
            if name in SIZES or kind_of(node) in PICKS | {"arange"}:
                leaves = [[leaf for leaf in _leaves(each[name]) if isinstance(leaf, Node)] for each in (one, two)]
            else:
                leaves = [_leaves(one[name]), _leaves(two[name])]
            if (why := self._unequal(*leaves)) is not None:
                return why
        return None

    def _unequal(self, one: list[Any], two: list[Any]) -> str | None:
        """Why arguments are not the same; None if they are."""
        if len(one) != len(two):
            return f"{len(two)} values for {self.second_size}, {len(one)} for {self.first_size}"
        for a, b in zip(one, two, strict=True):
            if isinstance(a, Node) or isinstance(b, Node):
                if not isinstance(a, Node) or self._pairs.get(a) is not b:
                    return f"another value is read for {self.second_size} than for {self.first_size}"
            elif type(a) is not type(b) or not (a == b or (isinstance(a, float) and math.isnan(a) and math.isnan(b))):
                shown = [f"{each:.4g}" if isinstance(each, float) else str(each) for each in (a, b)]
                return (
                    f"a number that follows from the size of the input: {shown[0]} for {self.first_size}, "
                    f"{shown[1]} for {self.second_size}"
                )
        return None


def _arguments(node: Node) -> dict[str, Any]:
    """The arguments of an operation by name, or by place."""
    schema = getattr(node.target, "_schema", None)
    names = [str(at) for at in range(len(node.args))] if schema is None else [each.name for each in schema.arguments]
    return dict(zip(names, node.args, strict=False)) | dict(node.kwargs)


def _leaves(argument: Any) -> list[Any]:
    return pytree.tree_leaves(argument, is_leaf=lambda leaf: leaf is None)


def _numbers(node: Node) -> list[Any]:
    return [leaf for leaf in _leaves((node.args, dict(node.kwargs))) if not isinstance(leaf, Node)]


def _same_constant(graph: ModelGraph, node: Node, other: Node, second: ModelGraph | None) -> bool:
    """Whether a constant in the code has the same numbers in both traces; other inputs are always the same."""
    assert second is not None
    one, two = _constant(graph, node), _constant(second, other)
    if one is None or two is None:
        return one is two
    if one.shape != two.shape or one.dtype != two.dtype:
        return False
    return one.is_meta or two.is_meta or bool(torch.equal(one, two))


def _constant(graph: ModelGraph, node: Node) -> Tensor | None:
    name = graph.program.graph_signature.inputs_to_lifted_tensor_constants.get(node.name)
    held = None if name is None else graph.program.constants[name]
    return held if isinstance(held, Tensor) else None


# ---- the second trace ------------------------------------------------------------------------------------------------


def _second(model: nn.Module, graph: ModelGraph) -> ModelGraph | None:
    """The call with another batch and another number of tokens, or as much of that as the model takes."""
    taken = {size for values in (*model.parameters(), *model.buffers()) for size in values.shape}
    leaves = [leaf for leaf in pytree.tree_leaves(graph.program.example_inputs) if isinstance(leaf, Tensor)]
    groups = sorted({leaf.shape[1] for leaf in leaves if _has_tokens(leaf)}, reverse=True)

    def traced(more: int, batch: bool, lengths: list[int]) -> ModelGraph | None:
        sizes = {size: _free(size, more, taken) for size in lengths}
        if any(new < 1 for new in sizes.values()) or not (batch or lengths):
            return None
        try:
            return traced_again(model, graph, lambda leaf: _resized(leaf, batch, sizes, taken))
        except ValueError:
            return None

    more_tokens = tuple(more for more in LONGER if abs(more) < FEW) if _token_by_token(graph, groups) else LONGER
    for more in more_tokens if groups else ():
        if (found := traced(more, True, groups)) is not None:
            return found
    kept: list[int] = []
    best = traced(0, True, kept)
    batch = best is not None
    for size in groups:
        for more in more_tokens:
            if (found := traced(more, batch, [*kept, size])) is not None:
                best, kept = found, [*kept, size]
                break
    return best


def _has_tokens(leaf: Tensor) -> bool:
    """Whether the second axis of an input may be that of tokens, or of what a sound or a series is made of."""
    if leaf.dtype == torch.bool and leaf.ndim > 1 and leaf.shape[1] == 1:
        return False
    return leaf.ndim in (2, 3) if leaf.is_floating_point() else leaf.ndim >= 2


def _token_by_token(graph: ModelGraph, lengths: list[int]) -> bool:
    """Whether some value is taken apart into single entries, one for each token, as a loop over tokens does."""
    least = min((length for length in lengths if length > 1), default=0)
    parts = [sum(kind_of(user) in ("select", "slice") for user in node.users) for node in graph.nodes] if least else []
    return max(parts, default=0) >= max(3, least)


def _free(size: int, more: int, taken: set[int]) -> int:
    """A size that no dimension of the model has, at least so much more, or less."""
    step = -1 if more < 0 else 1
    new = size + more
    while new in taken and new > 0:
        new += step
    return new


def _resized(leaf: Any, batch: bool, sizes: dict[int, int], taken: set[int]) -> Any:
    """An input of another size; its entries are repeated."""
    if not isinstance(leaf, Tensor) or not leaf.ndim:
        return leaf
    wanted = {0: _free(leaf.shape[0], 1, taken)} if batch else {}
    if _has_tokens(leaf) and leaf.shape[1] in sizes:
        wanted[1] = sizes[leaf.shape[1]]
    for axis, size in wanted.items():
        if leaf.shape[axis]:
            rows = torch.arange(size, device=leaf.device) % leaf.shape[axis]
            leaf = leaf.index_select(axis, rows)
    return leaf


def _sizes(graph: ModelGraph) -> str:
    """The inputs of a graph with their sizes, in words."""
    given = set(graph.program.graph_signature.user_inputs)
    shapes = [
        f"{node.name} {' × '.join(map(str, node.meta['val'].shape)) or 'of one number'}"
        for node in graph.nodes
        if node.op == "placeholder" and node.name in given and isinstance(node.meta.get("val"), Tensor)
    ]
    return ", ".join(shapes)


# ---- pairs -----------------------------------------------------------------------------------------------------------


def _pairs(one: ModelGraph, two: ModelGraph) -> dict[Node, Node]:
    """The operations of two traces that may be the same: by name for inputs, by module and order for the rest.

    A call of a module that runs other operations, or more of them, has none.
    """
    inputs = {node.name: node for node in two.nodes if node.op == "placeholder"}
    pairs = {node: inputs[node.name] for node in one.nodes if node.op == "placeholder" and node.name in inputs}
    others = _by_call(two)
    for call, nodes in _by_call(one).items():
        same = others.get(call, [])
        if [node.target for node in nodes] == [node.target for node in same]:
            pairs |= dict(zip(nodes, same, strict=True))
    return pairs


def _by_call(graph: ModelGraph) -> dict[tuple[str, int], list[Node]]:
    """The operations of every call of a module, without those of modules inside; by its path and which call it is."""
    found: dict[tuple[str, int], list[Node]] = {}
    numbers: dict[str, tuple[str, int]] = {}
    counts: Counter[str] = Counter()
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        stack = node.meta.get("nn_module_stack", {})
        key = next(reversed(stack), "")
        path = stack[key][0] if stack else ""
        if key not in numbers:
            numbers[key] = (path, counts[path])
            counts[path] += 1
        found.setdefault(numbers[key], []).append(node)
    return found
