"""What remains of the form of values after operations on their entries, and the bounds that a form gives.

linear ± constant, linear × constant      linear
f(linear), f(linear)·g(same linear)       a function of one linear unit, recognised as an activation by its values
activation(linear)·linear                 gated
linear·cos φ ± linear′·sin φ              rotated
entry of one expert                       a choice of forms, or a list of numbers
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from normscope.bounds.activations import ACTIVATIONS
from normscope.checks import Floats
from normscope.tensors.interval_arithmetic import Bounds
from normscope.tensors.linear_rows import Indices, Linear
from normscope.tensors.values import Angle, Function, Gated, Rotated, Shares, Turned, Value, Wave, broadcast

Steps = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Listed:
    """Unit i is one of the numbers values[:, i]: those of the expert that a token was sent to. Places are rows."""

    key: object
    values: Floats

    def take(self, which: Indices) -> "Listed":
        return replace(self, values=self.values[:, which])


@dataclass(frozen=True, eq=False)
class Choice:
    """Unit i is unit i of one of the parts: that of the expert that a token was sent to. The last places are rows."""

    key: object
    parts: tuple[Any, ...]

    def take(self, which: Indices) -> "Choice":
        return replace(self, parts=tuple(part.take(which) for part in self.parts))


@dataclass(frozen=True, eq=False)
class Weighted:
    """Unit i is an entry within [low, high], times a weight."""

    shares: Shares
    low: Floats
    high: Floats

    def take(self, which: Indices) -> "Weighted":
        return replace(self, shares=self.shares.take(which), low=self.low[which], high=self.high[which])


@dataclass(frozen=True, eq=False)
class Total:
    """The sum of all entries of a value along an axis, or that and something more; places number the sums."""

    of: object
    axis: int
    exact: bool = True

    def take(self, which: Indices) -> "Total":
        return self


@dataclass(frozen=True, eq=False)
class Squares:
    """Squares of a value's entries, their mean over its last axis, that plus eps, or one over its root.

    Places number the entries, or the means.
    """

    of: object  # what tells the value apart
    count: int = 0  # entries of the mean
    inverted: bool = False

    def take(self, which: Indices) -> "Squares":
        return self


CONFLICT = object()  # the rows of two values are in different unknown orders


def applied(form: Any, apply: Steps) -> Any:
    if isinstance(form, Choice):
        parts = tuple(applied(part, apply) for part in form.parts)
        return None if None in parts else Choice(form.key, parts)
    if isinstance(form, Linear) and not form.shrinks:
        return Function(form, apply)
    if isinstance(form, Function):
        before = form.steps
        return Function(form.linear, lambda t: apply(before(t)))
    return None


def scaled(form: Any, factor: Floats) -> Any:  # noqa: PLR0911  (a line for each form)
    if isinstance(form, Choice):
        parts = tuple(scaled(part, factor) for part in form.parts)
        return None if None in parts else Choice(form.key, parts)
    if isinstance(form, Linear):
        return form.times(factor)
    if isinstance(form, Gated):
        return replace(form, up=form.up.times(factor))
    if isinstance(form, Wave):
        return replace(form, factor=form.factor * factor)
    if isinstance(form, Rotated):
        return replace(form, factor=form.factor * factor)
    if isinstance(form, Turned):
        return Turned(form.linear.times(factor), form.wave)
    if isinstance(form, Function) and (factor == factor[0]).all():
        before, number = form.steps, float(factor[0])
        return Function(form.linear, lambda t: before(t) * number)
    if isinstance(form, Angle):
        return form.times(factor)
    if isinstance(form, Shares) and (factor == factor[0]).all() and factor[0] > 0:
        return replace(form, total=form.total * float(factor[0]))
    if isinstance(form, Listed):
        return replace(form, values=form.values * factor)
    return None


def sum_form(a: Value, b: Value, apply: Callable[[Any, Any], Any]) -> tuple[Any, tuple[Tensor, ...]]:
    if a.exact or b.exact:
        value, shift = (b, a) if a.exact else (a, b)
        return _shifted(value.form, shift.low), value.places
    for choice, rows in ((a, b), (b, a)):
        if isinstance(choice.form, Choice) and isinstance(rows.form, Listed):
            same = same_entries(choice.places[-1], rows.places[0])
            return _listed_sum(choice.form, rows.form) if same else None, choice.places
    if not _same_places(a, b):
        return None, ()
    return _both(a.form, b.form, apply, _turned_sum), a.places


def _shifted(form: Any, shift: Floats) -> Any:  # noqa: PLR0911  (a line for each form)
    if isinstance(form, Choice):
        parts = tuple(_shifted(part, shift) for part in form.parts)
        return None if None in parts else Choice(form.key, parts)
    if isinstance(form, Linear) and not form.shrinks:
        return form.plus(shift)
    if isinstance(form, Total) and (shift >= 0).all():
        return replace(form, exact=form.exact and not shift.any())
    if isinstance(form, Squares) and form.count and not form.inverted and (shift >= 0).all():
        return form
    if isinstance(form, Angle) and not shift.any():
        return form
    if isinstance(form, Function) and (shift == shift[0]).all():
        before, number = form.steps, float(shift[0])
        return Function(form.linear, lambda t: before(t) + number)
    return None


def _listed_sum(choice: Choice, listed: Listed) -> Any:
    if choice.key is not listed.key or len(choice.parts) != len(listed.values):
        return None
    parts = tuple(
        part.plus(values) if isinstance(part, Linear) and not part.shrinks else None
        for part, values in zip(choice.parts, listed.values, strict=True)
    )
    return None if None in parts else Choice(choice.key, parts)


def product_form(a: Value, b: Value, apply: Callable[[Any, Any], Any]) -> tuple[Any, tuple[Tensor, ...]]:
    for value, wave in ((a, b), (b, a)):
        if isinstance(value.form, Linear) and isinstance(wave.form, Wave):
            return Turned(value.form, wave.form), (*value.places[:1], *wave.places[:1])
    for value, weights in ((a, b), (b, a)):
        if isinstance(weights.form, Shares) and order_of(a, b) is not CONFLICT:
            return Weighted(weights.form, value.low, value.high), weights.places
    if not _same_places(a, b):
        return None, ()
    return _both(a.form, b.form, apply, _gated), a.places


def _both(one: Any, other: Any, apply: Callable[[Any, Any], Any], else_: Callable[[Any, Any], Any]) -> Any:
    """The form of an operation on two forms at the same places."""
    if isinstance(one, Choice) and isinstance(other, Choice):
        if one.key is not other.key or len(one.parts) != len(other.parts):
            return None
        parts = tuple(_both(x, y, apply, else_) for x, y in zip(one.parts, other.parts, strict=True))
        return None if None in parts else Choice(one.key, parts)
    first, second = _as_function(one), _as_function(other)
    if first is not None and second is not None and (k := first.linear.multiple(second.linear)) is not None:
        f, g = first.steps, second.steps
        if k and second.linear.scale[0] == 1.0:  # 0.5·t·(1 + tanh …) is a function of t, not of t/2
            return Function(second.linear, lambda t: apply(f(t / k), g(t)))
        return Function(first.linear, lambda t: apply(f(t), g(k * t)))
    return else_(one, other)


def _as_function(form: Any) -> Function | None:
    if isinstance(form, Function):
        return form
    return Function(form, lambda t: t) if isinstance(form, Linear) and not form.shrinks else None


def _gated(one: Any, other: Any) -> Gated | None:
    for gate, up in ((one, other), (other, one)):
        if not isinstance(up, Linear) or up.shrinks:
            continue
        function = _as_function(gate)
        if function is None or function.linear.ball is not up.ball:
            continue
        found = activation_of(function)
        if found is not None:
            return Gated(found[0], function.linear, up.times(np.full(len(up.index), found[1])))
    return None


def _turned_sum(one: Any, other: Any) -> Rotated | None:
    if not (isinstance(one, Turned) and isinstance(other, Turned)) or one.wave.is_sine == other.wave.is_sine:
        return None
    cosine, sine = (other, one) if one.wave.is_sine else (one, other)
    same = cosine.wave.angle.space == sine.wave.angle.space
    if not same or not np.array_equal(cosine.wave.angle.number, sine.wave.angle.number):
        return None
    if not np.array_equal(cosine.wave.factor, sine.wave.factor) or cosine.linear.ball is not sine.linear.ball:
        return None
    turned = np.ones(len(cosine.wave.factor), dtype=bool)
    return Rotated(cosine.linear, sine.linear, cosine.wave.angle, cosine.wave.factor, turned)


def activation_of(function: Function) -> tuple[str, float] | None:
    """The activation that a function of one number is, and a factor; recognised by its values at many points."""
    grid = _grid()
    try:
        values = function.steps(grid).numpy()
    except (RuntimeError, TypeError):
        return None
    for name, activation in ACTIVATIONS.items():
        known = activation.value(grid.numpy())
        largest = int(np.argmax(np.abs(known)))
        factor = float(values[largest] / known[largest])
        if np.isfinite(factor) and np.allclose(values, factor * known, rtol=1e-11, atol=1e-12 * max(1.0, abs(factor))):
            return name, float(np.float64(round(factor, 12))) if abs(factor - round(factor, 12)) < 1e-13 else factor
    return None


@cache
def _grid() -> Tensor:
    """Points at which functions are compared, denser around 0, and far beyond limits at which a function may change."""
    generator = torch.Generator().manual_seed(0)
    near = 6 * torch.rand(400, generator=generator, dtype=torch.float64) - 3
    far = 40 * torch.rand(200, generator=generator, dtype=torch.float64) - 20
    large = torch.logspace(1.3, 8, 50, dtype=torch.float64)
    return torch.cat([near, far, large, -large, torch.tensor([0.0, 1.0, -1.0, 0.5], dtype=torch.float64)])


def _same_places(a: Value, b: Value) -> bool:
    """Whether every entry of both is at the same places."""
    if a.form is None or b.form is None or len(a.places) != len(b.places) or order_of(a, b) is CONFLICT:
        return False
    return all(same_entries(x, y) for x, y in zip(a.places, b.places, strict=True))


def same_entries(x: Tensor, y: Tensor) -> bool:
    shape = broadcast(x.shape, y.shape)
    x, y = x.expand(shape), y.expand(shape)
    thin = tuple(slice(0, 1) if x.stride(at) == 0 and y.stride(at) == 0 else slice(None) for at in range(x.ndim))
    return bool((x[thin] == y[thin]).all())


def order_of(a: Value, b: Value) -> object:
    if a.order is b.order:
        return a.order
    for value, rest in ((a, b), (b, a)):
        alike = not value.places or isinstance(value.form, Listed)  # rows of a list are those of the rest
        if value.order is None and alike and (value.unit.shape[0] == 1 or value.unit.stride(0) == 0):
            return rest.order  # the same in every row
    return CONFLICT


def form_bounds(form: Any) -> Bounds:
    """Bounds of units from their form alone."""
    if isinstance(form, Choice):
        found = [form_bounds(part) for part in form.parts]
        return np.min([low for low, _ in found], axis=0), np.max([high for _, high in found], axis=0)
    if isinstance(form, Linear):
        return form.bounds()
    if isinstance(form, Listed):
        return form.values.min(axis=0), form.values.max(axis=0)
    if isinstance(form, Gated):
        return _gated_bounds(form)
    count = len(form.linear.index) if isinstance(form, Function) else 0
    return np.full(count, -np.inf), np.full(count, np.inf)


def _gated_bounds(form: Gated) -> Bounds:
    """Bounds of gated units, some rows at a time."""
    from normscope.bounds.neurons import hidden_range
    from normscope.certificates.neuron_certificates import Neurons

    count = len(form.gate.index)
    low, high = np.empty(count), np.empty(count)
    step = max(1, 2**21 // max(1, form.gate.ball.size))
    for start in range(0, count, step):
        some = np.arange(start, min(start + step, count))
        gate, up = form.gate.take(some), form.up.take(some)
        neurons = Neurons(form.activation, gate.matrix(), gate.offset, up.matrix(), up.offset)
        low[some], high[some] = hidden_range(neurons)
    return low, high


def rotated_bounds(form: Rotated) -> Bounds:
    """Bounds of rotated units over all angles."""
    from normscope.bounds.attention_scores import rotary_range

    count = len(form.factor)
    top = np.empty(count)
    step = max(1, 2**21 // max(1, form.first.ball.size))
    for start in range(0, count, step):
        some = np.arange(start, min(start + step, count))
        one, two = form.first.take(some), form.second.take(some)
        a, b = one.matrix(), two.matrix()
        top[some] = rotary_range(
            np.sum(a * a, axis=1),
            np.sum(b * b, axis=1),
            np.sum(a * b, axis=1),
            one.offset,
            two.offset,
            terms=a.shape[1],
        )
    reach = np.abs(form.factor) * top  # angles φ and φ + π give opposite values
    if form.turned.all():
        return -reach, reach
    low, high = form.first.times(form.factor).bounds()
    return np.where(form.turned, -reach, low), np.where(form.turned, reach, high)
