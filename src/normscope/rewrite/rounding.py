"""How far rounding moves the outputs of a model: its own tensors, rounded once more to the type that they have.

A folded model is stored in the type of the original, so that its tensors are rounded once. What that may change is
measured on the original: every tensor that was rewritten gets the rounding errors of other numbers of its size.
"""

from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.export import ExportedProgram

from normscope.certificates.check_fold import Scaling
from normscope.models.float64_run import difference, evaluate
from normscope.progress import Progress
from normscope.rewrite.stored_tensors import StoredTensors

BLOCK = 2**16  # numbers that are rounded at a time
TRIES, MANY = 3, 10**7  # number of random roundings of the original; numbers from which on one is as good as several


def rounding_difference(
    program: ExportedProgram,
    tensors: StoredTensors,
    changed: Collection[str],
    scaling: Scaling,
    reference: list[Tensor],
    progress: Progress,
    example: Mapping[str, Any] | None = None,
) -> float:
    """How far the outputs of a model move, in float64, if some of its tensors are rounded once more to their dtype.

    The largest of a few tries, so that a lucky one does not count as the rounding error; of many numbers no try has
    much luck. Gains that are stored as 1 + w and rescaled are rounded as they are stored then, which costs them digits.
    """
    gains = {name: scaling.exponents.get(name, 0) for name in scaling.gains_less_one}
    seeds = {tensors.first_name(name): seed for seed, name in enumerate(changed)}
    numbers = sum(tensors[name].numel() for name in seeds)
    count = 0 if not seeds else TRIES if numbers < MANY else 1

    def rounded(name: str, number: int) -> Tensor:
        values, first = tensors.values(name), tensors.first_name(name)
        if first not in seeds:
            return values
        random = np.random.default_rng(TRIES * seeds[first] + number)  # reproducible
        if first not in gains:
            return rounded_once_more(values, values.dtype, random)
        factor = 2.0 ** gains[first]
        rounded = rounded_once_more((values.double() + 1) * factor - 1, values.dtype, random)
        return (rounded + 1) / factor - 1

    tries = [
        difference(evaluate(program, partial(rounded, number=number), example=example), reference)
        for number in progress(range(count), "folding, runs with rounded weights")
    ]
    return float(torch.tensor([0.0, *tries], dtype=torch.float64).max())  # NaN if one of them is


def rounded_once_more(values: Tensor, dtype: torch.dtype, random: np.random.Generator) -> Tensor:
    """Numbers of a dtype, each with the rounding error of another number of its size: round(f·w)/f, f from [½, 1).

    The result is in float64. It is computed in blocks that stay in the cache.

    >>> rounded = rounded_once_more(torch.ones(1000), torch.bfloat16, np.random.default_rng(0))
    >>> 1 / 512 < float((rounded - 1).abs().max()) <= 1 / 256
    True
    """
    numbers, made = values.reshape(-1), torch.empty(values.numel(), dtype=torch.float64)
    single = values.dtype == dtype == torch.float32  # their products in float64 are exact: float32 rounds them once too
    random_block = np.empty(BLOCK, np.float32)
    for old, new in zip(torch.split(numbers, BLOCK), torch.split(made, BLOCK), strict=True):
        factors = torch.from_numpy(random.random(dtype=np.float32, out=random_block[: len(old)])).mul_(0.5).add_(0.5)
        new.copy_(old * factors if single else (old.double() * factors).to(dtype)).div_(factors)
    return made.view(values.shape)
