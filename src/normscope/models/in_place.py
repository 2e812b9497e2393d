"""What a norm computes where the model calls it, from the traced graph.

A module that computes a LayerNorm when it is called alone may be called with a gate, a shift or a flag inside the
model. So each call of a candidate is run separately, in float64, with random parameters and inputs:

    f(x)       = norm(x)                 as the module alone
    f(x, gate) = norm(x ∘ act(gate))     a gate before the norm: its outputs are the norm's
    f(x, gate) = norm(x) ∘ act(gate)     a gate after it: only what is gated lies in the norm's ellipsoid

Anything else is not a norm of the family inside the model. Calls of torch's own functions outside such modules are
found here too. Weights are not needed, so a model on the meta device will do.
"""

import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import permutations
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  (F is what torch calls it)
from torch import Tensor, nn
from torch.fx import Node

from normscope.checks import Floats, first_line
from normscope.errors import InputError
from normscope.models.float64_run import run_call
from normscope.models.graph import Call, ModelGraph
from normscope.models.graph_operations import is_float, kind_of
from normscope.models.probe import Form, NoOutputError, deviation, fit, with_declared_eps
from normscope.norm import Norm
from normscope.results.inventory import Gate

SAME = 1e-5  # of the largest output, in float64 and with inputs large enough to make eps negligible
SEED = 0
FUNCTIONS = {
    "layer_norm": True,
    "native_layer_norm": True,
    "rms_norm": False,
}  # torch functions, and whether they project
ACTIVATIONS: list[tuple[str, str, Callable[[Tensor], Tensor]]] = [  # the operation to look for, its name, the function
    ("silu", "silu", F.silu),
    ("sigmoid", "silu", F.silu),
    ("sigmoid", "sigmoid", torch.sigmoid),
    ("relu", "relu", F.relu),
    ("gelu", "gelu", F.gelu),
    ("gelu", "gelu_tanh", lambda gate: F.gelu(gate, approximate="tanh")),
    ("tanh", "tanh", torch.tanh),
    ("softplus", "softplus", F.softplus),
    ("mul", "", lambda gate: gate),
]


def activation(gate: Gate) -> Callable[[Tensor], Tensor]:
    """The activation of a gate."""
    return next(act for _, name, act in ACTIVATIONS if name == gate.activation)


@dataclass(frozen=True)
class InPlace:
    """What a candidate computes inside the model; `unchecked` says why that could not be seen."""

    form: Form
    gate: Gate | None = None
    unchecked: str | None = None


Values = Callable[[str], Tensor]  # of a tensor, by its name in the model


def in_place(graph: ModelGraph, model: nn.Module, path: str, alone: Form, values: Values) -> InPlace:
    """What a module computes in all its calls, given what it computes alone.

    `values` gives tensors other than the parameters of the module, where the model itself has none.
    """
    calls = graph.calls_of(path)
    if not calls:
        return InPlace(alone, unchecked="the traced call does not run it")
    seen: list[InPlace] = []
    for call in calls:
        try:
            seen.append(_one_call(graph, model, path, call, alone, values))
        except NoOutputError as reason:
            seen.append(InPlace(_refused(alone, str(reason))))
        except Exception as error:  # operations of the model, which may raise anything
            seen.append(InPlace(alone, unchecked=f"its call can't be run separately: {first_line(error)}"))
    worst = next((one for one in seen if one.form.problem), None) or next((one for one in seen if one.unchecked), None)
    if worst is not None:
        return worst
    if any((one.gate, replace(one.form, eps=0.0)) != (seen[0].gate, replace(seen[0].form, eps=0.0)) for one in seen):
        return InPlace(_refused(alone, f"computes different things in its {len(seen)} calls"))
    return seen[0]


def likeness(graph: ModelGraph, path: str) -> Any:
    """A key that is equal for modules whose calls do the same with their own tensors, up to the names of values."""
    return tuple(_operations(graph, path, call) for call in graph.calls_of(path))


def _operations(graph: ModelGraph, path: str, call: Call) -> Any:
    made = {node: place for place, node in enumerate(call)}
    given = {node: place for place, node in enumerate(graph.entering(path, call))}

    def described(node: Node) -> str:
        if node in made:
            return f"made {made[node]}"
        if node in given:
            return f"given {given[node]} {_shape(node)} {node.meta['val'].dtype}"
        name = graph.stored_name(node) or ""
        own = name.startswith(f"{path}.") and name.count(".") == path.count(".") + 1
        return f"own {name[len(path) :]} {_shape(node)}" if own else node.name

    operations = [(node.target, repr(torch.fx.map_arg((node.args, node.kwargs), described))) for node in call]
    return tuple(operations), tuple(made[node] for node in graph.leaving(call))


def _refused(alone: Form, reason: str) -> Form:
    return alone if alone.problem is not None else Form(alone.size, problem=reason)


def _one_call(graph: ModelGraph, model: nn.Module, path: str, call: Call, alone: Form, values: Values) -> InPlace:
    module, entering, leaving = model.get_submodule(path), graph.entering(path, call), graph.leaving(call)
    if len(leaving) != 1:
        raise NoOutputError(f"makes {len(leaving)} values in the model, not one")
    run = _CallRun(graph, model, module, call, leaving[0], values)
    if len(entering) == 1 and is_float(entering[0]):
        if alone.problem is None and run.agrees(entering[0], alone):
            return InPlace(alone)
        return InPlace(_fitted(module, run, entering[0], alone))
    if len(entering) == 2 and all(map(is_float, entering)) and len({_shape(value) for value in entering}) == 1:
        for value, gate in permutations(entering):
            for form, place, activated in _gated(run, value, gate, alone, call):
                return InPlace(with_declared_eps(form, module), Gate(place, activated, used_first=gate is entering[0]))
    given = ", ".join(inspect.signature(module.forward).parameters)
    raise NoOutputError(f"is called with {len(entering)} values in the model ({given}), not with its input alone")


def _fitted(module: nn.Module, run: "_CallRun", value: Node, alone: Form) -> Form:
    """What a call with one value computes, if the module alone computes something else or could not be called alone."""
    size = alone.size or _shape(value)[-1]
    form = fit(run.rows_of(value, size, alone.axis), size, run.drawn, np.random.default_rng(SEED))
    if form.problem is None:
        return with_declared_eps(replace(form, axis=alone.axis), module)
    return _refused(alone, f"computes something else inside the model than alone: {form.problem}")


def _gated(run: "_CallRun", value: Node, gate: Node, alone: Form, call: Call) -> Iterator[tuple[Form, str, str]]:
    """Forms that explain a call with two values, the place of the gate and its activation."""
    size = alone.size or _shape(value)[-1]
    kinds = {kind_of(node) for node in call}
    for shows, name, act in ACTIVATIONS:
        if shows not in kinds:
            continue
        for place in ("before", "after"):
            open_gate = torch.from_numpy(np.random.default_rng(SEED).uniform(0.5, 2.0, _shape(gate)))
            try:
                rows = run.rows_of(value, size, -1, gate=(gate, open_gate, act(open_gate), place))
                form = fit(rows, size, run.drawn, np.random.default_rng(SEED))
            except NoOutputError:
                continue
            if form.problem is None and run.agrees(value, form, gate=(gate, act, place)):
                yield form, place, name


class _CallRun:
    """One call of a module, run separately with parameters drawn from [0.5, 1.5]."""

    def __init__(
        self, graph: ModelGraph, model: nn.Module, module: nn.Module, call: Call, output: Node, values: Values
    ) -> None:
        self._values = values
        self._graph, self._model, self._call, self._output = graph, model, call, output
        rng = np.random.default_rng(SEED)
        own = dict(module.named_parameters(recurse=False))
        drawn = {name: rng.uniform(0.5, 1.5, tuple(parameter.shape)) for name, parameter in own.items()}
        self.drawn: dict[str, Floats] = {name: numbers.reshape(-1) for name, numbers in drawn.items()}
        self._own = {id(own[name]): torch.from_numpy(numbers) for name, numbers in drawn.items()}

    def rows_of(self, value: Node, size: int, axis: int, gate: Any = None) -> Callable[[Floats], Floats]:
        """The call as a function of rows of channels; with a gate, the norm before or after it."""
        shape = _shape(value)

        def rows(x: Floats) -> Floats:
            outputs = []
            room = int(np.prod(shape)) // size
            if room * size != np.prod(shape):
                raise NoOutputError(f"has {size} channels, but its input in the model has shape {shape}")
            for start in range(0, len(x), room):
                part = x[start : start + room]
                given = _as_input(np.resize(part, (room, size)), shape, axis)
                if gate is None:
                    outputs.append(_as_rows(self({value: given}), size, axis)[: len(part)])
                    continue
                node, opened, acted, place = gate
                made = self({value: given / acted if place == "before" else given, node: opened})
                outputs.append(_as_rows(made if place == "before" else made / acted, size, axis)[: len(part)])
            return np.concatenate(outputs)

        return rows

    def agrees(self, value: Node, form: Form, gate: Any = None) -> bool:
        """Whether the call computes a form, at drawn inputs of the traced shape."""
        shape, rng = _shape(value), np.random.default_rng(SEED + 1)
        if form.size not in np.cumprod(shape[::-1] if form.axis == -1 else (shape[form.axis],)):
            return False
        rows = rng.normal(size=(int(np.prod(shape)) // form.size, form.size))
        loud = max(1.0, 1e5 * form.eps**0.5, 1e8 * form.eps)
        x = _as_input(loud * (rows + rng.normal(size=(len(rows), 1))), shape, form.axis)
        values, norm = {value: x}, self._norm(form)
        if gate is None:
            expected = norm(_as_rows(x, form.size, form.axis))
        else:
            node, act, place = gate
            values[node] = torch.from_numpy(rng.normal(size=shape))
            acted = act(values[node])
            if place == "before":
                values[value] = x / acted.abs().clamp_min(1e-3)  # so that eps is negligible there too
                expected = norm(_as_rows(values[value] * acted, form.size, -1))
            else:
                expected = norm(_as_rows(x, form.size, -1)) * _as_rows(acted, form.size, -1)
        made = self(values)
        return made.shape == x.shape and deviation(expected, _as_rows(made, form.size, form.axis)) <= SAME

    def __call__(self, values: dict[Node, Tensor]) -> Tensor:
        made = run_call(self._graph, self._call, values, self._stored)[self._output]
        if not isinstance(made, Tensor) or made.shape != values[next(iter(values))].shape:
            what = tuple(made.shape) if isinstance(made, Tensor) else type(made).__name__
            raise NoOutputError(f"turns an input of shape {tuple(_shape(next(iter(values))))} into {what}")
        return made

    def _norm(self, form: Form) -> Norm:
        added = 1.0 if form.gain_convention == "1+w" else 0.0
        return Norm(
            gain=np.ones(form.size) if form.gain is None else self.drawn[form.gain] + added,
            bias=None if form.bias is None else self.drawn[form.bias],
            eps=form.eps,
            project=form.projects,
            scale=form.scales,
            groups=form.groups,
        )

    def _stored(self, name: str) -> Tensor:
        tensor: Tensor = attrgetter(name)(self._model)
        if id(tensor) in self._own:
            return self._own[id(tensor)]
        if not tensor.is_meta:
            return tensor.detach()
        try:
            return self._values(name).detach()
        except (ValueError, KeyError, AttributeError):
            raise InputError(f"it needs the values of {name}, which are not available") from None


def _shape(value: Node) -> tuple[int, ...]:
    return tuple(value.meta["val"].shape)


def _as_input(rows: Floats, shape: tuple[int, ...], axis: int) -> Tensor:
    """Rows of channels as an input of this shape, with the channels in this axis."""
    values = torch.from_numpy(np.ascontiguousarray(rows))
    if axis == -1:
        return values.reshape(shape)
    moved = [extent for place, extent in enumerate(shape) if place != axis]
    return values.reshape(*moved, shape[axis]).movedim(-1, axis).contiguous()


def _as_rows(values: Tensor, size: int, axis: int) -> Floats:
    moved = values if axis == -1 else values.movedim(axis, -1)
    rows: Floats = moved.reshape(-1, size).numpy()
    return rows


@dataclass(frozen=True, eq=False)
class FunctionNorm:
    """Calls of one of torch's norm functions at one place in the code of a module."""

    name: str  # module:function, and a number where a module calls it at several places
    where: str | None  # file and line
    function: str
    projects: bool
    settings: tuple[tuple[tuple[int, ...], float], ...]  # of each call: the last axes, which are normalized, and eps
    affine: tuple[tuple[Node | None, Node | None], ...]  # of each call: gain and bias


def function_norms(graph: ModelGraph, modules: Iterable[str]) -> Iterator[FunctionNorm]:
    """Calls of torch's norm functions that belong to none of these modules; the graph then knows them by name."""
    covered = {node for path in modules for call in graph.calls_of(path) for node in call}
    places: dict[tuple[str, str, int], list[Node]] = {}
    counts: dict[tuple[str, str], int] = {}
    for node in graph.nodes:
        kind = kind_of(node)
        if kind not in FUNCTIONS or node in covered:
            continue
        number = counts[graph.call_of(node), kind] = counts.get((graph.call_of(node), kind), 0) + 1
        places.setdefault((graph.module_of(node), kind, number), []).append(node)
    for (module, kind, number), nodes in places.items():
        several = (module, kind, 2) in places
        name = f"{module or 'forward'}:{kind.removeprefix('native_')}" + (f":{number}" if several else "")
        graph.name_function(name, nodes)
        calls = [_arguments(node) for node in nodes]
        yield FunctionNorm(
            name,
            _where(nodes[0]),
            kind.removeprefix("native_"),
            FUNCTIONS[kind],
            tuple((tuple(call["normalized_shape"]), _eps(call)) for call in calls),
            tuple((call.get("weight"), call.get("bias")) for call in calls),
        )


def _eps(arguments: dict[str, Any]) -> float:
    eps = arguments.get("eps")
    return float(torch.finfo(arguments["input"].meta["val"].dtype).eps if eps is None else eps)


def _arguments(node: Node) -> dict[str, Any]:
    names = [argument.name for argument in node.target._schema.arguments]  # type: ignore[union-attr]
    defaults = {argument.name: argument.default_value for argument in node.target._schema.arguments}  # type: ignore[union-attr]
    return defaults | dict(zip(names, node.args, strict=False)) | dict(node.kwargs)


def _where(node: Node) -> str | None:
    """The last line of the model's own code on the way to an operation, as file:line."""
    lines = re.findall(r'File "([^"]+)", line (\d+)', node.meta.get("stack_trace") or "")
    own = [(file, line) for file, line in lines if not file.replace("\\", "/").endswith("torch/nn/functional.py")]
    return f"{Path(own[-1][0]).name}:{own[-1][1]}" if own else None
