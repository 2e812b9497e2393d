"""Orthogonal matrices inside value heads: attention mixes tokens and not channels, so R passes through it.

    values V ← VR in every head,  output O ← RᵀO        heads that share values share the matrix

Which channels are those of a head follows from the moves between the layer that makes the values, attention, and the
layer that reads its output: channels are numbered and the numbers moved along. A gate, a norm or anything else in
between blocks it, and is named.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.fx import Node

from normscope.certificates.check_fold import Turning
from normscope.checks import Floats
from normscope.models.graph_operations import after_move, handed_on, kind_of
from normscope.models.multiplications import Multiplication
from normscope.results.folding import KEPT_STREAM, ROTATED, StreamVerdict
from normscope.rewrite.channels import counts, hands_on, numbered
from normscope.rewrite.orthogonal import rotation
from normscope.rewrite.stored_tensors import Uses
from normscope.rewrite.streams import Streams
from normscope.tensors.traced_nodes import argument

SOFTMAX = {"softmax", "_softmax"}


class _BlockedError(Exception):
    """Why the values of one attention can't be turned."""


@dataclass(frozen=True)
class _Heads:
    """One attention: the layer that makes its values and the one that reads its output, with the channels of heads."""

    values: Multiplication
    output: Multiplication
    channels: Tensor  # (heads, size): of the layer's output
    inputs: Tensor  # (heads, size): of the reader's input

    @property
    def size(self) -> int:
        return int(self.channels.shape[1])


def plan_heads(
    uses: Uses, streams: Streams, turned: Turning, kind: str, seed: int
) -> tuple[Turning, list[StreamVerdict]]:
    """The turning with that of value heads added, one matrix for all heads of a size, and a verdict on each."""
    matrices, axes = dict(turned.matrices), {name: dict(places) for name, places in turned.axes.items()}
    made: dict[tuple[bytes, int], Floats] = {}
    done: dict[str, list[str]] = {}
    kept: dict[str, list[str]] = {}
    for node, values in _attentions(streams):
        where = streams.graph.module_of(node) or "the model"
        try:
            heads = _heads(streams, node, values)
            found = rotation(kind, heads.size, (seed,), keeps_ones=False)
            assert not isinstance(found, str)
            for layer, channels, axis in (
                (heads.values, heads.channels, heads.values.outputs[0].weight),
                (heads.output, heads.inputs, _input_axis(heads.output)),
            ):
                stream = f"{'values' if layer is heads.values else 'heads'} of {where} ({node.name})"
                places = _places(uses, layer, axis, with_bias=layer is heads.values)
                _require_free(uses, layer, places, axes)
                size = uses.tensors[layer.weight].shape[axis]
                key = (channels.numpy().tobytes(), size)
                matrices[stream] = made.setdefault(key, _in_blocks(found.matrix, channels, size))
                for name, place in places.items():
                    axes.setdefault(name, {})[place] = stream
            done.setdefault(found.words, []).append(where)
        except _BlockedError as why:
            kept.setdefault(str(why), []).append(where)
    verdicts = [StreamVerdict(_several(layers), ROTATED, words) for words, layers in done.items()]
    verdicts += [StreamVerdict(_several(layers), KEPT_STREAM, why) for why, layers in kept.items()]
    every = {name: tuple(sorted(places.items())) for name, places in axes.items()}
    return Turning(matrices, turned.keep_ones, every, turned.outputs), verdicts


def _several(layers: list[str]) -> str:
    return f"value heads of {layers[0]}" + (f" and {len(layers) - 1} more layers" if len(layers) > 1 else "")


def _input_axis(layer: Multiplication) -> int:
    if layer.inputs is None:
        raise _BlockedError(f"{layer.module} sums over several axes of the heads")
    return layer.inputs.weight


def _attentions(streams: Streams) -> Iterator[tuple[Node, Node]]:
    """Every attention in the graph, and the values that it mixes."""
    for node in streams.graph.nodes:
        if kind_of(node) == "scaled_dot_product_attention":
            yield node, argument(node, "value")
        elif kind_of(node) in ("matmul", "bmm") and node not in streams.graph.multiplications:
            weights, values = node.args[:2]
            while isinstance(weights, Node) and (source := handed_on(weights)) is not None:
                weights = source
            if isinstance(weights, Node) and isinstance(values, Node) and kind_of(weights) in SOFTMAX:
                yield node, values


def _heads(streams: Streams, attention: Node, values: Node) -> _Heads:
    layer = _layer_before(streams, values)
    channels: Tensor | None = None
    others: list[tuple[Node, Tensor]] = []
    for user, value, numbers in _uses(layer.total, numbered(layer.total, -1)):
        if user is attention and value is values:
            channels = _by_head(numbers)
        else:
            others.append((user, numbers))
    if channels is None:
        raise _BlockedError(f"the values of {attention.name} don't keep their channels together")
    for user, numbers in others:
        if bool(torch.isin(numbers.contiguous(), channels.contiguous()).any()):
            raise _BlockedError(f"{streams.words(user)} reads the values too")
    count, size = channels.shape
    shape = tuple(attention.meta["val"].shape)
    if shape[-1] != size or (len(shape) == 4 and shape[1] != count) or len(shape) not in (3, 4):
        raise _BlockedError(f"{streams.words(attention)} has another number of heads than its values")
    slots = torch.arange(count * size).view(count, 1, size)
    if len(shape) == 3 and shape[0] % count:
        raise _BlockedError(f"{streams.words(attention)} has another number of heads than its values")
    slots = slots.expand(shape[-3:] if len(shape) == 4 else (count, *shape[1:]))
    slots = slots.expand(shape) if len(shape) == 4 else slots.repeat(shape[0] // count, 1, 1)
    readers = list(_uses(attention, slots.contiguous()))
    if len(readers) != 1:
        raise _BlockedError(f"{len(readers)} operations read the heads, not one layer")
    user, value, numbers = readers[0]
    reader = streams.graph.multiplications.get(user)
    if reader is None or reader.value is not value or reader.inputs is None:
        raise _BlockedError(f"{streams.words(user)} acts on the heads before a layer reads them")
    along = numbers.movedim(reader.inputs.value, -1).reshape(-1, count * size)
    if not bool((along == along[0]).all()) or len(set(along[0].tolist())) != count * size:
        raise _BlockedError(f"{reader.module} does not read all channels of the heads")
    inputs = torch.empty(count * size, dtype=torch.long)
    inputs[along[0]] = torch.arange(count * size)
    return _Heads(layer, reader, channels, inputs.view(count, size))


def _layer_before(streams: Streams, values: Node) -> Multiplication:
    node: Node | None = values
    while node is not None and node not in streams.totals:
        before, node = node, handed_on(node)
    if node is None:
        raise _BlockedError(f"{streams.words(before)} makes the values, and is not a linear layer")
    layer = streams.totals[node]
    if len(layer.outputs) != 1 or layer.outputs[0].value != -1:
        raise _BlockedError(f"{layer.module} has its outputs in another axis than the last")
    return layer


def _uses(start: Node, numbers: Tensor) -> Iterator[tuple[Node, Node, Tensor]]:
    """Every operation that reads a value, possibly moved: with what it reads, and the numbers of its channels."""
    pending: list[tuple[Node, Tensor]] = [(start, numbers)]
    while pending:
        value, channels = pending.pop()
        for user in value.users:
            if not counts(user, value):
                continue
            moved = after_move(user, channels) if handed_on(user) is value else None
            if isinstance(moved, Tensor) and hands_on(user, value):
                pending.append((user, moved))
            elif isinstance(moved, (tuple, list)):
                pending += [(part, after_move(part, moved)) for part in user.users if counts(part, user)]
            else:
                yield user, value, channels


def _by_head(numbers: Tensor) -> Tensor:
    """The channels of each head, where they are the same for all rows and tokens."""
    heads = numbers if numbers.ndim == 4 else numbers.unsqueeze(0)
    if heads.ndim != 4:
        raise _BlockedError("the values have no axis of heads")
    first = heads[:1, :, :1, :]
    if not bool((heads == first).all()):
        raise _BlockedError("the values mix channels and tokens")
    channels = first[0, :, 0, :]
    sets = {tuple(row) for row in channels.tolist()}
    if len({channel for row in sets for channel in row}) != sum(map(len, sets)):
        raise _BlockedError("heads share some of their channels, not all or none")
    return channels


def _places(uses: Uses, layer: Multiplication, axis: int, *, with_bias: bool) -> dict[str, int]:
    """The tensors that turn with a layer, and their axes."""
    places = {uses.tensors.first_name(layer.weight): axis}
    if with_bias and layer.bias is not None:
        bias = uses.tensors.first_name(layer.bias)
        places[bias] = uses.tensors[bias].ndim - 1
    return places


def _require_free(uses: Uses, layer: Multiplication, places: dict[str, int], axes: dict[str, dict[int, str]]) -> None:
    for name, axis in places.items():
        ok, reason = uses.can_change(uses.tensors.name_in(layer.module, name), layer.nodes)
        if not ok:
            raise _BlockedError(f"{layer.module} multiplies with {reason}")
        if axis in axes.get(name, {}):
            raise _BlockedError(f"{name} turns with another stream along the same axis")


def _in_blocks(matrix: Floats, channels: Tensor, size: int) -> Floats:
    """A matrix that acts on the channels of every head alike, and leaves others."""
    whole = np.eye(size)
    for rows in {tuple(row) for row in channels.tolist()}:
        whole[np.ix_(rows, rows)] = matrix
    return whole
