"""Which modules write the input of a norm and which read its output: the graph of one model call, by torch.export.

    norm ◀── moves ◀── sum ◀── moves ◀── a module that computes        reads
    norm ──▶ moves ──▶ a module that computes                          read_by
    norm ──▶ moves that keep the channels ──▶ a product with weights   linear_readers

A move passes its value on: a view, a slice, a transpose, a copy, a cast, dropout in evaluation. Nothing here knows an
architecture or a class name: modules are told apart by the calls that torch.export records with each operation.
"""

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import nn
from torch._ops import HigherOrderOperator
from torch.fx import Node

from normscope.checks import first_line
from normscope.errors import InputError, TraceError
from normscope.models.graph_operations import (
    COPIES,
    after_move,
    handed_in,
    handed_on,
    in_order,
    is_float,
    kind_of,
    looks_at_values,
    overwritten,
    overwritten_by,
    storage_of,
    transposes,
)
from normscope.models.multiplications import Multiplication, multiplications
from normscope.models.repeated_layers import exported as with_copies
from normscope.models.transformers_library import as_run

JOINS = {"cat", "concat", "stack"}
ELEMENTWISE = {"add", "sub", "mul", "div"}
PRODUCTS = {"linear", "addmm", "mm", "matmul", "bmm", "baddbmm", "einsum"}


Call = dict[Node, None]  # the operations of one call of a module, in order


@dataclass(frozen=True)
class LinearReader:
    """A linear layer in the graph: output = W·input + bias, with W as stored, or its transpose."""

    name: str  # the module that multiplies
    weight_name: str
    bias_name: str | None
    transposed: bool  # the weight is stored as (inputs, outputs)
    calls: int = 1
    alone: bool = True  # the module returns only this product

    @property
    def label(self) -> str:
        """The module or, where it does more than multiply, the name of its matrix."""
        return self.name if self.alone else self.weight_name


@dataclass(frozen=True)
class Product:
    """A product with a stored matrix, and the bias that follows it."""

    value: Node  # what is multiplied
    total: Node  # the output of the layer: the product, with the bias if there is one
    reader: LinearReader


def trace(model: nn.Module, example: Mapping[str, Any] | Sequence[Any], *, most: int | None = None) -> "ModelGraph":
    """The graph of model(**example), or of model(*example), in evaluation mode and without a cache.

    The model may be on the meta device, if the example is too: no weight is read. Layers that are equal are traced
    once, see `repeated_layers`. Where that is not possible, a model of more than `most` parameters is refused.

    >>> model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 2))
    >>> graph = trace(model, (torch.zeros(1, 4),))
    >>> graph.reads("1"), graph.read_by("1")
    (('0',), ('2',))
    """
    args, kwargs = ((), dict(example)) if isinstance(example, Mapping) else (tuple(example), {})
    if "use_cache" in inspect.signature(model.forward).parameters:
        kwargs.setdefault("use_cache", False)
    fused = torch.backends.mha.get_fastpath_enabled()
    try:
        torch.backends.mha.set_fastpath_enabled(False)  # it would hide a whole encoder layer in one operation
        with as_exported(model):
            program = _exported(model, args, kwargs, most)
    except _TooLargeError:
        raise
    except Exception as error:  # torch.export runs the model's own code, which may raise anything
        raise TraceError(f"{type(model).__name__} cannot be traced: {first_line(error)}") from error
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)
    return ModelGraph(program, model)


class _TooLargeError(TraceError):
    """A model that would take minutes to trace."""


def _exported(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], most: int | None
) -> torch.export.ExportedProgram:
    """The exported call, with copies of equal layers where they fit."""
    try:
        return with_copies(model, args, kwargs)[0]
    except Exception:  # the layers do not fit, or the model can't be traced, which the next attempt will say
        count = sum(values.numel() for values in model.parameters()) if most is not None else 0
        if most is not None and count > most:
            raise _TooLargeError(
                f"models of more than {most:,} parameters are traced only if their layers are alike; "
                f"this one has {count:,}"
            ) from None
        return torch.export.export(model, args, kwargs, strict=False)


@contextmanager
def as_exported(model: nn.Module) -> Iterator[None]:
    """A context that prepares a model for torch.export, in evaluation mode and without a cache, and restores it.

    Where forward has no argument for the cache, the configuration has a setting.
    """
    training = [module for module in model.modules() if module.training]
    configurations: list[Any] = [getattr(module, "config", None) for module in model.modules()]
    caching = [config for config in configurations if getattr(config, "use_cache", False) is True]
    try:
        model.eval()
        for config in caching:
            config.use_cache = False
        with as_run(model), torch.no_grad():  # otherwise no_grad regions would become separate graphs
            yield
    finally:
        for config in caching:
            config.use_cache = True
        for module in training:
            module.training = True


class ModelGraph:
    """One traced call of a model; modules are named by their first name in the model, the model itself is ''.

    For a module that is called several times, results cover all its calls; for one that was not called, they are empty.
    """

    def __init__(self, program: torch.export.ExportedProgram, model: nn.Module) -> None:
        self.program = program
        self._order = {node: index for index, node in enumerate(program.graph.nodes)}
        first_names = {module: name for name, module in model.named_modules()}
        self._names: dict[str, str] = {
            name: first_names[module] for name, module in model.named_modules(remove_duplicate=False)
        }
        signature = program.graph_signature
        self._parameters = dict(signature.inputs_to_parameters)
        self._stored = {**self._parameters, **signature.inputs_to_buffers}
        self._user_inputs = set(signature.user_inputs)
        self._functions: set[str] = set()  # names given to calls of functions
        self._known_terms: dict[Node, list[Node]] = {}
        for node in self._order:
            if isinstance(node.target, HigherOrderOperator) and self._weighted & set(node.all_input_nodes):
                raise TraceError(
                    f"{type(model).__name__} cannot be traced: the layers inside the region {node.name} are hidden"
                )

    def reads(self, name: str) -> tuple[str, ...]:
        """The modules that write what reaches the input of a module, in the order in which they run.

        Followed back through moves, sums, joins and constant factors, up to operations that compute. A parameter or
        buffer that is added counts as written by the module that holds it.
        """
        pending = [(value, next(iter(call))) for call in self.calls_of(name) for value in self.entering(name, call)]
        seen: set[Node] = set()
        writers: list[tuple[int, str]] = []
        while pending:
            node, reader = pending.pop()
            if node in seen:
                continue
            seen.add(node)
            if node.name in self._stored:
                writers.append((self._order[reader], self._owner(node)))
            elif terms := self._terms(node):
                pending += [(term, node) for term in terms]
            elif node.op == "call_function":
                writers.append((self._order[node], self.module_of(node)))
        return _unique(module for _, module in sorted(writers))

    def read_by(self, name: str) -> tuple[str, ...]:
        """The modules that read the output of a module, in the order in which they run.

        Followed through moves, joins and constant factors, but not into sums: a reader of x + norm(x) reads another
        value than the norm's.
        """
        readers: set[Node] = set()
        for call in self.calls_of(name):
            pending = [(value, user) for value in self.leaving(call) for user in value.users if user not in call]
            seen: set[Node] = set()
            while pending:
                value, user = pending.pop()
                if user in seen or kind_of(user) == "add" or not looks_at_values(user):
                    continue
                seen.add(user)
                if value in self._terms(user):
                    pending += [(user, further) for further in user.users]
                else:
                    readers.add(user)
        return _unique(self.module_of(node) for node in sorted(readers, key=self._order.__getitem__))

    def is_added(self, name: str) -> bool:
        """Whether the output of a module is added to another value that depends on the inputs, as in a residual sum."""
        return any(self._reaches_sum(value, call) for call in self.calls_of(name) for value in self.leaving(call))

    def _reaches_sum(self, value: Node, call: Call) -> bool:
        """Whether a value, possibly moved, is added to another that depends on the inputs, outside a call."""
        pending = [value]
        while pending:
            source = pending.pop()
            for user in source.users:
                if user not in call and kind_of(user) == "add" and not self.constants & set(user.all_input_nodes):
                    return True
                if handed_on(user) is source:
                    pending.append(user)
        return False

    def is_bypassed(self, name: str) -> bool:
        """Whether the input of a module also goes around it into a sum, as in a pre-norm block."""
        return any(
            self._reaches_sum(value, call) for call in self.calls_of(name) for value in self.entering(name, call)
        )

    def linear_readers(self, name: str) -> tuple[LinearReader, ...]:
        """The linear layers whose input is exactly the output of a module, channel by channel in its last axis.

        Moves are allowed if they keep the channels together and in order: some of the tokens, but all the
        channels. `calls` counts the calls of the layer that read this module.
        """
        nodes = {
            reader
            for call in self.calls_of(name)
            for value in self.leaving(call)
            for reader in self._products_of(value)
        }
        return self._counted(nodes)

    def linear_layers(self) -> tuple[LinearReader, ...]:
        """Every linear layer in the graph, with any input; `calls` counts all its calls."""
        return self._counted(self.products)

    def other_layers(self) -> tuple[str, ...]:
        """Modules that apply weight matrices in unsupported ways: convolutions, experts, einsum, computed weights."""
        return _unique(self.module_of(node) for node in self._order if self._applies_weights_otherwise(node))

    def shapes(self, name: str) -> tuple[tuple[int, ...], ...]:
        """The shapes of the floating-point inputs that a module was called with."""
        values = [value for call in self.calls_of(name) for value in self.entering(name, call)]
        return tuple(dict.fromkeys(tuple(value.meta["val"].shape) for value in values if is_float(value)))

    @cached_property
    def _calls(self) -> dict[str, dict[str, Call]]:
        """The calls of every module, each under the key that torch.export gives it."""
        calls: dict[str, dict[str, Call]] = {}
        for node in self._order:
            for key, (path, _) in node.meta.get("nn_module_stack", {}).items():
                calls.setdefault(self._named(path), {}).setdefault(key, {})[node] = None
        return calls

    @property
    def nodes(self) -> tuple[Node, ...]:
        """Every node, in the order in which they run."""
        return tuple(self._order)

    def stored_name(self, node: Node) -> str | None:
        """The parameter or buffer that a node stands for; if several names share one, the one in the graph."""
        return self._stored.get(node.name)

    def calls_of(self, name: str) -> list[Call]:
        """The calls of a module, each by the operations that belong to it."""
        if name not in self._names:
            raise InputError(f"name must be a module of the traced model, got {name!r}")
        return list(self._calls.get(self._names[name], {}).values())

    def name_function(self, name: str, calls: Iterable[Node]) -> None:
        """Name operations, so that they can be looked up like the calls of a module."""
        self._names[name] = name
        self._functions.add(name)
        self._calls[name] = {node.name: {node: None} for node in calls}

    def call_of(self, node: Node) -> str:
        """The key of the innermost call of a module that an operation belongs to; '' outside all modules."""
        return next(reversed(node.meta.get("nn_module_stack", {})), "")

    def module_of(self, node: Node) -> str:
        """The deepest module that an operation belongs to."""
        stack = list(node.meta.get("nn_module_stack", {}).values())
        return self._named(stack[-1][0]) if stack else ""

    def _named(self, path: str) -> str:
        return self._names.get(path, path)  # a module created during the call has no name in the model

    def entering(self, name: str, call: Call) -> list[Node]:
        """The values from outside that a call takes, without the module's own tensors."""
        values = [value for node in call if looks_at_values(node) for value in node.all_input_nodes]
        return list(dict.fromkeys(value for value in values if value not in call and not self._holds(name, value)))

    def _holds(self, name: str, value: Node) -> bool:
        """Whether a value is a tensor of the module itself, possibly moved or cast by an earlier call."""
        if name in self._functions:
            return value in self.constants
        while (source := handed_on(value)) is not None:
            value = source
        if value.op != "placeholder" or value.name in self._user_inputs:
            return False
        if value.name not in self._stored:
            return True  # a constant in the code of the module
        owner, module = self._owner(value), self._names[name]
        return owner == module or owner.startswith(f"{module}.")

    def _owner(self, stored: Node) -> str:
        """The module that holds a parameter or buffer."""
        return self._names[self._stored[stored.name].rpartition(".")[0]]

    def leaving(self, call: Call) -> list[Node]:
        """The values that a call returns to the outside, without inputs that it only casts and passes on."""
        return [node for node in call if any(user not in call for user in node.users) and not handed_in(node, call)]

    @cached_property
    def constants(self) -> set[Node]:
        """Every value that does not depend on the inputs of the model."""
        constants: set[Node] = set()
        for node in self._order:
            if node.op == "placeholder":
                constant = node.name not in self._user_inputs
            else:
                constant = node.op != "output" and constants.issuperset(node.all_input_nodes)
            if constant:
                constants.add(node)
        return constants

    @cached_property
    def _weighted(self) -> set[Node]:
        """Constants that come from a parameter."""
        weighted: set[Node] = set()
        for node in self._order:
            if node in self.constants and (node.name in self._parameters or weighted & set(node.all_input_nodes)):
                weighted.add(node)
        return weighted

    def _terms(self, node: Node) -> list[Node]:
        """The values that a node passes on, adds up, joins or multiplies by a constant; none if it computes."""
        if node not in self._known_terms:
            self._known_terms[node] = self._found_terms(node)
        return self._known_terms[node]

    def _found_terms(self, node: Node) -> list[Node]:
        if (source := handed_on(node)) is not None:
            return [source]
        kind = kind_of(node)
        if kind == "add" or kind in JOINS:
            return node.all_input_nodes
        if kind in ("mul", "div"):
            left, right = node.args[:2]
            if isinstance(left, Node) and self._is_one_constant(right):
                return [left]
            if kind == "mul" and isinstance(right, Node) and self._is_one_constant(left):
                return [right]
        return []

    def _is_one_constant(self, factor: Any) -> bool:
        return not isinstance(factor, Node) or (factor in self.constants and factor.meta["val"].numel() == 1)

    @cached_property
    def products(self) -> dict[Node, Product]:
        """Every product of an activation with one stored matrix, by the operation that multiplies."""
        found = {node: product for node in self._order if (product := self._product(node)) is not None}
        more = {product.reader.name for product in found.values() if not self._is_all(product)}
        return {
            node: replace(product, reader=replace(product.reader, alone=product.reader.name not in more))
            for node, product in found.items()
        }

    @cached_property
    def multiplications(self) -> dict[Node, Multiplication]:
        """Every product of an activation with stored weights, stacks of matrices included, by the operation."""
        return multiplications(self)

    def _product(self, node: Node) -> Product | None:
        kind, operands = kind_of(node), list(node.args)
        bias = None
        if kind == "addmm" and not node.kwargs:
            bias = operands.pop(0)
        elif kind == "linear" and len(operands) == 3:
            bias = operands.pop()
        elif kind not in ("linear", "mm", "matmul"):
            return None
        value, factor = operands
        matrix = self._matrix(factor)
        if matrix is None or not isinstance(value, Node):
            return None
        weight_name, turned = matrix
        total = node
        if bias is None:
            total, bias = self._with_bias(node)
        bias_name = self._vector(bias, node)
        if bias is not None and bias_name is None:
            return None
        transposed = turned if kind == "linear" else not turned
        return Product(value, total, LinearReader(self.module_of(node), weight_name, bias_name, transposed))

    def _is_all(self, product: Product) -> bool:
        """Whether the call that multiplies returns the product, possibly moved, and nothing else."""
        returned, changed = self._returned.get(self.call_of(product.total), (set(), set()))
        return returned == {product.total} and product.total not in changed

    @cached_property
    def _returned(self) -> dict[str, tuple[set[Node], set[Node]]]:
        """The values that every call of a module returns, before they are moved, and those it changes in place."""
        return {
            key: ({self._before_moves(value, call) for value in self.leaving(call)}, overwritten(call))
            for calls in self._calls.values()
            for key, call in calls.items()
        }

    @staticmethod
    def _before_moves(value: Node, call: Call) -> Node:
        while (source := handed_on(value)) is not None and source in call:
            value = source
        return value

    def _matrix(self, factor: Any) -> tuple[str, bool] | None:
        """The stored matrix behind a factor, possibly moved or cast, and whether it is transposed."""
        transposed = False
        while isinstance(factor, Node) and factor.name not in self._stored:
            source = handed_on(factor)
            turned = None if source is None else transposes(factor, source)
            if turned is None:
                return None
            factor, transposed = source, transposed ^ turned
        if not isinstance(factor, Node) or factor.meta["val"].ndim != 2:
            return None
        return self._stored[factor.name], transposed

    def _vector(self, term: Any, product: Node) -> str | None:
        """The stored vector behind a term, possibly cast, with one entry per output of a product."""
        while isinstance(term, Node) and kind_of(term) in COPIES:
            term = handed_on(term)
        if not isinstance(term, Node) or term.meta["val"].shape != product.meta["val"].shape[-1:]:
            return None
        return self._stored.get(term.name)

    def _with_bias(self, product: Node) -> tuple[Node, Node | None]:
        """The sum of a product and a stored vector, where the same module adds one next, and that vector."""
        users = list(product.users)
        if len(users) == 1 and kind_of(users[0]) == "add" and self.module_of(users[0]) == self.module_of(product):
            others = [term for term in users[0].all_input_nodes if term is not product]
            if len(others) == 1 and not users[0].kwargs and self._vector(others[0], product) is not None:
                return users[0], others[0]
        return product, None

    def _products_of(self, value: Node) -> Iterator[Node]:
        """The products that read a value with all its channels in order."""
        shape = value.meta["val"].shape if is_float(value) else ()
        if not shape:
            return
        pending: list[tuple[Node, Any]] = [(value, torch.arange(shape[-1]).expand(shape).contiguous())]
        while pending:
            source, channels = pending.pop()
            if source in self.overwritten:
                continue
            for user in source.users:
                if user in self.products and self.products[user].value is source and in_order(channels, shape[-1]):
                    yield user
                elif handed_on(user) is source and (moved := after_move(user, channels)) is not None:
                    pending.append((user, moved))

    @cached_property
    def overwritten(self) -> set[Node]:
        """Values that are changed in place, wholly or in part, before or after others read them."""
        return overwritten(self._order)

    @cached_property
    def writes(self) -> dict[Node, list[Node]]:
        """By the node whose memory is changed: the operations that change it in place, in order."""
        found: dict[Node, list[Node]] = {}
        for node in self._order:
            for value in overwritten_by(node):
                found.setdefault(storage_of(value), []).append(node)
        return found

    def _counted(self, products: Iterable[Node]) -> tuple[LinearReader, ...]:
        counts: dict[LinearReader, int] = {}
        for node in sorted(products, key=self._order.__getitem__):
            reader = self.products[node].reader
            counts[reader] = counts.get(reader, 0) + 1
        return tuple(replace(reader, calls=count) for reader, count in counts.items())

    def _applies_weights_otherwise(self, node: Node) -> bool:
        kind = kind_of(node)
        activations = [value for value in node.all_input_nodes if value not in self.constants and is_float(value)]
        if node.op != "call_function" or node in self.products or not activations or kind in ELEMENTWISE | JOINS:
            return False
        if kind in PRODUCTS:
            return bool(self._weighted & set(node.all_input_nodes))
        return any(self._is_stored_matrix(value) for value in node.all_input_nodes)

    def _is_stored_matrix(self, value: Node) -> bool:
        source: Node | None = value
        while source is not None and source.name not in self._parameters:
            source = handed_on(source)
        return source is not None and source.meta["val"].ndim >= 2


def _unique(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))
