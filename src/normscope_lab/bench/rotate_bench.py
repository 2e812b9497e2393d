"""What a rotation is worth: the loss of a language model once weights and inputs of its linear layers are rounded.

    as it is, folded, rotated       the same function: what rounding adds to the loss is all that differs
    step = max|x| / (2^(bits−1) − 1)        one for each row of a weight, one for each token of an input
    rounded(x) = step · round(x / step)

Rounded are the layers that read a norm, or all linear layers; which they are comes from the graph. The head, which
scores tokens, is never rounded. The text is cut into pieces, and models are compared piece by piece.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from normscope.checks import Floats
from normscope.errors import InputError
from normscope.models.find import find_traced
from normscope.models.graph import LinearReader
from normscope.models.subject import Subject, Text
from normscope.results.folding import ROTATED as TURNED
from normscope.results.folding import Folding
from normscope.rewrite.fold import fold
from normscope_lab.bench.timing import this_machine
from normscope_lab.results.rotate_loss import ALL, NEAR, Channels, Loss, RotateLoss

AS_IT_IS, FOLDED, ROTATED = "as it is", "folded", "rotated"
MATRIX = "hadamard"  # in the stream, and inside value heads
SETTINGS = ("W8A8", "W6A6", "W4A4", "A4", "W8A8-all", "W6A6-all", "W4A4-all")
WRITTEN = re.compile(r"(?:W(\d+))?(?:A(\d+))?(-all)?")
FEWEST_BITS, MOST_BITS = 2, 24  # sign and one step; what float32 holds
LENGTH, TRACED = 512, 16  # tokens of a piece, and of the call that is traced and certified
SKIPPED, STREAM_PIECES = 8, 2  # the first tokens have large values of their own
FEWEST_TOKENS = 16


class Setting(NamedTuple):
    """Bits of weights and of inputs; None: not rounded."""

    weights: int | None
    inputs: int | None
    layers: str

    @classmethod
    def of(cls, written: str) -> "Setting":
        """A setting as it is written on the command line.

        >>> Setting.of("W6A6"), Setting.of("A4-all").weights
        (Setting(weights=6, inputs=6, layers="norms' readers"), None)
        """
        found = WRITTEN.fullmatch(written)
        bits = [] if found is None else [int(each) for each in found.groups()[:2] if each]
        if found is None or not bits or not all(FEWEST_BITS <= each <= MOST_BITS for each in bits):
            raise InputError(
                f"a rounding must be written like W6A6, W4, A4 or W6A6-all, of {FEWEST_BITS} to {MOST_BITS} bits, "
                f"got {written!r:.40}"
            )
        weights, inputs = (int(each) if each else None for each in found.groups()[:2])
        return cls(weights, inputs, ALL if found[3] else NEAR)


@dataclass(frozen=True)
class Layers:
    """The linear layers of a model by name, those that read a norm, and the norms that read the stream."""

    all: tuple[LinearReader, ...]
    near: tuple[LinearReader, ...]
    norms: tuple[str, ...]
    left_out: tuple[str, ...]


def run(
    model: Path,
    text: Text,
    tokens: int,
    seeds: int,
    settings: Sequence[str],
    bar: Callable[[Iterable[Any], str], Iterable[Any]],
) -> RotateLoss:
    """The loss of every variant under every setting, and the channels of its stream."""
    wanted = [Setting.of(each) for each in settings or SETTINGS]
    ids = pieces(Subject(model, text=text).batches(), tokens)
    subject = Subject(model, inputs={"input_ids": ids[:1, :TRACED]})
    live, layers = subject.module.eval(), layers_of(subject.module, ids[:1, :TRACED])
    variants = [(AS_IT_IS, 0), (FOLDED, 0), *((ROTATED, seed) for seed in range(seeds))]
    base = losses(live, ids)
    certified, added, channels = True, dict[tuple[Setting, str], list[Floats]](), dict[str, list[Floats]]()
    for variant, seed in bar(variants, "models"):
        module = live
        if variant != AS_IT_IS:
            folding = rewritten(subject, None if variant == FOLDED else seed)
            certified, module = certified and bool(folding.holds), folding.module.eval()
        channels.setdefault(variant, []).append(outliers(module, layers.norms, ids[:STREAM_PIECES]))
        for setting in wanted:
            with rounding(module, layers, setting):
                added.setdefault((setting, variant), []).append(losses(module, ids) - base)
    return RotateLoss(
        machine=this_machine(),
        model=subject.name,
        matrix=MATRIX,
        tokens=ids.numel(),
        length=ids.shape[1],
        skipped=SKIPPED,
        stream_tokens=ids[:STREAM_PIECES].numel(),
        loss=float(base.mean()),
        certified=certified,
        readers=len(layers.near),
        layers=len(layers.all),
        left_out=layers.left_out,
        losses=tuple(_loss(setting, name, added[setting, name]) for setting in wanted for name in channels),
        channels=tuple(
            Channels(name, len(channels[name]), *np.mean(channels[name], axis=0).tolist()) for name in channels
        ),
    )


def rewritten(subject: Subject, seed: int | None) -> Folding:
    """The folded model, also rotated if there is a seed."""
    if seed is None:
        return fold(subject, untie=True)
    folding = fold(subject, untie=True, rotate=MATRIX, rotate_heads=True, seed=seed)
    stream = next(iter(folding.streams), None)  # those that are turned come first, value heads last
    if stream is None or stream.what != TURNED:
        why = "none was found" if stream is None else stream.how
        raise InputError(f"{subject.name} must have a stream that can be rotated: {why}")
    return folding


def pieces(batches: Iterable[Any], tokens: int) -> Tensor:
    """The first tokens of a text as rows of equal length, as many as asked for if the text has them."""
    found: list[Tensor] = []
    length = 0
    for batch in batches:
        ids = batch["input_ids"].flatten()
        length = length or min(LENGTH, len(ids), tokens)
        found += ids.unfold(0, length, length) if len(ids) >= length else ()
        if len(found) * length >= tokens:
            break
    if length < FEWEST_TOKENS:
        raise InputError(f"the text must have at least {FEWEST_TOKENS} tokens, got {length}")
    return torch.stack(found[: math.ceil(tokens / length)])


def layers_of(model: nn.Module, ids: Tensor) -> Layers:
    """What can be rounded: modules that are one product with a stored matrix. The head is not among them."""
    inventory = find_traced(model, {"input_ids": ids})
    graph, head = inventory.graph, _head(model)
    named = {found.path: found.size for found in inventory.values() if found.path is not None and not found.function}
    read = {path: graph.linear_readers(path) for path in named}
    widest = max((named[path] for path, readers in read.items() if readers), default=0)
    linear = [layer for layer in graph.linear_layers() if model.get_submodule(layer.name) is not head]
    whole = [layer for layer in linear if layer.alone and layer.weight_name == f"{layer.name}.weight"]
    near = {layer.name for readers in read.values() for layer in readers}
    if not near & {layer.name for layer in whole}:
        raise InputError(f"{type(model).__name__} has no linear layer that reads a norm: there is nothing to round")
    return Layers(
        all=tuple(whole),
        near=tuple(layer for layer in whole if layer.name in near),
        norms=tuple(path for path, readers in read.items() if readers and named[path] == widest),
        left_out=(*(layer.label for layer in linear if layer not in whole), *graph.other_layers()),
    )


def _head(model: nn.Module) -> nn.Module:
    """The layer that scores tokens, as a language model of transformers declares it."""
    declared = getattr(model, "get_output_embeddings", lambda: None)()
    if not isinstance(declared, nn.Module):
        raise InputError(f"{type(model).__name__} must be a language model, with a head that scores the next token")
    return declared


@torch.no_grad()
def losses(model: Any, ids: Tensor) -> Floats:
    """The mean loss of every piece, in nats per token."""
    found = []
    for piece in ids:
        scores = model(input_ids=piece[None, :-1], use_cache=False).logits[0]
        found.append(float(nn.functional.cross_entropy(scores.float(), piece[1:])))
    return np.array(found)


def rounded(x: Tensor, bits: int, axis: int = -1) -> Tensor:
    """The nearest multiples of a step that is 1/(2^(bits−1) − 1) of the largest entry along an axis.

    >>> rounded(torch.tensor([[1.0, 0.4, -0.6], [0.0, 0.0, 0.0]]), 2)
    tensor([[ 1.,  0., -1.],
            [ 0.,  0.,  0.]])
    """
    step = x.abs().amax(axis, keepdim=True) / (2 ** (bits - 1) - 1)
    return torch.where(step > 0, (x / step).round_() * step, x)


@contextmanager
def rounding(model: nn.Module, layers: Layers, setting: Setting) -> Iterator[None]:
    """Weights and inputs of layers rounded, as they were afterwards."""
    kept: dict[nn.Parameter, Tensor] = {}
    hooks = []
    try:
        for layer in layers.near if setting.layers == NEAR else layers.all:
            module = model.get_submodule(layer.name)
            weight = module.get_parameter("weight")
            if setting.weights is not None and weight not in kept:
                kept[weight] = weight.data
                weight.data = rounded(weight.data, setting.weights, 0 if layer.transposed else 1)
            if setting.inputs is not None:
                hooks.append(module.register_forward_pre_hook(partial(_round_input, setting.inputs)))
        yield
    finally:
        for hook in hooks:
            hook.remove()
        for weight, values in kept.items():
            weight.data = values


def _round_input(bits: int, _: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return rounded(args[0], bits), *args[1:]


@torch.no_grad()
def outliers(model: nn.Module, norms: Sequence[str], ids: Tensor) -> Floats:
    """Largest over median channel of the stream: median and largest over norms, then without the first tokens."""
    largest: dict[str, list[Tensor]] = {}

    def watch(name: str, _: nn.Module, args: tuple[Tensor, ...]) -> None:
        size = args[0].abs().flatten(0, -3)  # (batch, tokens, channels)
        largest.setdefault(name, []).append(torch.stack([size.amax((0, 1)), size[:, SKIPPED:].amax((0, 1))]))

    hooks = [model.get_submodule(name).register_forward_pre_hook(partial(watch, name)) for name in norms]
    try:
        model(input_ids=ids, use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    sizes = torch.stack([torch.stack(each).amax(0) for each in largest.values()]).double()  # (norms, 2, channels)
    ratios = (sizes.amax(-1) / sizes.median(-1).values).numpy()
    return np.array([np.median(ratios[:, 0]), ratios[:, 0].max(), np.median(ratios[:, 1]), ratios[:, 1].max()])


def _loss(setting: Setting, variant: str, added: Sequence[Floats]) -> Loss:
    mean = np.mean(added, axis=0)  # over seeds, piece by piece
    return Loss(
        layers=setting.layers,
        weight_bits=setting.weights,
        input_bits=setting.inputs,
        variant=variant,
        seeds=len(added),
        added=float(mean.mean()),
        error=float(mean.std(ddof=1) / math.sqrt(len(mean))) if len(mean) > 1 else None,
        worst=float(max(each.mean() for each in added)),
    )
