"""Recipes for quantizers from the graph of a model, and existing recipes held to it.

    norm(x)/s ──▶ W·diag(s)      exact if these layers, and nothing else, read the norm, each with its channels in order

Quantizers move factors from a norm, or from a layer, into the layers that read it. Which layers these are, they take
from lists of names, and a list that leaves out a reader, or names a norm that feeds no layer, changes the model. Here
the graph of one call decides; every verdict is then measured: the factors are applied to the stored tensors, with
random values, and the outputs are compared in float64.
"""

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from normscope.certificates.check_fold import Taken
from normscope.models.batches import Inputs, first_batch
from normscope.models.example_inputs import example_inputs
from normscope.models.find import find_alone
from normscope.models.float64_run import evaluate
from normscope.models.graph import trace
from normscope.models.multiplications import Multiplication, is_grouped, sent_to
from normscope.models.subject import Model, Subject, Text
from normscope.progress import Progress, silent
from normscope.results.folding import LARGEST_DIFFERENCE
from normscope.results.quantizer_recipe import LeftOut, QuantizerRecipe
from normscope.results.recipe_check import MappingOutcome, MappingVerdict, RecipeCheck
from normscope.rewrite.affine import Readers
from normscope.rewrite.norm_places import Watch, path_of
from normscope.rewrite.quantizer_modules import (
    MappingError,
    QuantizerModule,
    any_of,
    matching_sets,
    patterns_for,
    quantizer_modules,
)
from normscope.rewrite.recipe_file import (
    AWQ,
    SMOOTHQUANT,
    SPINQUANT,
    RecipeCentring,
    RecipeMapping,
    RecipeRotation,
    Step,
    read_recipe,
    written,
)
from normscope.rewrite.rotated_stream import rotated_stream
from normscope.rewrite.scaled_paths import ScaledPath, scaled_path
from normscope.rewrite.smoothing import Changed, Smoothed, applied_to, change_of_outputs, is_converted, is_skipped
from normscope.rewrite.stored_tensors import StoredTensors, Uses, give_copies, ties
from normscope.rewrite.streams import Streams

Sources = list[tuple[str, tuple[str, ...]]]  # names of a norm or layer, and of its readers


def recipe(
    model: Model,
    *,
    text: Text | None = None,
    inputs: Inputs | None = None,
    device: str = "cpu",
    dtype: str | None = None,
    progress: Progress = silent,
) -> QuantizerRecipe:
    """A recipe for llm-compressor, from the graph of a model.

    Parameters
    ----------
    model
        A folder in Hugging Face format, a .gguf file, or a torch module.
    text, inputs
        Text or inputs to trace and run the model on: the first batch. Models of transformers need neither.
    device, dtype
        Device and floating-point type to load a folder in. The comparison is in float64.
    progress
        Called with the mappings and a description; see `normscope.progress`.

    Returns
    -------
    QuantizerRecipe
        Mappings for SmoothQuant, AWQ and SpinQuant, as YAML in `recipe`; and what they leave out.

    >>> class Block(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.norm, self.up, self.down = nn.LayerNorm(4), nn.Linear(4, 8), nn.Linear(8, 4)
    ...     def forward(self, x):
    ...         return x + self.down(self.up(self.norm(x)).relu())
    >>> import torch
    >>> found = recipe(Block(), inputs={"x": torch.randn(1, 3, 4)})
    >>> [(each.modifier, each.source, each.readers) for each in found.mappings if each.modifier == "AWQModifier"]
    [('AWQModifier', 'norm', ('up',)), ('AWQModifier', 'up', ('down',))]
    """
    subject = Subject.of(model, text=text, inputs=inputs, device=device, dtype=dtype)
    held = _held(subject)
    steps, left_out = held.steps()
    kept: list[Step] = []
    confirmed: list[MappingVerdict] = []
    for step in progress(steps, "recipe, runs with random factors"):
        verdict = held.verdict(step)
        if verdict.verdict == "confirmed":
            kept.append(step)
            confirmed.append(verdict)
        else:
            left_out.append(LeftOut(verdict.source, verdict.modifier, verdict.reason or verdict.verdict))
    if not any(isinstance(step, RecipeRotation) for step in kept):  # without one, SpinQuant takes mappings of its own
        kept = [step for step in kept if not isinstance(step, RecipeMapping) or step.modifier != SPINQUANT]
        confirmed = [verdict for verdict in confirmed if verdict.modifier != SPINQUANT]
    notes = list(_notes(subject.name, confirmed, left_out))
    return QuantizerRecipe(subject.name, tuple(confirmed), tuple(left_out), written(kept, notes))


def check_recipe(
    model: Model,
    against: str | Path,
    *,
    text: Text | None = None,
    inputs: Inputs | None = None,
    device: str = "cpu",
    dtype: str | None = None,
    progress: Progress = silent,
) -> RecipeCheck:
    """Hold a recipe for llm-compressor (YAML) to the graph of a model, and measure what each mapping changes.

    Takes the same arguments as `recipe`, and the file of the recipe.
    """
    path = Path(against)
    steps = read_recipe(path)
    subject = Subject.of(model, text=text, inputs=inputs, device=device, dtype=dtype)
    held = _held(subject)
    verdicts = tuple(held.verdict(step) for step in progress(steps, "recipe, runs with random factors"))
    return RecipeCheck(subject.name, path.name, verdicts)


def _notes(model: str, mappings: Sequence[MappingVerdict], left_out: Sequence[LeftOut]) -> Iterator[str]:
    """What a recipe says of itself, in comments."""
    largest = max((each.change or 0.0 for each in mappings), default=0.0)
    yield f"Recipe of normscope for {model}, for llm-compressor 0.14: oneshot(recipe=FILE, stage=NAME) takes one stage."
    yield f"Each mapping was applied with random factors: in float64 no output changed by more than {largest:.0e}."
    yield "AWQ needs a quantization modifier after it; SmoothQuant and SpinQuant are followed by one as you choose."
    for modifiers, reason, names in _together(left_out):
        yield f"Left out ({modifiers}): {names}: {reason}"


def _together(left_out: Sequence[LeftOut]) -> Iterator[tuple[str, str, str]]:
    alike: dict[tuple[str, str], list[str]] = {}
    for each in left_out:
        names = alike.setdefault((each.modifier, _of_any_layer(each.reason)), [])
        names += [name for name in [_of_any_layer(each.source)] if name not in names]
    for (modifier, reason), names in alike.items():
        yield modifier, reason, ", ".join(names)


def _of_any_layer(text: str) -> str:
    """A text without the number of the layer and the names of operations: layers that are alike have the same."""
    return re.sub(r" \(\w+\)", "", re.sub(r"\.\d+\b", ".N", text))


def _held(subject: Subject) -> "_HeldModel":
    model, given = subject.module, subject.example
    return _HeldModel(model, example_inputs(model) if given is None else first_batch(model, given))


class _HeldModel:
    """A traced model to which mappings are held."""

    def __init__(self, model: nn.Module, example: Mapping[str, Any]) -> None:
        self._model, self._example = model, example
        self._graph = trace(model, example)
        norms = list(find_alone(model).values())
        self._tensors = StoredTensors(model)
        watched = Watch(self._graph, norms)
        self._reference = evaluate(self._graph.program, self._tensors.in_float64, watched)
        self._uses = Uses(self._tensors, self._graph)
        self._streams = Streams(self._graph, norms, watched.mistaken)
        self._readers = Readers(model, self._streams, self._uses)
        self._norms = {path_of(found): found for found in norms}
        self._modules = quantizer_modules(model)
        self._by_tensor: dict[str, list[QuantizerModule]] = {}
        for module in self._modules:
            if module.weight is not None:
                self._by_tensor.setdefault(self._first(module.weight.tensor), []).append(module)
        self._products: dict[str, list[Multiplication]] = {}
        for product in self._graph.multiplications.values():
            self._products.setdefault(self._first(product.weight), []).append(product)
        self._paths: dict[str, ScaledPath | str] = {}
        self._taken: dict[str, Taken | str] = {}

    def verdict(self, step: Step) -> MappingVerdict:
        """What a step of a recipe does: measured, and as the graph shows it."""
        if isinstance(step, RecipeRotation):
            return self._untied.verdict_on_rotation(step)
        if isinstance(step, RecipeCentring):
            return self._untied.verdict_on_centring(step)
        return (self._untied if step.modifier == SPINQUANT else self).verdict_on_mapping(step)

    @cached_property
    def _untied(self) -> "_HeldModel":
        """The same model with a copy of the token table for the head: SpinQuant gives it one first."""
        tied = ties(self._uses)
        if not tied:
            return self
        model = copy.deepcopy(self._model)
        give_copies(model, tied)
        return _HeldModel(model, self._example)

    def verdict_on_mapping(self, mapping: RecipeMapping) -> MappingVerdict:
        count = 0
        try:
            found = applied_to(mapping, matching_sets(self._modules, (mapping.source, *mapping.readers)))
            count = len(found)
            kept = [each for each in found if not is_skipped(mapping, each, self._tensors)]
            changed = Changed(self._tensors)
            for each in kept:
                changed.apply(mapping, each)
        except MappingError as error:
            return self._row(mapping, count, "can't be applied", None, str(error))
        if not kept:
            reason = "the layers have different sizes, as with grouped queries" if found else None
            return self._row(mapping, count, "skipped" if found else "matches nothing", None, reason)
        reasons = [
            f"{each.source.name}: {objection}"
            for each in kept
            if (objection := self._objection(mapping, each)) is not None
        ]
        outcome, change = self._measured(changed, reasons)
        return self._row(mapping, count, outcome, change, reasons[0] if reasons else None)

    def verdict_on_rotation(self, rotation: RecipeRotation) -> MappingVerdict:
        row = MappingVerdict(SPINQUANT, rotation.name, rotation.readers, 1, "can't be applied", None, None)
        writers, readers = (
            [module for module in self._modules if any(module.matches(pattern) for pattern in patterns)]
            for patterns in (rotation.writers, rotation.readers)
        )
        changed = Changed(self._tensors)
        try:
            for mapping in rotation.fused:
                for each in applied_to(mapping, matching_sets(self._modules, (mapping.source, *mapping.readers))):
                    changed.apply(mapping, each)
            changed.rotate(writers, readers, orthogonal=rotation.orthogonal)
        except MappingError as error:
            return replace(row, reason=str(error))
        reasons = [] if (objection := self._objection_to_rotation(writers, readers)) is None else [objection]
        outcome, change = self._measured(changed, reasons)
        return replace(row, verdict=outcome, change=change, reason=reasons[0] if reasons else None)

    def verdict_on_centring(self, centring: RecipeCentring) -> MappingVerdict:
        tables = [module for module in self._modules if module.matches(centring.table)]
        row = MappingVerdict(SPINQUANT, f"mean of {centring.table}", (), len(tables), "matches nothing", None, None)
        changed = Changed(self._tensors)
        for table in tables:
            changed.centre(table)
        if not tables:
            return row
        outcome, change = self._measured(changed, reasons := [])
        reason = "its rows lose their mean, and the norms after it do not subtract it" if reasons else None
        return replace(row, verdict=outcome, change=change, reason=reason)

    def _measured(self, changed: Changed, reasons: list[str]) -> tuple[MappingOutcome, float | None]:
        """A verdict from a run, and from what the graph objects; a change without an objection adds one."""
        change = change_of_outputs(self._graph.program, changed, self._reference)
        if change is not None and change <= LARGEST_DIFFERENCE:
            return "not confirmed" if reasons else "confirmed", change
        reasons += [] if reasons else ["the graph does not show why"]
        return "changes the function", change

    def _row(
        self, mapping: RecipeMapping, sets: int, outcome: MappingOutcome, change: float | None, reason: str | None
    ) -> MappingVerdict:
        return MappingVerdict(mapping.modifier, mapping.source, mapping.readers, sets, outcome, change, reason)

    def steps(self) -> tuple[list[Step], list[LeftOut]]:
        """Every mapping and rotation that the graph allows, and why others are left out."""
        norms, left_out = self.norm_sources(SMOOTHQUANT, f"{SMOOTHQUANT}, {AWQ}")
        layers: Sources = []
        for module in self._modules:
            if module.name in self._norms or module.weight is None:
                continue
            readers, path = self._names_after(module), self._path_of(module)
            if readers is not None:
                layers.append((module.name, readers))
            elif isinstance(path, ScaledPath) and path.ends and path.obstacle is not None:
                left_out.append(LeftOut(module.name, AWQ, path.obstacle))
        steps: list[Step] = [
            RecipeMapping(modifier, source, readers)
            for modifier, sources in ((SMOOTHQUANT, norms), (AWQ, norms + layers))
            for source, readers in patterns_for(self._modules, sources)
        ]
        rotated, without = self._untied.rotation()
        return steps + rotated, left_out + without

    def norm_sources(self, modifier: str, told: str) -> tuple[Sources, list[LeftOut]]:
        """The norms that mappings can start from, with their readers, and the others."""
        sources: Sources = []
        left_out: list[LeftOut] = []
        for name in self._norms:
            names = self._names_of_readers(name)
            objection = names if isinstance(names, str) else self._objection_to_norm(
                modifier, self._named[name], [self._named[reader] for reader in names]
            )  # fmt: skip
            if objection is None and not isinstance(names, str):
                sources.append((name, names))
            else:
                left_out.append(LeftOut(name, told, str(objection)))
        return sources, left_out

    def rotation(self) -> tuple[list[Step], list[LeftOut]]:
        """Norms to fuse and one rotation of the stream, if it can be rotated; otherwise why not."""
        sources, left_out = self.norm_sources(SPINQUANT, SPINQUANT)
        readers_of = dict(sources)
        stream = rotated_stream(self._streams, self._norms, list(readers_of))
        if isinstance(stream, str):
            return [], [LeftOut("R1", SPINQUANT, stream)]
        fused = [(norm, readers_of[norm]) for norm in readers_of if norm in stream.norms]
        size = self._norms[stream.norms[0]].size
        if size & (size - 1):
            return [], [LeftOut("R1", SPINQUANT, f"{size} channels: its Hadamard matrices have powers of two")]
        mappings = tuple(RecipeMapping(SPINQUANT, *each) for each in patterns_for(self._modules, fused))
        writers = [name for tensor in stream.writers for name in self._named_by(tensor)]
        readers = [name for _, names in fused for name in names]
        targets = (any_of(writers), any_of(readers))
        return [*mappings, RecipeRotation("R1", *targets, mappings)], left_out

    def _named_by(self, tensor: str) -> list[str]:
        return [module.name for module in self._by_tensor.get(self._first(tensor), ())]

    def _objection_to_rotation(
        self, writers: Sequence[QuantizerModule], readers: Sequence[QuantizerModule]
    ) -> str | None:
        sources, _ = self.norm_sources(SPINQUANT, SPINQUANT)
        readers_of = dict(sources)
        stream = rotated_stream(self._streams, self._norms, list(readers_of))
        if isinstance(stream, str):
            return stream
        for what, wanted, given in (
            ("writes to", {name for tensor in stream.writers for name in self._named_by(tensor)}, writers),
            ("reads", {name for norm in stream.norms for name in readers_of[norm]}, readers),
        ):
            names = {module.name for module in given}
            if wanted - names:
                return f"{_some(sorted(wanted - names))} {what} the stream too"
            if names - wanted:
                return f"{_some(sorted(names - wanted))}: not what {what} the stream"
        return None

    @cached_property
    def _named(self) -> dict[str, QuantizerModule]:
        return {module.name: module for module in self._modules}

    def _names_of_readers(self, norm: str) -> tuple[str, ...] | str:
        """The layers that read a norm, as a recipe names them, or why it can't."""
        taken = self._taken_from(norm)
        if isinstance(taken, str):
            return taken
        names: list[str] = []
        for reader in taken.readers:
            modules = self._by_tensor.get(reader.weight)
            if modules is None:
                return f"its reader {reader.layer} holds its matrix as {reader.weight}, which recipes can't name"
            names += [module.name for module in modules]
        return tuple(names)

    def _names_after(self, module: QuantizerModule) -> tuple[str, ...] | None:
        """The layers whose columns can undo factors of the outputs of a layer; None if there are none."""
        path = self._path_of(module)
        if isinstance(path, str) or path.obstacle is not None or not path.ends:
            return None
        readers = [
            reader.name
            for end in path.ends
            for reader in self._by_tensor.get(self._first(end.by.weight), ())
            if self._same_expert(module, reader)
        ]
        smoothed = Smoothed(module, tuple(self._named[name] for name in readers))
        return tuple(readers) if readers and self._objection_to_layer(smoothed) is None else None

    def _objection(self, mapping: RecipeMapping, smoothed: Smoothed) -> str | None:
        """Why a mapping does not keep the function, as the graph shows it; None if it does."""
        if smoothed.source.name in self._norms:
            return self._objection_to_norm(mapping.modifier, smoothed.source, smoothed.readers)
        return self._objection_to_layer(smoothed)

    def _objection_to_norm(
        self, modifier: str, norm: QuantizerModule, readers: Sequence[QuantizerModule]
    ) -> str | None:
        taken = self._taken_from(norm.name)
        if isinstance(taken, str):
            return taken
        form = self._objection_to_form(modifier, norm, taken)
        if form is not None:
            return form
        axes = {reader.weight: reader for reader in taken.readers}
        wanted = [module for tensor in axes for module in self._by_tensor.get(tensor, ())]
        given = {reader.name for reader in readers}
        missing = [module.name for module in wanted if module.name not in given]
        missing += [reader.layer for tensor, reader in axes.items() if tensor not in self._by_tensor]
        if missing:
            return f"it is also read by {_some(missing)}"
        return self._objection_to_readers(readers, {tensor: reader.axis for tensor, reader in axes.items()})

    def _objection_to_form(self, modifier: str, norm: QuantizerModule, taken: Taken) -> str | None:
        """Whether its tensors are what llm-compressor takes them for."""
        if taken.gain_tensor is None or norm.weight is None:
            return "it has no gain that could be divided"
        if self._first(norm.weight.tensor) != taken.gain_tensor:
            return f"its gain is {taken.gain_tensor}, not {norm.weight.tensor}"
        if taken.adds_one != is_converted(norm):
            stored = "1 + w" if taken.adds_one else "w"
            return f"its gain is stored as {stored}, and llm-compressor takes it for the other"
        if taken.bias_tensor is not None and (norm.bias is None or self._first(norm.bias.tensor) != taken.bias_tensor):
            return f"its bias is {taken.bias_tensor}, which llm-compressor does not divide"
        found = self._norms[norm.name].norm
        if modifier == SPINQUANT and found is not None and found.bias.any():
            return "it has a bias, which fusing its gain multiplies by the gain once more"
        return None

    def _objection_to_layer(self, smoothed: Smoothed) -> str | None:
        source = smoothed.source
        path = self._path_of(source)
        if isinstance(path, str):
            return path
        if path.obstacle is not None:
            return path.obstacle
        ends = {self._first(end.by.weight): end for end in path.ends}
        given = {reader.name for reader in smoothed.readers}
        wanted = [each for tensor in ends for each in self._by_tensor.get(tensor, ()) if self._same_expert(source, each)]
        missing = [each.name for each in wanted if each.name not in given]
        if missing or not wanted:
            return f"it is also read by {_some(missing or [path.ends[0].by.module])}"
        return self._objection_to_readers(smoothed.readers, {name: end.axis for name, end in ends.items()})

    def _objection_to_readers(self, readers: Sequence[QuantizerModule], axes: dict[str, int]) -> str | None:
        for reader in readers:
            if reader.weight is None or self._first(reader.weight.tensor) not in axes:
                return f"{reader.name} does not read it"
            columns = self._tensors[reader.weight.tensor].ndim - (2 if reader.weight.turned else 1)
            if axes[self._first(reader.weight.tensor)] != columns:
                return f"{reader.name} stores its matrix as inputs × outputs, and llm-compressor takes its columns for inputs"
        return None

    def _taken_from(self, norm: str) -> Taken | str:
        """The readers of a norm, if they are linear layers and nothing else reads it; otherwise why not."""
        if norm not in self._taken:
            if norm in self._streams.problems:
                self._taken[norm] = self._streams.problems[norm]
            else:
                ones = np.ones(self._norms[norm].size)
                taken, reason = self._readers.take(norm, ones, np.zeros_like(ones))
                self._taken[norm] = reason if taken is None else taken
        return self._taken[norm]

    def _path_of(self, module: QuantizerModule) -> ScaledPath | str:
        """Where factors of the outputs of a layer end up, or why that is not known."""
        if module.name not in self._paths:
            self._paths[module.name] = self._followed(module)
        return self._paths[module.name]

    def _followed(self, module: QuantizerModule) -> ScaledPath | str:
        products = [] if module.weight is None else self._products.get(self._first(module.weight.tensor), [])
        if len(products) != 1 or module.weight is None:
            return "it is not a linear layer that the traced call uses once"
        product = products[0]
        ok, reason = self._uses.can_change(product.weight, product.nodes)
        if not ok:
            return f"it multiplies with {reason}"
        outputs = self._tensors[module.weight.tensor].ndim - (1 if module.weight.turned else 2)
        if tuple(product.outputs) and product.outputs[-1].weight != outputs:
            return "it stores its matrix as inputs × outputs, and llm-compressor takes its rows for outputs"
        if (product.bias is None) != (module.bias is None):
            return f"its bias is {product.bias}, which llm-compressor does not divide"
        path = scaled_path(self._graph, product, self._streams.words)
        for end in path.ends if path.obstacle is None else ():
            ok, reason = self._uses.can_change(end.by.weight, end.by.nodes)
            if not ok:
                return f"{end.by.module} multiplies with {reason}"
            if not _sent_alike(product, end.by):
                return f"{end.by.module} may send a token to another expert"
        rows = self._tensors[module.weight.tensor][module.weight.place].shape if module.weight.place else None
        own = None if rows is None else rows[1 if module.weight.turned else 0]
        total = product.total.meta["val"].shape[-1]
        if own is not None and path.obstacle is None and own not in (total - path.first, total):
            return "only a part of its outputs is read by the next layer"
        if own is not None and path.first and module.name.endswith("gate_proj"):
            return "it is the gate, not what is gated"
        return path

    @staticmethod
    def _same_expert(one: QuantizerModule, other: QuantizerModule) -> bool:
        """Whether two layers belong to the same expert, or at most one is of an expert."""
        places = [each.weight.place for each in (one, other) if each.weight is not None and each.weight.place]
        return len(places) < 2 or places[0][0] == places[1][0]

    def _first(self, tensor: str) -> str:
        return self._tensors.first_name(tensor)


def _sent_alike(one: Multiplication, other: Multiplication) -> bool:
    """Whether two products with stacks send every row to the matrix of the same number."""
    grouped = [node for product in (one, other) for node in product.nodes if is_grouped(node)]
    return len({sent_to(node.args[2]) for node in grouped}) <= 1


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


