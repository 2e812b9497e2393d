"""What folding does to the speed of a GPT-2 on one CPU thread: whole passes, and the norms alone.

    original      LayerNorms with gain and bias
    folded        the same modules, gains 1
    rms, torch    RMSNorms by torch.nn.functional.rms_norm
    rms, fused    RMSNorms by normscope.nn

Embeddings are tied, so with RMSNorms the rows of the table are centred after the look-up, which is part of their time.
A pass computes the logits of the last token only, as when a prompt is read. Weights are random: speed does not depend
on them. Variants run in turn, in a new random order in each round, and malloc is told to keep its memory: the
first use of fresh memory from the system takes longer than a norm does.
"""

import copy
import random
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from normscope.models.float64_run import keep_memory
from normscope.nn import Norm
from normscope.progress import Progress, silent
from normscope.rewrite.fold import fold
from normscope.rewrite.rms_modules import CentredLookUp
from normscope_lab.bench.timing import interleaved, one_thread, this_machine
from normscope_lab.results.fold_speed import FoldSpeed, Pass

ORIGINAL, FOLDED, RMS_TORCH, RMS_FUSED = "original", "folded", "rms, torch", "rms, fused"
WHOLE, ALONE = "whole pass", "norms alone"
SEED = 0


@dataclass(frozen=True)
class Setting:
    """What is measured."""

    layers: int
    width: int
    vocabulary: int
    shapes: tuple[tuple[int, int], ...]  # (batch, tokens)
    rounds: tuple[int, ...]  # for each shape
    compiled: bool


FULL = Setting(12, 768, 50257, ((1, 128), (8, 512)), (15, 5), compiled=True)
QUICK = Setting(2, 64, 100, ((1, 16),), (2,), compiled=False)


def run(setting: Setting = FULL, progress: Progress = silent) -> FoldSpeed:
    """Measure all models in turn, round by round."""
    keeps, passes = keep_memory(), list[Pass]()
    with one_thread(), torch.no_grad():
        variants = _variants(setting)
        shapes = list(zip(setting.shapes, setting.rounds, strict=True))
        for (batch, tokens), rounds in progress(shapes, "bench fold"):
            passes += _of_one_shape(variants, setting, batch, tokens, rounds)
    return FoldSpeed(this_machine(), keeps, setting.layers, setting.width, tuple(passes))


def _of_one_shape(
    variants: Mapping[str, nn.Module], setting: Setting, batch: int, tokens: int, rounds: int
) -> Iterator[Pass]:
    draws = torch.Generator().manual_seed(SEED)
    ids = torch.randint(setting.vocabulary, (batch, tokens), generator=draws)
    x = torch.randn(batch, tokens, setting.width, generator=draws)
    norms = {name: partial(_normalize, _norms(model), x) for name, model in variants.items()}
    yield from _measured(ALONE, ids, "eager", 10 * rounds, norms)
    whole = {name: partial(_read, model, ids) for name, model in variants.items()}
    yield from _measured(WHOLE, ids, "eager", rounds, whole)
    if setting.compiled:
        torch.compiler.reset()
        compiled = {name: torch.compile(model, dynamic=False) for name, model in variants.items()}
        yield from _measured(
            WHOLE, ids, "compiled", rounds, {name: partial(_read, model, ids) for name, model in compiled.items()}
        )


def _variants(setting: Setting) -> dict[str, nn.Module]:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(SEED)
    config = GPT2Config(
        n_layer=setting.layers,
        n_embd=setting.width,
        n_head=setting.width // 64 or 1,
        vocab_size=setting.vocabulary,
        bos_token_id=0,
        eos_token_id=0,
    )
    original: nn.Module = GPT2LMHeadModel(config)  # type: ignore[no-untyped-call]
    original.eval()
    for module in original.modules():
        if isinstance(module, nn.LayerNorm):
            nn.init.normal_(module.weight, 1.0, 0.1)
            nn.init.normal_(module.bias, 0.0, 0.1)
    fused = fold(original, rms=True).module
    return {
        ORIGINAL: original,
        FOLDED: fold(original).module,
        RMS_TORCH: _by_torch(copy.deepcopy(fused)),
        RMS_FUSED: fused,
    }


class _RmsByTorch(nn.Module):
    """An RMSNorm without the fused kernels."""

    def __init__(self, norm: Norm) -> None:
        super().__init__()
        self.weight, self.bias, self.shape, self.eps = norm.weight, norm.bias, norm.normalized_shape, norm.eps

    def forward(self, x: Tensor) -> Tensor:
        y = nn.functional.rms_norm(x, self.shape, self.weight, self.eps)
        return y if self.bias is None else y + self.bias


def _by_torch(model: nn.Module) -> nn.Module:
    for name, module in list(model.named_modules()):
        if isinstance(module, Norm):
            model.set_submodule(name, _RmsByTorch(module))
    return model


def _read(model: Any, ids: Tensor) -> None:
    model(ids, use_cache=False, logits_to_keep=1)


def _norms(model: nn.Module) -> list[Callable[[Tensor], Tensor]]:
    """All norms of a model, and the centring after the look-up where there is one."""
    kinds = (nn.LayerNorm, Norm, _RmsByTorch)
    found: list[Callable[[Tensor], Tensor]] = [module for module in model.modules() if isinstance(module, kinds)]
    centred = [CentredLookUp(nn.Identity()) for module in model.modules() if isinstance(module, CentredLookUp)]
    return [*centred, *found]


def _normalize(norms: Sequence[Callable[[Tensor], Tensor]], x: Tensor) -> None:
    for norm in norms:
        norm(x)


def _measured(
    what: str, ids: Tensor, mode: str, rounds: int, functions: Mapping[str, Callable[[], object]]
) -> list[Pass]:
    for function in functions.values():
        function()  # what is compiled is compiled now
    order, names = random.Random(SEED), list(functions)
    seconds: list[dict[str, float]] = []
    for _ in range(rounds):
        order.shuffle(names)
        seconds.append(interleaved({name: functions[name] for name in names}, 1, {}))
    batch, tokens = ids.shape
    return [
        Pass(
            what,
            batch,
            tokens,
            mode,
            name,
            rounds,
            seconds=statistics.median(times[name] for times in seconds),
            speed=statistics.median(times[ORIGINAL] / times[name] for times in seconds),
        )
        for name in functions
    ]
