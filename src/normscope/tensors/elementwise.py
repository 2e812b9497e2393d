"""Operations that act entry by entry: bounds by interval arithmetic, and what remains of a value's form.

f(x)                       bounds of f on an interval (`interval_arithmetic`)
x + y, x·y, x / y          bounds from the ends of both, and from the form of the result (`entry_forms`)
x / sum of x,  x ≥ 0       weights of a mean
x / √(mean of x² + eps)    at most √(entries)
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from normscope.checks import Floats
from normscope.tensors.entry_forms import (
    CONFLICT,
    Choice,
    Squares,
    Steps,
    Total,
    applied,
    form_bounds,
    order_of,
    product_form,
    rotated_bounds,
    same_entries,
    scaled,
    sum_form,
)
from normscope.tensors.interval_arithmetic import INTERVALS, absolute, finite_part, reciprocal, times_or_zero
from normscope.tensors.linear_rows import Linear, widened
from normscope.tensors.values import Angle, Gated, Rotated, Shares, Value, Wave, aligned, broadcast, mask_of, numbered


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
    return _noted(changed, applied(form, apply), value.places)


def _noted(value: Value, form: Any, places: tuple[Tensor, ...]) -> Value:
    """The value with its form, if there is one."""
    return value.plain() if form is None else replace(value, form=form, places=places)


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
        low, high = absolute(value.low, value.high) if n % 2 == 0 else (value.low, value.high)
        with np.errstate(over="ignore"):
            low, high = widened(low**n, high**n, 0.0)
    else:
        low, high = np.full(len(value.low), -np.inf), np.full(len(value.low), np.inf)
        return replace(value.plain(), low=low, high=high, why=value.why or f"a power of {exponent:g}")
    return _noted(replace(value, low=low, high=high, terms=None), applied(value.form, apply), value.places)


def clamped(value: Value, least: float | None, most: float | None, apply: Steps) -> Value:
    """Entries limited to [least, most]."""
    low = np.clip(value.low, least, most) if (least, most) != (None, None) else value.low
    high = np.clip(value.high, least, most) if (least, most) != (None, None) else value.high
    finite = np.isfinite(low).all() and np.isfinite(high).all()
    changed = replace(value, low=low, high=high, why=None if finite else value.why)
    return _noted(changed, applied(value.form, apply), value.places)


def sum_of(one: Value, other: Value, apply: Callable[[Any, Any], Any]) -> Value:
    """one + other. A mask that is added only masks."""
    one, other = (value if one.exact and other.exact else _masking(value) for value in (one, other))
    unit, (a, b) = aligned([one, other])
    with np.errstate(invalid="ignore"):
        low, high = widened(a.low + b.low, a.high + b.high, np.abs(finite_part(a.low)) + np.abs(finite_part(b.high)))
    exact = a.exact and b.exact
    made = Value(
        unit,
        a.low + b.low if exact else np.where(np.isnan(low), -np.inf, low),
        np.where(np.isnan(high), np.inf, high),
        a.why or b.why,
        masked=a.masked or b.masked,
        order=order_of(a, b),
        stored=a.stored or b.stored,
        terms=a.size + b.size,
    )
    if exact:
        made = replace(made, high=made.low)
    form, places = sum_form(a, b, apply)
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
    form = None if value.form is None else scaled(value.form, factor)
    return replace(value, low=low, high=high, form=form, terms=terms)


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
        return replace(made, order=order_of(a, b), stored=a.stored or b.stored)
    corners = np.stack([times_or_zero(x, y) for x in (a.low, a.high) for y in (b.low, b.high)])
    low, high = widened(corners.min(axis=0), corners.max(axis=0), 0.0)
    made = Value(unit, low, high, a.why or b.why, order=order_of(a, b))
    form, places = product_form(a, b, apply)
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
    if is_share and same_entries(other.places[0], numbered(one.shape, total.axis)):
        return shares(one.shape, total.axis, complete=total.exact, order=one.order)
    one, other = one.opened(), other.opened()
    inverse_low, inverse_high = reciprocal(other.low, other.high)
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
        order=order_of(a, b),
    )


def scaled_by_root(value: Value, root: Value, node: object) -> Value | None:
    """value / √(mean of its squares + eps): no entry is larger than √(entries); None if it is something else."""
    form = root.form
    if not isinstance(form, Squares) or not form.inverted or form.of != node:
        return None
    if not same_entries(root.places[0], numbered(value.shape, value.unit.ndim - 1)):
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


def _masking(value: Value) -> Value:
    """A constant mask: its entries that are the lowest number of a type count as minus infinity."""
    if not value.exact or value.stored or not (hidden := mask_of(value.low)).any():
        return value
    low = np.where(hidden, 0.0, value.low)
    return replace(value, low=low, high=np.where(hidden, 0.0, value.low).copy(), masked=True)
