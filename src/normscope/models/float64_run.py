"""The traced call of a model, or of one module in it, in float64 throughout, on the CPU, with any weights.

A model in float64 is not enough: many cast to float32 in their norms and in softmax. Here every operation of the graph
receives float64, and casts to lower precision are dropped. Weights are read one by one, when they are used, and
lifted as far as they are needed: rows that are looked up, and large matrices a few rows at a time.
`difference` compares two such runs, or two models in their own dtype, by one number.
"""

import ctypes
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import GraphModule, Interpreter, Node
from torch.utils import _pytree as pytree

from normscope.checks import first_line
from normscope.errors import InputError
from normscope.models.graph import Call, ModelGraph
from normscope.models.graph_operations import kind_of, storage_of

BLOCK = 2**18  # numbers of a stored matrix that are lifted at a time: they stay in the cache
FEW_ROWS = 64  # up to which a product is computed as its transpose, in half the time
FEW = 4  # largest values that are looked at one by one, before all are sorted
M_MMAP_THRESHOLD, M_TRIM_THRESHOLD = -3, -1  # settings of malloc in glibc
CHECKS = {"_assert_tensor_metadata"}  # checks of dtypes, which differ here


def keep_memory() -> bool:
    """Tell malloc to keep what is freed for later blocks, up to 1 GB; False where that can't be set.

    Otherwise every float64 copy of a matrix is fresh memory of the system, which takes longer than filling it.
    """
    try:
        library = ctypes.CDLL(None)
        return all(library.mallopt(setting, 2**30) == 1 for setting in (M_MMAP_THRESHOLD, M_TRIM_THRESHOLD))
    except (OSError, AttributeError, TypeError):
        return False


def evaluate(
    program: ExportedProgram,
    stored: Callable[[str], Tensor],
    watch: Callable[[Node, Tensor], None] | None = None,
    example: Mapping[str, Any] | None = None,
) -> list[Tensor]:
    """The floating-point outputs of the traced call on its own inputs, with stored tensors of any dtype by their names.

    `watch` is called with every node and its value, in the order in which they run. `example`: inputs by name in place
    of those that it was traced with, which have no values if that was done on the meta device.
    """
    inputs: list[Any] = []
    args, kwargs = program.example_inputs
    given = iter(pytree.tree_leaves((args, {**kwargs, **(example or {})})))
    for spec in program.graph_signature.input_specs:
        if spec.kind == InputKind.USER_INPUT:
            inputs.append(next(given))
        elif spec.kind in (InputKind.PARAMETER, InputKind.BUFFER):
            inputs.append(_Stored(stored, str(spec.target)))
        else:
            inputs.append(program.constants[str(spec.target)])
    try:
        with torch.no_grad():
            outputs = _InFloat64(program.graph_module, watch).run(*inputs)
    except Exception as error:  # an operation may not exist in float64
        raise InputError(f"the traced call can't be computed in float64: {first_line(error)}") from error
    return floats(outputs)


def run_call(
    graph: ModelGraph, call: Call, values: Mapping[Node, Tensor], stored: Callable[[str], Tensor]
) -> dict[Node, Any]:
    """Run the operations of one call on values from outside: the values by node, including those.

    Also works for a graph traced on the meta device, as long as only parameters lack values.
    """
    made: dict[Node, Any] = {node: _lifted(value).clone() for node, value in values.items()}

    def value_of(node: Node) -> Any:
        if node not in made:
            made[node] = _placeholder(graph, node, stored) if node.op == "placeholder" else computed(node)
        return made[node]

    def computed(node: Node) -> Any:
        if node.op != "call_function" or (node not in call and node not in graph.constants):
            raise InputError(f"it depends on {node.name}, which is not one of its inputs")
        if kind_of(node) in CHECKS:
            return None
        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), value_of)
        args, kwargs = pytree.tree_map(_lifted, (args, kwargs))
        return _in_float64(node.target)(*args, **kwargs)

    with torch.no_grad():
        for node in call:
            value_of(node)
    return made


def run_between(
    graph: ModelGraph, given: Mapping[Node, Tensor], target: Node, stored: Callable[[str], Tensor]
) -> Tensor:
    """The value of one node for given values of others, in float64; the model's inputs are those of the traced call.

    What is written in place to the memory of a needed value is needed too, although nothing may read its result.
    """
    needed: set[Node] = set()
    pending, before = [target], set(graph.nodes[: graph.nodes.index(target)])
    held = {storage_of(value) for value in given}  # the memory of what is given stays as it is
    while pending:
        node = pending.pop()
        if node not in needed and node not in given:
            needed.add(node)
            pending += node.all_input_nodes
            memory = storage_of(node)
            pending += [write for write in graph.writes.get(memory, ()) if write in before and memory not in held]
    call = {node: None for node in graph.nodes if node in needed and node.op == "call_function"}
    inputs = _example_values(graph)
    values = {node: value for node, value in inputs.items() if node in needed} | dict(given)
    made: Tensor = run_call(graph, call, values, stored)[target]
    return made


def _example_values(graph: ModelGraph) -> dict[Node, Tensor]:
    """The inputs of the traced call, where they have values."""
    names = [spec.arg.name for spec in graph.program.graph_signature.input_specs if spec.kind == InputKind.USER_INPUT]
    leaves = dict(zip(names, pytree.tree_leaves(graph.program.example_inputs), strict=False))
    held = {name: leaf for name, leaf in leaves.items() if isinstance(leaf, Tensor) and not leaf.is_meta}
    return {node: held[node.name] for node in graph.nodes if node.op == "placeholder" and node.name in held}


def _placeholder(graph: ModelGraph, node: Node, stored: Callable[[str], Tensor]) -> Tensor:
    name = graph.stored_name(node)
    if name is not None:
        return _lifted(stored(name))  # type: ignore[no-any-return]
    constants = graph.program.graph_signature.inputs_to_lifted_tensor_constants
    if node.name not in constants:
        raise InputError(f"it depends on the input {node.name} of the model")
    constant = graph.program.constants[constants[node.name]]
    if not isinstance(constant, Tensor) or constant.is_meta:
        raise InputError(f"the constant {constants[node.name]} has no values")
    return constant.cpu().double() if constant.is_floating_point() else constant.cpu()


def floats(outputs: Any) -> list[Tensor]:
    """The floating-point tensors among the outputs of a model, in float64 on the CPU."""
    tensors = [leaf for leaf in pytree.tree_leaves(outputs) if isinstance(leaf, Tensor) and leaf.is_floating_point()]
    return [tensor.detach().cpu().double() for tensor in tensors]


def outputs_of(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Tensor]:
    """The floating-point outputs of a model in evaluation mode; its training mode is restored afterwards."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        with torch.no_grad():
            return floats(model(*args, **kwargs))
    except Exception as error:  # the model's own code, which may raise anything
        raise InputError(f"{type(model).__name__} can't be run on its inputs: {first_line(error)}") from error
    finally:
        for module in training:
            module.training = True


def difference(outputs: list[Tensor], reference: list[Tensor]) -> float:
    """The largest difference over all outputs, each relative to its size; NaN where they can't be compared.

    >>> difference([torch.tensor([1.0, 2.5])], [torch.tensor([1.0, 2.0])])
    0.25
    """
    if [tensor.shape for tensor in outputs] != [tensor.shape for tensor in reference] or not reference:
        return math.nan
    pairs = zip(outputs, reference, strict=True)
    ratios = torch.tensor([0.0, *(_ratio(one, other) for one, other in pairs if other.numel())], dtype=torch.float64)
    return float(ratios.max())  # NaN if one of them is


def _ratio(one: Tensor, other: Tensor) -> float:
    # Entries that are equal differ by 0, also if both are infinite, as masked scores are.
    apart = torch.where(one == other, 0.0, (one - other).abs())
    return float(apart.max()) / _size(other)


def _size(values: Tensor) -> float:
    """The largest finite value that occurs only once, if there is one: the value of a mask, often huge, repeats.

    >>> _size(torch.tensor([-1e30, 2.0, -1e30, -3.0]))
    3.0
    """
    sizes = values[values.isfinite()].abs().reshape(-1)
    for _ in range(FEW):
        if not len(sizes):
            break
        largest = sizes.max()
        others = sizes[sizes < largest]
        if len(others) == len(sizes) - 1:
            return float(largest) or 1.0
        sizes = others
    different, times = np.unique(values[values.isfinite()].abs().numpy(), return_counts=True)
    alone = different[times == 1] if (times == 1).any() else different
    return float(alone.max(initial=0.0)) or 1.0


class _Stored:
    """A stored tensor that is read when it is used."""

    def __init__(self, stored: Callable[[str], Tensor], name: str) -> None:
        self._stored, self._name = stored, name

    def tensor(self) -> Tensor:
        return self._stored(self._name)


class _InFloat64(Interpreter):
    def __init__(self, module: GraphModule, watch: Callable[[Node, Tensor], None] | None) -> None:
        super().__init__(module)
        self._watch = watch

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if target is torch.ops.aten.embedding.default and isinstance(args[0], _Stored):
            return _lifted(target(args[0].tensor().cpu(), *_all_lifted(args[1:]), **kwargs))
        if target is torch.ops.aten.linear.default and isinstance(args[1], _Stored):
            return _linear(_lifted(args[0]), args[1].tensor().cpu(), *_all_lifted(args[2:]), **_all_lifted(kwargs))
        return super().call_function(_in_float64(target), _all_lifted(args), _all_lifted(kwargs))

    def run_node(self, n: Node) -> Any:
        if kind_of(n) in CHECKS:
            return None
        # As Interpreter.run_node does, without keeping the node for messages, which takes a fifth of a run.
        value = getattr(self, n.op)(n.target, *self.fetch_args_kwargs_from_env(n))
        if self._watch is not None and isinstance(value, Tensor):
            self._watch(n, value)
        return value

    def output(self, target: Any, args: Any, kwargs: Any) -> Any:
        return super().output(target, _all_lifted(args), kwargs)


def _linear(values: Tensor, matrix: Tensor, bias: Tensor | None = None) -> Tensor:
    """A linear layer with a matrix of any dtype, lifted in blocks of rows.

    >>> _linear(torch.ones(1, 2).double(), torch.tensor([[1.0, 2.0]]), torch.ones(1).double())
    tensor([[4.]], dtype=torch.float64)
    """
    rows = values.reshape(-1, values.shape[-1])
    step = len(matrix) if matrix.dtype == torch.float64 else max(1, BLOCK // max(1, matrix.shape[1]))
    blocks = (block.double() for block in torch.split(matrix, step))
    if len(rows) <= FEW_ROWS:
        columns = rows.T.contiguous()
        made = torch.cat([block @ columns for block in blocks]).T.contiguous()
    else:
        made = torch.cat([nn.functional.linear(rows, block) for block in blocks], dim=-1)
    made = made.view(*values.shape[:-1], len(matrix))
    return made if bias is None else made + bias


def _all_lifted(value: Any) -> Any:
    """The arguments of an operation, in the containers that a graph has; pytree.tree_map is much slower."""
    if isinstance(value, tuple | list):
        return type(value)(map(_all_lifted, value)) if type(value) in (tuple, list) else list(map(_all_lifted, value))
    return {key: _all_lifted(item) for key, item in value.items()} if isinstance(value, dict) else _lifted(value)


def _in_float64(target: Any) -> Any:
    """An operation, or its equal where torch has none in float64."""
    return _grouped if target is torch.ops.aten._grouped_mm.default else target


def _grouped(rows: Tensor, stack: Tensor, ends: Tensor) -> Tensor:
    """The rows up to each end times the matrix of their group; rows after the last end are zero.

    >>> _grouped(torch.ones(3, 1), torch.tensor([[[5.0]], [[6.0]], [[7.0]]]), torch.tensor([1, 1, 2])).tolist()
    [[5.0], [7.0], [0.0]]
    """
    made, start = rows.new_zeros(len(rows), stack.shape[-1]), 0
    for matrix, end in zip(stack, ends.tolist(), strict=True):
        made[start:end] = rows[start:end] @ matrix
        start = end
    return made


def _lifted(value: Any) -> Any:
    if isinstance(value, _Stored):
        value = value.tensor()
    if isinstance(value, Tensor):
        return value.cpu().double() if value.is_floating_point() else value.cpu()
    if isinstance(value, torch.device):
        return torch.device("cpu")
    return torch.float64 if isinstance(value, torch.dtype) and value.is_floating_point else value
