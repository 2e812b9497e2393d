"""Every normalization layer of a model, in memory or on disk."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from normscope.models.architecture import build_architecture, notes_on, stored_names
from normscope.models.by_name import norms_by_name, path_of_gain
from normscope.models.checkpoint import Checkpoint, CheckpointError, open_checkpoint
from normscope.models.found import FoundNorm, Inventory
from normscope.models.probe import Form, form_of
from normscope.norm import Norm


def find(model: nn.Module | str | Path) -> Inventory:
    """The norms of a live module, or of a checkpoint, of which only their own tensors are read.

    >>> find(nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)))
    Inventory(Sequential: 1 layernorm)
    """
    if isinstance(model, nn.Module):
        return _find_in_module(model)
    if isinstance(model, (str, Path)):
        return _find_in_checkpoint(Path(model))
    raise ValueError(f"model must be a torch module or a path to a checkpoint, got {type(model).__name__}")


def _find_in_module(model: nn.Module) -> Inventory:
    def parameter(path: str, name: str) -> tuple[str, Tensor]:
        values = model.get_submodule(path).get_parameter(name)
        if values.is_meta:
            raise ValueError(f"{path}.{name} has no values (it is on the meta device): load the weights first")
        return path, values

    return Inventory(
        type(model).__name__,
        [_found(path, kind, form, parameter) for path, kind, form in _candidates(model)],
        module=model,
        parameters=sum(values.numel() for values in model.parameters()),
        tied_embeddings=_tied(model),
    )


def _find_in_checkpoint(path: Path) -> Inventory:
    with open_checkpoint(path) as checkpoint:
        try:
            model = build_architecture(checkpoint.config) if checkpoint.config is not None else None
            if model is None:
                norms = list(norms_by_name(checkpoint))
            else:
                tensors = _StoredTensors(checkpoint, model)
                norms = [_found(path, kind, form, tensors) for path, kind, form in _candidates(model)]
                norms += tensors.undescribed()
        except CheckpointError:
            raise
        except ValueError as error:
            raise CheckpointError(f"{path}: {error}") from None
        return Inventory(
            str(path),
            norms,
            module=model,
            parameters=checkpoint.parameters,
            tied_embeddings=None if model is None else _tied(model),
            notes=notes_on(checkpoint.config) if checkpoint.config is not None else (),
        )


def _candidates(model: nn.Module) -> Iterator[tuple[str, str, Form]]:
    """Path, class and form of every module that normalizes or seems to; equal modules are asked once."""
    asked: dict[Any, Form | None] = {}
    has_space = any(isinstance(module, nn.modules.conv._ConvNd) for module in model.modules())
    for path, module in model.named_modules():
        key = _likeness(module)
        if key not in asked:
            asked[key] = form_of(module)
        form = asked[key]
        if form is None:
            continue
        if form.pools_space and has_space:
            form = Form(form.size, problem="averages over space as well, in a model with convolutions")
        yield path, type(module).__name__, form


def _likeness(module: nn.Module) -> Any:
    """What two modules share that answer alike: class, shapes of parameters, and settings; a buffer may be anything."""
    if next(module.buffers(), None) is not None:
        return id(module)
    shapes = tuple((name, tuple(values.shape)) for name, values in module.named_parameters(recurse=False))
    children = next(module.children(), None) is not None
    return type(module), repr(_settings(module)), shapes, children


def _settings(module: nn.Module) -> list[tuple[str, Any]]:
    """The module's own attributes: plain ones by value, others by identity; what nn.Module keeps is left out."""
    plain = (bool, int, float, str, tuple, type(None))
    kept_by_torch = vars(nn.Module()).keys() - {"training"}
    return [
        (key, value if isinstance(value, plain) else id(value))
        for key, value in sorted(vars(module).items())
        if key not in kept_by_torch
    ]


def _found(path: str, kind: str, form: Form, parameter: Callable[[str, str], tuple[str, Tensor]]) -> FoundNorm:
    """A form with the values of its parameters, which `parameter` reads by path and name."""
    if form.problem is not None:
        return FoundNorm(path, form.size, None, path, kind, problem=form.problem)
    name, gain, bias = path, None, None
    if form.gain is not None:
        name, values = parameter(path, form.gain)
        gain = values.detach().cpu().double().reshape(-1) + (1.0 if form.gain_convention == "1+w" else 0.0)
    if form.bias is not None:
        bias = parameter(path, form.bias)[1].detach().reshape(-1)
    try:
        norm = Norm(
            gain=[1.0] * form.size if gain is None else gain,
            bias=bias,
            eps=form.eps,
            project=form.projects,
            scale=form.scales,
            groups=form.groups,
        )
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    stored = form.size * ((gain is not None) + (bias is not None))
    return FoundNorm(
        name,
        form.size,
        norm,
        path,
        kind,
        form.gain_convention,
        form.eps_place,
        form.axis,
        has_bias=bias is not None,
        parameters=stored,
    )


class _StoredTensors:
    """Parameters of a model by path and name, read from a checkpoint that may name them otherwise."""

    def __init__(self, checkpoint: Checkpoint, model: nn.Module) -> None:
        self._checkpoint = checkpoint
        self._model = model
        self._stored = stored_names(model, checkpoint.names)

    def __call__(self, path: str, name: str) -> tuple[str, Tensor]:
        stored = self._stored.get(f"{path}.{name}")
        if stored is None:
            raise ValueError(f"config.json describes a norm {path}, but there is no tensor {path}.{name}")
        shape, described = self._checkpoint.shape(stored), self._model.get_submodule(path).get_parameter(name).shape
        if shape != tuple(described):
            raise ValueError(f"{stored} has shape {shape}, but config.json makes it {tuple(described)}")
        return stored.rpartition(".")[0], self._checkpoint.tensor(stored)

    def undescribed(self) -> Iterator[FoundNorm]:
        """Norms that are stored but are no part of the model that config.json describes."""
        described = dict(self._model.named_parameters(remove_duplicate=False))
        for renamed, stored in self._stored.items():
            path = path_of_gain(stored)
            shape = self._checkpoint.shape(stored)
            if path is not None and renamed not in described and len(shape) == 1:
                yield FoundNorm(path, shape[0], None, problem="is stored, but config.json describes no such norm")


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
