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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.fx import Node

from normscope.bounds.tight import tight as tightened
from normscope.bounds.tight import witness
from normscope.certificates.neuron_certificates import Neurons
from normscope.certificates.range_certificates import Matrix, RangeCertificate, Reader
from normscope.checks import Floats, as_floats, frozen
from normscope.errors import InputError
from normscope.models.batches import Inputs
from normscope.models.float64_run import run_between, run_call
from normscope.models.graph import ModelGraph
from normscope.models.graph_operations import is_float, kind_of
from normscope.models.subject import Subject, Text
from normscope.norm import Norm
from normscope.progress import Progress, silent
from normscope.results.inventory import FoundNorm
from normscope.results.layer_ranges import TYPES, UNITS, Grade, LayerRanges, Limit, TensorRange, Verdict, What
from normscope.studies.observed import Observed, Seen, observed
from normscope.tensors.products import Outputs
from normscope.tensors.roles import Role, roles_of
from normscope.tensors.rows import Ball, Linear, NormRows, ProductRows
from normscope.tensors.values import Function, Gated, Value
from normscope.tensors.walk import NormCall, Walk

LARGEST_RUN = 2**27  # numbers of a matrix that a witness is run through in float64: 1 GB
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
    weights: Floats | None  # the layer's row, where it reads the norm


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
        inventory = subject.traced
        assert inventory.graph is not None
        self.graph: ModelGraph = inventory.graph
        self.stored = Recent(subject.weights)
        self.norms = {found.path: found for found in inventory.values() if found.path is not None}
        self.calls = _norm_calls(self.graph, self.norms)
        self.roles = roles_of(self.graph, self.norms)
        self.layers = {product.total: product.reader for product in self.graph.products.values()}
        self.certificates: list[RangeCertificate] = []
        self._wanted = _by_layer(channels)
        self._written: dict[Node, list[Written]] = {}
        self._scores: dict[Node, Value] = {}
        self._rounded = UNITS.get(limit, UNITS["float32"])
        self._kept_apart = subject.held_otherwise(limit) if limit in ("float16", "bfloat16") else frozenset()

    def result(self, progress: Progress) -> LayerRanges:
        """All rows, and the verdict on the limit."""
        rows: dict[Node, TensorRange] = {}
        others: list[TensorRange] = []
        counts: dict[Verdict, int] = dict.fromkeys(
            ("excluded", "too close to call", "not excluded", "reached", "unbounded"), 0
        )
        walk = Walk(
            self.graph, self.stored, self.calls, self.subject.input_ranges, self._watch, self._scores.__setitem__
        )
        total = len(self.graph.nodes)
        for node, value in progress(_sized(walk.steps(), total), "tensors"):
            if not isinstance(value, Value) or not is_float(node) or node in self.graph.constants:
                continue
            row = self._row(node, value)
            if row is not None:
                rows[node] = row
            if (scores := self._scores.pop(node, None)) is not None:
                role = Role(self.graph.module_of(node), "scores")
                others.append(self._tensor(role, scores, node))
            if self._is_held(node):
                verdict = self._verdict(value, row)
                counts[verdict] += 1
                if row is None and verdict not in ("excluded",):
                    others.append(self._tensor(Role(self.graph.module_of(node), "tensor"), value, node))
        seen = self._observe(rows) if self.subject.runs else {}
        rows = {node: _with_text(row, seen.get(node)) for node, row in rows.items()}
        layers = tuple(row for row in rows.values() if row.what == "output")
        scores_rows = [row for row in others if row.what == "scores"]
        limit = Limit(
            self.limit,
            self.largest,
            sum(counts.values()),
            counts["excluded"],
            counts["too close to call"],
            counts["not excluded"],
            counts["reached"],
            counts["unbounded"],
        )
        return LayerRanges(
            self.subject.name,
            None if self.subject.path is None else str(self.subject.path),
            limit,
            layers,
            tuple([row for row in rows.values() if row.what != "output"] + scores_rows),
            tuple(row for row in others if row.what == "tensor"),
            tuple(self.certificates),
            self.subject.text,
        )

    # ---- rows ------------------------------------------------------------------------------------------------

    def _row(self, node: Node, value: Value) -> TensorRange | None:
        """The row of a layer, or of a tensor with a role."""
        if node in self.layers:
            return self._layer(node, value)
        if kind_of(node) in MATRICES:
            return self._tensor(Role(self.graph.module_of(node), "output"), value, node)
        role = self.roles.get(node)
        return None if role is None else self._tensor(role, value, node)

    def _tensor(self, role: Role, value: Value, node: Node) -> TensorRange:
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
        row = replace(self._tensor(Role(reader.label, "output"), value, node), weight=reader.weight_name)
        product = next(key for key, each in self.graph.products.items() if each.total is node)
        written = self._written.pop(product, [])
        if row.bound is None or not written:
            return row
        mine = [each for each in written if each.channel == row.channel and each.sign == (1 if row.bound > 0 else -1)]
        best = mine[0] if mine else written[0]
        norm = None if best.ball is None else best.ball.norm
        row = replace(row, grade=best.grade if len(written) == 1 or mine else "intervals", norm=norm)
        if not mine or best.direction is None or best.ball is None:
            return row
        x = self._input(best.ball, best.direction * best.sign)
        reached = self._reached(node, best, x)
        if reached is None:
            return row
        verdict = self._verdict(value, replace(row, reached=reached))
        return replace(row, reached=reached, input=frozen(x), verdict=verdict)

    def _is_held(self, node: Node) -> bool:
        """Whether a tensor is held in the type of the limit."""
        return node.name not in self._kept_apart

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
        if outputs.activation is not None:
            self._tighten(node, outputs)
            return
        farthest = np.maximum(np.abs(outputs.low), np.abs(outputs.high))
        if not len(farthest) or not np.isfinite(farthest).all():
            return
        channel = int(np.argmax(farthest))
        sign = 1 if outputs.high[channel] == farthest[channel] else -1
        direction = outputs.direction(channel)
        grade: Grade = "intervals" if direction is None else "heads" if outputs.heads else "exact"
        weights = outputs.weights(channel) if direction is not None and not outputs.heads else None
        written = Written(grade, outputs.ball, channel, sign, direction, weights)
        self._written.setdefault(node, []).append(written)

    def _tighten(self, node: Node, outputs: Outputs) -> None:
        reader = self.graph.products[node].reader if node in self.graph.products else None
        label = reader.label if reader is not None else self.graph.module_of(node)
        farthest = np.maximum(np.abs(outputs.low), np.abs(outputs.high))
        order = np.argsort(-farthest, kind="stable")
        count = len(order) if math.isinf(self._tight) else int(self._tight)
        chosen = dict.fromkeys(order[:count].tolist())
        chosen |= dict.fromkeys(np.flatnonzero(farthest > self.largest).tolist())
        chosen |= dict.fromkeys(channel for channel in self._wanted.get(label, ()) if channel < len(order))
        neurons = outputs.neurons()
        named = set(self._wanted.get(label, ()))
        driven: dict[tuple[int, int], Floats] = {}
        for channel in chosen:
            both = outputs.high[channel] > self.largest and -outputs.low[channel] > self.largest
            larger = 1 if outputs.high[channel] >= -outputs.low[channel] else -1
            for sign in (larger, -larger) if both or channel in named else (larger,):
                driven[channel, sign] = self._tighten_one(label, outputs, neurons, channel, sign)
        farthest = np.maximum(np.abs(outputs.low), np.abs(outputs.high))
        channel = int(np.argmax(farthest))
        sign = 1 if outputs.high[channel] == farthest[channel] else -1
        grade: Grade = "tight" if (channel, sign) in driven else "quadratic"
        if grade == "quadratic":
            driven[channel, sign] = witness(neurons, sign * outputs.weights(channel))[0]
        written = Written(grade, outputs.ball, channel, sign, sign * driven[channel, sign], None)
        self._written.setdefault(node, []).append(written)

    def _tighten_one(self, label: str, outputs: Outputs, neurons: Neurons, channel: int, sign: int) -> Floats:
        """Tighten one side of an output, keep its certificate, and return the direction of its witness."""
        row, shift = sign * outputs.weights(channel), sign * float(outputs.layer.shift[channel])
        found = tightened(neurons, row)
        u, value = witness(neurons, row, found)
        bound = float(np.nextafter(found.bound + shift, np.inf))
        if sign > 0:
            outputs.high[channel] = min(outputs.high[channel], bound)
        else:
            outputs.low[channel] = max(outputs.low[channel], -bound)
        proof = self._certificate(label, outputs, channel, sign, bound, found.certificate)
        if proof is not None:
            assert outputs.ball is not None
            x = self._input(outputs.ball, u)
            self.certificates.append(replace(proof, reached=float(value + shift), input=frozen(x)))
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

    def _reached(self, node: Node, written: Written, x: Floats) -> float | None:
        """What the model's own operations give for an input of the norm, at all tokens, in float64."""
        ball = written.ball
        assert ball is not None
        import torch

        found = self.norms[ball.norm]
        call = next(call for call in self.graph.calls_of(ball.norm) if ball.source in call)
        entering = self.graph.entering(ball.norm, call)
        if found.gate is not None and found.gate.used_first:
            entering.reverse()
        axis = found.axis

        def filled(value: Node) -> Tensor:
            shape = value.meta["val"].shape
            view = [len(x) if at == axis % len(shape) else 1 for at in range(len(shape))]
            return torch.from_numpy(x).reshape(view).expand(shape)

        given = {value: filled(value) for value in entering[:1]}
        # A gate before the norm is the same for all channels: the norm then does not see it.
        given |= {value: torch.ones(value.meta["val"].shape, dtype=torch.float64) for value in entering[1:]}
        try:
            if written.weights is not None:
                output = run_call(self.graph, call, given, self.stored)[ball.source]
                y = output.movedim(axis, -1).reshape(-1, len(x))[0].numpy()
                under = self._shift(node, written)
                return float(y @ written.weights) + under
            return self._run(node, given, written)
        except InputError:
            return None

    def _shift(self, node: Node, written: Written) -> float:
        reader = self.layers[node]
        if reader.bias_name is None:
            return 0.0
        return float(self.stored(reader.bias_name)[written.channel])

    def _run(self, node: Node, given: Mapping[Node, Tensor], written: Written) -> float | None:
        reader = self.layers[node]
        if self.stored(reader.weight_name).numel() > LARGEST_RUN:
            return None
        made = run_between(self.graph, given, node, self.stored)[..., written.channel]
        return float(made.max() if written.sign > 0 else made.min())

    # ---- what the text does ----------------------------------------------------------------------------------

    def _observe(self, rows: Mapping[Node, TensorRange]) -> dict[Node, Seen]:
        """What happens at rows that are the output of a module, or the input of a norm, while the model runs."""
        places: dict[Node, Observed] = {}
        for node, row in rows.items():
            if row.what == "norm input" and row.layer in self.norms and self.norms[row.layer].function is None:
                places[node] = Observed(row.layer, is_input=True, axis=self.norms[row.layer].axis)
            elif (module := self._returned_by(node, row)) is not None:
                places[node] = Observed(module, is_input=False)
        return observed(self.subject, places)

    def _returned_by(self, node: Node, row: TensorRange) -> str | None:
        """The module whose only output is this node."""
        path = self.graph.module_of(node)
        calls = self.graph.calls_of(path) if path else []
        if len(calls) != 1 or node not in calls[0]:
            return None
        return path if self.graph.leaving(calls[0]) == [node] else None


class Recent:
    """Stored tensors, of which the last ones read are kept: a layer is looked at several times in a row."""

    def __init__(self, read: Callable[[str], Tensor], most: int = 2**30) -> None:
        self._read, self._most = read, most
        self._kept: dict[str, Tensor] = {}

    def __call__(self, name: str) -> Tensor:
        found = self._kept.pop(name, None)
        if found is None:
            found = self._read(name).detach()
            while self._kept and found.nbytes + sum(each.nbytes for each in self._kept.values()) > self._most:
                self._kept.pop(next(iter(self._kept)))
        self._kept[name] = found
        return found


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


def _reader(form: Linear) -> Reader | None:
    """Where the rows of a linear value are stored, if it reads a norm through one stored matrix."""
    rows = form.rows
    if not isinstance(rows, ProductRows) or rows.source is None or not rows.reads_norm or not rows.source.name:
        return None
    layer = rows.source
    if layer.bias is not None and not layer.bias_name:
        return None
    plain = form.take(np.arange(len(form.index)))
    return Reader(
        Matrix(layer.name, layer.transposed, layer.expert),
        layer.bias_name,
        rows=np.asarray(plain.index, dtype=np.int64),
        scale=np.asarray(plain.scale),
    )


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
