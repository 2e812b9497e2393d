"""Certified ranges of every output of a linear layer that reads a norm, from the weights alone.

    w·y + a   is between   a + w·b − ρ   and   a + w·b + ρ,     ρ = Σ √c·|Π G w| over the groups of c channels

The interval is exact over all inputs of the norm: no output leaves it, and the input x = t·Π G w (in each group) comes
arbitrarily close to an end as t grows. That input is the witness for the worst output of every layer, run through the
model's own operations, as traced. All this is real arithmetic: a bound on floating-point outputs needs slack for
rounding on top, of the order of the number of channels times the precision times Σ|wₙ|·|yₙ|.
"""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from normscope.checks import Floats, as_floats, frozen
from normscope.errors import InputError
from normscope.models.batches import Inputs
from normscope.models.float64_run import run_call
from normscope.models.graph import LinearReader, ModelGraph
from normscope.models.subject import Subject, Text
from normscope.models.weights import Weights
from normscope.norm import Norm
from normscope.progress import Progress, silent
from normscope.results.inventory import FoundNorm
from normscope.results.layer_ranges import FLOAT16_MAX, LayerRange, LayerRanges, Witness
from normscope.results.rows import NotCovered

BLOCK = 2**22  # weights held in float64 at a time: 32 MB


def ranges(
    model: nn.Module | str | Path,
    *,
    text: Text | None = None,
    inputs: Inputs | None = None,
    device: str = "cpu",
    dtype: str | None = None,
    progress: Progress = silent,
) -> LayerRanges:
    """The range of every output of a linear layer that reads a norm, over all inputs, from the weights alone.

    Parameters
    ----------
    model
        A folder in Hugging Face format, a .gguf file, or a torch module. Of a path, one tensor is read at a time.
    text, inputs
        Text or inputs to trace the model on, to see which layer reads which norm: the first batch. Models of
        transformers need neither.
    device, dtype
        Device and floating-point type to load a folder in. Bounds are computed in float64.
    progress
        Called with the norms and a description; see `normscope.progress`.

    Returns
    -------
    LayerRanges
        An interval for each layer, with a witness: an input that comes as close to the bound as claimed.

    >>> from torch import ones
    >>> model = nn.Sequential(nn.LayerNorm(3), nn.Linear(3, 1))
    >>> _ = nn.init.constant_(model[1].bias, 2.0)
    >>> model[1].weight.data[:] = ones(3) - ones(3).cumsum(0)
    >>> found = ranges(model, inputs=ones(1, 3)).layers[0]
    >>> round(found.low, 4), round(found.high, 4)  # 2 ± √3·|(1, 0, −1)|
    (-0.4495, 4.4495)
    """
    subject = Subject(model, text=text, inputs=inputs, device=device, dtype=dtype)
    if isinstance(model, nn.Module) and any(parameter.is_meta for parameter in model.parameters()):
        raise InputError("model must have its weights loaded: ranges are computed from them, got a model on meta")
    inventory, weights = subject.sketch
    graph = inventory.graph
    assert graph is not None
    norms = {found.path: found for found in inventory.values() if found.path is not None}
    layers: list[LayerRange] = []
    refused: dict[str, str] = {}
    for path, found in progress(norms.items(), "norms"):
        readers = graph.linear_readers(path)
        problem = _obstacle(graph, path, found)
        if problem is not None:
            refused |= {reader.label: f"its norm {path}: {problem}" for reader in readers}
        elif found.norm is not None:
            layers += [_layer_range(weights, graph, reader, found, found.norm) for reader in readers]
    order = {(reader.label, reader.weight_name): index for index, reader in enumerate(graph.linear_layers())}
    layers.sort(key=lambda layer: order[layer.layer, layer.weight])
    return LayerRanges(subject.name, tuple(layers), tuple(_not_covered(graph, norms, refused)))


def _obstacle(graph: ModelGraph, path: str, found: FoundNorm) -> str | None:
    """Why no bound for all inputs is known for the readers of a norm."""
    if found.obstacle is not None:
        return found.obstacle
    shape = next((shape for shape in graph.shapes(path) if shape[-1:] != (found.size,)), None)
    return None if shape is None else f"normalizes {found.size} channels, not the last axis of {shape}"


def _layer_range(weights: Weights, graph: ModelGraph, reader: LinearReader, found: FoundNorm, norm: Norm) -> LayerRange:
    rows = _Rows(weights, reader)
    what: dict[str, Any] = {
        "layer": reader.label,
        "weight": reader.weight_name,
        "norm": found.name,
        "outputs": len(rows),
    }
    if not norm.scales:
        return _unbounded(what)
    shift = np.zeros(len(rows)) if reader.bias_name is None else as_floats(weights(reader.bias_name), reader.bias_name)
    lows, highs = np.empty(len(rows)), np.empty(len(rows))
    for part, block in rows.blocks():
        lows[part] = shift[part] - norm.ellipsoid.support(-block)
        highs[part] = shift[part] + norm.ellipsoid.support(block)
    farthest = np.maximum(np.abs(lows), np.abs(highs))
    row = int(np.argmax(farthest))
    sign = 1.0 if highs[row] == farthest[row] else -1.0
    bound = sign * float(farthest[row])
    w = rows[row]
    x = driving_input(norm, sign * w)
    attained = float(_output(weights, graph, found, x) @ w) + float(shift[row])
    terms = float(np.sum(np.abs(norm.gain * w)))
    rounding = np.finfo(float).eps * norm.size**1.5 * terms
    short = abs(bound - attained)
    beyond = int(np.count_nonzero(farthest > FLOAT16_MAX))
    return LayerRange(
        **what,
        low=float(lows.min()),
        high=float(highs.max()),
        worst_row=row,
        worst_bound=bound,
        rows_beyond_float16=beyond,
        witness=Witness(attained, short / abs(bound) if short > rounding else 0.0, frozen(x)),
        lows=frozen(lows),
        highs=frozen(highs),
    )


class _Rows:
    """The rows of a layer's matrix (outputs, inputs) in float64, a block at a time; read once if transposed."""

    def __init__(self, weights: Weights, reader: LinearReader) -> None:
        self._weights, self._name = weights, reader.weight_name
        self._matrix = weights(self._name).T if reader.transposed else None
        self._shape = weights.shape(self._name)[::-1] if reader.transposed else weights.shape(self._name)

    def __len__(self) -> int:
        return self._shape[0]

    def __getitem__(self, row: int) -> Floats:
        values: Floats = self._read(slice(row, row + 1))[0]
        return values

    def blocks(self) -> Iterator[tuple[slice, Floats]]:
        step = max(1, BLOCK // self._shape[1])
        for start in range(0, len(self), step):
            part = slice(start, start + step)
            yield part, self._read(part)

    def _read(self, part: slice) -> Floats:
        values = self._weights.rows(self._name, part) if self._matrix is None else self._matrix[part]
        return as_floats(values, self._name)


def _unbounded(what: dict[str, Any]) -> LayerRange:
    return LayerRange(
        **what,
        low=None,
        high=None,
        worst_row=None,
        worst_bound=None,
        rows_beyond_float16=None,
        witness=None,
    )


def driving_input(norm: Norm, w: Floats) -> Floats:
    """An input for which w·norm(x) is within 1e-7 of its supremum, relative to ρ: along Π G w in each group.

    Its root mean square is so large that eps is negligible, inside or outside the root.

    >>> driving_input(Norm(gain=[1, 2], eps=1e-12), np.array([3.0, 1.0]))
    array([ 1., -1.])
    """
    size = max(1.0, 1e4 * math.sqrt(norm.eps), 1e7 * norm.eps)
    direction = norm.project(norm.gain * w).reshape(norm.groups, -1)
    # Where a group cannot move the output, any input will do; not zero, which has no direction.
    anything = norm.project(np.resize([1.0, -1.0], norm.size)).reshape(norm.groups, -1)
    still = ~direction.any(axis=1, keepdims=True)
    direction = np.where(still, anything, direction)
    direction = direction / np.maximum(np.abs(direction).max(axis=1, keepdims=True), np.finfo(float).tiny)
    root = np.sqrt(np.mean(direction**2, axis=1, keepdims=True))
    driven: Floats = (size * direction / np.where(root == 0.0, 1.0, root)).reshape(norm.size)
    return driven


def _output(weights: Weights, graph: ModelGraph, found: FoundNorm, x: Floats) -> Floats:
    """The output of a norm for an input: its traced operations in float64."""
    import torch

    call = graph.calls_of(found.name)[0]
    entering, output = graph.entering(found.name, call), graph.leaving(call)[0]
    if found.gate is not None and found.gate.used_first:
        entering.reverse()
    given = {node: torch.from_numpy(x).expand(node.meta["val"].shape) for node in entering[:1]}
    # A gate before the norm is the same for all channels: the norm then does not see it.
    given |= {node: torch.ones(node.meta["val"].shape, dtype=torch.float64) for node in entering[1:]}
    y: Floats = run_call(graph, call, given, weights)[output].reshape(-1, len(x))[0].numpy()
    return y


def _not_covered(graph: ModelGraph, norms: Mapping[str, FoundNorm], refused: Mapping[str, str]) -> Iterator[NotCovered]:
    covered: dict[tuple[str, str], int] = {}
    near: dict[str, str] = {}
    for norm in norms:
        near |= dict.fromkeys(graph.read_by(norm), f"reads {norm}, but not its output as it is")
        for reader in graph.linear_readers(norm):
            key = (reader.label, reader.weight_name)
            covered[key] = covered.get(key, 0) + reader.calls
    for layer in graph.linear_layers():
        count = covered.get((layer.label, layer.weight_name), 0)
        if layer.label in refused:
            yield NotCovered(layer.label, refused[layer.label])
        elif not count:
            yield NotCovered(layer.label, near.get(layer.label, "does not read a norm"))
        elif count < layer.calls:
            yield NotCovered(layer.label, f"does not read a norm in {layer.calls - count} of its {layer.calls} calls")
    for other in graph.other_layers():
        yield NotCovered(other, "applies its weights in an unsupported way: not a plain matrix product")
