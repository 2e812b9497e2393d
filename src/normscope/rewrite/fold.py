"""Exact rewrites of norms: means removed where they are written, gains and biases moved to where they are read.

    LayerNorm(x) = g∘z + b,  z = Πx/√(|Πx|²/N + ε)
    Πx = x    if every writer of x is centred:        the centring has nothing left to do
    W(g∘z + b) + c = W′z + c′                          the gain becomes 1, the bias 0

The result is a model of the same architecture with other weights, which computes the same function. The evidence:

    rewrite     max |folded − original| / max |original| over each output of the model and of its norms, everything in
                float64, folded weights not yet rounded to their stored dtype: at most 1e-9
    written     the same for the stored weights, over the outputs of the model: at most 1e-9 + 10 × rounding
    rounding    the same for the original, each of the tensors that folding changed rounded once more to its dtype
    deployed    both models in their own dtype, compared with the error that the original makes there
    algebra     identities of weights, which need no inputs: `normscope.certificates.check_fold`

Streams can also be turned by an orthogonal matrix (`rotate`), once gains are folded, and multiplied by powers of two
(`rescale`), which by itself needs no fold. These rewrites follow one another, with one certificate for all.
"""

import copy
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from normscope.certificates.check_fold import LARGEST_DIFFERENCE, Scaling
from normscope.certificates.check_fold_files import Claims
from normscope.checks import first_line
from normscope.errors import InputError, TraceError
from normscope.models.batches import Inputs, first_batch
from normscope.models.example_inputs import example_inputs
from normscope.models.find import find_alone
from normscope.models.float64_run import difference, evaluate, outputs_of
from normscope.models.graph import ModelGraph, trace
from normscope.models.subject import Model, Subject, Text
from normscope.progress import Progress, silent
from normscope.results.folding import (
    AFTER_LOOKUP,
    FOLDED,
    Certificate,
    Decision,
    Folding,
)
from normscope.results.folding import NormVerdict as Verdict
from normscope.rewrite.fold_files import fold_files
from normscope.rewrite.folded_weights import FoldedWeights, HeldWeights, NewWeights, store
from normscope.rewrite.norm_places import Watch
from normscope.rewrite.plan import Plan, decide, unchanged
from normscope.rewrite.rewrites import TOLERANCE, Rewrites, Wanted
from normscope.rewrite.rms_modules import Replaced, replace_norms
from normscope.rewrite.rounding import rounding_difference
from normscope.rewrite.saved_model import Source, TracedCall, require_new_folder, save_folding
from normscope.rewrite.stored_tensors import StoredTensors, Uses, give_copies, ties
from normscope.rewrite.streams import Streams


def fold(
    model: Model,
    *,
    text: Text | None = None,
    inputs: Inputs | None = None,
    out: str | os.PathLike[str] | None = None,
    rms: bool = False,
    untie: bool = False,
    rotate: str | os.PathLike[str] | None = None,
    rotate_heads: bool = False,
    seed: int = 0,
    rescale: str | None = None,
    tolerance: float = TOLERANCE,
    plan: bool = False,
    run: bool = True,
    device: str = "cpu",
    dtype: str | None = None,
    progress: Progress = silent,
) -> Folding:
    """Fold every norm of a copy of a model that provably folds, and give a reason for every one that is kept.

    Parameters
    ----------
    model
        A folder in Hugging Face format, a .gguf file, or a torch module, which is not changed.
    text, inputs
        Text or inputs to trace and certify the model on: the first batch. Models of transformers need neither.
    out
        A new folder to write the result to, as `Folding.save` does; the certificate is then that of the written file.
    rms
        Replace norms by RMSNorm modules of `normscope.nn` where possible; the written model is then an exported
        program. Otherwise the copy has the same architecture, so it can be loaded like the original.
    untie
        Give a head tied to the token table its own copy of the matrix. Otherwise the table stays unchanged, and the
        last gain too.
    rotate
        "hadamard", "random" or a .npy file with an orthogonal matrix: turn every stream by such a matrix where nothing
        acts on its single channels. Gains are folded first.
    rotate_heads
        Also turn the values inside every head; those of a file's matrix are turned by a Hadamard matrix.
    seed
        Of the random signs, orders and matrices of a rotation.
    rescale
        The name of a type, such as "float16": multiply streams, and other values that can pass its largest number, by
        powers of two until they can't. Without `rotate` nothing is folded then.
    tolerance
        The largest relative error that rescaled gains may have where they are stored as 1 + w, which costs digits.
    plan
        Only decide what can be folded, from the graph and the stored tensors, read in parts: for models of any size.
        Nothing is run, changed or certified.
    run
        False: fold from files to files, one tensor at a time, without loading or running the model. Needs a folder with
        safetensors and `out`. The certificate is then of identities and tensors; `verify` runs both models apart.
    device, dtype
        Device and floating-point type to load a folder and store the result in; the default dtype is that of the
        weights. The arithmetic is in float64.
    progress
        Called with the runs of the model and a description; see `normscope.progress`.

    Returns
    -------
    Folding
        The copy (`module`), what became of each norm, and the certificate. `NotCertifiedError` is raised if something
        that is not certified would be written.

    >>> model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 2))
    >>> _ = nn.init.normal_(model[1].weight), nn.init.normal_(model[1].bias)
    >>> folding = fold(model, inputs=torch.randn(3, 4))
    >>> folding.folded
    {'1': 'centred; gain and bias into 2'}
    >>> folding.holds, folding.module[1].bias.abs().max().item()
    (True, 0.0)
    """
    if out is not None:
        require_new_folder(Path(out))
    matrix = None if rotate is None else os.fspath(rotate)
    wanted = Wanted(rms, untie, matrix, rotate_heads, seed, rescale, tolerance)
    source = Source.of(Path(model)) if isinstance(model, str | Path) else None
    stored = None if source is None else source.dtype
    subject = Subject.of(model, text=text, inputs=inputs, device=device, dtype=dtype or stored)
    if plan:
        if out is not None or wanted != Wanted():
            raise InputError("plan can't be combined with other options: it decides, and changes nothing")
        return _planned(subject)
    if not run:
        if source is None or not source.folder.is_dir() or subject.runs:
            raise InputError("a fold without a run needs a folder with config.json and weights, and no text or inputs")
        return fold_files(subject, source, wanted, None if out is None else Path(out), progress)
    live = subject.module
    if any(parameter.is_meta for parameter in live.parameters()):
        raise InputError("model must have its weights loaded to be folded, got a model on the meta device")
    if dtype is not None:
        _require_finite(live, dtype)
    given = subject.example
    example = example_inputs(live) if given is None else first_batch(live, given)
    graph = _traced(live, example, generated=given is None)
    folding = _folded(
        live,
        graph,
        example,
        wanted,
        subject.input_ranges,
        progress,
        has_text=subject.text is not None,
        shared=source is not None,
    )
    folding = replace(folding, model=subject.name, call=replace(folding.call, source=source))
    return folding if out is None else save_folding(folding, out)


def _planned(subject: Subject) -> Folding:
    """What can be folded; the norms are those of the traced call, where each was compared with what it computes."""
    inventory = subject.traced
    assert inventory.module is not None
    assert inventory.graph is not None
    uses = Uses(StoredTensors(inventory.module, subject.weights), inventory.graph)
    verdicts = decide(inventory.module, uses, inventory.values(), {}).verdicts
    return Folding(subject.name, verdicts, (), None, ties(uses), (), not_run=uses.idle())


def _folded(
    model: nn.Module,
    graph: ModelGraph,
    example: Mapping[str, Any],
    wanted: Wanted,
    given: Mapping[str, tuple[float, float]],
    progress: Progress,
    *,
    has_text: bool,
    shared: bool,
) -> Folding:
    norms = find_alone(model).values()  # compared below with their calls in the model's own run
    original = StoredTensors(model)
    watched = Watch(graph, norms)
    reference = evaluate(graph.program, original.values, watched)
    uses = Uses(original, graph)
    tied, not_run = ties(uses), uses.idle()
    folded = _copy(model, shared=shared)
    if wanted.untie and tied:
        give_copies(folded, tied)
        uses = Uses(StoredTensors(folded), trace(folded, example))
        if not difference(evaluate(uses.graph.program, uses.tensors.values), reference) <= LARGEST_DIFFERENCE:
            raise InputError(f"{type(model).__name__} computes something else without its ties: fold it with them")
    stored = uses.tensors if wanted.untie and tied else StoredTensors(folded)
    plan = decide(folded, uses, norms, watched.mistaken)
    if wanted.rescale is not None and wanted.rotate is None:
        plan = unchanged(plan, "only scales were changed")
    rewrites = Rewrites(folded, original, uses, plan, Streams(uses.graph, norms, watched.mistaken), norms)
    if wanted.rotate is not None:
        rewrites.rotate(wanted.rotate, wanted.seed, heads=wanted.rotate_heads)
    if wanted.rescale is not None:
        rewrites.rescale(wanted.rescale, given, example, watched.mistaken, has_text=has_text)
    weights, program, replaced = rewrites.weights, rewrites.graph, None
    changed, held = store(weights, stored), HeldWeights(weights, stored)
    checked = [*rewrites.identities(held), *held.as_computed()]
    gain_rounding = _gain_rounding(rewrites.scaling, weights, stored, wanted.tolerance)
    if wanted.rms:
        assert isinstance(weights, FoldedWeights)
        replaced = replace_norms(folded, uses.graph, plan, norms, weights)
        program, stored = trace(folded, example), StoredTensors(folded)
    rewritten = Watch(program, norms, weights.restored)
    unrounded = evaluate(program.program, replaced.__getitem__ if replaced else weights.unrounded, rewritten)
    args, kwargs = graph.program.example_inputs
    outputs = [outputs_of(each, args, kwargs) for each in (model, folded)]
    written = difference(evaluate(program.program, stored.values), reference)
    return Folding(
        model=type(model).__name__,
        norms=plan.verdicts if replaced is None else tuple(_with_look_ups(plan, replaced)),
        changed=changed,
        certificate=Certificate(
            inputs=_described(args, kwargs),
            dtype=_dtype(folded),
            rewrite_difference=_finite(difference(unrounded + rewritten.outputs(), reference + watched.outputs())),
            written_difference=_finite(written),
            rounding_difference=_finite(
                rounding_difference(graph.program, original, changed, rewrites.scaling, reference, progress)
            ),
            read_back=False,
            difference=_finite(difference(outputs[1], outputs[0])),
            original_error=_finite(difference(outputs[0], reference)),
            folded_error=_finite(difference(outputs[1], reference)),
            argmax_agreement=_agreement(*outputs),
            identities=len(checked),
            broken=tuple(words for words, holds in checked if not holds),
        ),
        tied=() if wanted.untie else tuple(tie for tie in tied if original.first_name(tie.table) not in changed),
        untied=tied if wanted.untie else (),
        streams=tuple(rewrites.verdicts),
        gain_rounding=gain_rounding,
        not_run=not_run,
        rms=wanted.rms,
        replaced=() if replaced is None else replaced.norms,
        centred_look_ups=() if replaced is None else replaced.look_ups,
        claims=None if wanted.rms else Claims.of(plan.promise, rewrites.turning, rewrites.scaling, rewrites.settings),
        module=folded,
        call=TracedCall(
            args,
            kwargs,
            program.program,
            reference,
            outputs[1],
            matrices={} if rewrites.turning is None else rewrites.turning.matrices,
        ),
    )


def _require_finite(model: nn.Module, dtype: str) -> None:
    for name, parameter in model.named_parameters():
        if parameter.dtype == getattr(torch, dtype) and not parameter.isfinite().all():
            raise InputError(
                f"{name} holds values that are not finite in {dtype}: give another --dtype, such as float32"
            )


def _gain_rounding(scaling: Scaling, weights: NewWeights, stored: StoredTensors, tolerance: float) -> float | None:
    """The largest relative error of a rescaled gain that is stored as 1 + w; refused if it is above the tolerance."""
    errors = {}
    for name in scaling.gains_less_one & scaling.exponents.keys():
        gain = weights[name] + 1
        errors[name] = float((stored.in_float64(name) + 1 - gain).norm() / gain.norm())
    if not errors:
        return None
    worst = max(errors, key=lambda name: errors[name])
    if errors[worst] > tolerance:
        dtype = str(stored.dtype(worst)).removeprefix("torch.")
        raise InputError(
            f"{worst} holds a gain as 1 + w: in {dtype} it would be off by {errors[worst]:.1e} of its size once it is "
            f"2^{scaling.exponents[worst]} times as large, more than the tolerance {tolerance:g}: store the model in "
            "float32 (--dtype float32), or allow more (--tolerance)"
        )
    return errors[worst]


def _traced(model: nn.Module, example: Mapping[str, Any], *, generated: bool) -> ModelGraph:
    try:
        return trace(model, example)
    except TraceError as error:
        hint = f" (called with {', '.join(map(str, example))}; --inputs FILE, or inputs= in Python, gives others)"
        raise TraceError(f"{error}{hint if generated else ''}") from error


def _copy(model: nn.Module, *, shared: bool) -> nn.Module:
    """A copy of a model; `shared`: parameters are copied when they are changed, as nobody else has the model."""
    own: dict[int, Any] = {}
    if shared:
        plain = [parameter for parameter in model.parameters() if type(parameter) is nn.Parameter]
        own = {id(each): nn.Parameter(each.detach(), requires_grad=each.requires_grad) for each in plain}
    try:
        return copy.deepcopy(model, own)
    except Exception as error:
        raise InputError(f"{type(model).__name__} can't be copied: {first_line(error)}") from error


def _with_look_ups(plan: Plan, replaced: Replaced) -> Iterator[Verdict]:
    """Verdicts once look-ups are centred: norms that depended on that are folded now."""
    reason = f"everything written to its stream is centred, after the look-up in {', '.join(replaced.look_ups)}"
    for verdict in plan.verdicts:
        waited = verdict.centring.what == AFTER_LOOKUP and replaced.look_ups
        yield replace(verdict, centring=Decision(FOLDED, reason)) if waited else verdict


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _agreement(original: list[Tensor], folded: list[Tensor]) -> float | None:
    if not original or not folded or not original[0].ndim or original[0].shape != folded[0].shape:
        return None
    agree = original[0].argmax(dim=-1) == folded[0].argmax(dim=-1)
    return float(agree.double().mean()) if agree.numel() else None


def _described(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    values = [*((str(place), value) for place, value in enumerate(args)), *kwargs.items()]
    shapes = {name: "×".join(map(str, value.shape)) for name, value in values if isinstance(value, Tensor)}
    return ", ".join(f"{name} {shape}" for name, shape in shapes.items())


def _dtype(model: nn.Module) -> str:
    """The dtype of most parameters."""
    counts: dict[str, int] = {}
    for parameter in model.parameters():
        name = str(parameter.dtype).removeprefix("torch.")
        counts[name] = counts.get(name, 0) + parameter.numel()
    return max(counts, key=lambda name: counts[name], default="float32")
