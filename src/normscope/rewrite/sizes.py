"""Which sizes an exported program takes, found by asking the program itself.

torch.export names a size that may vary by a symbol, and what the code of the model has asked about it by guards, such
as (s + (−s mod 64))/64 = 1 of code that works in chunks of 64. The program refuses what breaks a guard, so the sizes
that it takes are those that pass all of them: they are tried, from 1 to 256 one by one and beyond that in doubling
steps.

>>> class Few(torch.nn.Module):
...     def forward(self, x):
...         return x * (2 if x.shape[0] < 40 else 3)
>>> shapes = {"x": {0: torch.export.Dim.AUTO}}
>>> program = torch.export.export(Few(), (torch.ones(4, 2),), dynamic_shapes=shapes)
>>> dict(sizes_of(program, ((torch.ones(4, 2),), {})).inputs)
{'x': 'up to 39 × 2'}
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from traceback import FrameSummary
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.utils import _pytree as pytree

from normscope.rewrite.results import Example, FixedSize, Program

SMALL = 256
TRIED = (*range(1, SMALL + 1), *(2**power + near for power in range(9, 18) for near in (-1, 0, 1)))
TORCH = Path(torch.__file__).parent
Accepts = Callable[[int], bool]


def sizes_of(program: ExportedProgram, example: Example, refused: str = "") -> Program:
    """What a program takes, with the reason for every axis of a batch or of tokens that has one size only."""
    names = [spec.arg.name for spec in program.graph_signature.input_specs if spec.kind == InputKind.USER_INPUT]
    values = {node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"}
    given = pytree.tree_leaves((example[0], dict(example[1])))
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
    """A size as sympy has it; a number as it is."""
    return size if isinstance(size, int) else size.node.expr


def _usual(exported: Sequence[Any], given: Sequence[Any]) -> dict[Any, int]:
    """The symbols of sizes, with what they are in the example."""
    found: dict[Any, int] = {}
    for described, value in zip(exported, given, strict=True):
        for size, number in zip(described.shape, value.shape, strict=True) if isinstance(value, Tensor) else ():
            expression = _expression(size)
            if getattr(expression, "is_Symbol", False):
                found[expression] = number
    return found


def _accepts(program: ExportedProgram, exported: Sequence[Any], usual: Mapping[Any, int], symbol: Any) -> Accepts:
    """Whether the program takes inputs where one symbol has another value: no tensor is computed for that."""
    check: Any = getattr(program.module(), "_guards_fn", None)

    def accepts(size: int) -> bool:
        sizes = {**usual, symbol: size}
        tried = [_of_size(described, sizes) if isinstance(described, Tensor) else described for described in exported]
        with suppress(AssertionError, ZeroDivisionError):  # guards are broken by sizes that they can't even be asked of
            if check is not None:
                check(*tried)
            return True
        return False

    return accepts


def _of_size(described: Tensor, sizes: Mapping[Any, int]) -> Tensor:
    shape = [size if isinstance(size, int) else int(_expression(size).xreplace(sizes)) for size in described.shape]
    return torch.empty(shape, dtype=described.dtype, device="meta")


def _taken(accepts: Accepts) -> str:
    """The sizes that are accepted, in words; a number if it is one only."""
    taken = [size for size in TRIED if accepts(size)]
    if not taken:
        return "any"  # nothing was learnt
    inside = [size for size in TRIED if taken[0] <= size <= taken[-1]]
    if len(taken) == 1:
        return str(taken[0])
    if taken != inside:
        return f"{', '.join(map(str, taken[:3]))}, …"
    words = [f"{taken[0]} or more"] if taken[0] > 2 else []  # torch.export counts from 2 where it could be 1
    words += [f"up to {_last(accepts, taken[-1])}"] if taken[-1] < TRIED[-1] else []
    return " and ".join(words) or "any"


def _last(accepts: Accepts, low: int) -> int:
    """The last size that is accepted, between one that is and the next that was tried."""
    high = TRIED[TRIED.index(low) + 1]
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if accepts(middle) else (low, middle)
    return low


def _words(size: Any, taken: Mapping[Any, str]) -> str:
    """The sizes that an axis can have: a number, words, or a multiple of another axis."""
    return taken.get(_expression(size), str(size))


def _reason(program: ExportedProgram, name: str, axis: int, usual: Mapping[Any, int]) -> str:
    """Where the code of a model fixes the size of an axis, as torch.export has noted it while it traced the call."""
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
