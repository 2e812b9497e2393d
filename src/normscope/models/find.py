"""Every normalization layer of a model, in memory or on disk."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import ParametrizationList
from torch.utils._pytree import tree_map

from normscope.checks import first_line, require_memory, shortened
from normscope.data import name_of
from normscope.errors import CheckpointError, InputError, TraceError
from normscope.models.architecture import build_architecture, notes_on, stored_names
from normscope.models.batches import Inputs, first_as_given, first_batch
from normscope.models.checkpoint import Checkpoint, open_checkpoint
from normscope.models.example_inputs import example_inputs
from normscope.models.float64_run import run_call
from normscope.models.gguf_model import gguf_config
from normscope.models.graph import ModelGraph, trace
from normscope.models.in_place import FunctionNorm, InPlace, function_norms, in_place, likeness
from normscope.models.norms_by_name import norms_by_name
from normscope.models.probe import Form, form_of
from normscope.models.weights import Weights
from normscope.norm import Norm
from normscope.results.inventory import FoundNorm, Inventory

LARGEST = 2_000_000_000  # parameters up to which layers that are not alike are traced; beyond, it takes minutes
ROWS = 64  # of float64: about the memory needed to run a norm


def find(model: nn.Module | str | Path, *, inputs: Inputs | None = None) -> Inventory:
    """The normalization layers of a model, each identified by what it computes where the model calls it.

    One call of the model is traced. If that fails, modules are identified by what they compute alone, and
    `unchecked` says why. From a checkpoint only the tensors of norms are read.

    Parameters
    ----------
    model
        A folder in Hugging Face format, a .safetensors, .gguf, .pt, .pth or .bin file, or a torch module.
    inputs
        Inputs to trace the model with: one batch, or an iterable of batches, whose first is used. Models of
        transformers need none.

    Returns
    -------
    Inventory
        A mapping of names to norms.

    >>> inventory = find(nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)))
    >>> inventory
    Inventory(Sequential: 1 layernorm)
    >>> inventory["1"].norm
    Norm(layernorm, size=4, eps=1e-05)
    """
    if isinstance(model, nn.Module):
        return _find_in_module(model, *_traced(model, None if inputs is None else first_as_given(inputs)))
    if isinstance(model, (str, Path)):
        return _find_in_checkpoint(Path(model), inputs)
    raise InputError(f"model must be a torch module or a path to a checkpoint, got {type(model).__name__}")


def find_alone(model: nn.Module) -> Inventory:
    """The norms among the modules of a live model by what they compute alone, without tracing it."""
    return _find_in_module(model, None, "the model was not traced")


def find_traced(model: nn.Module, inputs: Mapping[str, Any] | tuple[Any, ...] | None = None) -> Inventory:
    """The norms of a live module of any size in one traced call; an error if it can't be traced."""
    return _find_in_module(model, trace(model, example_inputs(model) if inputs is None else inputs), None)


def _traced(
    model: nn.Module,
    inputs: Mapping[str, Any] | tuple[Any, ...] | None,
    folder: Path | None = None,
) -> tuple[ModelGraph | None, str | None]:
    """The graph of one call, or why there is none."""
    try:
        example = example_inputs(model, folder) if inputs is None else inputs
        device = next((values.device for values in model.parameters()), torch.device("cpu"))
        moved = tree_map(lambda value: value.to(device) if isinstance(value, Tensor) else value, example)
        return trace(model, moved, most=LARGEST if inputs is None else None), None
    except ValueError as error:  # it can't be traced, or no example is known for this module
        return None, first_line(error)


def _find_in_module(model: nn.Module, graph: ModelGraph | None, untraced: str | None) -> Inventory:
    def stored(name: str) -> tuple[str, Tensor]:
        values: Tensor = attrgetter(name)(model)
        if values.is_meta:
            raise InputError(f"{name} has no values (it is on the meta device): load the weights first")
        return name, values

    return Inventory(
        type(model).__name__,
        tuple(_norms(model, graph, untraced, stored)),
        module=model,
        parameters=sum(values.numel() for values in model.parameters()),
        tied_embeddings=_tied(model),
        graph=graph,
        untraced=untraced,
    )


def find_stored(path: Path, model: nn.Module, weights: Weights, inputs: Mapping[str, Any] | None) -> Inventory:
    """The norms of a model on the meta device in one traced call, with gains from its weights; TraceError if it fails.

    For models of any size: of the weights, only those of norms are read.
    """
    graph, untraced = _traced(model, inputs, path if path.is_dir() else path.parent)
    if graph is None:
        raise TraceError(f"{path}: {untraced}")
    norms = tuple(_norms(model, graph, None, lambda name: (_stored_as(weights, name), weights(name))))
    return Inventory(
        name_of(path),
        norms,
        module=model,
        parameters=sum(values.numel() for values in model.parameters()),
        tied_embeddings=_tied(model),
        graph=graph,
    )


def _stored_as(weights: Weights, name: str) -> str:
    """The name of a tensor in its checkpoint, if it is stored as it is."""
    names = weights.stored_names(name)
    return names[0] if len(names) == 1 else name


def _find_in_checkpoint(path: Path, inputs: Inputs | None) -> Inventory:
    with open_checkpoint(path) as checkpoint:
        graph: ModelGraph | None = None
        try:
            model, tensors, untraced = _described(checkpoint)
            if model is None or tensors is None:
                norms = [replace(found, unchecked=untraced) for found in norms_by_name(checkpoint)]
            else:
                _require_room(model, checkpoint.parameters)
                fitted = None if inputs is None else first_batch(model, inputs)
                graph, untraced = _traced(model, fitted, path if path.is_dir() else path.parent)
                norms = [*_norms(model, graph, untraced, tensors), *tensors.undescribed()]
        except CheckpointError:
            raise
        except ValueError as error:
            raise CheckpointError(f"{path}: {error}") from None
        return Inventory(
            name_of(path),
            tuple(norms),
            module=model,
            parameters=checkpoint.parameters,
            tied_embeddings=None if model is None else _tied(model),
            graph=graph,
            untraced=untraced,
            notes=notes_on(checkpoint.config) if checkpoint.config is not None else (),
        )


def _described(checkpoint: Checkpoint) -> "tuple[nn.Module | None, _StoredTensors | None, str | None]":
    """The model of a checkpoint without values, and its tensors by name; if there is none, why."""
    if checkpoint.format == "gguf":
        try:
            model = build_architecture(gguf_config(checkpoint))
            assert model is not None
            return model, _StoredTensors(checkpoint, model, Weights.of_checkpoint(checkpoint, model)), None
        except ValueError as error:  # an architecture that transformers does not know, or not all of its tensors
            return None, None, first_line(error)
    model = None if checkpoint.config is None else build_architecture(checkpoint.config)
    if model is None:
        return None, None, "no architecture is known, only tensors"
    return model, _StoredTensors(checkpoint, model), None


def _require_room(model: nn.Module, stored: int) -> None:
    """Refuse a model whose norms cannot be run within the limit of memory, by the longest rows it describes."""
    for name, parameter in model.named_parameters():
        if parameter.ndim:
            what = f"{shortened(name, 80)}, which config.json describes with rows of {parameter.shape[-1]} numbers,"
            require_memory(ROWS * 8 * parameter.shape[-1], 8 * stored, what)


Stored = Callable[[str], tuple[str, Tensor]]  # a parameter or buffer by its name in the model → its stored name, values


def _norms(model: nn.Module, graph: ModelGraph | None, untraced: str | None, stored: Stored) -> Iterator[FoundNorm]:
    """Modules that normalize, in the order of the model, then calls of norm functions outside such modules."""

    def values(name: str) -> Tensor:
        return stored(name)[1]

    paths = []
    known: dict[Any, InPlace] = {}  # calls that do the same are run once
    for path, kind, alone in _candidates(model):
        paths.append(path)
        if graph is None:
            seen = InPlace(alone, unchecked=untraced)
        else:
            key = (alike(model.get_submodule(path)), alone, likeness(graph, path))
            seen = known[key] = known.get(key) or in_place(graph, model, path, alone, values)
        yield _found(path, kind, seen, stored)
    if graph is not None:
        for called in function_norms(graph, paths):
            yield _found_function(graph, called, stored)


def _candidates(model: nn.Module) -> Iterator[tuple[str, str, Form]]:
    """Path, class and form of every module that normalizes or seems to; equal modules are run once."""
    forms: dict[Any, Form | None] = {}
    parametrizations = {
        f"{path}.{inner}"
        for path, module in model.named_modules()
        if isinstance(module, ParametrizationList)
        for inner, _ in module.named_modules()
    }
    has_space = any(isinstance(module, nn.modules.conv._ConvNd) for module in model.modules())
    for path, module in model.named_modules():
        if path in parametrizations:  # weight norm and the like: norms of weights, not of activations
            continue
        key = alike(module)
        if key not in forms:
            forms[key] = form_of(module)
        form = forms[key]
        if form is None:
            continue
        if form.pools_space and has_space:
            form = Form(form.size, problem="averages over space as well, in a model with convolutions")
        yield path, type(module).__name__, form


def alike(module: nn.Module) -> Any:
    """Equal for modules that compute the same with equal parameters: class, shapes of these, settings, no buffers."""
    if next(module.buffers(), None) is not None:
        return id(module)
    shapes = tuple((name, tuple(values.shape)) for name, values in module.named_parameters(recurse=False))
    children = next(module.children(), None) is not None
    return type(module), repr(_settings(module)), shapes, children


def _settings(module: nn.Module) -> list[tuple[str, Any]]:
    """The module's own attributes: plain ones by value, others by identity; those of nn.Module are left out."""
    plain = (bool, int, float, str, tuple, type(None))
    kept_by_torch = vars(nn.Module()).keys() - {"training"}
    return [
        (key, value if isinstance(value, plain) else id(value))
        for key, value in sorted(vars(module).items())
        if key not in kept_by_torch
    ]


def _found(path: str, kind: str, seen: InPlace, stored: Stored) -> FoundNorm:
    """A module with the values of its parameters."""
    form = seen.form
    if form.problem is not None:
        return FoundNorm(path, "unknown", form.size, path=path, module=kind, unchecked=None, problem=form.problem)
    names: list[str] = []

    def values(own: str | None) -> Any:
        if own is None:
            return None
        name, tensor = stored(f"{path}.{own}" if path else own)
        names.append(name.rpartition(".")[0])
        return tensor.detach().cpu().double().reshape(-1)

    gain, bias = values(form.gain), values(form.bias)
    if gain is not None and form.gain_convention == "1+w":
        gain = gain + 1.0
    return FoundNorm.of(
        _norm(path, form, gain, bias),
        path,
        path=path,
        module=kind,
        gate=seen.gate,
        unchecked=seen.unchecked,
        stored_as=names[0] if names and names[0] != path else None,
        gain_convention=form.gain_convention,
        eps_place=form.eps_place,
        axis=form.axis,
        has_bias=bias is not None,
        parameters=form.size * ((gain is not None) + (bias is not None)),
    )


def _norm(name: str, form: Form, gain: Any, bias: Any) -> Norm:
    try:
        return Norm(
            gain=[1.0] * form.size if gain is None else gain,
            bias=bias,
            eps=form.eps,
            project=form.projects,
            scale=form.scales,
            groups=form.groups,
        )
    except ValueError as error:
        raise InputError(f"{name}: {error}") from None


def _found_function(graph: ModelGraph, called: FunctionNorm, stored: Stored) -> FoundNorm:
    """A call of torch's layer_norm or rms_norm in the code of a module."""
    shape, eps = called.settings[0]
    size = math.prod(shape)

    def refused(problem: str) -> FoundNorm:
        where = {"path": called.name, "module": called.function, "function": called.where}
        return FoundNorm(called.name, "unknown", size, **where, unchecked=None, problem=problem)  # type: ignore[arg-type]

    affine = [node for nodes in called.affine for node in nodes if node is not None]
    if not graph.constants.issuperset(affine):
        return refused("is called with a gain or bias that depends on the input of the model")
    made = run_call(graph, dict.fromkeys(affine), {}, lambda name: stored(name)[1])
    calls = [[None if node is None else made[node].reshape(-1) for node in nodes] for nodes in called.affine]
    if len(set(called.settings)) > 1 or not all(map(_same, calls[1:], calls)):
        return refused(f"is called with different gains or settings in its {len(calls)} calls")
    gain, bias = calls[0]
    form = Form(size, projects=called.projects, scales=True, eps=eps)
    return FoundNorm.of(
        _norm(called.name, form, gain, bias),
        called.name,
        path=called.name,
        module=called.function,
        function=called.where,
        unchecked=None,
        eps_place="inside" if eps else None,
        has_bias=bias is not None,
        gain_convention=None if gain is None else "w",
        parameters=size * sum(values is not None for values in calls[0]),
    )


def _same(one: Sequence[Tensor | None], other: Sequence[Tensor | None]) -> bool:
    """Whether tensors are equal, or both missing."""
    pairs = zip(one, other, strict=True)
    return all(a is b or (a is not None and b is not None and a.equal(b)) for a, b in pairs)


class _StoredTensors:
    """Parameters of a model by their names in it, read from a checkpoint that may use other names.

    Those of a .gguf file come through `weights`, as some are stored in another order; then all of them must be there.
    """

    def __init__(self, checkpoint: Checkpoint, model: nn.Module, weights: Weights | None = None) -> None:
        self._checkpoint = checkpoint
        self._model = model
        self._weights = weights
        if weights is None:
            self._stored = stored_names(model, checkpoint.names)
        else:
            sources = {name: weights.stored_names(name) for name in weights.names}
            self._stored = {name: stored[0] for name, stored in sources.items() if stored}

    def __call__(self, name: str) -> tuple[str, Tensor]:
        stored, path = self._stored.get(name), name.rpartition(".")[0]
        if self._weights is not None:
            return stored or name, self._weights(name)
        if stored is None:
            raise InputError(f"config.json describes a norm {path}, but there is no tensor {name}")
        shape, described = self._checkpoint.shape(stored), self._model.get_parameter(name).shape
        if shape != tuple(described):
            raise InputError(f"{stored} has shape {shape}, but config.json makes it {tuple(described)}")
        return stored, self._checkpoint.tensor(stored)

    def undescribed(self) -> Iterator[FoundNorm]:
        """Norms that are stored but not part of the model that config.json describes: their kind is assumed."""
        described = dict(self._model.named_parameters(remove_duplicate=False))
        skipped = {stored for renamed, stored in self._stored.items() if renamed not in described}
        for found in norms_by_name(self._checkpoint, skipped):
            yield replace(found, unchecked="config.json does not describe it")


def _tied(model: nn.Module) -> bool | None:
    """Whether the unembedding is the embedding; None for a model without both."""
    try:
        embedding, unembedding = model.get_input_embeddings(), model.get_output_embeddings()  # type: ignore[operator]
    except (AttributeError, NotImplementedError, TypeError):
        return None
    if embedding is None or unembedding is None:
        return None
    if unembedding.weight.is_meta:  # without values, only the config says what will be tied
        return bool(getattr(getattr(model, "config", None), "tie_word_embeddings", False))
    return unembedding.weight is embedding.weight
