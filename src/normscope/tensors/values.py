"""What is known of one tensor, for all inputs: every entry belongs to a unit, and units have bounds and a form.

    entry ──▶ unit     entries with equal unit have the same bounds: the channel, say, of any token
    entry ──▶ place    entries with equal place depend on the same direction u of a norm: the token, say
    unit  ──▶ [low, high], and a form: linear in u, a function of that, a product of two, rotated, or weights of a mean

`unit` and `place` are integer tensors of the shape of the tensor itself, so that a view, a slice, a transpose or a join
is done to them as to the tensor. Axes along which they do not change have stride 0, and cost nothing.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from normscope.checks import Floats, as_floats
from normscope.tensors.linear_rows import EPS, Indices, Linear, joined, widened

LOWEST = [torch.finfo(kind).min for kind in (torch.float16, torch.bfloat16, torch.float32, torch.float64)]


@dataclass(frozen=True, eq=False)
class Function:
    """Unit i is f(t), t = linear unit i; `steps` is f as a tree of operations on "t"."""

    linear: Linear
    steps: Any

    def take(self, which: Indices) -> "Function":
        return replace(self, linear=self.linear.take(which))


@dataclass(frozen=True, eq=False)
class Gated:
    """Unit i is activation(gate i)·(up i)."""

    activation: str
    gate: Linear
    up: Linear

    def take(self, which: Indices) -> "Gated":
        return replace(self, gate=self.gate.take(which), up=self.up.take(which))


@dataclass(frozen=True, eq=False)
class Angle:
    """Positions times frequencies: numbers of which nothing is known but that cos² + sin² is 1."""

    space: object  # equal numbers within equal spaces are equal angles, at one place
    number: Indices

    def take(self, which: Indices) -> "Angle":
        return replace(self, number=self.number[which])

    def times(self, factor: Floats) -> "Angle":
        """Angles of the same positions, with other frequencies."""
        return Angle((self.space, self.number.tobytes(), factor.tobytes()), np.arange(len(factor)))


@dataclass(frozen=True, eq=False)
class Wave:
    """Unit i is factor·cos or factor·sin of an angle."""

    angle: Angle
    is_sine: bool
    factor: Floats

    def take(self, which: Indices) -> "Wave":
        return replace(self, angle=self.angle.take(which), factor=self.factor[which])


@dataclass(frozen=True, eq=False)
class Turned:
    """Unit i is a linear unit times a wave."""

    linear: Linear
    wave: Wave

    def take(self, which: Indices) -> "Turned":
        return Turned(self.linear.take(which), self.wave.take(which))


@dataclass(frozen=True, eq=False)
class Rotated:
    """Unit i is factor·(cos φ·first + sin φ·second), with the angle φ of a position: a rotary embedding.

    Where `turned` is False the channel is left as it is: factor·first.
    """

    first: Linear
    second: Linear
    angle: Angle
    factor: Floats
    turned: "np.ndarray[Any, np.dtype[np.bool_]]"

    def take(self, which: Indices) -> "Rotated":
        parts = self.first.take(which), self.second.take(which), self.angle.take(which)
        return Rotated(*parts, self.factor[which], self.turned[which])

    @classmethod
    def still(cls, linear: Linear, space: object) -> "Rotated":
        """Channels that a rotary embedding leaves as they are."""
        count = len(linear.index)
        angle = Angle(space, np.full(count, -1))
        return cls(linear, linear, angle, np.ones(count), np.zeros(count, dtype=bool))


@dataclass(frozen=True, eq=False)
class Shares:
    """Weights of a mean: at each place `count` elements, none negative; unit i is element[i]."""

    element: Indices
    count: int
    total: float
    complete: bool = True  # all of them together are `total`; otherwise at most that

    def take(self, which: Indices) -> "Shares":
        return replace(self, element=self.element[which])


@dataclass(frozen=True, eq=False)
class Parts:
    """Unit i is unit index[i] of one of several forms, which have directions of their own: channels of two norms."""

    forms: "tuple[Linear | Rotated, ...]"
    part: Indices
    index: Indices

    def take(self, which: Indices) -> "Parts":
        return replace(self, part=self.part[which], index=self.index[which])

    @classmethod
    def joined(cls, forms: "Sequence[Form | None]") -> "Parts | None":
        """Linear or rotated forms, or parts, one after the other."""
        known: list[Linear | Rotated] = []
        part, index = [], []
        for form in forms:
            if isinstance(form, Parts):
                part.append(form.part + len(known))
                index.append(form.index)
                known += form.forms
            elif isinstance(form, (Linear, Rotated)):
                count = len((form.first if isinstance(form, Rotated) else form).index)
                part.append(np.full(count, len(known)))
                index.append(np.arange(count))
                known.append(form)
            else:
                return None
        return cls(tuple(known), np.concatenate(part), np.concatenate(index))


Form = Linear | Function | Gated | Angle | Wave | Turned | Rotated | Shares | Parts


@dataclass(frozen=True, eq=False)
class Value:
    """A floating-point tensor. Where bounds are infinite, `why` says because of what."""

    unit: Tensor
    low: Floats
    high: Floats
    why: str | None = None
    form: Form | None = None
    places: tuple[Tensor, ...] = ()  # of u, and of the angle where there is one
    masked: bool = False  # entries may also be anything below, down to minus infinity
    order: object = None  # the unknown permutation that its first axis is in, if any
    stored: bool = False  # made of parameters
    terms: Floats | None = None  # the sum of the sizes of what was added up, where that is more than the bounds
    depth: int = 1  # roundings between a norm, or an input, and this

    @property
    def exact(self) -> bool:
        """Whether the values themselves are known: a constant."""
        return self.low is self.high

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.unit.shape)

    @property
    def size(self) -> Floats:
        """How large a number can be, and what was added up to make it: rounding errors are relative to this."""
        largest = np.maximum(np.abs(self.low), np.abs(self.high))
        return largest if self.terms is None else np.maximum(largest, self.terms)

    def moved(self, move: Callable[[Tensor], Tensor]) -> "Value":
        """The same after an operation that only picks and arranges entries."""
        return replace(self, unit=move(self.unit), places=tuple(move(place) for place in self.places))

    def plain(self) -> "Value":
        """Without its form."""
        return replace(self, form=None, places=())

    def opened(self) -> "Value":
        """With masked entries within the bounds."""
        if not self.masked:
            return self
        low = np.full(len(self.low), -np.inf)
        return replace(self.plain(), low=low, high=self.high.copy(), why=self.why or "masked entries", masked=False)

    def taken(self, which: Indices, unit: Tensor) -> "Value":
        """Units renumbered: unit k of the result is unit which[k]; places must have its shape already."""
        low = self.low[which]
        return replace(
            self,
            unit=unit,
            low=low,
            high=low if self.exact else self.high[which],
            form=None if self.form is None else self.form.take(which),
            terms=None if self.terms is None else self.terms[which],
        )

    def hull(self) -> tuple[float, float]:
        used = np.unique(_thin(self.unit).numpy())
        return float(self.low[used].min(initial=np.inf)), float(self.high[used].max(initial=-np.inf))


@dataclass(frozen=True, eq=False)
class Whole:
    """A tensor of whole numbers or truth values: its values where they are known for the traced call.

    `varies`: known for this call, but it follows from the length of the input. `order`: the values are those for one
    order of the rows, and the real order is an unknown permutation of it.
    """

    shape: tuple[int, ...]
    known: Tensor | None = None
    varies: bool = False
    order: object = None
    inverse_of: object = None


def constant(values: Any, *, stored: bool = False) -> Value:
    """A tensor of known numbers."""
    numbers = (
        values.detach().cpu().double() if isinstance(values, Tensor) else torch.tensor(values, dtype=torch.float64)
    )
    low = numbers.reshape(-1).numpy()
    return Value(torch.arange(low.size).reshape(numbers.shape), low, low, stored=stored)


def numbered(shape: Sequence[int], axis: int | None = None) -> Tensor:
    """A number for every entry; with an axis, the same for all entries along it."""
    sizes = [1 if at == axis else size for at, size in enumerate(shape)]
    return torch.arange(math.prod(sizes)).reshape(sizes).expand(tuple(shape))


def mask_of(values: Floats) -> "np.ndarray[Any, np.dtype[np.bool_]]":
    """Which numbers are the lowest of a type: those with which masks are written."""
    return np.asarray(np.isin(values, LOWEST) | (values == -np.inf))


def anything(shape: Sequence[int], why: str) -> Value:
    """A tensor of which nothing is known."""
    return Value(torch.zeros((), dtype=torch.int64).expand(tuple(shape)), np.array([-np.inf]), np.array([np.inf]), why)


def within(shape: Sequence[int], low: float, high: float, why: str | None = None) -> Value:
    """A tensor with the same bounds everywhere."""
    return Value(torch.zeros((), dtype=torch.int64).expand(tuple(shape)), np.array([low]), np.array([high]), why)


def aligned(values: Sequence[Value]) -> tuple[Tensor, list[Value]]:
    """Values broadcast to one shape and renumbered so that all have the same units; these, and the new values."""
    shape = broadcast(*(value.shape for value in values))
    moved = [_unordered(value, shape).moved(lambda entry: entry.expand(shape)) for value in values]
    still = [all(value.unit.stride(axis) == 0 or size == 1 for value in moved) for axis, size in enumerate(shape)]
    small = tuple(slice(0, 1) if flat else slice(None) for flat in still)
    key = torch.zeros((), dtype=torch.int64)
    for value in moved:
        key = key * max(1, len(value.low)) + value.unit[small]
    found, inverse = torch.unique(key, return_inverse=True)
    unit = inverse.reshape(key.shape).expand(shape)
    renumbered: list[Value] = []
    rest = found
    for value in reversed(moved):
        count = max(1, len(value.low))
        renumbered.insert(0, value.taken((rest % count).numpy(), unit))
        rest = rest // count
    return unit, renumbered


def broadcast(*shapes: Sequence[int]) -> tuple[int, ...]:
    return tuple(torch.broadcast_shapes(*shapes))  # type: ignore[no-untyped-call]


def _unordered(value: Value, shape: tuple[int, ...]) -> Value:
    """A value without its order where it gets a new first axis, which is not the rows that are in that order."""
    if value.order is None or value.unit.ndim == len(shape):
        return value
    return replace(value.plain(), order=None)


def joined_values(values: Sequence[Value], join: Callable[[list[Tensor]], Tensor]) -> Value:
    """The values of a cat or stack: units one after the other."""
    starts = np.cumsum([0, *(len(value.low) for value in values)])
    unit = join([value.unit + int(start) for value, start in zip(values, starts, strict=False)])
    low = np.concatenate([value.low for value in values])
    high = low if all(value.exact for value in values) else np.concatenate([value.high for value in values])
    values = _with_still_channels(values)
    orders = {value.order for value in values}
    form: Form | None = None
    if len(orders) == 1:
        form = _joined_form(values) or Parts.joined([value.form for value in values])
    places: tuple[Tensor, ...] = ()
    if form is not None and len({len(value.places) for value in values}) == 1:
        places = tuple(join(list(parts)) for parts in zip(*(value.places for value in values), strict=True))
    return Value(
        unit,
        low,
        high,
        next((value.why for value in values if value.why), None),
        form if places else None,
        places,
        any(value.masked for value in values),
        orders.pop() if len(orders) == 1 else None,
        stored=any(value.stored for value in values),
        terms=None
        if all(value.terms is None for value in values)
        else np.concatenate([value.size for value in values]),
    )


def _joined_form(values: Sequence[Value]) -> Form | None:
    forms = [value.form for value in values]
    first = forms[0]
    if first is None or any(type(form) is not type(first) for form in forms):
        return None
    if isinstance(first, Linear):
        return joined(forms)  # type: ignore[arg-type]
    if isinstance(first, Angle) and all(form.space == first.space for form in forms):  # type: ignore[union-attr]
        return replace(first, number=np.concatenate([form.number for form in forms]))  # type: ignore[union-attr]
    if isinstance(first, Rotated):
        parts = [form for form in forms if isinstance(form, Rotated)]
        both = joined([*(form.first for form in parts), *(form.second for form in parts)])
        if both is not None and all(form.angle.space == first.angle.space for form in parts):
            one, two = (both.take(half) for half in np.split(np.arange(len(both.index)), 2))
            number = np.concatenate([form.angle.number for form in parts])
            factor = np.concatenate([form.factor for form in parts])
            turned = np.concatenate([form.turned for form in parts])
            return Rotated(one, two, replace(first.angle, number=number), factor, turned)
    return None


def _with_still_channels(values: Sequence[Value]) -> Sequence[Value]:
    """Beside rotated channels, linear ones become channels that are rotated by nothing."""
    space = next((value.form.angle.space for value in values if isinstance(value.form, Rotated)), None)
    if space is None or not all(isinstance(value.form, (Rotated, Linear)) for value in values):
        return values
    return [
        replace(value, form=Rotated.still(value.form, space), places=(*value.places, torch.zeros_like(value.places[0])))
        if isinstance(value.form, Linear)
        else value
        for value in values
    ]


def patterns(value: Value, axis: int) -> tuple[Tensor, Tensor, Tensor]:
    """Vectors along an axis that differ in units, or in which of their entries share a place.

    Returns the distinct vectors of units (patterns × length), the same of places (the first entry with the same place),
    and for every vector the number of its pattern, in the shape of the value without that axis.
    """
    unit = value.unit.movedim(axis, -1)
    length = unit.shape[-1]
    place = value.places[0].movedim(axis, -1) if value.places else torch.zeros((), dtype=torch.int64).expand(unit.shape)
    lead = [slice(0, 1) if unit.stride(at) == 0 and _same_places(place) else slice(None) for at in range(unit.ndim - 1)]
    thin_unit, thin_place = unit[tuple(lead)], place[tuple(lead)]
    rows = thin_unit.reshape(-1, length)
    if _same_places(place):
        first = torch.zeros_like(rows)
    else:
        own = thin_place.reshape(-1, length)
        equal = own[:, :, None] == own[:, None, :] if length <= 256 else None
        first = equal.int().argmax(dim=2) if equal is not None else _first_equal(own)
    both = torch.cat([rows, first], dim=1)
    found, inverse = torch.unique(both, dim=0, return_inverse=True)
    number = inverse.reshape(thin_unit.shape[:-1]).expand(unit.shape[:-1])
    return found[:, :length], found[:, length:], number


def _same_places(place: Tensor) -> bool:
    """Whether all entries along the last axis are at one place."""
    return place.shape[-1] <= 1 or place.stride(-1) == 0 or bool((place == place[..., :1]).all())


def _first_equal(own: Tensor) -> Tensor:
    """For every entry the number of the first entry of its row that is equal to it."""
    numbers = own.numpy()
    made = np.empty_like(numbers)
    for at, row in enumerate(numbers):
        _, first, inverse = np.unique(row, return_index=True, return_inverse=True)
        made[at] = first[inverse]
    return torch.from_numpy(made)


def merged(value: Value, axes: Sequence[int]) -> Value:
    """Entries along these axes get common bounds, so that the bounds do not depend on where an entry is there."""
    axes = [axis % value.unit.ndim for axis in axes]
    kept = [axis for axis in range(value.unit.ndim) if axis not in axes]
    if all(value.unit.stride(axis) == 0 or value.unit.shape[axis] == 1 for axis in axes):
        return value
    rows = value.unit.permute([*kept, *axes]).reshape(-1, math.prod(value.unit.shape[axis] for axis in axes))
    found, inverse = torch.unique(rows, dim=0, return_inverse=True)
    low, high = value.low[found.numpy()].min(axis=1), value.high[found.numpy()].max(axis=1)
    unit = inverse.reshape([value.unit.shape[axis] for axis in kept])
    for axis in sorted(axes):
        unit = unit.unsqueeze(axis)
    return Value(unit.expand(value.unit.shape), low, high, value.why, masked=value.masked, order=value.order)


def _thin(entries: Tensor) -> Tensor:
    """Without the repetitions along axes of stride 0."""
    return entries[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in entries.stride())]


def interval_product(matrix: Any, low: Floats, high: Floats) -> tuple[Floats, Floats]:
    """Bounds of W·x for low ≤ x ≤ high, in blocks of rows."""
    infinite = ~(np.isfinite(low) & np.isfinite(high))
    middle = np.where(infinite, 0.0, (np.where(infinite, 0.0, low) + np.where(infinite, 0.0, high)) / 2)
    half = np.where(infinite, 0.0, (np.where(infinite, 0.0, high) - np.where(infinite, 0.0, low)) / 2)
    lows, highs = np.empty(len(matrix)), np.empty(len(matrix))
    step = max(1, 2**22 // max(1, len(low)))
    for start in range(0, len(matrix), step):
        rows = slice(start, min(start + step, len(matrix)))
        block = as_floats(matrix[rows], "weights")
        size = np.abs(block)
        center, reach = block @ middle, size @ half
        slack = (len(low) + 8) * EPS * (size @ np.abs(middle) + reach)
        lows[rows], highs[rows] = center - reach - slack, center + reach + slack
        lost = (block[:, infinite] != 0).any(axis=1)
        lows[rows], highs[rows] = np.where(lost, -np.inf, lows[rows]), np.where(lost, np.inf, highs[rows])
    return widened(lows, highs, 0.0)
