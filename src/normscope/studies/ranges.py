"""Certified ranges of every tensor of a model, over all inputs, from the weights alone.

    behind a norm     w·y + a is between a + w·b ± Σ √c·|Π G w|: exact, whatever the norm reads
    heads             a mixture of values stays where the values are, whatever the pattern of attention
    neurons           a quadratic form above the sum of activations; for chosen outputs a tight one, with a certificate
    streams           the ranges of what is added to them, channel by channel

The bounds hold in real arithmetic; a verdict about a type leaves room for its rounding errors: as many roundings as lie
between a norm and the tensor, each relative to the sum of the sizes of the terms. A witness is an input of the norm,
run through the model's own operations in float64.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import get_args

import numpy as np
import torch
from threadpoolctl import threadpool_limits
from torch.fx import Node

from normscope.checks import Floats, frozen
from normscope.engine import Engine, or_local
from normscope.errors import InputError
from normscope.models.batches import Inputs
from normscope.models.graph import LinearReader, ModelGraph
from normscope.models.graph_operations import handed_on, kind_of
from normscope.models.subject import Model, Subject, Text
from normscope.progress import Progress, silent, sized
from normscope.results.inventory import FoundNorm
from normscope.results.layer_ranges import TYPES, UNITS, Grade, LayerRanges, Limit, TensorRange, Verdict
from normscope.studies.driving_inputs import Written
from normscope.studies.layer_watch import TIGHTENED, LayerWatch
from normscope.studies.observed import Observed, Seen, observed
from normscope.studies.range_proofs import closed_form_proof, is_proved
from normscope.studies.range_rows import by_channel, by_module, with_text
from normscope.tensors.linear_rows import Linear
from normscope.tensors.roles import Role, roles_of
from normscope.tensors.traced_nodes import has_floats, of_any_length
from normscope.tensors.values import Value
from normscope.tensors.walk import Walk

WIDEST_RUN = 4096  # channels of a norm behind which attention is run
MATRICES = {"conv1d", "conv2d", "conv3d", "conv_transpose2d"}


def ranges(
    model: Model,
    *,
    text: Text | None = None,
    inputs: Inputs | None = None,
    limit: str | float = "float16",
    tight: int | str = TIGHTENED,
    channels: Sequence[tuple[str, int]] = (),
    device: str = "cpu",
    dtype: str | None = None,
    engine: Engine | None = None,
    parts: str | PathLike[str] | None = None,
    progress: Progress = silent,
) -> LayerRanges:
    """How far every tensor can go, over all inputs, from the weights alone.

    Parameters
    ----------
    model
        A folder in Hugging Face format, a .gguf file, or a torch module.
    text, inputs
        Text or inputs: the first batch is used to trace the model, and all of them to compare the bounds with what
        happens there. Models of transformers need neither.
    limit
        float16, bfloat16, float8_e4m3 or float32, or a number: what tensors are compared with.
    tight
        How many outputs of every layer that reads neurons get a tight bound with a certificate: those with the largest
        bounds, beside those that could pass the limit; or "all".
    channels
        Further outputs that get one: pairs of a layer's name and a channel.
    device, dtype
        Device and floating-point type to load a folder in. Bounds are computed in float64.
    engine
        Where tight bounds are computed: see `normscope.engine`. None: in this process.
    parts
        A file for tight bounds: after an interruption the same call does not compute them again. Remove it when the
        result is saved.
    progress
        Called with the nodes of the graph and a description; see `normscope.progress`.

    Returns
    -------
    LayerRanges
        Bounds of every tensor, with witnesses and certificates.

    >>> from torch import nn, ones
    >>> model = nn.Sequential(nn.LayerNorm(3), nn.Linear(3, 1))
    >>> _ = nn.init.constant_(model[1].bias, 2.0)
    >>> model[1].weight.data[:] = ones(3) - ones(3).cumsum(0)
    >>> found = ranges(model, inputs=ones(1, 3)).layers[0]
    >>> round(found.low, 4), round(found.high, 4)  # 2 ± √3·|(1, 0, −1)|
    (-0.4495, 4.4495)
    """
    name, largest = _limit(limit)
    if tight != "all" and (isinstance(tight, bool) or not isinstance(tight, int) or tight < 0):
        raise InputError(f'tight must be a whole number, 0 or more, or "all", got {tight!r}')
    subject = Subject.of(model, text=text, inputs=inputs, device=device, dtype=dtype)
    with or_local(engine, workers=1) as where, where.keeping(None if parts is None else Path(parts)):
        found = RangeSearch(subject, name, largest, math.inf if tight == "all" else int(tight), channels, where)
        return found.result(progress)


def _limit(limit: str | float) -> tuple[str, float]:
    """The name and the largest number of a limit."""
    if isinstance(limit, str):
        if limit not in TYPES:
            try:
                limit = float(limit)
            except ValueError:
                raise InputError(f"limit must be one of {', '.join(TYPES)}, or a number, got {limit!r}") from None
        else:
            return limit, TYPES[limit]
    if not limit > 0 or not math.isfinite(limit):
        raise InputError(f"limit must be a number above 0, got {limit!r}")
    return f"±{limit:g}", float(limit)


class RangeSearch(LayerWatch):
    """One walk over a model, with all that is found on the way."""

    def __init__(
        self,
        subject: Subject,
        limit: str,
        largest: float,
        tight: float = TIGHTENED,
        channels: Sequence[tuple[str, int]] = (),
        engine: Engine | None = None,
    ) -> None:
        # A short call is enough to trace: it is compared with one of another length.
        plain = subject.without_text()
        inventory = plain.traced
        super().__init__(inventory, plain.weights, largest, tight, channels, engine)
        self.subject, self.limit, self.sizes = subject, limit, plain.sizes
        self.refused = _refused_calls(self.graph, self.norms)
        self.roles = roles_of(self.graph, self.norms)
        self.parameters = inventory.parameters
        self._counts: dict[Verdict, int] = dict.fromkeys(get_args(Verdict), 0)
        self._others: list[TensorRange] = []
        self._score_rows: list[TensorRange] = []
        products = self.graph.multiplications.items()
        self._stacks = {found.total: found for node, found in products if node not in self.graph.products}
        self._scores: dict[Node, Value] = {}
        self._rounded = UNITS.get(limit, UNITS["float32"])
        self._kept_apart = plain.held_otherwise(limit) if limit in ("float16", "bfloat16") else frozenset()

    def result(self, progress: Progress) -> LayerRanges:
        """All rows, and the verdict on the limit."""
        rows = self.rows(progress)
        return self.as_result(rows, self.observe(rows, progress) if self.subject.runs else {})

    def as_result(self, rows: Mapping[Node, TensorRange], seen: Mapping[Node, Seen]) -> LayerRanges:
        """The rows of one walk, with what the text did at them."""
        found = [with_text(row, seen.get(node)) for node, row in rows.items()]
        layers, repeated = by_module([row for row in found if row.what == "output"])
        return LayerRanges(
            self.subject.name,
            None if self.subject.path is None else str(self.subject.path),
            Limit(self.limit, self.largest, sum(self._counts.values()), *self._counts.values()),
            tuple(layers),
            tuple([row for row in found if row.what != "output"] + self._score_rows),
            tuple(self._others),
            tuple(proof for proof in self.certificates if proof.layer not in repeated),
            self.subject.text,
            self.subject.dtype,
            self.sizes.sentence,
        )

    def rows(self, progress: Progress = silent) -> dict[Node, TensorRange]:
        """Walk over the graph: the rows of layers and of tensors with a role, in the order in which they run."""
        with threadpool_limits(1):  # many small products: threads of several libraries would get in each other's way
            return self._walked(progress)

    def _walked(self, progress: Progress) -> dict[Node, TensorRange]:
        rows: dict[Node, TensorRange] = {}
        counts: set[Node] = set()
        walk = Walk(
            self.graph,
            self.stored,
            self.calls,
            self.subject.input_ranges,
            self._watch,
            self._scores.__setitem__,
            self.refused,
            self.sizes,
        )
        for node, known in progress(sized(walk.steps(), len(self.graph.nodes)), "ranges of tensors"):
            value = of_any_length(node, self.graph.module_of(node)) if known is None else known
            if not isinstance(value, Value) or node.op != "call_function" or node in self.graph.constants:
                continue
            if not any(has_floats(each) and each not in counts for each in node.all_input_nodes):
                counts.add(node)  # numbers of experts and of tokens, as floating-point numbers
                continue
            row = self._row(node, value)
            if row is not None:
                rows[node] = row
            if (scores := self._scores.pop(node, None)) is not None:
                self._score_rows.append(self._tensor(Role(self.graph.module_of(node), "scores"), scores))
            if node.name in self._kept_apart:
                continue
            verdict = self._verdict(value, row)
            self._counts[verdict] += 1
            if row is None and verdict != "excluded":
                self._others.append(self._tensor(Role(self.graph.module_of(node), "tensor"), value))
        return rows

    # ---- rows ------------------------------------------------------------------------------------------------

    def _row(self, node: Node, value: Value) -> TensorRange | None:
        """The row of a layer, or of a tensor with a role."""
        if node in self.layers:
            return self._layer(node, value)
        stack = self._stacks.get(node)
        if stack is not None and len(stack.outputs) == 1:  # experts, which no module of their own applies
            axis = stack.outputs[0].value
            moved = value.moved(lambda entry: entry.movedim(axis, -1))
            return replace(self._tensor(Role(stack.weight, "output"), moved), weight=stack.weight)
        if kind_of(node) in MATRICES:
            axis = -1 - int(kind_of(node)[-2])  # channels come before the axes of space
            moved = value.moved(lambda entry: entry.movedim(axis, -1))
            return self._tensor(Role(self.graph.module_of(node), "output"), moved)
        role = self.roles.get(node)
        if role is None:
            return None
        row = self._tensor(role, value)
        return self._with_witness(node, value, row) if role.what == "heads" else row

    def _with_witness(self, node: Node, value: Value, row: TensorRange) -> TensorRange:
        """A tensor that is linear in a norm's directions, with a witness for its largest channel."""
        form = value.form
        if not isinstance(form, Linear) or form.shrinks or row.channel is None or form.ball.size > WIDEST_RUN:
            return row
        assert row.bound is not None
        sign = 1 if row.bound > 0 else -1
        ends = value.high if sign > 0 else value.low
        unit = np.flatnonzero(ends == row.bound)[:1]
        direction = form.take(unit).matrix()[0]
        driven = self._driven(node, Written("exact", form.ball, row.channel, sign, direction, None))
        return row if driven is None else replace(row, reached=driven.reached, input=driven.input)

    def _tensor(self, role: Role, value: Value) -> TensorRange:
        channels, lows, highs = by_channel(value)
        low, high = float(lows.min(initial=np.inf)), float(highs.max(initial=-np.inf))
        bounded = math.isfinite(low) and math.isfinite(high)
        farthest = np.maximum(np.abs(lows), np.abs(highs))
        at = int(np.argmax(farthest)) if bounded and len(farthest) else None
        bound = None if at is None else float(highs[at] if highs[at] == farthest[at] else lows[at])
        grade: Grade | None = None if not bounded else "intervals"
        if bounded and isinstance(value.form, Linear):
            grade = "exact"
        return TensorRange(
            layer=role.layer,
            what=role.what,
            channels=channels,
            low=low if bounded else None,
            high=high if bounded else None,
            channel=at,
            bound=bound,
            reached=None,
            grade=grade,
            verdict=self._verdict(value, None),
            norm=value.form.ball.norm if isinstance(value.form, Linear) else None,
            why=None if bounded else value.why or "it is not known",
            lows=frozen(lows) if bounded and channels > 1 else None,
            highs=frozen(highs) if bounded and channels > 1 else None,
        )

    def _layer(self, node: Node, value: Value) -> TensorRange:
        reader = self.layers[node]
        row = self._tensor(Role(reader.label, "output"), value)
        row = replace(row, weight=reader.weight_name, neurons=self.neurons.get(self._products[node]))
        written = self._written.get(self._products[node], {})
        if row.bound is None or row.channel is None or not written:
            return row
        ball = next(iter(written.values())).ball
        alone = self._kinds[self._products[node]] == 1
        best = written.get((row.channel, 1 if row.bound > 0 else -1))
        row = replace(row, grade="intervals" if best is None else best.grade, norm=None if ball is None else ball.norm)
        if row.grade == "tight" and not (alone and is_proved(row, self.certificates)):
            row = replace(row, grade="quadratic")
        driven = None if best is None else self._driven(node, best)
        if best is None or driven is None:
            return row
        row = replace(row, reached=driven.reached, input=driven.input)
        if alone and best.matrix is not None:
            shift, bias = self._shift(node, best), self.layers[node].bias_name
            self.certificates.append(closed_form_proof(row, best, shift, bias))
        return replace(row, verdict=self._verdict(value, row))

    def _verdict(self, value: Value, row: TensorRange | None) -> Verdict:
        if not (np.isfinite(value.low).all() and np.isfinite(value.high).all()):
            return "unbounded"
        farthest = np.maximum(np.abs(value.low), np.abs(value.high))
        slack = value.depth * self._rounded * value.size
        if (farthest + slack <= self.largest).all():
            return "excluded"
        if row is not None and row.reached is not None and abs(row.reached) > self.largest:
            return "reached"
        return "not excluded" if (farthest - slack > self.largest).any() else "too close to call"

    # ---- what the text does ----------------------------------------------------------------------------------

    def observe(self, rows: Mapping[Node, TensorRange], progress: Progress = silent) -> dict[Node, Seen]:
        """What happens at rows that are the output of a module, or the input of a norm, while the model runs."""
        places: dict[Node, Observed] = {}
        for node, row in rows.items():
            if row.what == "norm input" and row.layer in self.norms and self.norms[row.layer].function is None:
                places[node] = Observed(row.layer, is_input=True, axis=self.norms[row.layer].axis)
            elif (module := self._returned_by(node)) is not None:
                places[node] = Observed(module, is_input=False)
        return observed(self.subject, places, progress)

    # ---- who reads a channel ---------------------------------------------------------------------------------

    def readers(self) -> list[LinearReader]:
        """The linear layers that read a norm, in the order in which they run."""
        found = [reader for path in self.norms for reader in self.graph.linear_readers(path)]
        order = {reader.label: place for place, reader in enumerate(self.graph.linear_layers())}
        return sorted(found, key=lambda reader: order.get(reader.label, 0))

    def column_sizes(self, reader: LinearReader) -> Floats | None:
        """How much a layer that reads a norm weighs each channel of the norm's input: the size of its column."""
        norm = next((path for path in self.norms if reader in self.graph.linear_readers(path)), None)
        known = None if norm is None else self.norms[norm].norm
        if known is None:
            return None
        matrix = self.stored(reader.weight_name)
        matrix = matrix.T if reader.transposed else matrix
        sizes = torch.linalg.vector_norm(matrix.float(), dim=0).double().numpy()
        return sizes * np.abs(known.gain) if len(sizes) == known.size else None

    def _returned_by(self, node: Node) -> str | None:
        """The module whose only output is this node, possibly moved."""
        if node in self.layers:
            reader = self.layers[node]
            return reader.name if reader.alone and len(self.graph.calls_of(reader.name)) == 1 else None
        path = self.graph.module_of(node)
        calls = self.graph.calls_of(path) if path else []
        if len(calls) != 1 or node not in calls[0]:
            return None
        returned = self.graph.leaving(calls[0])
        source: Node | None = returned[0] if len(returned) == 1 else None
        while source is not None and source is not node:
            source = handed_on(source)
        return path if source is node else None


def _refused_calls(graph: ModelGraph, norms: Mapping[str, FoundNorm]) -> dict[Node, str]:
    """The outputs of calls of norms that bound nothing, and why."""
    refused = {path: norm.obstacle for path, norm in norms.items() if norm.obstacle is not None}
    return {
        output: f"the norm {path}: {why}"
        for path, why in refused.items()
        for call in graph.calls_of(path)
        for output in graph.leaving(call)
    }
