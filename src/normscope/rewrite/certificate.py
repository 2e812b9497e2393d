"""What shows that two models are one function: outputs on inputs, and identities of weights that need no inputs.

    rewrite     max |folded − original| / max |original| over each output of the model and of its norms, everything in
                float64, folded weights not yet rounded to the dtype in which they are stored: at most 1e-9
    written     the same of the stored weights, over the outputs of the model: at most 1e-9 + 10 × rounding
    rounding    the same of the original, each of the tensors that folding changed rounded once more to its dtype
    deployed    both models in their own dtype, beside the error that the original makes there by itself
    algebra     Π W′ = W′ for every centred W′;  Π W′diag(g′) = Π W diag(g),  Π(f·W′b′ + c′) = Π(f·W b + c)  for readers

The algebra is checked on the weights as they were and as they are, not by the code that computed them.
"""

import math
from collections.abc import Callable, Collection, Iterator
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from normscope.checks import first_line
from normscope.errors import InputError
from normscope.models.float64_run import evaluate, floats
from normscope.rewrite.plan import Plan, Taken, TakenBy
from normscope.rewrite.results import Certificate, Example
from normscope.rewrite.stored_tensors import StoredTensors

ALGEBRA = 1e-11  # relative to the largest number that goes into an identity
TRIES = 3  # of rounding the original


def certify(
    outputs: tuple[list[Tensor], list[Tensor], list[Tensor]],
    of_norms: tuple[list[Tensor], list[Tensor]],
    rounding: float,
    models: tuple[nn.Module, nn.Module],
    example: Example,
    identities: list[tuple[str, bool]],
) -> Certificate:
    """The certificate for (original, folded) models.

    Given are outputs in float64, of the original, of the folded weights before they are rounded and as they are stored;
    those of norms of the first two; what rounding does to the original; and identities.
    """
    (reference, unrounded, stored), (norms, folded_norms) = outputs, of_norms
    original, folded = (outputs_of(model, example) for model in models)
    return Certificate(
        inputs=_described(example),
        dtype=_dtype(models[1]),
        rewrite_difference=difference(unrounded + folded_norms, reference + norms),
        written_difference=difference(stored, reference),
        rounding_difference=rounding,
        read_back=False,
        difference=difference(folded, original),
        original_error=difference(original, reference),
        folded_error=difference(folded, reference),
        argmax_agreement=_agreement(original, folded),
        identities=len(identities),
        broken=tuple(words for words, holds in identities if not holds),
    )


def rounding_difference(
    program: ExportedProgram, tensors: StoredTensors, changed: Collection[str], reference: list[Tensor]
) -> float:
    """How far the outputs of a model move, in float64, if some of its tensors are rounded once more to their dtype.

    The largest of a few tries, so that no lucky one is taken for what rounding does.
    """
    seeds = {tensors.first_name(name): seed for seed, name in enumerate(changed)}

    def rounded(name: str, number: int) -> Tensor:
        values, first = tensors.in_float64(name), tensors.first_name(name)
        if first not in seeds:
            return values
        random = torch.Generator().manual_seed(TRIES * seeds[first] + number)  # the same whenever it is asked for
        return rounded_once_more(values, tensors[name].dtype, random)

    tries = [
        difference(evaluate(program, partial(rounded, number=number)), reference)
        for number in range(TRIES if seeds else 0)
    ]
    return float(torch.tensor([0.0, *tries], dtype=torch.float64).max())  # NaN if one of them is


def rounded_once_more(values: Tensor, dtype: torch.dtype, random: torch.Generator) -> Tensor:
    """Numbers of a dtype, each with the rounding error of another number of its size: round(f·w)/f, f from [½, 1).

    >>> rounded = rounded_once_more(torch.ones(1000).double(), torch.bfloat16, torch.Generator().manual_seed(0))
    >>> 1 / 512 < float((rounded - 1).abs().max()) <= 1 / 256
    True
    """
    factors = 0.5 + 0.5 * torch.rand(values.shape, generator=random, dtype=torch.float64)
    return (values * factors).to(dtype).double() / factors


def outputs_of(model: nn.Module, example: Example) -> list[Tensor]:
    """The outputs of a model in evaluation mode; what was in training mode is again at the end."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        with torch.no_grad():
            return floats(model(*example[0], **example[1]))
    except Exception as error:  # the model's own code, which may raise anything
        raise InputError(f"{type(model).__name__} can't be run on its inputs: {first_line(error)}") from error
    finally:
        for module in training:
            module.training = True


def difference(outputs: list[Tensor], reference: list[Tensor]) -> float:
    """The largest difference over all outputs, each relative to its size; NaN where they can't be compared.

    >>> difference([torch.tensor([1.0, 2.5])], [torch.tensor([1.0, 2.0])])
    0.25
    """
    if [tensor.shape for tensor in outputs] != [tensor.shape for tensor in reference] or not reference:
        return math.nan
    pairs = zip(outputs, reference, strict=True)
    ratios = torch.tensor([0.0, *(_ratio(one, other) for one, other in pairs if other.numel())], dtype=torch.float64)
    return float(ratios.max())  # NaN if one of them is


def _ratio(one: Tensor, other: Tensor) -> float:
    # Entries that are equal differ by 0, also if both are infinite, as masked scores are.
    apart = torch.where(one == other, 0.0, (one - other).abs())
    return float(apart.max()) / _size(other)


def _size(values: Tensor) -> float:
    """The largest finite value that occurs only once, if there is one: what a mask writes, often huge, occurs again.

    >>> _size(torch.tensor([-1e30, 2.0, -1e30, -3.0]))
    3.0
    """
    sizes, times = np.unique(values[values.isfinite()].abs().numpy(), return_counts=True)
    alone = sizes[times == 1] if (times == 1).any() else sizes
    return float(alone.max(initial=0.0)) or 1.0


def identities(
    plan: Plan, before: Callable[[str], Tensor], after: Callable[[str], Tensor]
) -> Iterator[tuple[str, bool]]:
    """Every identity between stored tensors that a plan promises, in words, and whether it holds."""
    readers = {reader.weight: (taken, reader) for taken in plan.taken for reader in taken.readers}
    biases = {reader.bias for _, reader in readers.values()}
    for name, axis in plan.centred.items():
        old, new = before(name), after(name)
        yield f"{name} has mean zero over its outputs", _small(new.mean(dim=axis), old, new)
        if name not in readers and name not in biases:
            lost = old - new
            yield f"{name} has lost nothing but its mean", _small(lost - lost.mean(dim=axis, keepdim=True), old)
    for taken in plan.taken:
        old, new = _gain(taken, before), _gain(taken, after)
        if bool((taken.gain != 1).any()):
            yield f"the gain of {taken.norm} is 1, or still 0", bool((new == torch.where(old == 0, 0.0, 1.0)).all())
        for reader in taken.readers:
            yield from _reader_identities(plan, taken, reader, before, after)


def _reader_identities(
    plan: Plan, taken: Taken, reader: TakenBy, before: Callable[[str], Tensor], after: Callable[[str], Tensor]
) -> Iterator[tuple[str, bool]]:
    """That a layer makes of the norm's z what it made of it before, its mean aside if it writes a centred stream."""
    matrices: list[Tensor] = []
    shifts: list[Tensor] = []
    sizes: list[Tensor] = []
    for stored in (before, after):
        weight = stored(reader.weight).movedim(reader.axis, 1)  # (outputs, inputs)
        shifting = reader.factor * weight * _bias(taken, stored)
        own = torch.zeros(len(weight)).double() if reader.bias is None else stored(reader.bias)
        matrices.append(weight * _gain(taken, stored))
        shifts.append(shifting.sum(dim=1) + own)
        sizes += [shifting.abs().sum(dim=1), own]
    gain, bias = (new - old for old, new in (matrices, shifts))
    if reader.weight in plan.centred:
        gain, bias = gain - gain.mean(dim=0), bias - bias.mean()
    yield f"{reader.layer} has taken over the gain of {taken.norm}", _small(gain, *matrices)
    yield f"{reader.layer} has taken over the bias of {taken.norm}", _small(bias, *sizes)


def _gain(taken: Taken, stored: Callable[[str], Tensor]) -> Tensor:
    if taken.gain_tensor is None:
        return torch.ones_like(taken.gain)
    return stored(taken.gain_tensor).reshape(-1) + (1.0 if taken.adds_one else 0.0)


def _bias(taken: Taken, stored: Callable[[str], Tensor]) -> Tensor:
    if taken.bias_tensor is None:
        return torch.zeros_like(taken.bias)
    return stored(taken.bias_tensor).reshape(-1)


def _small(values: Tensor, *beside: Tensor) -> bool:
    size = max(float(tensor.abs().max()) for tensor in beside)
    return float(values.abs().max()) <= ALGEBRA * size


def _agreement(original: list[Tensor], folded: list[Tensor]) -> float | None:
    if not original or not folded or not original[0].ndim or original[0].shape != folded[0].shape:
        return None
    agree = original[0].argmax(dim=-1) == folded[0].argmax(dim=-1)
    return float(agree.double().mean()) if agree.numel() else None


def _described(example: Example) -> str:
    named = [*((str(place), value) for place, value in enumerate(example[0])), *example[1].items()]
    shapes = {name: "×".join(map(str, value.shape)) for name, value in named if isinstance(value, Tensor)}
    return ", ".join(f"{name} {shape}" for name, shape in shapes.items())


def _dtype(model: nn.Module) -> str:
    """The dtype of most parameters."""
    counts: dict[str, int] = {}
    for parameter in model.parameters():
        name = str(parameter.dtype).removeprefix("torch.")
        counts[name] = counts.get(name, 0) + parameter.numel()
    return max(counts, key=lambda name: counts[name], default="float32")
