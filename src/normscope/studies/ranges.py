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
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from threadpoolctl import threadpool_limits
from torch import Tensor, nn
from torch.fx import Node

from normscope.bounds.tight_bound import tight as tightened
from normscope.bounds.tight_bound import witness
from normscope.certificates.check_ranges import direction_of, output_of
from normscope.certificates.neuron_certificates import Neurons
from normscope.certificates.range_certificates import Matrix, RangeCertificate, Reader
from normscope.checks import Floats, as_floats, frozen
from normscope.errors import InputError
from normscope.models.batches import Inputs
from normscope.models.float64_run import run_between, run_call
from normscope.models.graph import LinearReader, ModelGraph
from normscope.models.graph_operations import handed_on, kind_of
from normscope.models.subject import Subject, Text
from normscope.models.weights import Weights
from normscope.norm import Norm
from normscope.progress import Progress, silent
from normscope.results.inventory import FoundNorm
from normscope.results.layer_ranges import TYPES, UNITS, Grade, LayerRanges, Limit, TensorRange, Verdict
from normscope.studies.observed import Observed, Seen, observed
from normscope.tensors.linear_rows import Ball, Linear, ProductRows, reads_norm
from normscope.tensors.products import Layer, Outputs
from normscope.tensors.roles import Role, roles_of
from normscope.tensors.values import Gated, Value
from normscope.tensors.walk import NormCall, Walk

LARGEST_WHOLE = 2**26  # numbers of a matrix that is read as a whole: 256 MB
LARGEST_RUN = 2**27  # numbers of a matrix that a witness is run through in float64: 1 GB
WIDEST_RUN = 4096  # channels of a norm behind which attention is run
TIGHTENED = 4  # outputs of every layer that are tightened: those with the largest bounds
MATRICES = {"conv1d", "conv2d", "conv3d", "conv_transpose2d"}


def ranges(
    model: nn.Module | str | Path,
    *,
    text: Text | None = None,
    inputs: Inputs | None = None,
    limit: str | float = "float16",
    tight: int | str = TIGHTENED,
    channels: Sequence[tuple[str, int]] = (),
    device: str = "cpu",
    dtype: str | None = None,
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
    progress
        Called with the nodes of the graph and a description; see `normscope.progress`.

    Returns
    -------
    LayerRanges
        Bounds of every tensor, with witnesses and certificates.

    >>> from torch import ones
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
    subject = Subject(model, text=text, inputs=inputs, device=device, dtype=dtype)
    found = RangeSearch(subject, name, largest, math.inf if tight == "all" else int(tight), channels)
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


@dataclass(frozen=True, eq=False)
class Written:
    """What is kept of a layer's outputs: where they come from, and the best witness."""

    grade: Grade
    ball: Ball | None
    channel: int
    sign: int
    direction: Floats | None  # of the norm, for that channel
    weights: Floats | None  # the layer's row, where it reads the norm as it is
    matrix: Matrix | None = None  # where that row is stored


@dataclass(frozen=True, eq=False)
class Driven:
    """A witness: an input of a norm, and the output of the layer for it."""

    input: Floats
    reached: float
    grade: Grade


class RangeSearch:
    """One walk over a model, with all that is found on the way."""

    def __init__(
        self,
        subject: Subject,
        limit: str,
        largest: float,
        tight: float = TIGHTENED,
        channels: Sequence[tuple[str, int]] = (),
    ) -> None:
        self.subject, self.limit, self.largest, self._tight = subject, limit, largest, tight
        # Bounds do not depend on the length of the text: a short call is enough to trace.
        plain = subject.without_text()
        inventory = plain.traced
        assert inventory.graph is not None
        self.graph: ModelGraph = inventory.graph
        self.stored = Recent(plain.weights)
        self.norms = {found.path: found for found in inventory.values() if found.path is not None}
        self.calls = _norm_calls(self.graph, self.norms)
        self.refused = _refused_calls(self.graph, self.norms)
        self.roles = roles_of(self.graph, self.norms)
        self.layers = {product.total: product.reader for product in self.graph.products.values()}
        self._products = {product.total: node for node, product in self.graph.products.items()}
        self.parameters = inventory.parameters
        self.certificates: list[RangeCertificate] = []
        self._wanted = _by_layer(channels)
        # layers whose bias is another operation: what reads the neurons is not the whole output
        self._in_two_steps = {
            each.reader.weight_name for node, each in self.graph.products.items() if each.total is not node
        }
        self._written: dict[Node, dict[tuple[int, int], Written]] = {}
        self._kinds: Counter[Node] = Counter()  # kinds of inputs that each layer has
        self._counts: dict[Verdict, int] = dict.fromkeys(get_args(Verdict), 0)
        self._others: list[TensorRange] = []
        self._score_rows: list[TensorRange] = []
        self._scores: dict[Node, Value] = {}
        self._rounded = UNITS.get(limit, UNITS["float32"])
        self._kept_apart = plain.held_otherwise(limit) if limit in ("float16", "bfloat16") else frozenset()

    def result(self, progress: Progress) -> LayerRanges:
        """All rows, and the verdict on the limit."""
        rows = self.rows(progress)
        seen = self.observe(rows) if self.subject.runs else {}
        found = [_with_text(row, seen.get(node)) for node, row in rows.items()]
        layers, repeated = _by_module([row for row in found if row.what == "output"])
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
        )

    def rows(self, progress: Progress = silent) -> dict[Node, TensorRange]:
        """Walk over the graph: the rows of layers and of tensors with a role, in the order in which they run."""
        with threadpool_limits(1):  # many small products: threads of several libraries would get in each other's way
            return self._walked(progress)

    def _walked(self, progress: Progress) -> dict[Node, TensorRange]:
        rows: dict[Node, TensorRange] = {}
        walk = Walk(
            self.graph,
            self.stored,
            self.calls,
            self.subject.input_ranges,
            self._watch,
            self._scores.__setitem__,
            self.refused,
        )
        for node, value in progress(_sized(walk.steps(), len(self.graph.nodes)), "tensors"):
            if not isinstance(value, Value) or node.op != "call_function" or node in self.graph.constants:
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
        channels, lows, highs = _by_channel(value)
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
        row = replace(self._tensor(Role(reader.label, "output"), value), weight=reader.weight_name)
        written = self._written.get(self._products[node], {})
        if row.bound is None or row.channel is None or not written:
            return row
        ball = next(iter(written.values())).ball
        alone = self._kinds[self._products[node]] == 1
        best = written.get((row.channel, 1 if row.bound > 0 else -1))
        row = replace(row, grade="intervals" if best is None else best.grade, norm=None if ball is None else ball.norm)
        if row.grade == "tight" and not (alone and self._is_proved(row)):
            row = replace(row, grade="quadratic")
        driven = None if best is None else self._driven(node, best)
        if best is None or driven is None:
            return row
        row = replace(row, reached=driven.reached, input=driven.input)
        if alone and best.matrix is not None:
            self._keep_closed_form(node, row, best)
        return replace(row, verdict=self._verdict(value, row))

    def _is_proved(self, row: TensorRange) -> bool:
        """Whether a certificate proves the bound of a layer, and not only that of a part of what it reads."""
        bound, sign = row.bound or 0.0, 1 if (row.bound or 0.0) > 0 else -1
        mine = [each for each in self.certificates if (each.layer, each.channel) == (row.layer, row.channel)]
        near = 1e-12 * abs(bound)
        return any(each.sign == sign and abs(each.bound - sign * bound) <= near for each in mine)

    def _keep_closed_form(self, node: Node, row: TensorRange, best: Written) -> None:
        """The certificate of a layer that reads a norm: where its numbers are stored."""
        sign = 1 if best.sign > 0 else -1
        assert best.matrix is not None
        assert row.norm is not None
        assert row.bound is not None
        assert row.reached is not None
        proof = RangeCertificate(
            layer=row.layer,
            channel=best.channel,
            sign=1 if best.sign > 0 else -1,
            bound=sign * row.bound,
            reached=sign * row.reached,
            norm=row.norm,
            matrix=best.matrix,
            shift=self._shift(node, best),
            bias=self.layers[node].bias_name,
            input=row.input,
        )
        self.certificates.append(proof)

    def drive(self, node: Node, channel: int, sign: int) -> Driven | None:
        """The witness of one output of a layer, if it was looked for."""
        best = self._written.get(self._products.get(node, node), {}).get((channel, sign))
        return None if best is None else self._driven(node, best)

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

    # ---- what layers write -----------------------------------------------------------------------------------

    def _watch(self, node: Node, outputs: Outputs) -> None:
        """Tighten the outputs that decide, and remember how the largest is reached."""
        self._kinds[node] += 1
        if outputs.activation is not None:
            self._tighten(node, outputs)
            return
        farthest = np.maximum(np.abs(outputs.low), np.abs(outputs.high))
        if not len(farthest) or not np.isfinite(farthest).all():
            return
        kept = self._written.setdefault(node, {})
        some = np.argsort(-farthest, kind="stable")[: max(1, int(min(self._tight, TIGHTENED))) if outputs.heads else 1]
        for channel in some.tolist():
            sign = 1 if outputs.high[channel] == farthest[channel] else -1
            direction = outputs.direction(channel)
            grade: Grade = "intervals" if direction is None else "heads" if outputs.heads else "exact"
            layer, reads = outputs.layer, grade == "exact" and reads_norm(outputs.form)
            weights = outputs.weights(channel) if reads else None
            matrix = Matrix(layer.name, layer.transposed, layer.expert) if reads else None
            kept[channel, sign] = Written(grade, outputs.ball, channel, sign, direction, weights, matrix)

    def _tighten(self, node: Node, outputs: Outputs) -> None:
        reader = self.graph.products[node].reader if node in self.graph.products else None
        label = reader.label if reader is not None else self.graph.module_of(node)
        farthest = np.maximum(np.abs(outputs.low), np.abs(outputs.high))
        order = np.argsort(-farthest, kind="stable")
        count = len(order) if math.isinf(self._tight) else int(self._tight)
        named = [channel for channel in self._wanted.get(label, ()) if channel < len(order)]
        neurons = outputs.neurons()
        driven: dict[tuple[int, int], Floats] = {}

        def settle(channel: int, sides: Iterable[int]) -> None:
            for sign in sides:
                driven[channel, sign] = self._tighten_one(label, outputs, neurons, channel, sign)

        def larger(channel: int) -> int:
            return 1 if outputs.high[channel] >= -outputs.low[channel] else -1

        for channel in order[:count].tolist():
            settle(channel, (larger(channel),))
        for channel in named:
            settle(channel, {1, -1} - {sign for at, sign in driven if at == channel})
        # One output that stays beyond the limit decides for the tensor; until then, all that could pass it are tried.
        while self._decides(outputs, driven, channel := _farthest(outputs)):
            settle(channel, (larger(channel),))
        channel = _farthest(outputs)
        sign = larger(channel)
        grades: dict[tuple[int, int], Grade] = dict.fromkeys(driven, "tight")
        if (channel, sign) not in driven:
            driven[channel, sign] = witness(neurons, sign * outputs.weights(channel))[0]
            grades[channel, sign] = "quadratic"
        kept = self._written.setdefault(node, {})
        for (channel, sign), u in driven.items():
            kept[channel, sign] = Written(grades[channel, sign], outputs.ball, channel, sign, sign * u, None)

    def _decides(self, outputs: Outputs, driven: Mapping[tuple[int, int], Floats], channel: int) -> bool:
        """Whether an output could pass the limit and was not tightened on that side."""
        low, high = float(outputs.low[channel]), float(outputs.high[channel])
        return max(-low, high) > self.largest and (channel, 1 if high >= -low else -1) not in driven

    def _tighten_one(self, label: str, outputs: Outputs, neurons: Neurons, channel: int, sign: int) -> Floats:
        """Tighten one side of an output, keep its certificate, and return the direction of its witness."""
        row, shift = sign * outputs.weights(channel), sign * float(outputs.layer.shift[channel])
        found = tightened(neurons, row)
        u, _ = witness(neurons, row, found)
        bound = float(np.nextafter(found.bound + shift, np.inf))
        improves = bound < (outputs.high[channel] if sign > 0 else -outputs.low[channel])
        if sign > 0:
            outputs.high[channel] = min(outputs.high[channel], bound)
        else:
            outputs.low[channel] = max(outputs.low[channel], -bound)
        proof = self._certificate(label, outputs, channel, sign, bound, found.certificate) if improves else None
        if proof is not None:
            assert outputs.ball is not None
            x, norm = self._input(outputs.ball, u), self.calls[outputs.ball.source].norm
            reached = output_of(neurons, row, direction_of(norm, x)).value + shift
            self.certificates.append(replace(proof, reached=reached, input=frozen(x)))
        return u

    def _certificate(
        self, label: str, outputs: Outputs, channel: int, sign: int, bound: float, proof: Any
    ) -> RangeCertificate | None:
        """The certificate of a tight bound, where all its numbers are stored under names."""
        form, layer = outputs.form, outputs.layer
        gate = _reader(form.gate if isinstance(form, Gated) else form.linear)
        up = _reader(form.up) if isinstance(form, Gated) else None
        if gate is None or (up is None and isinstance(form, Gated)) or (layer.bias is not None and not layer.bias_name):
            return None
        if layer.name in self._in_two_steps:
            return None
        assert outputs.ball is not None
        return RangeCertificate(
            layer=label,
            channel=channel,
            sign=1 if sign > 0 else -1,
            bound=bound,
            reached=0.0,
            norm=outputs.ball.norm,
            matrix=Matrix(layer.name, layer.transposed, layer.expert),
            shift=float(layer.shift[channel]),
            bias=layer.bias_name,
            activation=outputs.activation,
            factor=outputs.factor,
            gate=gate,
            up=up,
            kind=proof.kind,
            lam=proof.lam,
            s=proof.s,
            first=proof.first,
            second=proof.second,
        )

    # ---- witnesses -------------------------------------------------------------------------------------------

    def _input(self, ball: Ball, direction: Floats) -> Floats:
        """An input of a norm with this direction, so large that eps is negligible."""
        return driving_input(self.calls[ball.source].norm, direction)

    def _driven(self, node: Node, written: Written) -> Driven | None:
        """An input of the norm, and what the model's own operations give for it at all tokens, in float64."""
        ball, direction = written.ball, written.direction
        if ball is None or direction is None:
            return None
        x = self._input(ball, direction * written.sign)
        found = self.norms[ball.norm]
        call = next(call for call in self.graph.calls_of(ball.norm) if ball.source in call)
        entering = self.graph.entering(ball.norm, call)
        if found.gate is not None and found.gate.used_first:
            entering.reverse()
        given = {value: _along(x, value, found.axis) for value in entering[:1]}
        # A gate before the norm is the same for all channels: the norm then does not see it.
        given |= {value: torch.ones(value.meta["val"].shape, dtype=torch.float64) for value in entering[1:]}
        try:
            if written.weights is None:
                reached = self._run(node, given, written)
            else:
                output = run_call(self.graph, call, given, self.stored)[ball.source]
                y = output.movedim(found.axis, -1).reshape(-1, len(x))[0].numpy()
                reached = float(y @ written.weights) + self._shift(node, written)
        except InputError:
            return None
        return None if reached is None else Driven(frozen(x), reached, written.grade)

    def _shift(self, node: Node, written: Written) -> float:
        reader = self.layers[node]
        if reader.bias_name is None:
            return 0.0
        return float(self.stored(reader.bias_name)[written.channel])

    def _run(self, node: Node, given: Mapping[Node, Tensor], written: Written) -> float | None:
        if node in self.layers and self.stored(self.layers[node].weight_name).numel() > LARGEST_RUN:
            return None
        made = run_between(self.graph, given, node, self.stored)[..., written.channel]
        return float(made.max() if written.sign > 0 else made.min())

    # ---- what the text does ----------------------------------------------------------------------------------

    def observe(self, rows: Mapping[Node, TensorRange]) -> dict[Node, Seen]:
        """What happens at rows that are the output of a module, or the input of a norm, while the model runs."""
        places: dict[Node, Observed] = {}
        for node, row in rows.items():
            if row.what == "norm input" and row.layer in self.norms and self.norms[row.layer].function is None:
                places[node] = Observed(row.layer, is_input=True, axis=self.norms[row.layer].axis)
            elif (module := self._returned_by(node)) is not None:
                places[node] = Observed(module, is_input=False)
        return observed(self.subject, places)

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


class Recent:
    """Stored tensors. The last ones read are kept, as a layer is looked at several times in a row; large matrices are
    read some rows at a time.
    """

    def __init__(self, weights: Weights, most: int = 2**30) -> None:
        self._weights, self._most = weights, most
        self._kept: dict[str, Any] = {}

    def __call__(self, name: str) -> Any:
        shape = self._weights.shape(name)
        if len(shape) == 2 and math.prod(shape) > LARGEST_WHOLE:
            return Sliced(self._weights, name)
        found = self._kept.pop(name, None)
        if found is None:
            found = self._weights(name).detach()
            while self._kept and found.nbytes + sum(each.nbytes for each in self._kept.values()) > self._most:
                self._kept.pop(next(iter(self._kept)))
        self._kept[name] = found
        return found


class Sliced:
    """A stored matrix of which rows are read when they are asked for."""

    def __init__(self, weights: Weights, name: str) -> None:
        self._weights, self._name = weights, name
        self.shape = weights.shape(name)

    def __len__(self) -> int:
        return self.shape[0]

    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def T(self) -> Tensor:  # noqa: N802  (as in torch)
        return self._weights(self._name).detach().T

    def detach(self) -> Tensor:
        return self._weights(self._name).detach()

    def __getitem__(self, rows: Any) -> Tensor:
        if isinstance(rows, int):
            return self._weights.rows(self._name, slice(rows, rows + 1)).detach()[0]
        if isinstance(rows, slice) and rows.step is None:
            return self._weights.rows(self._name, rows).detach()
        return self.detach()[rows]


def _norm_calls(graph: ModelGraph, norms: Mapping[str, FoundNorm]) -> dict[Node, NormCall]:
    """The outputs of all calls of norms that are known to compute what they were found to."""
    found: dict[Node, NormCall] = {}
    for path, norm in norms.items():
        if norm.obstacle is not None or norm.norm is None or not norm.norm.scales:
            continue
        for call in graph.calls_of(path):
            for output in graph.leaving(call):
                shape = tuple(output.meta["val"].shape)
                if shape and shape[norm.axis] == norm.size:
                    found[output] = NormCall(norm.name, norm.norm, norm.axis)
    return found


def _refused_calls(graph: ModelGraph, norms: Mapping[str, FoundNorm]) -> dict[Node, str]:
    """The outputs of calls of norms that bound nothing, and why."""
    refused = {path: norm.obstacle for path, norm in norms.items() if norm.obstacle is not None}
    return {
        output: f"the norm {path}: {why}"
        for path, why in refused.items()
        for call in graph.calls_of(path)
        for output in graph.leaving(call)
    }


def _by_module(rows: Sequence[TensorRange]) -> tuple[list[TensorRange], set[str]]:
    """One row for each layer, also if it is called several times; and which are."""
    calls: dict[tuple[str, str | None], list[TensorRange]] = {}
    for row in rows:
        calls.setdefault((row.layer, row.weight), []).append(row)
    made = [_hull(each) if len(each) > 1 else each[0] for each in calls.values()]
    return made, {layer for (layer, _), each in calls.items() if len(each) > 1}


def _hull(rows: Sequence[TensorRange]) -> TensorRange:
    """The ranges of all calls of a layer together."""
    loose = next((row for row in rows if not row.bounded), None)
    if loose is not None:
        return replace(loose, why=f"{loose.why} (in {sum(not row.bounded for row in rows)} of {len(rows)} calls)")
    first = max(rows, key=lambda row: abs(row.bound or 0.0))
    lows = [row.lows for row in rows if row.lows is not None]
    highs = [row.highs for row in rows if row.highs is not None]
    norms = {row.norm for row in rows}
    return replace(
        first,
        low=min(row.low for row in rows if row.low is not None),
        high=max(row.high for row in rows if row.high is not None),
        norm=first.norm if len(norms) == 1 else None,
        grade=first.grade if first.grade != "tight" else "quadratic",
        lows=frozen(np.min(lows, axis=0)) if len(lows) == len(rows) else None,
        highs=frozen(np.max(highs, axis=0)) if len(highs) == len(rows) else None,
    )


def _reader(form: Linear) -> Reader | None:
    """Where the rows of a linear value are stored, if it reads a norm through one stored matrix."""
    rows = form.rows
    if not isinstance(rows, ProductRows) or rows.source is None or not rows.reads_norm or not rows.source.name:
        return None
    layer = rows.source
    if layer.bias is not None and not layer.bias_name:
        return None
    plain = form.take(np.arange(len(form.index)))
    if not _has_stored_offset(plain, layer):
        return None
    return Reader(
        Matrix(layer.name, layer.transposed, layer.expert),
        layer.bias_name,
        rows=np.asarray(plain.index, dtype=np.int64),
        scale=np.asarray(plain.scale),
    )


def _has_stored_offset(form: Linear, layer: Layer) -> bool:
    """Whether a linear value has the offset of its layer, and nothing was added to it since."""
    rows = form.rows
    assert isinstance(rows, ProductRows)
    norm, wanted = rows.read_norm, layer.shift[form.index]
    near = 1e-13 * np.abs(wanted)
    if norm.bias.any():
        weights = as_floats(layer.matrix()[torch.from_numpy(form.index)], "weights")
        wanted, near = wanted + weights @ norm.bias, near + 1e-13 * np.abs(weights) @ np.abs(norm.bias)
    return bool((np.abs(form.scale * wanted - form.offset) <= np.abs(form.scale) * near).all())


def _farthest(outputs: Outputs) -> int:
    """The output with the largest bound."""
    return int(np.argmax(np.maximum(np.abs(outputs.low), np.abs(outputs.high))))


def _along(x: Floats, value: Node, axis: int) -> Tensor:
    """A vector along one axis of a tensor, the same everywhere else."""
    shape = value.meta["val"].shape
    view = [len(x) if at == axis % len(shape) else 1 for at in range(len(shape))]
    return torch.from_numpy(x).reshape(view).expand(shape)


def _by_layer(channels: Sequence[tuple[str, int]]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for layer, channel in channels:
        found.setdefault(layer, []).append(channel)
    return found


def _by_channel(value: Value) -> tuple[int, Floats, Floats]:
    """Bounds for every channel of the last axis, whatever the token."""
    if not value.unit.ndim:
        return 1, value.low[value.unit.reshape(1).numpy()], value.high[value.unit.reshape(1).numpy()]
    unit = value.unit
    thin = unit[tuple(slice(0, 1) if unit.stride(at) == 0 else slice(None) for at in range(unit.ndim - 1))]
    rows = thin.reshape(-1, unit.shape[-1]).numpy()
    return unit.shape[-1], value.low[rows].min(axis=0), value.high[rows].max(axis=0)


def _sized(steps: Iterable[Any], total: int) -> Iterable[Any]:
    """An iterable that knows its length, for progress bars."""

    class Sized:
        def __len__(self) -> int:
            return total

        def __iter__(self) -> Any:
            return iter(steps)

    return Sized()


def _with_text(row: TensorRange, seen: Seen | None) -> TensorRange:
    if seen is None or row.bound is None:
        return row
    largest = float(np.maximum(np.abs(seen.low), np.abs(seen.high)).max())
    if row.lows is None or row.highs is None or len(row.lows) != len(seen.low):
        return replace(row, observed=largest, used=largest / abs(row.bound) if row.bound else None)
    room = np.stack(
        [seen.high / np.where(row.highs > 0, row.highs, np.inf), seen.low / np.where(row.lows < 0, row.lows, -np.inf)]
    )
    return replace(row, observed=largest, used=float(room.max()))


def driving_input(norm: Norm, direction: Floats) -> Floats:
    """An input that a norm takes to b + √N·G·u, u along the direction (in each group), to within 1e-7.

    Its root mean square is so large that eps is negligible, inside or outside the root.

    >>> driving_input(Norm(gain=[1, 2], eps=1e-12), np.array([3.0, -3.0]))
    array([ 1., -1.])
    """
    size = max(1.0, 1e4 * math.sqrt(norm.eps), 1e7 * norm.eps)
    along = norm.project(direction).reshape(norm.groups, -1)
    # Where a group cannot move the output, any input will do; not zero, which has no direction.
    anything = norm.project(np.resize([1.0, -1.0], norm.size)).reshape(norm.groups, -1)
    along = np.where(~along.any(axis=1, keepdims=True), anything, along)
    along = along / np.maximum(np.abs(along).max(axis=1, keepdims=True), np.finfo(float).tiny)
    root = np.sqrt(np.mean(along**2, axis=1, keepdims=True))
    driven: Floats = (size * along / np.where(root == 0.0, 1.0, root)).reshape(norm.size)
    return driven
