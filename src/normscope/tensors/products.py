"""Products and means: a layer's matrix, attention scores, and means of values with weights.

W·(linear)                        linear again: the rows of W times the rows of the norm
W·(linear, heads at own places)   Σ over heads of W_h·β_h ± |W_h·A_h|: each head mixes tokens of its own
W·(activations of linear)         bounds of sums of neurons (`normscope.bounds`)
q·k                               by the Gram matrices of both heads
Σ weight·value                    a mixture: within the values' own ellipsoid, at a place of its own
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from normscope.bounds.attention_scores import score_range
from normscope.bounds.neurons import cheap
from normscope.certificates.neuron_certificates import Neurons
from normscope.checks import Floats, as_floats
from normscope.tensors.entry_forms import Choice, Listed, Weighted, activation_of
from normscope.tensors.linear_rows import EPS, Ball, Indices, Linear, ProductRows, StoredMatrix, widened
from normscope.tensors.values import (
    Function,
    Gated,
    Parts,
    Rotated,
    Shares,
    Value,
    broadcast,
    interval_product,
    merged,
    numbered,
    patterns,
)

MOST_PATTERNS = 64  # vectors of different units that a layer is applied to; beyond, they are merged
MOST_FLOPS = 2e12  # of a layer's quadratic bound: a minute of one core
MANY_TOKENS = "a sum over tokens, of which there may be any number"
LARGEST = 2**28  # numbers of a matrix of rows in float64: 2 GB


@dataclass(frozen=True, eq=False)
class Layer:
    """A matrix (outputs, inputs) that is read when it is needed, and a bias."""

    matrix: StoredMatrix
    outputs: int
    bias: Floats | None = None
    name: str = ""  # of the stored tensor
    transposed: bool = False
    expert: int | None = None
    bias_name: str | None = None

    @property
    def shift(self) -> Floats:
        return np.zeros(self.outputs) if self.bias is None else self.bias


@dataclass(eq=False)
class Outputs:
    """What a layer writes for one kind of input: bounds of every output, which whoever watches may tighten.

    `form` is what the layer reads: linear at one place (`heads` False) or at several, neurons, or None for intervals.
    `factor` belongs to the activation of plain neurons.
    """

    layer: Layer
    low: Floats
    high: Floats
    form: Any
    heads: bool = False
    activation: str | None = None
    factor: float = 1.0

    def neurons(self) -> Neurons:
        """The neurons that the layer reads."""
        assert self.activation is not None
        if isinstance(self.form, Gated):
            gate, up = self.form.gate, self.form.up
            return Neurons(self.activation, gate.matrix(), gate.offset, up.matrix(), up.offset)
        reader = self.form.linear
        return Neurons(self.activation, reader.matrix(), reader.offset)

    def weights(self, channel: int) -> Floats:
        """The row of the matrix that makes one output, times the factor of the activation."""
        return as_floats(self.layer.matrix()[channel], "weights") * self.factor

    def direction(self, channel: int) -> Floats | None:
        """A direction of the norm that makes one output large; its opposite makes it small. None for neurons."""
        if not isinstance(self.form, Linear):
            return None
        return self.form.combined(self.weights(channel))

    @property
    def ball(self) -> Ball | None:
        """The directions of the norm that the layer depends on."""
        form = self.form
        reader = form.gate if isinstance(form, Gated) else form.linear if isinstance(form, Function) else form
        return reader.ball if isinstance(reader, Linear) else None


Watch = Callable[[Outputs], None]


def layer_of(value: Value, layer: Layer, watch: Watch | None = None) -> Value:
    """The layer applied to the last axis of a value."""
    units, first, number = patterns(value, -1)
    if len(units) > MOST_PATTERNS:
        value = merged(value, range(value.unit.ndim - 1))
        units, first, number = patterns(value, -1)
    made = [_row(value, layer, row.numpy(), same.numpy(), watch) for row, same in zip(units, first, strict=True)]
    channel = torch.arange(layer.outputs)
    unit = number[..., None] * layer.outputs + channel
    if len(units) == 1:
        unit = channel.expand(*number.shape, layer.outputs)
    low, high, terms = (np.concatenate([each[at] for each in made]) for at in (0, 1, 2))
    form = made[0][3] if len(made) == 1 else None
    places: tuple[Tensor, ...] = ()
    if form is not None and value.places:
        places = (value.places[0][..., :1].expand(unit.shape),)
    reason = _reason(value, low, high)
    return Value(unit, low, high, reason, form if places else None, places, order=value.order, terms=terms)


def _reason(value: Value, low: Floats, high: Floats) -> str | None:
    return None if np.isfinite(low).all() and np.isfinite(high).all() else value.why


def _row(value: Value, layer: Layer, units: Any, same: Any, watch: Watch | None) -> tuple[Floats, Floats, Floats, Any]:
    """Bounds, size of the terms, and form of a layer's outputs for one vector of units.

    `same` numbers the entries that share a place.
    """
    form = None if value.form is None else value.form.take(units)
    together = not same.any()
    if isinstance(form, Linear) and together and not form.shrinks:
        made = linear_row(form, layer)
        low, high = made.bounds()
        if watch is not None:
            watch(Outputs(layer, low, high, form))
        return low, high, np.maximum(np.abs(low), np.abs(high)), made
    low, high = interval_product(layer.matrix(), value.low[units], value.high[units])
    terms = np.maximum(np.abs(low), np.abs(high)) + np.abs(layer.shift)
    outputs = Outputs(layer, low, high, None)
    if isinstance(form, Linear):
        below, above = _heads(form, layer, same)
        outputs = Outputs(layer, np.maximum(low, below), np.minimum(high, above), form, heads=True)
        terms = np.minimum(terms, np.maximum(np.abs(below), np.abs(above)) + np.abs(layer.shift))
    elif isinstance(form, (Function, Gated)) and together:
        outputs = neuron_row(form, layer, low, high)
    return *_shifted(outputs, watch), terms, None


def _shifted(outputs: Outputs, watch: Watch | None) -> tuple[Floats, Floats]:
    """With the bias, seen and perhaps tightened."""
    shift = outputs.layer.shift
    outputs.low, outputs.high = widened(outputs.low + shift, outputs.high + shift, np.abs(shift))
    if watch is not None:
        watch(outputs)
    return outputs.low, outputs.high


def linear_row(form: Linear, layer: Layer) -> Linear:
    """The layer of a linear value: linear in the same directions."""
    shift = np.array(layer.shift)
    if form.offset.any():
        step = max(1, 2**22 // max(1, len(form.offset)))
        for start in range(0, layer.outputs, step):
            rows = slice(start, start + step)
            shift[rows] += as_floats(layer.matrix()[rows], "weights") @ form.offset
    every = np.arange(layer.outputs)
    made = ProductRows(layer.matrix, layer.outputs, form, layer)
    return Linear(made, every, np.ones(layer.outputs), shift, ball_of=form.ball_of)


def _heads(form: Linear, layer: Layer, same: Any) -> tuple[Floats, Floats]:
    """Bounds of a layer whose inputs are linear at several places: the sum of what each place can do."""
    low = high = np.zeros(layer.outputs)
    grams: dict[bytes, Floats] = {}
    size = np.zeros(layer.outputs)
    for place in np.unique(same):
        columns = np.flatnonzero(same == place)
        part = form.take(columns)
        key = part.index.tobytes() + part.scale.tobytes()
        if key not in grams:
            rows = part.matrix()
            grams[key] = rows @ rows.T
        weights = as_floats(layer.matrix()[:, torch.from_numpy(columns)], "weights")
        center = weights @ part.offset
        square = np.einsum("ij,ij->i", weights @ grams[key], weights)
        spread = np.einsum("ij,j->i", np.abs(weights), np.sqrt(np.diag(grams[key])))
        # sums of products lose digits where they cancel: as much as the terms are large
        reach = np.sqrt(np.maximum(square, 0.0) + 4 * (len(columns) + form.ball.size) * EPS * spread**2)
        if form.ball.groups > 1:
            reach = spread
        below, above = center - reach, center + reach
        if form.shrinks:
            below, above = np.minimum(below, 0.0), np.maximum(above, 0.0)
        low, high = low + below, high + above
        size = size + np.abs(center) + reach
    slack = (len(same) + 8) * EPS * size
    return low - slack, high + slack


def neuron_row(form: Function | Gated, layer: Layer, low: Floats, high: Floats) -> Outputs:
    """Bounds of a layer that reads neurons: the better of the quadratic ones and of the intervals given."""
    found = activation_of(form) if isinstance(form, Function) else (form.activation, 1.0)
    reader = form.linear if isinstance(form, Function) else form.gate
    count, size = len(reader.index), reader.ball.size
    if found is None or count * size > LARGEST or 12.0 * size * count**2 > MOST_FLOPS:
        return Outputs(layer, low, high, None)
    outputs = Outputs(layer, low, high, form, activation=found[0], factor=found[1])
    below, above = cheap(outputs.neurons(), as_floats(layer.matrix(), "weights") * found[1])
    outputs.low, outputs.high = np.maximum(low, below), np.minimum(high, above)
    return outputs


def experts_of(value: Value, matrices: Sequence[Layer], key: object, watch: Watch | None = None) -> Value:
    """One of several layers applied to every row: that of the expert which the row was sent to."""
    units, first, number = patterns(value, -1)
    if len(units) > 1:
        value = merged(value, range(value.unit.ndim - 1))
        units, first, number = patterns(value, -1)
    row, together = units[0].numpy(), not bool(first[0].any())
    form: Any = None if value.form is None else value.form.take(row)
    lows, highs, parts = [], [], []
    size = np.zeros(matrices[0].outputs)
    rows_of = numbered(number.shape)[..., None]
    sent = isinstance(form, Choice) and form.key is key and bool((value.places[-1] == rows_of).all())
    for expert, layer in enumerate(matrices):
        part = form.parts[expert] if sent else form
        low, high = value.low[row], value.high[row]
        low, high = interval_product(layer.matrix(), low, high)
        outputs, made = Outputs(layer, low, high, None), None
        if together and isinstance(part, Linear) and not part.shrinks:
            made = linear_row(part, layer)
            below, above = made.bounds()
            outputs = Outputs(layer, np.maximum(low, below), np.minimum(high, above), part)
        elif together and isinstance(part, (Function, Gated)):
            outputs = neuron_row(part, layer, low, high)
        size = np.maximum(size, np.maximum(np.abs(low), np.abs(high)))
        low, high = _shifted(outputs, watch)
        lows.append(low)
        highs.append(high)
        parts.append(made)
    channels = matrices[0].outputs
    unit = torch.arange(channels).expand(*number.shape, channels)
    low, high = np.min(lows, axis=0), np.max(highs, axis=0)
    whole = None if any(part is None for part in parts) or not value.places else Choice(key, tuple(parts))
    places = () if whole is None else tuple(each.expand(unit.shape) for each in (value.places[0][..., :1], rows_of))
    return Value(unit, low, high, _reason(value, low, high), whole, places, order=value.order, terms=size)  # type: ignore[arg-type]


def mixture(weights: Value, value: Value) -> Value | None:
    """weights @ value, where the weights are those of a mean; None if they are not, or not of whole columns."""
    shares = weights.form
    length = weights.shape[-1]
    if not isinstance(shares, Shares) or weights.masked:
        return None
    if not parts_of_mean(weights, -1):
        return None
    shape = broadcast(weights.shape[:-2], value.shape[:-2])
    value = value.moved(lambda entry: entry.expand(*shape, *entry.shape[-2:]))
    if not _constant(value.unit, -2):
        value = merged(value, [value.unit.ndim - 2])
    complete = shares.complete and length == shares.count
    out = (*shape, weights.shape[-2], value.shape[-1])

    def spread(entry: Tensor) -> Tensor:
        return entry[..., :1, :].expand(out)

    low, high = value.low * shares.total, value.high * shares.total
    if not complete:
        low, high = np.minimum(low, 0.0), np.maximum(high, 0.0)
    form: Linear | None = None
    places: tuple[Tensor, ...] = ()
    if isinstance(value.form, Linear) and shares.total == 1.0 and value.places and _constant(value.places[0], -1):
        form = replace(value.form, shrinks=value.form.shrinks or not complete, ball_of=mixed(value.form.ball))
        rows = torch.arange(int(np.prod(out[:-1]))).reshape(*out[:-1], 1)
        places = (rows.expand(out),)
    return Value(spread(value.unit), low, high, value.why, form, places)


def parts_of_mean(weights: Value, axis: int) -> bool:
    """Whether the entries along an axis are different weights of one mean."""
    if not isinstance(weights.form, Shares) or not _constant(weights.places[0], axis):
        return False
    rows = weights.form.element[_thin_last(weights.unit.movedim(axis, -1))]
    return all(len(set(each)) == weights.shape[axis] for each in rows)


def mixed(ball: Ball) -> Ball:
    """Mixtures of directions: a ball of their own."""
    return replace(ball, mixes=True)


def _constant(entries: Tensor, axis: int) -> bool:
    """Whether entries do not change along an axis."""
    if entries.shape[axis] <= 1 or entries.stride(axis) == 0:
        return True
    return bool((entries == entries.narrow(axis, 0, 1)).all())


def _thin_last(unit: Tensor) -> Any:
    """The distinct vectors along the last axis."""
    thin = unit[tuple(slice(0, 1) if unit.stride(at) == 0 else slice(None) for at in range(unit.ndim - 1))]
    return torch.unique(thin.reshape(-1, unit.shape[-1]), dim=0).numpy()


def scores_of(one: Value, other: Value, *, many: bool = False) -> Value:
    """one @ other of two values that depend on the input: queries against keys.

    `many`: the sum has more terms for larger inputs.
    """
    shape = broadcast(one.shape[:-2], other.shape[:-2])
    a = one.moved(lambda entry: entry.expand(*shape, *entry.shape[-2:]))
    b = other.moved(lambda entry: entry.expand(*shape, *entry.shape[-2:]))
    if one.order is not None or other.order is not None:
        a, b = a.plain(), b.plain()
    rows, row_places, row_number = patterns(a, -1)
    columns, column_places, column_number = patterns(b, -2)
    pair = row_number[..., :, None] * len(columns) + column_number[..., None, :]
    thin = pair[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in pair.stride())]
    found, inverse = torch.unique(thin, return_inverse=True)
    low, high = np.empty(len(found)), np.empty(len(found))
    unbounded = one.why or other.why or "a product of unbounded values"
    for at, both in enumerate(found.tolist()):
        i, j = divmod(both, len(columns))
        row, column = rows[i].numpy(), columns[j].numpy()
        several = [bool(places.any()) for places in (row_places[i], column_places[j])]
        low[at], high[at] = _score(a, b, row, column, any(several))
        if many and (low[at] < 0 or high[at] > 0):
            low[at], high[at], unbounded = -np.inf, np.inf, MANY_TOKENS
    unit = inverse.reshape(thin.shape).expand(pair.shape)
    return Value(unit, low, high, None if np.isfinite(low).all() and np.isfinite(high).all() else unbounded)


def _score(a: Value, b: Value, row: Any, column: Any, apart: bool) -> tuple[float, float]:
    """Bounds of the product of two vectors: the sum over the parts in which both have one form."""
    parts = np.stack([_part_numbers(value, units) for value, units in ((a, row), (b, column))])
    kinds = np.unique(parts, axis=1)
    found = []
    for kind in kinds.T:
        some = np.flatnonzero((parts == kind[:, None]).all(axis=0))
        found.append(_part_of_score(a, b, row[some], column[some], apart))
    low, high = (float(sum(bounds[side] for bounds in found)) for side in (0, 1))
    slack = 8 * EPS * sum(abs(end) for bounds in found for end in bounds if np.isfinite(end))
    return (low, high) if len(found) == 1 else (low - slack, high + slack)


def _part_numbers(value: Value, units: Any) -> Indices:
    return value.form.part[units] if isinstance(value.form, Parts) else np.zeros(len(units), dtype=np.intp)


def _part_of_score(a: Value, b: Value, row: Any, column: Any, apart: bool) -> tuple[float, float]:
    """Bounds of the product of two vectors, or of the same channels of both."""
    with np.errstate(invalid="ignore", over="ignore"):
        corners = [x * y for x in (a.low[row], a.high[row]) for y in (b.low[column], b.high[column])]
        stacked = np.where(np.isnan(corners), 0.0, corners)  # 0 × infinity: the other corners say how large it can be
        slack = (len(row) + 8) * EPS * np.abs(stacked).max(axis=0).sum()
        low, high = stacked.min(axis=0).sum() - slack, stacked.max(axis=0).sum() + slack
    if not (np.isfinite(low) and np.isfinite(high)):
        low, high = -np.inf, np.inf
    if apart or not (a.form and b.form):
        return float(low), float(high)
    q, k = _turning(a, row, -1), _turning(b, column, -2)
    if q is None or k is None:
        return float(low), float(high)
    (rows_q, offset_q, pairs_q), (rows_k, offset_k, pairs_k) = q, k
    pairs = sorted(set(pairs_q) | set(pairs_k))
    if len({channel for pair in pairs for channel in pair}) != 2 * len(pairs):
        return float(low), float(high)
    grams = rows_q @ rows_q.T, rows_k @ rows_k.T
    found = score_range(*grams, pairs or None, offset_q, offset_k, terms=max(rows_q.shape[1], rows_k.shape[1]))
    return max(float(low), -found.bound), min(float(high), found.bound)


Turning = tuple[Floats, Floats, list[tuple[int, int]]]


def _turning(value: Value, units: Any, axis: int) -> Turning | None:
    """The rows and offsets of a vector before it is rotated, and the pairs of channels that are rotated together."""
    form: Any = value.form.take(units) if value.form is not None else None
    if isinstance(form, Parts):
        form = form.forms[form.part[0]].take(form.index)
    if isinstance(form, Linear) and not form.shrinks:
        return form.matrix(), form.offset, []
    if not isinstance(form, Rotated) or not _at_one_position(value, axis):
        return None
    if form.first.rows is not form.second.rows:
        return None
    # a pair: (cos·x + sin·y, cos·y − sin·x), up to the signs in which both are turned
    first, second = _identity(form.first), _identity(form.second)
    found = {}
    for i in np.flatnonzero(form.turned):
        found[first[i][0], second[i][0], int(form.angle.number[i])] = i
    pairs: list[tuple[int, int]] = []
    for i in np.flatnonzero(form.turned):
        j = found.get((second[i][0], first[i][0], int(form.angle.number[i])))
        if j is None or abs(form.factor[i]) != abs(form.factor[j]):
            return None
        if first[i][1] * second[i][1] == first[j][1] * second[j][1]:
            return None
        if i < j:
            pairs.append((int(i), int(j)))
    return form.first.matrix() * form.factor[:, None], form.first.offset * form.factor, pairs


def _at_one_position(value: Value, axis: int) -> bool:
    """Whether the channels of every vector that are rotated are rotated by the angles of one position."""
    position, form = value.places[1], value.form
    if _constant(position, axis):
        return True
    if isinstance(form, Parts):
        rotates = np.array([isinstance(part, Rotated) and part.turned[at] for part, at in _members(form)])
    else:
        assert isinstance(form, Rotated)
        rotates = form.turned
    turned = torch.from_numpy(rotates)[value.unit]
    seen = torch.where(turned, position, -1).amax(dim=axis, keepdim=True)
    return bool((~turned | (position == seen)).all())


def _members(form: Parts) -> Iterator[tuple[Linear | Rotated, int]]:
    """The form and the place in it of every unit."""
    return ((form.forms[part], int(at)) for part, at in zip(form.part, form.index, strict=True))


def _identity(form: Linear) -> list[tuple[tuple[int, float, float], float]]:
    """What tells linear units apart, without their sign, and the sign."""
    sign = np.where(form.scale < 0, -1.0, 1.0)
    parts = zip(form.index.tolist(), np.abs(form.scale).tolist(), (form.offset * sign).tolist(), strict=True)
    return list(zip(parts, sign.tolist(), strict=True))


def summed(value: Value, axes: Sequence[int], keep: bool, *, mean: bool = False, many: bool = False) -> Value:
    """The sum of entries along axes, or their mean; weighted entries whose weights belong together are a mixture.

    `many`: the sum has more terms for larger inputs.
    """
    axes = sorted(axis % value.unit.ndim for axis in axes)
    members, made = groups_of(value, axes, keep)
    count = members.shape[1]
    form, reason = value.form, value.why
    low = high = None
    if isinstance(form, Weighted) and not mean:
        kept = [axis for axis in range(value.unit.ndim) if axis not in axes]
        place = value.places[0].permute([*kept, *axes]).flatten(len(kept)) if axes else value.places[0]
        elements = form.shares.element[members]
        if _constant(place, -1) and all(len(set(row)) == count for row in elements):
            low, high = form.low[members].min(axis=1), form.high[members].max(axis=1)
            if not form.shares.complete or count < form.shares.count:
                low, high = np.minimum(low, 0.0), np.maximum(high, 0.0)
            low, high = low * form.shares.total, high * form.shares.total
    if low is None or high is None:
        low, high = value.low[members].sum(axis=1), value.high[members].sum(axis=1)
        if mean:
            low, high = low / max(1, count), high / max(1, count)
        finite = [np.where(np.isfinite(end), np.abs(end), 0.0) for end in (value.low, value.high)]
        slack = (count + 8) * EPS * (finite[0] + finite[1])[members].sum(axis=1)
        low = np.where((value.low[members] >= 0).all(axis=1), np.maximum(low - slack, 0.0), low - slack)
        high = high + slack
        least, most = value.low[members].min(axis=1, initial=np.inf), value.high[members].max(axis=1, initial=-np.inf)
        if mean and many:
            low, high = least, most
        elif many:
            low, high = np.where(least < 0, -np.inf, least), np.where(most > 0, np.inf, most)
            reason = value.why or MANY_TOKENS
    return Value(
        made,
        low,
        high,
        None if np.isfinite([low, high]).all() else reason,
        order=value.order if 0 not in axes else None,
    )


def groups_of(value: Value, axes: Sequence[int], keep: bool) -> tuple[Any, Tensor]:
    """The units that an operation over axes takes together: a row for each kind of them, and the entries of rows."""
    axes = sorted(axis % value.unit.ndim for axis in axes)
    kept = [axis for axis in range(value.unit.ndim) if axis not in axes]
    count = int(np.prod([value.unit.shape[axis] for axis in axes]))
    unit = value.unit.permute([*kept, *axes])
    small = tuple(slice(0, 1) if unit.stride(at) == 0 else slice(None) for at in range(len(kept)))
    found, inverse = torch.unique(unit[small].reshape(-1, count), dim=0, return_inverse=True)
    made = inverse.reshape(unit[small].shape[: len(kept)]).expand([value.unit.shape[axis] for axis in kept])
    for axis in axes if keep else ():
        made = made.unsqueeze(axis)
    return found.numpy(), made


def listed(value: Value, key: object) -> Value:
    """A row of a constant table for every entry of an unknown index: the table's rows, one for each expert."""
    table = value.low[value.unit.numpy()]
    flat = table.reshape(len(table), -1)
    unit = torch.arange(flat.shape[1]).reshape(table.shape[1:])
    low, high = flat.min(axis=0), flat.max(axis=0)
    return Value(unit, low, high, form=Listed(key, flat), stored=True)  # type: ignore[arg-type]
