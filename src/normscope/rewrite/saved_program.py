"""A model as an exported program: one .pt2 file that torch alone runs, without the code of the model or this package.

Outputs that are classes of another library, as those of transformers, become dictionaries: torch would ask for them.

>>> import tempfile, pathlib
>>> model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8))
>>> with tempfile.TemporaryDirectory() as folder:
...     file = pathlib.Path(folder) / "model.pt2"
...     dict(save_program(model, ((torch.ones(2, 4),), {}), file).inputs)
...     load_program(file)(torch.ones(5, 4)).shape
{'input': 'any × 4'}
torch.Size([5, 8])
"""

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from normscope.checks import first_line
from normscope.errors import InputError
from normscope.models.graph import as_exported
from normscope.rewrite.results import Example, Program
from normscope.rewrite.sizes import sizes_of


def save_program(model: nn.Module, example: Example, path: Path) -> Program:
    """Export a call of a model to a .pt2 file, for inputs of any batch and length where the model allows it.

    What is not for any size, and why, is in what is returned. Images have the size of the example: their axes are in
    many more calculations than a length is, and torch.export would take minutes over them.
    """
    args, kwargs = example
    any_size = pytree.tree_map(_any_size, (args, dict(kwargs)))
    refused = ""
    try:
        with as_exported(model), _plain_outputs(model), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch, about what it exports
            try:
                program = torch.export.export(model, args, dict(kwargs), dynamic_shapes=_shapes(any_size), strict=False)
            except Exception as error:  # some models insist on the sizes of the example
                refused = f"torch.export refuses other sizes: {first_line(error)}"
                program = torch.export.export(model, args, dict(kwargs), strict=False)
            torch.export.save(program, path)
    except Exception as error:
        raise InputError(f"{type(model).__name__} can't be exported: {first_line(error)}") from error
    return sizes_of(program, example, refused)


def open_program(path: Path) -> ExportedProgram:
    """The exported program of a .pt2 file."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.export.load(path)


def load_program(path: Path) -> Callable[..., Any]:
    """The program of a .pt2 file, to be called as the model was in the example."""
    return as_function(open_program(path))


def as_function(program: ExportedProgram) -> Callable[..., Any]:
    """An exported program, to be called as the model was in the example."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module: Callable[..., Any] = program.module()
    return module


def stored_in(program: ExportedProgram) -> Callable[[str], Tensor]:
    """The stored tensors of an exported program by their names."""
    return lambda name: program.state_dict[name] if name in program.state_dict else program.constants[name]


@contextmanager
def _plain_outputs(model: nn.Module) -> Iterator[None]:
    """A model whose forward returns tensors in dictionaries, lists and tuples, and as it was afterwards."""
    forward, own = model.forward, "forward" in vars(model)

    @wraps(forward)
    def plain(*args: Any, **kwargs: Any) -> Any:
        return _plain(forward(*args, **kwargs))

    model.forward = plain
    try:
        yield
    finally:
        if own:
            model.forward = forward
        else:
            del model.forward


def _plain(outputs: Any) -> Any:
    if isinstance(outputs, Mapping):
        return {name: _plain(value) for name, value in outputs.items()}
    if isinstance(outputs, (list, tuple)):
        return [_plain(value) for value in outputs]
    return outputs


def _any_size(value: Any) -> Any:
    """All axes of a tensor, of an image or a video only that of the batch."""
    if not isinstance(value, Tensor):
        return None
    return dict.fromkeys(range(1 if value.ndim > 3 else value.ndim), torch.export.Dim.AUTO)


def _shapes(any_size: tuple[Any, Any]) -> Any:
    """One entry for each argument, as torch.export wants them: by name where there are keywords only."""
    args, kwargs = any_size
    return (*args, *kwargs.values()) if args else kwargs
