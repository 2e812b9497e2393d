"""Whether the readers of a norm can take over its gain and its bias.

All of them must be linear layers that read the output channel by channel, with weights that nothing else uses. A bias
needs a bias in each of them; otherwise the norm keeps b/g. Channels whose gain is 0 keep it.
"""

import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.fx import Node

from normscope.certificates.check_fold import Taken, TakenBy
from normscope.checks import Floats
from normscope.models.find import alike
from normscope.models.graph import PRODUCTS
from normscope.models.graph_operations import kind_of
from normscope.models.probe import Form, form_of
from normscope.norm import Norm
from normscope.results.folding import FOLDED, KEPT, NOTHING, Decision
from normscope.rewrite.folded_weights import along
from normscope.rewrite.stored_tensors import Uses
from normscope.rewrite.streams import Reading, Streams

Outcome = tuple[Taken | None, str]  # what is taken over, or the reason why nothing is


class Readers:
    """The readers of every norm of a traced model."""

    def __init__(self, model: nn.Module, streams: Streams, uses: Uses) -> None:
        self._model, self._streams, self._uses = model, streams, uses
        self._forms: dict[Any, Form | None] = {}  # modules that are alike are run once

    def decide(self, name: str, norm: Norm) -> tuple[Decision, Taken | None]:
        """What becomes of the gain and the bias of a norm."""
        gain, bias = norm.gain, norm.bias
        if (gain == 1).all() and not bias.any():
            return Decision(NOTHING, "its gain is 1 and its bias 0"), None
        taken_gain = np.where(gain == 0, 1.0, gain)
        taken, reason = self.take(name, taken_gain, bias)
        if taken is not None:
            what = "gain and bias" if bias.any() else "gain"
            return Decision(FOLDED, f"{what} into {_listed(taken)}"), taken
        without_bias, obstacle = self.take(name, taken_gain, np.zeros_like(bias))
        if without_bias is None or without_bias.bias_tensor is None:
            return Decision(KEPT, obstacle or reason), None
        if (taken_gain == 1).all():
            return Decision(KEPT, f"its gain is 1 and its bias stays, because {reason}"), None
        stored = self._uses.tensors.dtype(without_bias.bias_tensor)
        if not _fits([torch.tensor(bias / taken_gain)], stored):
            return Decision(KEPT, f"{reason}, and its bias divided by its gain is beyond what {stored} holds"), None
        return Decision(
            FOLDED, f"gain into {_listed(without_bias)}; its bias stays as b/g, because {reason}"
        ), without_bias

    def take(self, name: str, gain: Floats, bias: Floats, blind: frozenset[Node] = frozenset()) -> Outcome:
        """What the readers of a norm take over if they take this gain and this bias.

        Readers among the `blind` do not depend on the bias.
        """
        readings: dict[str, list[Reading]] = {}
        others: list[Node] = []
        for call in self._streams.calls[name]:
            linear, rest = self._streams.readings(call.output)
            others += [node for node in rest if node not in blind]
            for reading in linear:
                weight = self._uses.tensors.first_name(reading.by.weight)
                readings.setdefault(weight, []).append(reading)
        if others:
            return None, self._in_the_way(others, bool(readings))
        if not readings and not blind:
            return None, "no layer reads its output"
        readers: list[TakenBy] = []
        for weight, its_readings in readings.items():
            reader = self._taker(weight, its_readings, with_bias=bool(bias.any()))
            if isinstance(reader, str):
                return None, reader
            stored = self._uses.tensors.dtype(weight)
            if not self._holds(weight, torch.tensor(gain), reader.axis):
                return None, f"its gain times {weight} is beyond what {stored} holds"
            readers.append(reader)
        return self._taken(name, gain, bias, readers)

    def _holds(self, weight: str, gain: Tensor, axis: int) -> bool:
        """Whether the dtype of a matrix holds it times a gain.

        That is so if the largest value is between its smallest normal number and its largest: there an error is at
        most half an eps of the value, or half of the distance between the smallest numbers.
        """
        dtype = self._uses.tensors.dtype(weight)
        limits, size = torch.finfo(dtype), self._uses.tensors.size(weight)
        if limits.smallest_normal <= size * gain.abs().min() and size * gain.abs().max() <= limits.max:
            return True
        return _fits(self._with_gain(weight, gain, axis), dtype)

    def _with_gain(self, weight: str, gain: Tensor, axis: int) -> Iterator[Tensor]:
        """The values of a matrix times a gain, some rows at a time."""
        start = 0
        for values in self._uses.tensors.blocks(weight):
            some = gain if axis else gain[start : start + len(values)]
            start += len(values)
            yield values * along(some, axis, values.ndim)

    def _in_the_way(self, others: list[Node], has_readers: bool) -> str:
        """The most informative reader of a norm that is not a linear layer, in words."""
        also = "also " if has_readers else ""
        if any(node.op == "output" for node in others):
            return f"its output is {also}an output of the model"
        node = others[0]
        if kind_of(node) in ("add", "sub"):
            place = f"{self._streams.graph.module_of(node) or 'the model'} ({node.name})"
            return f"its output is {f'{also}the skip of' if also else 'added to the stream by'} {place}"
        what = "not a product with one stored matrix" if kind_of(node) in PRODUCTS else "not a linear layer"
        return f"its output is read by {self._streams.words(node)}, which is {what}"

    def _taker(self, weight: str, readings: list[Reading], *, with_bias: bool) -> TakenBy | str:
        """A layer that takes over a gain, and a bias if there is one; or why it can't."""
        reader, axis = readings[0].by, readings[0].axis
        layer, nodes = reader.module or "the model", {node for reading in readings for node in reading.by.nodes}
        ok, reason = self._uses.can_change(self._uses.tensors.name_in(reader.module, weight), nodes)
        if not ok:
            return f"its reader {layer} multiplies with {reason}"
        if any(reading.axis != axis for reading in readings):
            return f"its reader {layer} multiplies with {weight} and with its transpose"
        if not with_bias:
            return TakenBy(reader.module, weight, axis, None, 1.0)
        ok, reason = self._can_take_bias(readings)
        if not ok:
            return f"its reader {layer} {reason}"
        bias = self._uses.tensors.first_name(str(reader.bias))
        return TakenBy(reader.module, weight, axis, bias, readings[0].factor)

    def _can_take_bias(self, readings: list[Reading]) -> tuple[bool, str]:
        """Whether all calls of a layer have the same bias, used by nothing else, and read the same multiple."""
        names = {reading.by.bias for reading in readings}
        biases = {self._uses.tensors.first_name(name) for name in names if name is not None}
        if None in names:
            return False, "has no bias"
        if len(biases) > 1:
            return False, "has another bias in each call"
        if math.isnan(readings[0].factor) or len({reading.factor for reading in readings}) > 1:
            return False, "gets it multiplied by an unknown factor"
        nodes = {node for reading in readings for node in reading.by.nodes}
        ok, reason = self._uses.can_change(biases.pop(), nodes)
        return ok, f"has the bias {reason}"

    def _taken(self, name: str, gain: Floats, bias: Floats, readers: list[TakenBy]) -> Outcome:
        module = self._model.get_submodule(name)
        if (key := alike(module)) not in self._forms:
            self._forms[key] = form_of(module)
        form = self._forms[key]
        if form is None:
            return None, "it is not a known norm"
        nodes = {node for call in self._streams.calls[name] for node in call.nodes}
        own: list[str | None] = []
        for part in (form.gain, form.bias):
            tensor = None if part is None else f"{name}.{part}".removeprefix(".")
            if tensor is not None:
                ok, reason = self._uses.can_change(tensor, nodes)
                if not ok:
                    return None, f"it has {reason}"
            own.append(None if tensor is None else self._uses.tensors.first_name(tensor))
        return Taken(name, gain, bias, tuple(readers), own[0], own[1], form.gain_convention == "1+w"), ""


def _fits(parts: Iterable[Tensor], dtype: torch.dtype) -> bool:
    """Whether a dtype holds all values to its precision, relative to the largest: no overflow, not all underflow."""
    apart = largest = 0.0
    for values in parts:
        if values.numel():
            apart = max(apart, _finite_or_inf((values.to(dtype).double() - values).abs().max()))
            largest = max(largest, _finite_or_inf(values.abs().max()))
    return math.isfinite(apart) and apart <= torch.finfo(dtype).eps * largest


def _finite_or_inf(value: Tensor) -> float:
    return math.inf if math.isnan(float(value)) else float(value)


def _listed(taken: Taken) -> str:
    return ", ".join(reader.layer or "the model" for reader in taken.readers)
