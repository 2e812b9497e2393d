"""torch.export of a model with many equal layers: one layer of each kind is traced, its operations are copied.

    kinds      layers of one list that are equal: classes, settings, names and shapes of their tensors
    first      the first call of each kind runs as usual, between two marks: enter(values), leave(values)
    others     a further call with equal arguments is one operation, carried(values), until it is replaced by a copy
    between    everything outside these layers is traced as it is, for every layer: what a loop does by their number,
               which layer reads which value, and in which order they run

A copy has the parameters and module paths of its own layer. It is right if a layer depends on its arguments and its
own tensors alone, which is checked: a layer that uses its number, changes an argument, or reads or passes on a value
some other way is `Unfit`, and then the whole model is traced as usual.
"""

import functools
import operator
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.fx import Graph, Node
from torch.utils import _pytree as pytree

from normscope.models import transformers_library as library
from normscope.models.graph_operations import overwritten

FEWEST = 4  # equal layers of a list for which copies pay
PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size, torch.layout)
OWN_BY_TORCH = vars(nn.Module()).keys() - {"training"}
HOOKS = [name for name in OWN_BY_TORCH if name.endswith("_hooks")]


class Unfit(Exception):  # noqa: N818  (it never leaves `exported`)
    """The layers of a model can't be traced once for all."""


def exported(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[ExportedProgram, int]:
    """The exported call of a model, and how many calls of layers in it are copies of others; Unfit if none can be.

    The model must be prepared as for torch.export. It is restored, whatever happens.
    """
    layers = _equal_layers(model)
    if not layers:
        raise Unfit("no equal layers")
    run = _Run()
    with library.no_collection():
        with _watched(layers, run):
            program = torch.export.export(model, args, kwargs, strict=False)
        if not run.carried:
            raise Unfit("no layer is called as another was")
        _Copies(program, run).insert()
    return program, len(run.carried)


@dataclass(frozen=True)
class _Layer:
    """A layer of a list in which others are equal to it."""

    path: str
    module: nn.Module
    kind: int
    numbers: tuple[tuple[nn.Module, str], ...]  # attributes that hold its place in the list


def _equal_layers(model: nn.Module) -> list[_Layer]:
    """The layers that have enough equal ones in their list, the outermost lists first; none inside another."""
    found: list[_Layer] = []
    kinds: dict[Any, int] = {}
    seen: set[nn.Module] = set()

    def search(path: str, module: nn.Module) -> None:
        if module in seen:
            return
        seen.add(module)
        children = {f"{path}.{name}" if path else name: child for name, child in module.named_children()}
        repeated = _repeated(children, kinds) if isinstance(module, (nn.ModuleList, nn.Sequential)) else {}
        for child_path, child in children.items():
            if child_path in repeated:
                found.append(repeated[child_path])
            else:
                search(child_path, child)

    search("", model)
    return found if len({layer.module for layer in found}) == len(found) else []


def _repeated(children: dict[str, nn.Module], kinds: dict[Any, int]) -> dict[str, _Layer]:
    if len(children) < FEWEST or len({type(child) for child in children.values()}) == len(children):
        return {}
    numbers = _numbers(list(children.values()))
    structures = {path: _structure(child, "", numbers) for path, child in children.items()}
    counts: dict[Any, int] = {}
    for structure in structures.values():
        counts[structure] = counts.get(structure, 0) + 1
    layers = {}
    for path, structure in structures.items():
        if counts[structure] >= FEWEST:
            own = tuple(
                (module, name)
                for inner, module in children[path].named_modules()
                for name in vars(module)
                if (inner, name) in numbers
            )
            layers[path] = _Layer(path, children[path], kinds.setdefault(structure, len(kinds)), own)
    return layers


def _numbers(layers: Sequence[nn.Module]) -> set[tuple[str, str]]:
    """Attributes, by module in the layer and name, that are whole numbers and count the layers: its place, plus c."""
    offsets: dict[tuple[str, str], list[int]] = {}
    for place, layer in enumerate(layers):
        for inner, module in layer.named_modules():
            for name, value in vars(module).items():
                if type(value) is int and name not in OWN_BY_TORCH:
                    offsets.setdefault((inner, name), []).append(value - place)
    return {key for key, differences in offsets.items() if len(differences) > 1 and len(set(differences)) == 1}


def _structure(module: nn.Module, inner: str, numbers: set[tuple[str, str]]) -> Any:
    """Equal for modules that compute the same with equal tensors; attributes that count layers are left out."""
    if any(getattr(module, name, None) for name in HOOKS):
        return id(module)
    settings = tuple(
        (name, _value(value))
        for name, value in sorted(vars(module).items())
        if name not in OWN_BY_TORCH and (inner, name) not in numbers
    )
    tensors = tuple((name, _tensor(value)) for name, value in (*module._parameters.items(), *module._buffers.items()))
    children = tuple(
        (name, None if child is None else _structure(child, f"{inner}.{name}" if inner else name, numbers))
        for name, child in module._modules.items()
    )
    return type(module), settings, len(module._parameters), tensors, children


def _value(value: Any) -> Any:
    """Plain values and containers of them by value, anything else by identity."""
    if isinstance(value, PLAIN):
        return type(value), value
    if type(value) in (list, tuple):
        return type(value), tuple(map(_value, value))
    if type(value) is dict and all(isinstance(key, (str, int)) for key in value):
        return dict, tuple((key, _value(item)) for key, item in value.items())
    if type(value) is functools.partial:
        return _value(value.func), _value(value.args), _value(value.keywords)
    return id(value)


def _tensor(value: Tensor | None) -> Any:
    if value is None:
        return None
    return type(value), tuple(value.shape), value.stride(), value.dtype, value.device


class _Number:
    """Stands for the place of a layer in its list while it is traced: any use of it, other than to pass it on, ends."""

    def _used(self, *_: Any) -> Any:
        raise Unfit("a layer depends on its place in the list")

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __hash__ = __bool__ = __index__ = __int__ = __float__ = _used
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __floordiv__ = _used
    __rfloordiv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = __neg__ = __abs__ = __str__ = __repr__ = _used
    __format__ = _used


@contextmanager
def _watched(layers: Sequence[_Layer], run: "_Run") -> Iterator[None]:
    """Layers whose calls go through a run, with their numbers out of sight; restored at the end."""
    numbers = [(module, name, vars(module)[name]) for layer in layers for module, name in layer.numbers]
    forwards = [(layer, vars(layer.module).get("forward")) for layer in layers]
    outer, _CURRENT.run = _CURRENT.run, run
    try:
        for module, name, _ in numbers:
            vars(module)[name] = _Number()
        for layer in layers:
            vars(layer.module)["forward"] = run.forward(layer)
        yield
    finally:
        _CURRENT.run = outer
        for module, name, value in numbers:
            vars(module)[name] = value
        for layer, own in forwards:
            if own is None:
                vars(layer.module).pop("forward", None)
            else:
                vars(layer.module)["forward"] = own


@dataclass
class _Call:
    """The first call of a kind of layer with some arguments."""

    layer: _Layer
    number: int
    arguments: Any
    made: list[Tensor] = field(default_factory=list)  # the tensors that it returns
    returned: Callable[[Sequence[Tensor]], Any] | None = None  # builds what it returns from tensors


class _Run:
    """The calls of layers during one export."""

    def __init__(self) -> None:
        self.calls: list[_Call] = []
        self.carried: list[tuple[_Layer, _Call]] = []

    def forward(self, layer: _Layer) -> Callable[..., Any]:
        original = layer.module.forward

        @functools.wraps(original)
        def forward(*args: Any, **kwargs: Any) -> Any:
            return self._called(layer, original, args, kwargs)

        return forward

    def _called(self, layer: _Layer, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        leaves, spec = pytree.tree_flatten((args, kwargs))
        if not all(isinstance(leaf, (Tensor, *PLAIN)) for leaf in leaves):
            return original(*args, **kwargs)
        values = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        arguments = (spec, [_argument(leaf) for leaf in leaves])
        known = next((c for c in self.calls if c.layer.kind == layer.kind and c.arguments == arguments), None)
        if known is not None and known.returned is not None:
            self.carried.append((layer, known))
            return known.returned(_mark(values, "carried", len(self.carried) - 1))
        call = _Call(layer, len(self.calls), arguments)
        self.calls.append(call)
        entered = iter(_mark(values, "enter", call.number))
        given = [next(entered) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        args, kwargs = pytree.tree_unflatten(given, spec)
        result = original(*args, **kwargs)
        after, spec_after = pytree.tree_flatten((args, kwargs))
        if spec_after != spec or any(one is not other for one, other in zip(after, given, strict=True)):
            raise Unfit("a layer changes what it is called with")
        results, result_spec = pytree.tree_flatten(result)
        if not all(isinstance(leaf, (Tensor, *PLAIN)) for leaf in results):
            raise Unfit("a layer returns something else than tensors")
        call.made = [leaf for leaf in results if isinstance(leaf, Tensor)]

        def returned(tensors: Sequence[Tensor]) -> Any:
            left = iter(tensors)
            return pytree.tree_unflatten(
                [next(left) if isinstance(leaf, Tensor) else leaf for leaf in results], result_spec
            )

        call.returned = returned
        return returned(_mark(call.made, "leave", call.number))


def _argument(leaf: Any) -> Any:
    return _tensor(leaf)[1:] if isinstance(leaf, Tensor) else (type(leaf), leaf)


class _Current(threading.local):
    """The run that the operation below belongs to."""

    run: _Run | None = None


_CURRENT = _Current()
_LIBRARY: Any = torch.library.Library("normscope_layers", "DEF")  # type: ignore[no-untyped-call]
_LIBRARY.define("mark(Tensor[] values, str what, int number) -> Tensor[]")


def _marked(values: Sequence[Tensor], what: str, number: int) -> list[Tensor]:
    if what == "carried":
        assert _CURRENT.run is not None
        values = _CURRENT.run.carried[number][1].made
    return [torch.empty_strided(v.shape, v.stride(), dtype=v.dtype, device=v.device) for v in values]


torch.library.register_fake("normscope_layers::mark", _marked, lib=_LIBRARY)
_MARK = torch.ops.normscope_layers.mark.default
torch.fx.node.has_side_effect(_MARK)


def _mark(values: Sequence[Tensor], what: str, number: int) -> Sequence[Tensor]:
    made: Sequence[Tensor] = _MARK(list(values), what, number)
    return made


class _Copies:
    """Marks of an exported program, replaced by copies of what was traced between two of them."""

    def __init__(self, program: ExportedProgram, run: _Run) -> None:
        self._program, self._run = program, run
        self._graph: Graph = program.graph
        signature = program.graph_signature
        stored = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
        self._stored = {node: stored[node.name] for node in self._graph.nodes if node.name in stored}
        self._placeholders = {name: node for node, name in self._stored.items()}
        given = set(signature.user_inputs)
        self._given = {node for node in self._graph.nodes if node.name in given}

    def insert(self) -> None:
        segments = self._segments()
        marks = [node for node in self._graph.nodes if node.target is _MARK]
        for node in marks:
            if node.args[1] == "carried":
                layer, call = self._run.carried[node.args[2]]
                self._replace(node, self._copied(segments[call.number], node, call.layer.path, layer.path))
        for node in marks:
            if node.args[1] != "carried":
                self._replace(node, node.args[0])
        self._graph.lint()

    def _segments(self) -> "dict[int, _Segment]":
        """What was traced between the marks of every call."""
        segments: dict[int, _Segment] = {}
        inside: _Segment | None = None
        for node in self._graph.nodes:
            what = node.args[1] if node.target is _MARK else ""
            if inside is None and what == "enter":
                inside = _Segment(node)
            elif inside is not None and what == "leave":
                inside.leave = node
                self._check(inside, self._run.calls[node.args[2]].layer.path)
                segments[node.args[2]], inside = inside, None
            elif what == "enter" or (inside is not None and what):
                raise Unfit("a layer calls another")
            elif inside is not None:
                inside.nodes.append(node)
        return segments

    def _check(self, segment: "_Segment", path: str) -> None:
        """Everything that crosses the border of a call is an argument, a tensor of the layer, or returned."""
        own = {*segment.nodes, segment.enter}
        for node in segment.nodes:
            for source in node.all_input_nodes:
                fits = source.op == "placeholder" and source not in self._given
                if source not in own and not (fits and self._stored.get(source, f"{path}.").startswith(f"{path}.")):
                    raise Unfit(f"a layer reads {source.name}, which is not an argument")
            if any(user not in own and user is not segment.leave for user in node.users):
                raise Unfit(f"{node.name} leaves a layer, but is not returned")
            if node.op != "call_function":
                raise Unfit(f"a layer holds {node.op}")
        changed = overwritten(segment.nodes)
        if any(value.op == "placeholder" or value in segment.entries for value in changed):
            raise Unfit("a layer changes an argument or one of its tensors in place")

    def _copied(self, segment: "_Segment", mark: Node, path: str, own_path: str) -> list[Any]:
        """A copy of a call for another layer, before its mark: what it returns."""
        depth = len(segment.enter.meta["nn_module_stack"])
        made: dict[Node, Any] = {}
        for entry in segment.entries:
            made[entry] = mark.args[0][entry.args[1]]  # type: ignore[index]

        def mapped(node: Node) -> Any:
            if node in made:
                return made[node]
            if node in self._stored:
                return self._own(self._stored[node], path, own_path)
            return node

        with self._graph.inserting_before(mark):
            for node in segment.nodes:
                if node in made:
                    continue
                copy = made[node] = self._graph.node_copy(node, mapped)
                inner = list(node.meta["nn_module_stack"].items())[depth:]
                copy.meta["nn_module_stack"] = mark.meta["nn_module_stack"] | {
                    f"{mark.name}:{key}": (_moved(name, path, own_path), kind) for key, (name, kind) in inner
                }
        left: Any = segment.leave.args[0]
        return [mapped(node) for node in left]

    def _own(self, name: str, path: str, own_path: str) -> Any:
        own = _moved(name, path, own_path)
        if own not in self._placeholders:
            raise Unfit(f"{own} is shared with another layer")
        return self._placeholders[own]

    def _replace(self, mark: Node, values: Any) -> None:
        """Give the users of a mark the values themselves."""
        for part in list(mark.users):
            if part.target is not operator.getitem:
                raise Unfit("a mark is used as a whole")
            value = values[part.args[1]]
            part.replace_all_uses_with(value)
            self._program.graph_signature.replace_all_uses(part.name, value.name)
            self._graph.erase_node(part)
        self._graph.erase_node(mark)


class _Segment:
    """The operations of one call of a layer, between its marks."""

    def __init__(self, enter: Node) -> None:
        self.enter = enter
        self.leave = enter
        self.nodes: list[Node] = []

    @functools.cached_property
    def entries(self) -> list[Node]:
        """The arguments of the call."""
        return [node for node in self.nodes if node.target is operator.getitem and node.args[0] is self.enter]


def _moved(name: str, path: str, own_path: str) -> str:
    if not name.startswith(f"{path}."):
        raise Unfit(f"{name} is not part of the layer {path}")
    return own_path + name[len(path) :]
