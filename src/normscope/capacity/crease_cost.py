"""Creases of the line, and how many runs of equal labels are left after one, compiled.

    v    = (1 + μ)q / (1 + μq)                       a Möbius map of [0, 1] to itself, μ > −1
    f(q) = √((v − c)² + s²) + κ(v − c)               a V with a round tip: slopes −(1 − κ) and 1 + κ, |κ| < 1

One layer of a network of LayerNorms of width 3 can apply any f of this kind. A crease lays one part of the line onto
the other, and where runs of the same label meet, they become one.

The line is a list of items: intervals that hold samples of one label each, in ascending order. A crease is judged by
walking outwards from its tip on both sides until one side ends; beyond that the other side is unchanged.
"""

import math

import numpy as np

from normscope.compiled import compiled

WORST = 1e300


@compiled
def creased(q, c, s, k, mu):  # type: ignore[no-untyped-def]
    """f(q)"""
    below = 1.0 + mu * q
    away = (1.0 + mu) * q - c * below
    tip = s * below
    return (math.sqrt(away * away + tip * tip) + k * away) / below


@compiled
def bent(q, mu):  # type: ignore[no-untyped-def]
    """v, for q in [0, 1]"""
    return (1.0 + mu) * q / (1.0 + mu * q)


@compiled
def lined_up(low, high, label, price, room):  # type: ignore[no-untyped-def]
    """The items, the run number of each, the cost of the gaps up to each, and the unit of gaps: 1/(3·runs)."""
    count = len(low)
    run = np.zeros(count, np.int64)
    for item in range(1, count):
        run[item] = run[item - 1] + (1 if label[item] != label[item - 1] else 0)
    unit = room / (run[-1] + 1)
    narrow = np.zeros(count)
    for item in range(1, count):
        narrow[item] = narrow[item - 1]
        if run[item] != run[item - 1]:
            narrow[item] += gap_cost((low[item] - high[item - 1]) / unit, price)
    return low, high, label, run, narrow, unit, price


@compiled
def gap_cost(gap, price):  # type: ignore[no-untyped-def]
    """The cost of a gap measured in units: 0 for a gap of one unit or more, rising with each halving below that."""
    return -price * math.log2(max(gap, 1e-30)) if gap < 1.0 else 0.0


@compiled
def crease_cost(line, c, s, k, mu, floor, limit):  # type: ignore[no-untyped-def]
    """Boundaries between runs after a crease, plus the cost of their gaps; and the number of boundaries alone.

    The cost is WORST if it is not below the limit, or if two runs are closer than floor, a share of the creased line.
    """
    low, high = line[0], line[1]
    tip = c - k * s / math.sqrt(1.0 - k * k)
    above = 1.0 + mu - mu * tip
    if min(above, 1.0 + mu * low[0], 1.0 + mu * high[-1]) <= 0.0:  # intervals reach beyond 0 and 1
        return WORST, 0
    lowest = s * math.sqrt(1.0 - k * k)
    length = max(creased(low[0], c, s, k, mu), creased(high[-1], c, s, k, mu)) - lowest
    crease = (c, s, k, mu)
    met = _both_sides(line, crease, tip / above, floor * length, line[5] * length, limit)
    if met[-1] >= limit:
        return WORST, 0
    return _one_side(line, crease, met, floor * length, line[5] * length, limit)


@compiled
def _both_sides(line, crease, tip, floor, unit, limit):  # type: ignore[no-untyped-def]
    """Walk outwards from the tip until one side ends: the next item on either side, the last label met and how far it
    reaches, the boundaries so far and their cost."""
    low, high, label, run, _, _, price = line
    count = len(low)
    right = np.searchsorted(high, tip)  # the first item that is not wholly to the left of the tip
    left = right - 1
    last, end, boundaries, cost = -1, -WORST, 0, 0.0
    if right < count and low[right] <= tip:  # the tip is inside this item
        last, end = label[right], max(creased(low[right], *crease), creased(high[right], *crease))
        right += 1
    next_left = creased(high[left], *crease) if left >= 0 else WORST
    next_right = creased(low[right], *crease) if right < count else WORST
    while left >= 0 and right < count:
        if next_left < next_right:
            begins, item, ends = next_left, left, creased(low[left], *crease)
            left -= 1
            next_left = creased(high[left], *crease) if left >= 0 else WORST
        else:
            begins, item, ends = next_right, right, creased(high[right], *crease)
            right += 1
            next_right = creased(low[right], *crease) if right < count else WORST
        if label[item] == last:
            end = max(end, ends)
            continue
        if last >= 0:
            boundaries += 1
            cost += 1.0 + gap_cost((begins - end) / unit, price)
            # The rest has at least as many boundaries as either side alone.
            rest = max(run[left] if left >= 0 else 0, run[-1] - run[right] if right < count else 0)
            if begins - end <= floor or cost + rest >= limit:
                return left, right, last, end, boundaries, WORST
        last, end = label[item], ends
    return left, right, last, end, boundaries, cost


@compiled
def _one_side(line, crease, met, floor, unit, limit):  # type: ignore[no-untyped-def]
    """The cost and the boundaries after adding the items that `_both_sides` left over."""
    low, high, label, run, narrow, _, price = line
    left, right, last, end, boundaries, cost = met
    step, item = (-1, left) if left >= 0 else (1, right)
    near, far = (high, low) if left >= 0 else (low, high)
    while 0 <= item < len(low):
        begins = creased(near[item], *crease)
        if label[item] != last and last >= 0:
            boundaries += 1
            cost += 1.0 + gap_cost((begins - end) / unit, price)
            if begins - end <= floor:
                return WORST, 0
        if label[item] != last or begins > end:
            boundaries += run[item] if step < 0 else run[-1] - run[item]
            cost += run[item] + narrow[item] if step < 0 else run[-1] - run[item] + narrow[-1] - narrow[item]
            break
        end = max(end, creased(far[item], *crease))
        item += step
    if cost >= limit:
        return WORST, 0
    while 0 <= item + step < len(low):  # only one side is left, in its own order
        gap = creased(near[item + step], *crease) - creased(far[item], *crease)
        if label[item] != label[item + step] and gap <= floor:
            return WORST, 0
        item += step
    return cost, boundaries
