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

from torch import nn

from normscope.certificates.check_fold import LARGEST_DIFFERENCE
from normscope.models.batches import Inputs, first_batch
from normscope.models.example_inputs import example_inputs
from normscope.models.find import find_alone
from normscope.models.float64_run import evaluate
from normscope.models.graph import trace
from normscope.models.subject import Model, Subject, Text
from normscope.progress import Progress, silent
from normscope.results.quantizer_recipe import LeftOut, QuantizerRecipe
from normscope.results.recipe_check import MappingOutcome, MappingVerdict, RecipeCheck
from normscope.rewrite.mapping_objections import Objections, some
from normscope.rewrite.norm_places import Watch, path_of
from normscope.rewrite.quantizer_modules import (
    MappingError,
    QuantizerModule,
    any_of,
    matching_sets,
    patterns_for,
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
from normscope.rewrite.scaled_paths import ScaledPath
from normscope.rewrite.smoothing import Changed, applied_to, change_of_outputs, is_skipped
from normscope.rewrite.stored_tensors import StoredTensors, Uses, give_copies, ties
from normscope.rewrite.streams import Streams

Sources = list[tuple[str, tuple[str, ...]]]  # names of a norm or layer, and of its readers
LOST_MEAN = "its rows lose their mean, and not all norms after it subtract it"
NO_HEAD = "llm-compressor 0.14 does not compute the head while it calibrates: AWQ stops there if the head is quantized"


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
    notes = list(_notes(Path(subject.name).name, confirmed, left_out))
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
        self._norms = {path_of(found): found for found in norms}
        self._objections = Objections(model, self._streams, self._uses, self._norms)
        self._modules = self._objections.modules

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
            if (objection := self._objections.to(mapping.modifier, each)) is not None
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
        if not tables:
            return row
        try:
            for table in tables:
                changed.centre(table)
        except MappingError as error:
            return replace(row, verdict="can't be applied", reason=str(error))
        reasons = [] if all(self._mean_is_free(table) for table in tables) else [LOST_MEAN]
        outcome, change = self._measured(changed, reasons)
        return replace(row, verdict=outcome, change=change, reason=reasons[0] if reasons else None)

    def _mean_is_free(self, table: QuantizerModule) -> bool:
        """Whether the rows of a table have no mean, or go into a stream whose norms all subtract it."""
        if table.weight is None:
            return True
        values, first = self._tensors.in_float64(table.weight.tensor), self._tensors.first_name(table.weight.tensor)
        if not values.mean(dim=-1).any():
            return True
        written_to = [
            stream
            for stream in self._streams.all
            if any(self._tensors.first_name(writer.tensor) == first for writer in stream.writers)
        ]
        return bool(written_to) and not any(stream.obstacles for stream in written_to)

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
            readers, path = self._objections.names_after(module), self._objections.path_of(module)
            if readers is not None:
                layers.append((module.name, readers))
            elif isinstance(path, ScaledPath) and path.ends and path.obstacle is not None:
                left_out.append(LeftOut(module.name, AWQ, path.obstacle))
        before_head = [(norm, readers) for norm, readers in norms if self._head in readers]
        left_out += [LeftOut(norm, AWQ, NO_HEAD) for norm, _ in before_head]
        for_awq = [each for each in norms + layers if each not in before_head]
        steps: list[Step] = [
            RecipeMapping(modifier, source, readers)
            for modifier, sources in ((SMOOTHQUANT, norms), (AWQ, for_awq))
            for source, readers in patterns_for(self._modules, sources)
        ]
        rotated, without = self._untied.rotation()
        return steps + rotated, left_out + without

    @cached_property
    def _head(self) -> str | None:
        """The layer that scores tokens, as a language model of transformers declares it."""
        declared = getattr(self._model, "get_output_embeddings", lambda: None)()
        return next((name for name, module in self._model.named_modules() if module is declared), None)

    def norm_sources(self, modifier: str, told: str) -> tuple[Sources, list[LeftOut]]:
        """The norms that mappings can start from, with their readers, and the others."""
        sources: Sources = []
        left_out: list[LeftOut] = []
        named = self._objections.named
        for name in self._norms:
            names = self._objections.names_of_readers(name)
            if not isinstance(names, str):
                readers = [named[reader] for reader in names]
                objection = self._objections.to_norm(modifier, named[name], readers)
                if objection is None:
                    sources.append((name, names))
                    continue
                names = objection
            left_out.append(LeftOut(name, told, names))
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
            return [], [
                LeftOut("R1", SPINQUANT, f"{size} channels are not a power of two, as its Hadamard matrices need")
            ]
        mappings = tuple(RecipeMapping(SPINQUANT, *each) for each in patterns_for(self._modules, fused))
        writers = [name for tensor in stream.writers for name in self._objections.named_by(tensor)]
        readers = [name for _, names in fused for name in names]
        targets = (any_of(writers), any_of(readers))
        return [*mappings, RecipeRotation("R1", *targets, mappings)], left_out

    def _objection_to_rotation(
        self, writers: Sequence[QuantizerModule], readers: Sequence[QuantizerModule]
    ) -> str | None:
        sources, _ = self.norm_sources(SPINQUANT, SPINQUANT)
        readers_of = dict(sources)
        stream = rotated_stream(self._streams, self._norms, list(readers_of))
        if isinstance(stream, str):
            return stream
        for what, wanted, given in (
            ("written by", {name for tensor in stream.writers for name in self._objections.named_by(tensor)}, writers),
            ("read by", {name for norm in stream.norms for name in readers_of[norm]}, readers),
        ):
            names = {module.name for module in given}
            if wanted - names:
                return f"the stream is also {what} {some(sorted(wanted - names))}"
            if names - wanted:
                return f"the stream is not {what} {some(sorted(names - wanted))}"
        return None
