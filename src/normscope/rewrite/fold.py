"""Exact rewrites of norms: means removed where they are written, gains and biases moved to where they are read.

    LayerNorm(x) = g∘z + b,  z = Πx/√(|Πx|²/N + ε)
    Πx = x    if every writer of x is centred:        the centring has nothing left to do
    W(g∘z + b) + c = W′z + c′                          the gain becomes 1, the bias 0

The result is a model of the same architecture with other weights, which computes the same function.
"""

import copy
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from torch import nn

from normscope.checks import first_line
from normscope.models.examples import example_inputs as generated_inputs
from normscope.models.find import find_alone
from normscope.models.float64_run import evaluate
from normscope.models.graph import GraphError, ModelGraph, trace
from normscope.models.inputs import Inputs, first_batch
from normscope.rewrite.certificate import certify, difference, identities, rounding_difference
from normscope.rewrite.places import Watch
from normscope.rewrite.plan import Plan
from normscope.rewrite.results import AFTER_LOOKUP, FOLDED, LARGEST_DIFFERENCE, Decision, Float64, Folding, Verdict
from normscope.rewrite.rms import Replaced, replace_norms
from normscope.rewrite.tensors import StoredTensors
from normscope.rewrite.untie import give_copies, ties
from normscope.rewrite.uses import Uses
from normscope.rewrite.verdicts import decide
from normscope.rewrite.weights import FoldedWeights, store, stored_as_computed


def fold(
    model: nn.Module,
    *example_inputs: Any,
    inputs: Inputs | None = None,
    rms: bool = False,
    untie: bool = False,
    name: str | None = None,
) -> Folding:
    """A copy of a model with every norm folded that can be shown to fold, and a reason for every one that is kept.

    `example_inputs` are what the model is called with, or one mapping of keyword arguments; models of transformers need
    none. So are `inputs`, by name: one batch, or several, of which the first is used. The graph of that call decides,
    and the certificate is made on it. The model itself stays as it is.

    The copy has the same architecture, so that its weights can be loaded wherever those of the model can; with `rms`
    its norms are RMSNorm modules of `normscope.nn` where they can be. A table that a head shares stays as it is, and
    the last gain with it; with `untie` the head gets a copy of its own.

    >>> import torch
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 2))
    >>> _ = nn.init.normal_(model[1].weight), nn.init.normal_(model[1].bias)
    >>> folding = fold(model, torch.randn(3, 4))
    >>> folding.folded
    {'1': 'centred; gain and bias into 2'}
    >>> folding.certificate.holds, folding.model[1].bias.abs().max().item()
    (True, 0.0)
    """
    if any(parameter.is_meta for parameter in model.parameters()):
        raise ValueError("model must have its weights loaded to be folded, got a model on the meta device")
    example = _example(model, example_inputs, inputs)
    inventory = find_alone(model)  # its calls are held against it below, in the model's own run
    graph = _traced(model, example, generated=not example_inputs and inputs is None)
    original = Watch(graph, inventory.values())
    before = evaluate(graph.program, StoredTensors(model).in_float64, original)
    folded = _copy(model)
    tied = ties(model, graph)
    tensors, folded_graph = StoredTensors(model), graph
    if untie and tied:
        give_copies(folded, tied)
        tensors, folded_graph = StoredTensors(folded), trace(folded, example)
        if not difference(evaluate(folded_graph.program, tensors.in_float64), before) <= LARGEST_DIFFERENCE:
            raise ValueError(f"{type(model).__name__} computes something else without its ties: fold it with them")
    plan = decide(folded, tensors, folded_graph, inventory.values(), original.mistaken)
    weights = FoldedWeights(model, plan, tensors)
    checked = list(identities(plan, StoredTensors(model).in_float64, weights.__getitem__))
    changed = store(weights, folded)
    checked += stored_as_computed(weights, folded)
    replaced: Replaced | None = None
    if rms:
        replaced = replace_norms(folded, folded_graph, plan, inventory.values(), weights)
        folded_graph = trace(folded, example)
    rewritten = Watch(folded_graph, inventory.values(), plan.taken)
    after = evaluate(folded_graph.program, (replaced or weights).__getitem__, rewritten)
    stored = evaluate(folded_graph.program, StoredTensors(folded).in_float64)
    return Folding(
        model=folded,
        name=name or type(model).__name__,
        verdicts=plan.verdicts if replaced is None else tuple(_with_look_ups(plan, replaced)),
        changed=changed,
        certificate=certify(
            (before, after, stored),
            (original.outputs(), rewritten.outputs()),
            rounding_difference(graph.program, StoredTensors(model), changed, before),
            (model, folded),
            graph.program.example_inputs,
            checked,
        ),
        tied=() if untie else tied,
        untied=tied if untie else (),
        example=graph.program.example_inputs,
        not_run=Uses(StoredTensors(model), graph).idle(),
        rms=rms,
        replaced=() if replaced is None else replaced.norms,
        centred_look_ups=() if replaced is None else replaced.look_ups,
        float64=Float64(folded_graph.program, before),
    )


def _example(model: nn.Module, given: tuple[Any, ...], inputs: Inputs | None) -> Any:
    """What the model is called with: a mapping of keyword arguments or a sequence of arguments."""
    if inputs is not None:
        if given:
            raise ValueError(
                "example inputs and inputs can't be given together: both are what the model is called with"
            )
        return first_batch(model, inputs)
    if not given:
        return generated_inputs(model)
    return given[0] if len(given) == 1 and isinstance(given[0], Mapping) else given


def _traced(model: nn.Module, example: Any, *, generated: bool) -> ModelGraph:
    try:
        return trace(model, example)
    except GraphError as error:
        hint = f" (called with {', '.join(map(str, example))}; --inputs FILE, or inputs= in Python, gives others)"
        hint = hint if generated else ""
        raise GraphError(f"{error}{hint}") from error


def _with_look_ups(plan: Plan, replaced: Replaced) -> Iterator[Verdict]:
    """Verdicts after look-ups were centred: what waited for that is folded now."""
    for verdict in plan.verdicts:
        if verdict.centring.what == AFTER_LOOKUP and replaced.look_ups:
            reason = (
                f"all that is written to its stream is centred, after the look-up in {', '.join(replaced.look_ups)}"
            )
            yield replace(verdict, centring=Decision(FOLDED, reason))
        else:
            yield verdict


def _copy(model: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(model)
    except Exception as error:
        raise ValueError(f"{type(model).__name__} can't be copied: {first_line(error)}") from error
