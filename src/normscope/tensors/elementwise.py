"""Operations that act entry by entry: bounds by interval arithmetic, and what remains of a value's form.

linear ± constant, linear × constant      linear
f(linear), f(linear)·g(same linear)       a function of one linear unit, recognised as an activation by its values
activation(linear)·linear                 gated
linear·cos φ ± linear′·sin φ              rotated
x / sum of x,  x ≥ 0                      weights of a mean
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import torch
from scipy.special import expit
from torch import Tensor

from normscope.bounds.activations import ACTIVATIONS
from normscope.checks import Floats
from normscope.tensors.linear_rows import EPS, Indices, Linear, widened
from normscope.tensors.values import (
    Angle,
    Function,
    Gated,
    Rotated,
    Shares,
    Turned,
    Value,
    Wave,
    aligned,
    broadcast,
    mask_of,
    numbered,
)

Steps = Callable[[Tensor], Tensor]
Bounds = tuple[Floats, Floats]
LARGE = 1e150


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


# ---- one value ---------------------------------------------------------------------------------------------------


def unary(kind: str, apply: Steps, value: Value) -> Value:
    """An operation on every entry; `apply` computes it."""
    if value.exact:
        low = high = apply(torch.from_numpy(value.low)).numpy()
    else:
        low, high = INTERVALS[kind](value.low, value.high)
    changed = replace(value.plain(), low=low, high=high, terms=None)
    if np.isfinite(changed.low).all() and np.isfinite(changed.high).all():
        changed = replace(changed, why=None)
    form = value.form
    if kind == "neg" and form is not None:
        return times(value, -np.ones(len(value.low)))
    if isinstance(form, Angle) and kind in ("cos", "sin"):
        wave = Wave(form, kind == "sin", np.ones(len(low)))
        return replace(changed, form=wave, places=value.places, why=None)
    return _noted(changed, _applied(form, apply), value.places)


def _noted(value: Value, form: Any, places: tuple[Tensor, ...]) -> Value:
    """The value with its form, if there is one."""
    return value.plain() if form is None else replace(value, form=form, places=places)


def _applied(form: Any, apply: Steps) -> Any:
    if isinstance(form, Choice):
        parts = tuple(_applied(part, apply) for part in form.parts)
        return None if None in parts else Choice(form.key, parts)
    if isinstance(form, Linear) and not form.shrinks:
        return Function(form, apply)
    if isinstance(form, Function):
        before = form.steps
        return Function(form.linear, lambda t: apply(before(t)))
    return None


def _monotone(function: Callable[[Floats], Floats]) -> Callable[[Floats, Floats], Bounds]:
    def bounds(low: Floats, high: Floats) -> Bounds:
        with np.errstate(all="ignore"):
            return widened(function(low), function(high), 0.0)

    return bounds


def _activation(name: str) -> Callable[[Floats, Floats], Bounds]:
    """Bounds of an activation that goes to 0 on the left and grows without bound on the right."""

    def bounds(low: Floats, high: Floats) -> Bounds:
        below, above = ACTIVATIONS[name].range(np.clip(low, -LARGE, LARGE), np.clip(high, -LARGE, LARGE))
        return np.where(low == np.inf, np.inf, below), np.where(high > LARGE, np.inf, above)

    return bounds


def _falling(function: Callable[[Floats], Floats]) -> Callable[[Floats, Floats], Bounds]:
    rising = _monotone(lambda x: -function(x))

    def bounds(low: Floats, high: Floats) -> Bounds:
        below, above = rising(low, high)
        return -above, -below

    return bounds


def _absolute(low: Floats, high: Floats) -> Bounds:
    across = (low <= 0) & (high >= 0)
    ends = np.minimum(np.abs(low), np.abs(high)), np.maximum(np.abs(low), np.abs(high))
    return np.where(across, 0.0, ends[0]), ends[1]


def _square(low: Floats, high: Floats) -> Bounds:
    least, most = _absolute(low, high)
    with np.errstate(over="ignore"):
        low, high = widened(least**2, most**2, 0.0)
    return np.maximum(low, 0.0), high


def _wave(low: Floats, high: Floats) -> Bounds:
    return np.full(len(low), -1.0), np.full(len(low), 1.0)


def _reciprocal(low: Floats, high: Floats) -> Bounds:
    across = (low <= 0) & (high >= 0)
    with np.errstate(divide="ignore"):
        a, b = 1 / np.where(across, 1.0, low), 1 / np.where(across, 1.0, high)
    below, above = widened(np.minimum(a, b), np.maximum(a, b), 0.0)
    # zero at one end of the interval leaves the other side bounded
    after, before = 1 / np.where(high > 0, high, np.inf), 1 / np.where(low < 0, low, -np.inf)
    below = np.where(across, np.where(low == 0, after * (1 - EPS), -np.inf), below)
    above = np.where(across, np.where((high == 0) & (low < 0), before * (1 - EPS), np.inf), above)
    return below, above


def _erf(x: Floats) -> Floats:
    made: Floats = torch.erf(torch.from_numpy(np.asarray(x, dtype=float))).numpy()
    return made


def _nonnegative(function: Callable[[Floats], Floats]) -> Callable[[Floats], Floats]:
    return lambda x: function(np.maximum(x, 0.0))


def _log(x: Floats) -> Floats:
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(np.maximum(x, 0.0)))


def _rsqrt(x: Floats) -> Floats:
    with np.errstate(divide="ignore"):
        return np.asarray(1 / np.sqrt(np.maximum(x, 0.0)))


INTERVALS: dict[str, Callable[[Floats, Floats], Bounds]] = {
    "neg": lambda low, high: (-high, -low),
    "relu": _monotone(lambda x: np.maximum(x, 0.0)),
    "tanh": _monotone(np.tanh),
    "sigmoid": _monotone(expit),
    "exp": _monotone(np.exp),
    "erf": _monotone(_erf),
    "log": _monotone(_log),
    "log1p": _monotone(lambda x: np.log1p(np.maximum(x, -1.0))),
    "sqrt": _monotone(_nonnegative(np.sqrt)),
    "rsqrt": _falling(_rsqrt),
    "softplus": _monotone(lambda x: np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))),
    "log_sigmoid": _monotone(lambda x: np.minimum(x, 0) - np.log1p(np.exp(-np.abs(x)))),
    "floor": lambda low, high: (np.floor(low), np.floor(high)),
    "ceil": lambda low, high: (np.ceil(low), np.ceil(high)),
    "sign": lambda low, high: (np.sign(low), np.sign(high)),
    "abs": _absolute,
    "square": _square,
    "reciprocal": _reciprocal,
    "cos": _wave,
    "sin": _wave,
    "silu": _activation("silu"),
    "gelu": _activation("gelu"),
    "gelu_tanh": _activation("gelu_tanh"),
}


def power(value: Value, exponent: float, apply: Steps) -> Value:
    """value ** exponent, for whole and half exponents."""
    if exponent == 2:
        return unary("square", apply, value)
    if exponent == 0.5:
        return unary("sqrt", apply, value)
    if exponent == -0.5:
        return unary("rsqrt", apply, value)
    if exponent == int(exponent) and exponent > 0:
        n = int(exponent)
        low, high = _absolute(value.low, value.high) if n % 2 == 0 else (value.low, value.high)
        with np.errstate(over="ignore"):
            low, high = widened(low**n, high**n, 0.0)
    else:
        low, high = np.full(len(value.low), -np.inf), np.full(len(value.low), np.inf)
        return replace(value.plain(), low=low, high=high, why=value.why or f"a power of {exponent:g}")
    return _noted(replace(value, low=low, high=high, terms=None), _applied(value.form, apply), value.places)


def clamped(value: Value, least: float | None, most: float | None, apply: Steps) -> Value:
    """Entries limited to [least, most]."""
    low = np.clip(value.low, least, most) if (least, most) != (None, None) else value.low
    high = np.clip(value.high, least, most) if (least, most) != (None, None) else value.high
    finite = np.isfinite(low).all() and np.isfinite(high).all()
    changed = replace(value, low=low, high=high, why=None if finite else value.why)
    return _noted(changed, _applied(value.form, apply), value.places)


# ---- two values --------------------------------------------------------------------------------------------------


def sum_of(one: Value, other: Value, apply: Callable[[Any, Any], Any]) -> Value:
    """one + other. A mask that is added only masks."""
    one, other = (value if one.exact and other.exact else _masking(value) for value in (one, other))
    unit, (a, b) = aligned([one, other])
    with np.errstate(invalid="ignore"):
        low, high = widened(a.low + b.low, a.high + b.high, np.abs(_finite(a.low)) + np.abs(_finite(b.high)))
    exact = a.exact and b.exact
    made = Value(
        unit,
        a.low + b.low if exact else np.where(np.isnan(low), -np.inf, low),
        np.where(np.isnan(high), np.inf, high),
        a.why or b.why,
        masked=a.masked or b.masked,
        order=_order(a, b),
        stored=a.stored or b.stored,
        terms=a.size + b.size,
    )
    if exact:
        made = replace(made, high=made.low)
    form, places = _sum_form(a, b, apply)
    return _formed(made, form, places)


def times(value: Value, factor: Floats) -> Value:
    """value × one constant for each unit."""
    with np.errstate(invalid="ignore"):
        one, two = value.low * factor, value.high * factor
    one, two = np.where(factor == 0, 0.0, one), np.where(factor == 0, 0.0, two)
    low, high = np.minimum(one, two), np.maximum(one, two)
    if value.exact:
        return replace(value, low=one, high=one)
    terms = None if value.terms is None else value.terms * np.abs(factor)
    form = None if value.form is None else _scaled(value.form, factor)
    return replace(value, low=low, high=high, form=form, terms=terms)


def _scaled(form: Any, factor: Floats) -> Any:  # noqa: PLR0911  (a line for each form)
    if isinstance(form, Choice):
        parts = tuple(_scaled(part, factor) for part in form.parts)
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


def product_of(one: Value, other: Value, apply: Callable[[Any, Any], Any]) -> Value:
    """one × other. Masked entries stay masked if the factor is a positive constant."""
    if not any(value.exact and (value.low > 0).all() for value in (one, other)):
        one, other = one.opened(), other.opened()
    unit, (a, b) = aligned([one, other])
    if a.exact or b.exact:
        value, factor = (b, a) if a.exact else (a, b)
        made = times(value, factor.low)
        if made.form is None:
            made = made.plain()
        is_mask = not factor.stored and mask_of(factor.low).all() and (value.low >= 0).all() and (value.high <= 1).all()
        if is_mask and not value.exact:  # truth values times the lowest number
            made = replace(made.plain(), low=np.zeros(len(made.low)), high=np.zeros(len(made.low)), masked=True)
        return replace(made, order=_order(a, b), stored=a.stored or b.stored)
    corners = np.stack([_times(x, y) for x in (a.low, a.high) for y in (b.low, b.high)])
    low, high = widened(corners.min(axis=0), corners.max(axis=0), 0.0)
    made = Value(unit, low, high, a.why or b.why, order=_order(a, b))
    form, places = _product_form(a, b, apply)
    made = _formed(made, form, places)
    if isinstance(form, (Gated, Choice)):
        below, above = form_bounds(form)
        made = replace(made, low=np.maximum(made.low, below), high=np.minimum(made.high, above))
    return made


def quotient_of(one: Value, other: Value, apply: Callable[[Any, Any], Any], node: object) -> Value:
    """one / other; a value over the sum of its entries is a set of weights."""
    if other.exact and not (other.low == 0).any():
        inverse = 1 / other.low
        return product_of(one, replace(other, low=inverse, high=inverse), lambda a, b: apply(a, 1 / b))
    total: Any = other.form
    is_share = isinstance(total, Total) and total.of == node and not one.masked and bool((one.low >= 0).all())
    if is_share and _equal(other.places[0], numbered(one.shape, total.axis)):
        return shares(one.shape, total.axis, complete=total.exact, order=one.order)
    one, other = one.opened(), other.opened()
    inverse_low, inverse_high = _reciprocal(other.low, other.high)
    return product_of(one, replace(other.plain(), low=inverse_low, high=inverse_high), apply).plain()


def shares(shape: tuple[int, ...], axis: int, *, complete: bool = True, order: object = None) -> Value:
    """Weights of a mean along an axis."""
    count = shape[axis]
    view = [1] * len(shape)
    view[axis] = count
    unit = torch.arange(count).reshape(view).expand(shape)
    form = Shares(np.arange(count), count, 1.0, complete)
    return Value(unit, np.zeros(count), np.ones(count), form=form, places=(numbered(shape, axis),), order=order)


def either(one: Value, other: Value) -> Value:
    """An entry of one or of the other; where one is a constant that masks, only masked."""
    for value, rest in ((one, other), (other, one)):
        if value.exact and not value.stored and mask_of(value.low).all():
            kept = replace(rest, high=rest.high.copy(), masked=True)  # no longer a constant
            return kept.moved(lambda entry: entry.expand(broadcast(one.shape, other.shape)))
    unit, (a, b) = aligned([one, other])
    return Value(
        unit,
        np.minimum(a.low, b.low),
        np.maximum(a.high, b.high),
        a.why or b.why,
        masked=a.masked or b.masked,
        order=_order(a, b),
    )


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


def _sum_form(a: Value, b: Value, apply: Callable[[Any, Any], Any]) -> tuple[Any, tuple[Tensor, ...]]:
    if a.exact or b.exact:
        value, shift = (b, a) if a.exact else (a, b)
        return _shifted(value.form, shift.low), value.places
    for choice, rows in ((a, b), (b, a)):
        if isinstance(choice.form, Choice) and isinstance(rows.form, Listed):
            same = _equal(choice.places[-1], rows.places[0])
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


def _product_form(a: Value, b: Value, apply: Callable[[Any, Any], Any]) -> tuple[Any, tuple[Tensor, ...]]:
    for value, wave in ((a, b), (b, a)):
        if isinstance(value.form, Linear) and isinstance(wave.form, Wave):
            return Turned(value.form, wave.form), (*value.places[:1], *wave.places[:1])
    for value, weights in ((a, b), (b, a)):
        if isinstance(weights.form, Shares) and _order(a, b) is not CONFLICT:
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
    if a.form is None or b.form is None or len(a.places) != len(b.places) or _order(a, b) is CONFLICT:
        return False
    return all(_equal(x, y) for x, y in zip(a.places, b.places, strict=True))


def _equal(x: Tensor, y: Tensor) -> bool:
    shape = broadcast(x.shape, y.shape)
    x, y = x.expand(shape), y.expand(shape)
    thin = tuple(slice(0, 1) if x.stride(at) == 0 and y.stride(at) == 0 else slice(None) for at in range(x.ndim))
    return bool((x[thin] == y[thin]).all())


CONFLICT = object()  # the rows of two values are in different unknown orders


def _order(a: Value, b: Value) -> object:
    if a.order is b.order:
        return a.order
    for value, rest in ((a, b), (b, a)):
        alike = not value.places or isinstance(value.form, Listed)  # rows of a list are those of the rest
        if value.order is None and alike and (value.unit.shape[0] == 1 or value.unit.stride(0) == 0):
            return rest.order  # the same in every row
    return CONFLICT


def scaled_by_root(value: Value, root: Value, node: object) -> Value | None:
    """value / √(mean of its squares + eps): no entry is larger than √(entries); None if it is something else."""
    form = root.form
    if not isinstance(form, Squares) or not form.inverted or form.of != node:
        return None
    if not _equal(root.places[0], numbered(value.shape, value.unit.ndim - 1)):
        return None
    most = math.sqrt(form.count) * (1 + 1e-12)
    unit, (a, _) = aligned([value.plain(), root.plain()])
    return replace(a, unit=unit, low=np.full(len(a.low), -most), high=np.full(len(a.low), most), why=None, terms=None)


def _formed(made: Value, form: Any, places: tuple[Tensor, ...]) -> Value:
    if form is None or made.order is CONFLICT:
        return made
    shape = made.shape
    made = replace(made, form=form, places=tuple(place.expand(shape) for place in places))
    if isinstance(form, Rotated):
        low, high = rotated_bounds(form)
        made = replace(made, low=np.maximum(made.low, low), high=np.minimum(made.high, high))
    elif isinstance(form, (Linear, Choice)) and not made.exact:
        low, high = form_bounds(form)
        made = replace(made, low=np.maximum(made.low, low), high=np.minimum(made.high, high))
    return made


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


def _masking(value: Value) -> Value:
    """A constant mask: its entries that are the lowest number of a type count as minus infinity."""
    if not value.exact or value.stored or not (hidden := mask_of(value.low)).any():
        return value
    low = np.where(hidden, 0.0, value.low)
    return replace(value, low=low, high=np.where(hidden, 0.0, value.low).copy(), masked=True)


def _times(x: Floats, y: Floats) -> Floats:
    with np.errstate(invalid="ignore", over="ignore"):
        made = x * y
    return np.where(np.isnan(made), 0.0, made)  # 0 × infinity: the other corners say how large it can be


def _finite(x: Floats) -> Floats:
    return np.where(np.isfinite(x), x, 0.0)
