"""Inputs of a model: one batch (a mapping, a tensor, a tuple) or an iterable of batches."""

import inspect
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from normscope.checks import first_line
from normscope.errors import InputError
from normscope.files import npz_arrays
from normscope.models.safetensors_file import SafetensorsFile

ENDINGS = (".npz", ".safetensors")
Batch = Mapping[str, Any] | Tensor | tuple[Any, ...]  # by the names of a model's parameters, or in their order
Inputs = Batch | Iterable[Batch]


def read_inputs(path: Path) -> dict[str, Tensor]:
    """One batch: the named tensors of an .npz or .safetensors file."""
    if path.suffix.lower() not in ENDINGS:
        raise InputError(f"{path} must end in {' or '.join(ENDINGS)}, got {path.suffix or 'no ending'}")
    if path.suffix.lower() == ".npz":
        tensors = {name: _tensor(name, array) for name, array in npz_arrays(path.read_bytes(), str(path)).items()}
    else:
        try:
            file = SafetensorsFile(path)
            tensors = {name: file.read(name) for name in file.shapes}
        except ValueError as error:
            raise InputError(f"{path}: {first_line(error)}") from None
    if not tensors:
        raise InputError(f"{path} must hold tensors, named like the inputs of the model, and has none")
    return tensors


def batches_for(model: nn.Module, inputs: Inputs) -> Iterator[dict[str, Tensor]]:
    """Every batch as the model takes it: on its device, floats in its dtype; InputError if it does not fit."""
    return (_fitted(model, batch) for batch in as_batches(inputs))


def first_batch(model: nn.Module, inputs: Inputs) -> dict[str, Tensor]:
    """The batch that a model is traced with."""
    return next(batches_for(model, inputs))


def first_as_given(inputs: Inputs) -> Mapping[str, Any] | tuple[Any, ...]:
    """The first batch unchanged: a user's module may take more than tensors.

    >>> first_as_given([{"x": 1}, {"x": 2}])
    {'x': 1}
    """
    first = next(as_batches(inputs))
    return (first,) if isinstance(first, Tensor) else first


def as_batches(inputs: Inputs) -> Iterator[Batch]:
    """The batches, one or several."""
    batches = iter([inputs] if isinstance(inputs, Mapping | Tensor | tuple) else inputs)
    first = next(batches, None)
    if first is None:
        raise InputError("inputs must hold at least one batch, got none")
    return chain([first], batches)


def _fitted(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
    parameters = inspect.signature(model.forward).parameters.values()
    known = [each.name for each in parameters if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)]
    needed = [each.name for each in parameters if each.name in known and each.default is each.empty]
    weight = next(model.parameters(), torch.empty(0))
    tensors = {name: _tensor(name, value) for name, value in _by_name(model, batch, known).items()}
    if missing := [name for name in needed if name not in tensors]:
        raise InputError(f"inputs must have {missing[0]!r}, which {type(model).__name__}.forward needs")
    return {
        name: value.to(weight.device, weight.dtype if value.is_floating_point() else None)
        for name, value in tensors.items()
    }


def _by_name(model: nn.Module, batch: Batch, known: list[str]) -> Mapping[str, Any]:
    """A batch by the names of the parameters of a model's forward."""
    if not isinstance(batch, Mapping | Tensor | tuple) or (not isinstance(batch, Tensor) and not batch):
        raise InputError(
            f"a batch of inputs must be a mapping of names to tensors, a tensor or a tuple, got {type(batch).__name__}"
        )
    if isinstance(batch, Tensor | tuple):
        values = (batch,) if isinstance(batch, Tensor) else batch
        if len(values) > len(known):
            raise InputError(f"{type(model).__name__}.forward takes {len(known)} inputs, got a tuple of {len(values)}")
        return dict(zip(known, values, strict=False))
    for name in batch:
        if name not in known:
            raise InputError(
                f"inputs must be named like parameters of {type(model).__name__}.forward, got {str(name)!r:.60}; "
                f"they are {', '.join(known)}"[:380]
            )
    return batch


def _tensor(name: str, value: Any) -> Tensor:
    try:
        tensor = torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"input {name!r:.60} must be a tensor or an array of numbers: {first_line(error)}") from None
    if not tensor.dtype.is_floating_point and not tensor.is_complex():
        return tensor
    bad = tensor.numel() - int(tensor.isfinite().sum())
    if bad or tensor.is_complex():
        what = f"{bad} NaN or infinite of {tensor.numel()} values" if bad else "complex numbers"
        raise InputError(f"input {name!r:.60} must be finite and real, got {what}")
    return tensor
