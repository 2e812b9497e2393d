"""The matrix that scores tokens, and the norm that it reads: scores = W·h + c, h an output of the norm.

Which norm that is, and that only linear maps are in between, is tested: the model runs once to record the order of
calls, and once more with random numbers in place of the norm's output. The input of the matrix must then be those
numbers, times a factor or a chain of linear layers that ran in between; its output must be W·h + c; and what the
model returns must put tokens in the same order (as a cap on logits does). No architecture is known by name.

A checkpoint without an architecture has only names. What is inferred from them is reported as assumed.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from normscope.checks import Floats, as_floats
from normscope.errors import CheckpointError, InputError
from normscope.models.checkpoint import Checkpoint, open_checkpoint
from normscope.models.example_inputs import example_inputs
from normscope.models.find import find
from normscope.models.load import run_in_pieces
from normscope.models.norms_by_name import norms_by_name
from normscope.models.stored_matrices import TensorRows
from normscope.models.subject import Subject
from normscope.norm import Norm
from normscope.results.inventory import FoundNorm

Matrix = NDArray[np.floating] | TensorRows
PLAIN = (torch.bfloat16, torch.float16, torch.float32, torch.float64)  # types of which single rows can be read
TRIED = 4  # norms to try, from the last that ran
OUTPUT = re.compile(r"(^|\.)(output|lm_head|embed_out|proj_out)\.weight$")
EMBEDDING = re.compile(r"(^|\.)(token_embd|tok_embeddings|wte|embed_tokens|embed_in|word_embeddings|shared)\.weight$")


@dataclass(frozen=True, eq=False)
class Unembedding:
    """Scores of tokens as W·h + c. The norm is None, and `problem` says why, where h is not known to come from one."""

    name: str  # of the module, or of the tensor where only tensors are available
    rows: Matrix = field(repr=False)  # W: (V, N), float32, or float64 if float32 would not hold it
    bias: Floats | None = field(repr=False)  # c
    norm: Norm | None
    norm_name: str | None
    through: tuple[str, ...] = ()  # linear layers between them, multiplied into W and c
    tied: bool | None = None  # whether W is the embedding as well; None if unknown
    assumed: tuple[str, ...] = ()
    problem: str | None = None


def unembedding_of(subject: Subject) -> Unembedding:
    """The unembedding of a module, of a folder in Hugging Face format, or of a file of weights, by names.

    >>> net = nn.Sequential(nn.Embedding(5, 3), nn.LayerNorm(3), nn.Linear(3, 5, bias=False))
    >>> found = unembedding_of(Subject(net, inputs=torch.tensor([[0, 1, 2]])))
    >>> found.name, found.norm_name, found.rows.shape
    ('2', '1', (5, 3))
    """
    path = subject.path
    if path is None:
        return _of_module(subject)
    if (path / "config.json").is_file():
        try:
            return _of_module(subject)
        except CheckpointError:
            raise
        except ValueError as error:
            raise CheckpointError(f"{path}: {error}") from None
    if subject.runs:
        raise InputError(f"text and inputs need a model that can be run, a folder with config.json, got {path}")
    with open_checkpoint(path) as checkpoint:
        return _by_name(checkpoint)


def _of_module(subject: Subject) -> Unembedding:
    model, example = subject.module, subject.example
    inputs = example_inputs(model) if example is None else example
    inventory = find(model, inputs=example)
    norms = {found.path: found for found in inventory.values() if found.path is not None and not found.function}
    calls = _calls(model, inputs, norms.keys())
    name = _name_of_head(model, calls)
    head = model.get_submodule(name)
    before = calls[: _last(calls, name)]
    problem = "no norm runs before it"
    for place in [place for place, call in enumerate(before) if call in norms][: -TRIED - 1 : -1]:
        probe = _probe(model, inputs, before[place], before[: place + 1].count(before[place]), name)
        linear = [call for call in before[place + 1 :] if isinstance(model.get_submodule(call), nn.Linear)]
        rows, bias, ordered = _matrix(head, name, probe)
        link = _link(model, probe, linear)
        if isinstance(link, str):
            problem = f"{before[place]} is the last norm to run before it, but {link}"
            continue
        return replace(
            _with_norm(norms[before[place]], link, rows, bias, name),
            tied=inventory.tied_embeddings,
            assumed=() if ordered else ("nothing after it changes the order of tokens",),
        )
    rows, bias, ordered = _matrix(head, name, _probe(model, inputs, None, 0, name))
    assumed = () if ordered else ("nothing after it changes the order of tokens",)
    return Unembedding(name, rows, bias, None, None, (), inventory.tied_embeddings, assumed, problem)


def _calls(model: nn.Module, inputs: Mapping[str, Any], norms: Any) -> list[str]:
    """Norms, linear layers and the declared output embedding by name, in the order in which they ran."""
    calls: list[str] = []
    hooks = [
        module.register_forward_hook(lambda *_, name=name: calls.append(name))
        for name, module in model.named_modules()
        if name in norms or isinstance(module, nn.Linear) or module is _declared_head(model)
    ]
    _run(model, inputs, hooks)
    return calls


def _run(model: nn.Module, inputs: Mapping[str, Any], hooks: list[Any]) -> None:
    try:
        for _ in run_in_pieces(model, [inputs]):
            pass
    finally:
        for hook in hooks:
            hook.remove()


def _declared_head(model: nn.Module) -> nn.Module | None:
    """The unembedding that a model of transformers declares."""
    try:
        head = model.get_output_embeddings()  # type: ignore[operator]
    except (AttributeError, NotImplementedError, TypeError):
        return None
    return head if isinstance(head, nn.Module) else None


def _name_of_head(model: nn.Module, calls: list[str]) -> str:
    declared = _declared_head(model)
    names = [name for name in calls if model.get_submodule(name) is declared]
    if declared is None and not hasattr(model, "config"):  # any other module: the last linear layer
        names = [name for name in calls if isinstance(model.get_submodule(name), nn.Linear)]
    if not names:
        raise InputError(f"{type(model).__name__} has no unembedding: no linear layer that scores tokens runs in it")
    return names[-1]


def _last(calls: list[str], name: str) -> int:
    return len(calls) - 1 - calls[::-1].index(name)


@dataclass(eq=False)
class _Probe:
    """Values recorded while random numbers replaced a norm's output."""

    given: Floats | None = None  # the random numbers: (positions, channels)
    read: Floats | None = None  # the input of the head
    scored: Floats | None = None  # its output
    returned: Floats | None = None  # the output of the model
    tolerance: float = 1e-4


def _probe(model: nn.Module, inputs: Mapping[str, Any], norm: str | None, call: int, head: str) -> _Probe:
    """Run the model with the output of one call of a norm replaced; the last call of the head counts."""
    probe, count = _Probe(), 0
    random = torch.Generator().manual_seed(0)

    def replace_output(_: nn.Module, args: Any, output: Any) -> Any:
        nonlocal count
        count += 1
        if count != call or not isinstance(output, Tensor):
            return None
        drawn = torch.randn(output.shape, generator=random).to(output.device, output.dtype)
        probe.given = _flat(drawn)
        return drawn

    def watch_head(_: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if args and isinstance(args[0], Tensor) and isinstance(output, Tensor):
            probe.read, probe.scored, probe.returned = _flat(args[0]), _flat(output), None
            probe.tolerance = max(1e-4, 16 * torch.finfo(output.dtype).eps)

    def watch_model(_: nn.Module, args: Any, output: Any) -> None:
        shape = None if probe.scored is None else probe.scored.shape
        for tensor in _tensors(output):
            rows = tensor.reshape(-1, tensor.shape[-1]) if tensor.ndim and tensor.is_floating_point() else None
            if rows is not None and tuple(rows.shape) == shape and rows.isfinite().all():
                probe.returned = _flat(rows)
                break

    hooks = [
        model.get_submodule(head).register_forward_hook(watch_head),
        model.register_forward_hook(watch_model),
    ]
    if norm is not None:
        hooks.append(model.get_submodule(norm).register_forward_hook(replace_output))
    _run(model, inputs, hooks)
    return probe


def _flat(tensor: Tensor) -> Floats:
    return as_floats(tensor.reshape(-1, tensor.shape[-1]), "activations")


def _tensors(output: Any) -> Iterator[Tensor]:
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, Mapping):
        for value in output.values():
            yield from _tensors(value)
    elif isinstance(output, (tuple, list)):
        for value in output:
            yield from _tensors(value)


def _matrix(head: nn.Module, name: str, probe: _Probe) -> tuple[TensorRows, Floats | None, bool]:
    """W and c of the head, and whether the model's output keeps the order of its scores."""
    weight, bias = getattr(head, "weight", None), getattr(head, "bias", None)
    if not isinstance(weight, Tensor) or weight.ndim != 2 or probe.read is None or probe.scored is None:
        raise InputError(f"{name} must multiply by one stored matrix to be an unembedding, but does not")
    shape = (probe.scored.shape[1], probe.read.shape[1])
    if tuple(weight.shape) not in (shape, shape[::-1]):
        raise InputError(f"{name} must have a matrix of shape {shape} to be an unembedding, got {tuple(weight.shape)}")
    if weight.is_meta:
        raise InputError(f"{name} must have its matrix in memory, and it is not there: load the model on one device")
    rows = _as_stored(weight if tuple(weight.shape) == shape else weight.T)
    shift = as_floats(bias, f"{name}.bias") if isinstance(bias, Tensor) else None
    products = np.concatenate([probe.read @ block.T.astype(np.float64) for block in rows.blocks()], axis=1)
    if not _alike(probe.scored, products + (0.0 if shift is None else shift), probe):
        raise InputError(f"{name} does more than multiply by its matrix and add its bias: its scores are not known")
    if probe.returned is None:
        return rows, shift, False
    ordered = np.take_along_axis(probe.returned, np.argsort(probe.scored, axis=1, kind="stable"), axis=1)
    fall = np.maximum.accumulate(ordered, axis=1) - ordered
    if fall.max() > probe.tolerance * np.abs(ordered).max():
        raise InputError(f"the model changes the order of tokens after {name}: its scores do not decide the argmax")
    return rows, shift, True


def _as_stored(weight: Tensor) -> TensorRows:
    """Rows of a matrix where it is, all of them finite."""
    rows = TensorRows(weight)
    rows.require_finite("the unembedding")
    return rows


def _alike(values: Floats, expected: Floats, probe: _Probe) -> bool:
    same = values.shape == expected.shape
    return same and bool(np.abs(values - expected).max() <= probe.tolerance * np.abs(expected).max())


@dataclass(frozen=True)
class _Link:
    """How the norm's output reaches the head: times a factor, or through linear layers."""

    factor: float = 1.0
    layers: tuple[tuple[str, nn.Linear], ...] = ()


def _link(model: nn.Module, probe: _Probe, linear: list[str]) -> "_Link | str":
    """The link between the norm and the head; a reason in words if it is not linear."""
    given, read = probe.given, probe.read
    if given is None or read is None or len(given) != len(read):
        return "its output does not reach the unembedding position by position"
    if given.shape == read.shape:
        factor = float(np.vdot(given, read) / np.vdot(given, given))
        if _alike(read, given, probe):
            return _Link()
        if factor and _alike(read, factor * given, probe):
            return _Link(factor)
    layers = [(name, model.get_submodule(name)) for name in linear]
    value = given
    for _, layer in layers:
        assert isinstance(layer, nn.Linear)
        if layer.in_features != value.shape[1]:
            return "what stands between is not linear"
        value = value @ as_floats(layer.weight, "weight").T
        value = value + (0.0 if layer.bias is None else as_floats(layer.bias, "bias"))
    if not layers or not _alike(read, value, probe):
        return "what stands between is not linear"
    return _Link(layers=tuple((name, layer) for name, layer in layers if isinstance(layer, nn.Linear)))


def _with_norm(found: FoundNorm, link: _Link, rows: Matrix, bias: Floats | None, name: str) -> Unembedding:
    norm, problem, through = found.norm, None, tuple(layer for layer, _ in link.layers)
    for _, layer in reversed(link.layers):
        wide = rows[:].astype(np.float64)
        if layer.bias is not None:
            bias = wide @ as_floats(layer.bias, "bias") + (0.0 if bias is None else bias)
        rows = wide @ as_floats(layer.weight, "weight")
    if norm is None:
        problem = f"{found.name} fits no member of the family: {found.problem}"
    elif found.obstacle is not None:
        norm, problem = None, f"{found.name}: {found.obstacle}"
    elif norm.size != rows.shape[1] or found.axis != -1:
        norm, problem = None, f"{found.name} does not normalize what the unembedding reads as channels"
    elif link.factor != 1.0:
        norm = Norm(
            gain=link.factor * norm.gain,
            bias=link.factor * norm.bias,
            eps=norm.eps,
            project=norm.projects,
            scale=norm.scales,
            groups=norm.groups,
        )
    return Unembedding(name, rows, bias, norm, found.name, through, problem=problem)


def _by_name(checkpoint: Checkpoint) -> Unembedding:
    names = [name for name in checkpoint.names if len(checkpoint.shape(name)) == 2]
    outputs = [name for name in names if OUTPUT.search(name)]
    embeddings = [name for name in names if EMBEDDING.search(name)]
    if len(outputs) > 1 or (not outputs and len(embeddings) != 1):
        found = ", ".join(outputs or embeddings) or "none"
        raise CheckpointError(
            f"{checkpoint.path}: one tensor must be named like an unembedding (lm_head.weight, output.weight) "
            f"or an embedding, got {found}; give the folder with its config.json"
        )
    name = (outputs or embeddings)[0]
    stored = checkpoint.stored(name)  # mapped, if the format allows it
    plain = stored.dtype in PLAIN and stored.layout is torch.strided
    rows = _as_stored(stored if plain else checkpoint.tensor(name))
    bias_name = f"{name.removesuffix('.weight')}.bias"
    bias = as_floats(checkpoint.tensor(bias_name), bias_name) if outputs and bias_name in checkpoint.names else None
    last = [
        found
        for found in norms_by_name(checkpoint)
        if found.size == rows.shape[1] and not re.search(r"\d|emb", found.name, re.IGNORECASE)
    ]
    assumed = ["which matrix scores tokens, by its name"]
    if len(last) != 1 or last[0].norm is None:
        named = ", ".join(found.name for found in last) or "none"
        problem = f"one norm must be outside the numbered layers, to be the last one, got {named}"
        return Unembedding(name, rows, bias, None, None, (), not outputs, tuple(assumed), problem)
    assumed += ["which norm it reads, by its name", "nothing is between them"]
    assumed += [f"the norm's {what}" for what in last[0].assumed]
    return Unembedding(name, rows, bias, last[0].norm, last[0].name, (), not outputs, tuple(assumed))
