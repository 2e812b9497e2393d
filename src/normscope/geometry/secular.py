"""Roots of the secular equation of a projecting norm, in compiled code.

    f(μ) = Σₙ wₙ / (sₙ² − μ) = 0          one root strictly between each two neighbouring sₙ²

where s are the distinct |gains| in ascending order and w how often each occurs. Every root is returned as its nearest
pole and an offset from it, μ = s[o]² + τ, because a root that hugs its pole would lose its digits as a plain number.

Poles far from a stretch of the axis act on it through a smooth field, kept as one polynomial per stretch. Stretches
halve, and each inherits the field of the one it was cut from, so the work grows nearly linearly with their number.
Steps follow the middle way of Li [1], which models f by its two neighbouring poles and a constant.

[1] Li, Solving Secular Equations Stably and Efficiently, LAPACK Working Note 89, 1993.
"""

import math

import numpy as np
from numpy.typing import NDArray

from normscope.checks import Floats
from normscope.compiled import compiled

TERMS = 20
REACH = 3.0  # poles this many half-widths from the middle are far: 20 Chebyshev terms err by (3 + √8)^-20 = 5e-16
SMALL = 16  # roots in a stretch that is not halved again
CROWDED = 160  # near poles in a stretch that is halved again however small, down to a single root
DEEPEST = 70  # levels of halving: more than any array length has bits
RESIDUAL = 3e-16  # |f| over the sum of its absolute terms at which a root is settled
MOST_STEPS = 100

_ANGLES = np.pi * (np.arange(TERMS) + 0.5) / TERMS
_NODES = np.cos(_ANGLES)
_NODES_TO_CHEBYSHEV = np.cos(np.outer(np.arange(TERMS), _ANGLES)) * 2.0 / TERMS
_NODES_TO_CHEBYSHEV[0] *= 0.5
_CHEBYSHEV_TO_POWERS = np.zeros((TERMS, TERMS))
for _k in range(TERMS):
    _CHEBYSHEV_TO_POWERS[: _k + 1, _k] = np.polynomial.chebyshev.cheb2poly([0.0] * _k + [1.0])


@compiled
def secular_roots(poles: Floats, weights: Floats) -> tuple[NDArray[np.int64], Floats]:
    """Nearest pole (its index) and offset of each of the len(poles) − 1 roots, for poles ≥ 0 that strictly ascend."""
    count = len(poles) - 1
    origin, offset = np.empty(count, np.int64), np.empty(count)
    waiting = np.empty((DEEPEST, 3), np.int64)  # stretches to do: first root, last root + 1, level
    near = np.empty((DEEPEST, 2), np.int64)  # per level: the poles summed one by one, from and to
    frame = np.empty((DEEPEST, 3))  # per level: a reference pole; middle and half-width measured from its square
    field = np.zeros((DEEPEST, TERMS))  # per level: the field of all other poles, in powers of the place in the frame
    near[0, 0], near[0, 1] = 0, count + 1
    frame[0, 0], frame[0, 1], frame[0, 2] = 0.0, 0.0, 1.0
    waiting[0, 0], waiting[0, 1], waiting[0, 2] = 0, count, 1
    left = 1 if count > 0 else 0
    while left:
        left -= 1
        first, last, level = waiting[left, 0], waiting[left, 1], waiting[left, 2]
        _inherit(poles, weights, first, last, level, near, frame, field)
        start, stop = near[level, 0], near[level, 1]
        if last - first > SMALL or (last - first > 1 and stop - start > CROWDED):
            middle = (first + last) // 2
            waiting[left, 0], waiting[left, 1], waiting[left, 2] = middle, last, level + 1
            waiting[left + 1, 0], waiting[left + 1, 1], waiting[left + 1, 2] = first, middle, level + 1
            left += 2
        else:
            for j in range(first, last):
                origin[j], offset[j] = _root(poles, weights, j, start, stop, frame[level], field[level])
    return origin, offset


@compiled
def _inherit(poles, weights, first, last, level, near, frame, field):  # type: ignore[no-untyped-def]
    """Set near, frame and field of the stretch of roots first..last−1 from those of the level above it."""
    reference = poles[(first + last) // 2]
    low = (poles[first] - reference) * (poles[first] + reference)
    high = (poles[last] - reference) * (poles[last] + reference)
    middle, half = 0.5 * (low + high), 0.5 * (high - low)
    frame[level, 0], frame[level, 1], frame[level, 2] = reference, middle, half
    start, stop = near[level - 1, 0], near[level - 1, 1]
    while start < first and (poles[start] - reference) * (poles[start] + reference) <= middle - REACH * half:
        start += 1
    while stop > last + 1 and (poles[stop - 1] - reference) * (poles[stop - 1] + reference) >= middle + REACH * half:
        stop -= 1
    near[level, 0], near[level, 1] = start, stop

    place, value = np.empty(TERMS), np.empty(TERMS)
    above = frame[level - 1, 0]
    shift = (reference - above) * (reference + above) - frame[level - 1, 1]
    for k in range(TERMS):
        place[k] = middle + half * _NODES[k]
        value[k], _ = _polynomial(field[level - 1], (shift + place[k]) / frame[level - 1, 2])
    _add_poles(poles, weights, near[level - 1, 0], start, reference, place, value)
    _add_poles(poles, weights, stop, near[level - 1, 1], reference, place, value)

    # In two steps: Chebyshev coefficients decay, which is what makes the powers safe to add up.
    for i in range(TERMS):
        field[level, i] = 0.0
    for k in range(TERMS):
        coefficient = 0.0
        for i in range(TERMS):
            coefficient += _NODES_TO_CHEBYSHEV[k, i] * value[i]
        for i in range(k + 1):
            field[level, i] += _CHEBYSHEV_TO_POWERS[i, k] * coefficient


@compiled
def _add_poles(poles, weights, start, stop, reference, place, value):  # type: ignore[no-untyped-def]
    for n in range(start, stop):
        gap = (poles[n] - reference) * (poles[n] + reference)
        for k in range(TERMS):
            value[k] += weights[n] / (gap - place[k])


@compiled
def _root(poles, weights, j, start, stop, frame, field):  # type: ignore[no-untyped-def]
    """The root between poles j and j + 1, as (nearest pole, offset)."""
    gap = (poles[j + 1] - poles[j]) * (poles[j + 1] + poles[j])
    o, tau, low, high = j, 0.5 * gap, 0.0, 0.5 * gap
    previous = math.inf
    for step in range(MOST_STEPS):
        left, left_slope = _sum(poles, weights, start, j + 1, poles[o], tau)
        right, right_slope = _sum(poles, weights, j + 1, stop, poles[o], tau)
        place = ((poles[o] - frame[0]) * (poles[o] + frame[0]) + tau - frame[1]) / frame[2]
        far, far_slope = _polynomial(field, place)
        far_slope *= 0.5 / frame[2]
        left_slope, right_slope = left_slope + far_slope, right_slope + far_slope
        f = left + right + far
        if step == 0 and f < 0.0:  # the root is in the right half: measure from the right pole
            o, tau, low, high = j + 1, -0.5 * gap, -0.5 * gap, 0.0
        if abs(f) <= RESIDUAL * (right - left + abs(far)):
            break
        if f > 0.0:
            high = tau
        else:
            low = tau
        to_left, to_right = (-tau, gap - tau) if o == j else (-gap - tau, -tau)
        slow = abs(f) > 0.1 * previous
        move = _middle_way(f, left_slope, right_slope, to_left, to_right, gap, weights[j], weights[j + 1], o == j, slow)
        modelled = low < tau + move < high
        trial = tau + move if modelled else 0.5 * (low + high)
        change = abs(trial - tau)
        tau, previous = trial, abs(f)
        # The model converges faster than quadratically: after a step of 1e-8 there is nothing left to gain.
        if change <= (1e-8 if modelled else 2.3e-16) * abs(tau):
            break
    return o, tau


@compiled
def _sum(poles, weights, start, stop, pole, offset):  # type: ignore[no-untyped-def]
    """Σ w/(s² − μ) and its derivative over poles[start:stop], at μ = pole² + offset."""
    value, slope = 0.0, 0.0
    for n in range(start, stop):
        inverse = 1.0 / ((poles[n] - pole) * (poles[n] + pole) - offset)
        term = weights[n] * inverse
        value += term
        slope += term * inverse
    return value, slope


@compiled
def _polynomial(powers, x):  # type: ignore[no-untyped-def]
    """A polynomial and its derivative; even and odd powers apart, so that the two chains overlap."""
    square = x * x
    even, odd, even_slope, odd_slope = powers[TERMS - 2], powers[TERMS - 1], 0.0, 0.0
    for k in range(TERMS - 4, -1, -2):
        even_slope, odd_slope = even + square * even_slope, odd + square * odd_slope
        even, odd = powers[k] + square * even, powers[k + 1] + square * odd
    return even + x * odd, odd + 2.0 * x * (even_slope + x * odd_slope)


@compiled
def _middle_way(f, left_slope, right_slope, to_left, to_right, gap, weight_left, weight_right, near_left, slow):  # type: ignore[no-untyped-def]
    """The step to the zero of c + p/(left pole − μ) + q/(right pole − μ) that agrees with f and its slope."""
    slope = left_slope + right_slope
    if slow:
        c = f - to_left * left_slope - to_right * right_slope
    elif near_left:
        c = f - to_right * slope + gap * weight_left / (to_left * to_left)
    else:
        c = f - to_left * slope - gap * weight_right / (to_right * to_right)
    a = (to_left + to_right) * f - to_left * to_right * slope
    b = to_left * to_right * f
    root = math.sqrt(abs(a * a - 4.0 * b * c))
    move = (a - root) / (2.0 * c) if a <= 0.0 else 2.0 * b / (a + root)
    return move if f * move < 0.0 else -f / slope
