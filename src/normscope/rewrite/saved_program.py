"""A model as an exported program: one .pt2 file that torch alone runs, without the code of the model or this package.

Outputs that are classes of another library, such as those of transformers, become dictionaries: torch would need that
library for them. The sizes that a program takes are found by trying: torch.export gives a variable size a symbol,
and what the code of the model requires of it by guards, such as (s + (−s mod 64))/64 = 1 of code that works in chunks
of 64. The program refuses what breaks a guard, so sizes are tried from 1 to 256 one by one, and beyond that in doubling
steps.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import wraps
from pathlib import Path
from traceback import FrameSummary
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.utils import _pytree as pytree

from normscope.checks import first_line
from normscope.errors import InputError
from normscope.models.graph import as_exported
from normscope.results.folding import FixedSize, Program

SMALL = 256
TRIED = (*range(1, SMALL + 1), *(2**power + near for power in range(9, 18) for near in (-1, 0, 1)))
TORCH = Path(torch.__file__).parent
Accepts = Callable[[int], bool]


def save_program(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], path: Path) -> Program:
    """Export a call of a model to a .pt2 file, for inputs of any batch and length where the model allows it.

    The result says which sizes are fixed, and why. Images have the size of the example: their axes enter
    many more calculations than a length does, and torch.export would take minutes.

    >>> import tempfile
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_program(model, (torch.ones(2, 4),), {}, Path(folder) / "model.pt2").inputs
    ...     load_program(Path(folder) / "model.pt2")(torch.ones(5, 4)).shape
    {'input': 'any × 4'}
    torch.Size([5, 8])
    """
    any_size = pytree.tree_map(_any_size, (args, dict(kwargs)))
    refused = ""
    try:
        with as_exported(model), _plain_outputs(model), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns about what it exports
            try:
                program = torch.export.export(model, args, dict(kwargs), dynamic_shapes=_shapes(any_size), strict=False)
            except Exception as error:  # some models only take the sizes of the example
                refused = f"torch.export refuses other sizes: {first_line(error)}"
                program = torch.export.export(model, args, dict(kwargs), strict=False)
            torch.export.save(program, path)
    except Exception as error:
        raise InputError(f"{type(model).__name__} can't be exported: {first_line(error)}") from error
    return sizes_of(program, pytree.tree_leaves((args, dict(kwargs))), refused)


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
    """A context in which forward returns tensors in dictionaries, lists and tuples; the model is then restored."""
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
    """The variable axes of a tensor: all, but only the batch of an image or a video."""
    if not isinstance(value, Tensor):
        return None
    return dict.fromkeys(range(1 if value.ndim > 3 else value.ndim), torch.export.Dim.AUTO)


def _shapes(any_size: tuple[Any, Any]) -> Any:
    """One entry for each argument, as torch.export expects them: by name where there are keywords only."""
    args, kwargs = any_size
    return (*args, *kwargs.values()) if args else kwargs


def sizes_of(program: ExportedProgram, given: list[Any], refused: str = "") -> Program:
    """The inputs of a program, with the reason for every batch or token axis of fixed size.

    >>> class Few(nn.Module):
    ...     def forward(self, x):
    ...         return x * (2 if x.shape[0] < 40 else 3)
    >>> shapes = {"x": {0: torch.export.Dim.AUTO}}
    >>> program = torch.export.export(Few(), (torch.ones(4, 2),), dynamic_shapes=shapes)
    >>> sizes_of(program, [torch.ones(4, 2)]).inputs
    {'x': 'up to 39 × 2'}
    """
    names = [spec.arg.name for spec in program.graph_signature.input_specs if spec.kind == InputKind.USER_INPUT]
    values = {node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"}
    exported = [values[name] if isinstance(value, Tensor) else value for name, value in zip(names, given, strict=True)]
    usual = _usual(exported, given)
    taken = {symbol: _taken(_accepts(program, exported, usual, symbol)) for symbol in usual}
    inputs: dict[str, str] = {}
    fixed: list[FixedSize] = []
    for name, value, described in zip(names, given, exported, strict=True):
        if not isinstance(value, Tensor):
            continue
        words = [_words(size, taken) for size in described.shape]
        inputs[name] = " × ".join(words)
        tokens = value.ndim == 2 and not value.is_floating_point()
        fixed += [
            FixedSize(name, axis, int(size), refused or _reason(program, name, axis, usual))
            for axis, size in enumerate(words[: 2 if tokens else 1])
            if size.isdigit()
        ]
    return Program(inputs, tuple(fixed))


def _expression(size: Any) -> Any:
    """A size as a sympy expression; a number unchanged."""
    return size if isinstance(size, int) else size.node.expr


def _usual(exported: Sequence[Any], given: Sequence[Any]) -> dict[Any, int]:
    """The symbols of sizes, with their values in the example."""
    found: dict[Any, int] = {}
    for described, value in zip(exported, given, strict=True):
        for size, number in zip(described.shape, value.shape, strict=True) if isinstance(value, Tensor) else ():
            expression = _expression(size)
            if getattr(expression, "is_Symbol", False):
                found[expression] = number
    return found


def _accepts(program: ExportedProgram, exported: Sequence[Any], usual: Mapping[Any, int], symbol: Any) -> Accepts:
    """Whether the program takes inputs where one symbol has another value, without computing any tensor."""
    check: Any = getattr(program.module(), "_guards_fn", None)

    def accepts(size: int) -> bool:
        sizes = {**usual, symbol: size}
        tried = [_of_size(described, sizes) if isinstance(described, Tensor) else described for described in exported]
        with suppress(AssertionError, ZeroDivisionError):  # a guard may divide by zero then
            if check is not None:
                check(*tried)
            return True
        return False

    return accepts


def _of_size(described: Tensor, sizes: Mapping[Any, int]) -> Tensor:
    shape = [size if isinstance(size, int) else int(_expression(size).xreplace(sizes)) for size in described.shape]
    return torch.empty(shape, dtype=described.dtype, device="meta")


def _taken(accepts: Accepts) -> str:
    """The accepted sizes, in words; a number if there is only one."""
    taken = [size for size in TRIED if accepts(size)]
    if not taken:
        return "any"  # no size passes alone: nothing is known
    inside = [size for size in TRIED if taken[0] <= size <= taken[-1]]
    if len(taken) == 1:
        return str(taken[0])
    if taken != inside:
        return f"{', '.join(map(str, taken[:3]))}, …"
    words = [f"{taken[0]} or more"] if taken[0] > 2 else []  # torch.export counts from 2 where it could be 1
    words += [f"up to {_last(accepts, taken[-1])}"] if taken[-1] < TRIED[-1] else []
    return " and ".join(words) or "any"


def _last(accepts: Accepts, low: int) -> int:
    """The last accepted size, between one that is and the next that was tried."""
    high = TRIED[TRIED.index(low) + 1]
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if accepts(middle) else (low, middle)
    return low


def _words(size: Any, taken: Mapping[Any, str]) -> str:
    """The sizes that an axis can have: a number, words, or a multiple of another axis."""
    return taken.get(_expression(size), str(size))


def _reason(program: ExportedProgram, name: str, axis: int, usual: Mapping[Any, int]) -> str:
    """Where the code of a model fixes the size of an axis, as torch.export noted it while it traced the call."""
    environment = _environment(program)
    symbol = getattr(environment, "source_to_var", {}).get(f"L[{name!r}].size()[{axis}]")
    places: list[Any] = [getattr(environment, "replacements_slocs", {}).get(symbol)]
    if symbol in usual:
        larger = {**usual, symbol: usual[symbol] + 1}
        guards = getattr(environment, "guards", ())
        places += [guard.sloc for guard in guards if str(guard.expr.xreplace(larger)) == "False"]
    for place in places:
        line = getattr(place, "framework_loc", None)
        if isinstance(line, FrameSummary) and not Path(line.filename).is_relative_to(TORCH):
            return f"{Path(line.filename).name}, line {line.lineno}, fixes it: {line.line}"
    return "torch.export fixes it and does not say where"


def _environment(program: ExportedProgram) -> Any:
    for node in program.graph.nodes:
        mode = getattr(node.meta.get("val"), "fake_mode", None)
        if mode is not None:
            return mode.shape_env
    return None
