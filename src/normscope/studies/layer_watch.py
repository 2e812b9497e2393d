"""What is remembered of layers as a walk comes to them: certificates of tight bounds, and how the largest is reached.

every layer               the output with the largest bound, and the direction of the norm that drives it there
a layer behind neurons    a tight bound of some outputs, and of all that could pass the limit, with a certificate
witness                   an input of the norm, run through the model's own operations in float64
"""

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from torch.fx import Node

from normscope.bounds.ascent import witness
from normscope.bounds.divided import divided
from normscope.bounds.tight_bound import Tight
from normscope.bounds.tight_bound import tight as tightened
from normscope.certificates.neuron_certificates import Neurons
from normscope.certificates.range_certificates import Matrix, RangeCertificate
from normscope.certificates.range_formulas import direction_of, output_of
from normscope.checks import Floats, frozen
from normscope.engine import PATIENCE, Engine, FailedPiece, warn_of
from normscope.errors import InputError
from normscope.models.float64_run import run_between, run_call
from normscope.models.graph import ModelGraph
from normscope.models.stored_matrices import Recent
from normscope.models.weights import Weights
from normscope.results.inventory import FoundNorm, Inventory
from normscope.results.layer_ranges import Grade
from normscope.results.layer_ranges import Neurons as SeenNeurons
from normscope.studies.driving_inputs import Driven, Written, along_axis, driving_input
from normscope.studies.range_proofs import tight_proof
from normscope.tensors.linear_rows import Ball, reads_norm
from normscope.tensors.products import Outputs
from normscope.tensors.walk import NormCall

LARGEST_RUN = 2**27  # numbers of a matrix that a witness is run through in float64: 1 GB
# A neuron is dead if its input never passes this: then its output is never above 10⁻⁶ in size, and 0 for a ReLU.
NEVER_ACTIVE = {"relu": 0.0, "relu2": 0.0, "gelu": -5.3, "gelu_tanh": -5.3, "silu": -17.0, "quick_gelu": -10.0}
TIGHTENED = 4  # outputs of every layer that are tightened: those with the largest bounds


TightSide = tuple[Tight, Floats]  # the bound, and the direction of its witness


def tight_side(row: Floats, neurons: Neurons) -> TightSide:
    """The tight bound of one weighted sum of neurons."""
    found = tightened(neurons, row)
    u, value = witness(neurons, row, found)
    return divided(neurons, row, found, value), u


class LayerWatch:
    """The layers of a traced model: their certificates and witnesses, as a walk over it comes to them."""

    def __init__(
        self,
        inventory: Inventory,
        weights: Weights,
        largest: float,
        tight: float = TIGHTENED,
        channels: Sequence[tuple[str, int]] = (),
        engine: Engine | None = None,
    ) -> None:
        self.largest, self._tight, self._engine = largest, tight, engine
        assert inventory.graph is not None
        self.graph: ModelGraph = inventory.graph
        self.stored = Recent(weights)
        self.norms = {found.path: found for found in inventory.values() if found.path is not None}
        self.calls = _norm_calls(self.graph, self.norms)
        self.layers = {product.total: product.reader for product in self.graph.products.values()}
        self._products = {product.total: node for node, product in self.graph.products.items()}
        self.certificates: list[RangeCertificate] = []
        self._wanted = _by_layer(channels)
        # layers whose bias is another operation: what reads the neurons is not the whole output
        self._in_two_steps = {
            each.reader.weight_name for node, each in self.graph.products.items() if each.total is not node
        }
        self._written: dict[Node, dict[tuple[int, int], Written]] = {}
        self._kinds: Counter[Node] = Counter()  # kinds of inputs that each layer has
        self.neurons: dict[Node, SeenNeurons] = {}  # that layers read

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
        if outputs.layer.expert is None:
            self._count_dead(node, neurons)
        driven: dict[tuple[int, int], Floats] = {}

        def larger(channel: int) -> int:
            return 1 if outputs.high[channel] >= -outputs.low[channel] else -1

        sides = {(channel, larger(channel)): None for channel in order[:count].tolist()}
        sides |= dict.fromkeys((channel, sign) for channel in named for sign in (1, -1))
        lost: list[FailedPiece] = []
        for (channel, sign), side in zip(sides, self._tight_sides(label, outputs, neurons, sides), strict=True):
            if isinstance(side, FailedPiece):
                lost.append(side)  # its bound stays as it is, and is tried again if it decides
            else:
                driven[channel, sign] = self._keep(label, outputs, neurons, channel, sign, side)
        warn_of(lost, len(sides), "tight bounds", "looser bounds stand in their place")
        # One output that stays beyond the limit decides for the tensor; until then, all that could pass it are tried.
        while self._decides(outputs, driven, channel := _farthest(outputs)):
            sign = larger(channel)
            side = tight_side(sign * outputs.weights(channel), neurons)
            driven[channel, sign] = self._keep(label, outputs, neurons, channel, sign, side)
        channel = _farthest(outputs)
        sign = larger(channel)
        grades: dict[tuple[int, int], Grade] = dict.fromkeys(driven, "tight")
        if (channel, sign) not in driven:
            driven[channel, sign] = witness(neurons, sign * outputs.weights(channel))[0]
            grades[channel, sign] = "quadratic"
        kept = self._written.setdefault(node, {})
        for (channel, sign), u in driven.items():
            kept[channel, sign] = Written(grades[channel, sign], outputs.ball, channel, sign, sign * u, None)

    def _count_dead(self, node: Node, neurons: Neurons) -> None:
        """Keep which neurons never act: dead ones are so for every kind of input of the layer."""
        begins = NEVER_ACTIVE.get(neurons.activation)
        if begins is None:
            return
        reach = np.linalg.norm(neurons.a, axis=1)  # of rows times a vector of the unit ball
        size = np.abs(neurons.a_offset) + reach
        highest = neurons.a_offset + reach + (neurons.a.shape[1] + 4) * np.finfo(float).eps * size
        dead = set(np.flatnonzero(highest <= begins).tolist())
        if node in self.neurons:
            dead &= set(self.neurons[node].dead)
        self.neurons[node] = SeenNeurons(neurons.activation, neurons.count, tuple(sorted(dead)))

    def _decides(self, outputs: Outputs, driven: Mapping[tuple[int, int], Floats], channel: int) -> bool:
        """Whether an output could pass the limit and was not tightened on that side."""
        low, high = float(outputs.low[channel]), float(outputs.high[channel])
        return max(-low, high) > self.largest and (channel, 1 if high >= -low else -1) not in driven

    def _tight_sides(
        self, label: str, outputs: Outputs, neurons: Neurons, sides: Collection[tuple[int, int]]
    ) -> "Iterator[TightSide | FailedPiece]":
        """Bounds of several sides of outputs; the neurons are sent once."""
        rows = (sign * outputs.weights(channel) for channel, sign in sides)
        if self._engine is None:
            yield from (tight_side(row, neurons) for row in rows)
            return
        with self._engine.shared(neurons) as shared:
            names = (f"output {channel} of {label}" for channel, _ in sides)
            yield from self._engine.run(
                tight_side, rows, given=(shared,), about=neurons, patience=PATIENCE, named=lambda row: next(names)
            )

    def _keep(self, label: str, outputs: Outputs, neurons: Neurons, channel: int, sign: int, side: TightSide) -> Floats:
        """Keep the tight bound of one side of an output with its certificate; return the direction of its witness."""
        row, shift = sign * outputs.weights(channel), sign * float(outputs.layer.shift[channel])
        found, u = side
        bound = float(np.nextafter(found.bound + shift, np.inf))
        improves = bound < (outputs.high[channel] if sign > 0 else -outputs.low[channel])
        if sign > 0:
            outputs.high[channel] = min(outputs.high[channel], bound)
        else:
            outputs.low[channel] = max(outputs.low[channel], -bound)
        proof = None
        if improves:
            proof = tight_proof(label, outputs, channel, sign, bound, found.certificate, self._in_two_steps)
        if proof is not None:
            assert outputs.ball is not None
            x, norm = self._input(outputs.ball, u), self.calls[outputs.ball.source].norm
            reached = output_of(neurons, row, direction_of(norm, x)).value + shift
            self.certificates.append(replace(proof, reached=reached, input=frozen(x)))
        return u

    # ---- witnesses -----------------------------------------------------------------------------------------------

    def _input(self, ball: Ball, direction: Floats) -> Floats:
        """An input of a norm with this direction, so large that eps is negligible."""
        return driving_input(self.calls[ball.source].norm, direction)

    def drive(self, node: Node, channel: int, sign: int) -> Driven | None:
        """The witness of one output of a layer, if it was looked for."""
        best = self._written.get(self._products.get(node, node), {}).get((channel, sign))
        return None if best is None else self._driven(node, best)

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
        given = {value: along_axis(x, value, found.axis) for value in entering[:1]}
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


def _by_layer(channels: Sequence[tuple[str, int]]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for layer, channel in channels:
        found.setdefault(layer, []).append(channel)
    return found


def _farthest(outputs: Outputs) -> int:
    """The output with the largest bound."""
    return int(np.argmax(np.maximum(np.abs(outputs.low), np.abs(outputs.high))))
