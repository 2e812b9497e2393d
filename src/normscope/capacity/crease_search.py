"""The search for a crease that leaves few runs, compiled.

Most candidates are constructed to lay certain boundaries of the left side onto boundaries of the right side that
separate the same labels: with two pairs of boundaries, and the roundness s and the bend μ drawn at random, the centre c
and the tilt κ follow. The rest are drawn freely. The best candidates are then varied slightly, the best longest.
"""

import math

import numpy as np

from normscope.capacity.crease_cost import WORST, bent, crease_cost, lined_up
from normscope.compiled import compiled

CENTRE, TIP, TILT, BEND, COST, BOUNDARIES = range(6)  # c, s, κ, μ of a crease, and its cost
KEPT = 16  # candidates that are varied
DRAWN = 0.85  # share of tries that are new candidates; the others are variations
LARGEST_BEND = 1e4
HALVINGS = 14  # of the interval that contains c


@compiled
def best_creases(low, high, label, most, tries, limits, price, room, seed):  # type: ignore[no-untyped-def]
    """The cheapest creases found that leave at most `most` boundaries, best first; a cost of WORST marks an empty row.

    low, high, label: the items in ascending order, from 0 to 1. limits: the least s, the largest |κ|, and the least gap
    between two runs as a share of the creased line. price, room: the cost of gaps, as in `lined_up`.
    """
    line = lined_up(low, high, label, price, room)
    random = _seeded(seed)
    creases, crease = _empty(), np.zeros(6)
    starts, ends, names = _runs(line)
    new = int(tries * DRAWN)
    for _ in range(new):
        if _drawn(random, line, starts, ends, names, limits[0], crease):
            _judge(line, crease, most, limits, creases[-1, COST])
            _keep(crease, creases)
    for varied in (KEPT, KEPT // 4, 1):
        for _ in range((tries - new) // 3):
            row = int(_uniform(random) * varied)
            if creases[row, COST] < WORST:
                _vary(random, creases[row], crease)
                _judge(line, crease, most, limits, creases[row, COST])
                if crease[COST] < creases[row, COST]:
                    creases[row] = crease
        _sort(creases)
    return creases


@compiled
def best_moves(low, high, label, most, tries, limits, price, room, seed):  # type: ignore[no-untyped-def]
    """Like `best_creases`, among creases that lift the first run over its neighbours and lay it down elsewhere."""
    line = lined_up(low, high, label, price, room)
    random = _seeded(seed)
    creases, crease = _empty(), np.zeros(6)
    starts, ends, names = _runs(line)
    for _ in range(tries):
        _move(random, starts, ends, names, crease)
        _judge(line, crease, most, limits, creases[-1, COST])
        _keep(crease, creases)
    return creases


@compiled
def _seeded(seed):  # type: ignore[no-untyped-def]
    random = np.empty(1, np.uint64)
    random[0] = np.uint64(seed)
    return random


@compiled
def _empty():  # type: ignore[no-untyped-def]
    creases = np.zeros((KEPT, 6))
    creases[:, COST] = WORST
    return creases


@compiled
def _runs(line):  # type: ignore[no-untyped-def]
    """Where each run starts and ends, and its label."""
    low, high, label, run, _, _, _ = line
    starts, ends, names = np.empty(run[-1] + 1), np.empty(run[-1] + 1), np.empty(run[-1] + 1, np.int64)
    for item in range(len(low)):
        if item == 0 or run[item] != run[item - 1]:
            starts[run[item]], names[run[item]] = low[item], label[item]
        ends[run[item]] = high[item]
    return starts, ends, names


@compiled
def _judge(line, crease, most, limits, limit):  # type: ignore[no-untyped-def]
    """Clip a crease to its limits and store its cost in it."""
    roundness, tilt, floor = limits
    crease[TIP] = min(max(crease[TIP], roundness), 1.0)
    crease[TILT] = min(max(crease[TILT], -tilt), tilt)
    crease[COST] = WORST
    if 0.0 < crease[CENTRE] < 1.0:
        cost, boundaries = crease_cost(line, crease[CENTRE], crease[TIP], crease[TILT], crease[BEND], floor, limit)
        if boundaries <= most:
            crease[COST], crease[BOUNDARIES] = cost, boundaries


@compiled
def _keep(crease, creases):  # type: ignore[no-untyped-def]
    """Insert a crease among the best, if it is one of them."""
    if crease[COST] < creases[-1, COST]:
        creases[-1] = crease
        _sort(creases)


@compiled
def _sort(creases):  # type: ignore[no-untyped-def]
    """Best first; they are nearly in order already."""
    for row in range(1, len(creases)):
        place = row
        while place > 0 and creases[place, COST] < creases[place - 1, COST]:
            for column in range(creases.shape[1]):
                creases[place, column], creases[place - 1, column] = creases[place - 1, column], creases[place, column]
            place -= 1


@compiled
def _drawn(random, line, starts, ends, names, roundness, crease):  # type: ignore[no-untyped-def]
    """A new candidate; False if the boundaries drawn can't be laid onto each other."""
    low, high, _, run, _, _, _ = line
    items = len(low)
    item = int(_uniform(random) * (items - 1))
    side = _uniform(random)
    if side > 0.3:  # near an end, where few runs have to fit
        item = min(int(items ** _uniform(random)) - 1, items - 2)
        if side > 0.65:
            item = items - 2 - item
    kind = _uniform(random)
    mu = math.expm1((1.4 if kind > 0.15 else 7.0) * (2.0 * _uniform(random) - 1.0)) if kind < 0.7 else 0.0
    centre = bent(low[item] + (high[item + 1] - low[item]) * _uniform(random), mu)
    widest = max(0.7 * min(centre, 1.0 - centre), 1.01 * roundness) if _uniform(random) < 0.9 else 0.7
    narrowest = 0.01 * widest if _uniform(random) < 0.5 and 0.01 * widest > roundness else roundness
    crease[CENTRE], crease[BEND] = centre, mu
    crease[TIP] = narrowest * (widest / narrowest) ** _uniform(random)
    crease[TILT] = math.tanh((2.0 * _uniform(random) - 1.0) * (0.1 + 2.2 * _uniform(random)))
    if _uniform(random) < 0.2:
        return True
    return _aligned(random, run[item], starts, ends, names, crease)


@compiled
def _move(random, starts, ends, names, crease):  # type: ignore[no-untyped-def]
    """A crease whose tip is between the first run and the second, and that lays the first onto a random place."""
    near, far = ends[0], starts[1]
    mu = math.expm1(3.0 * (2.0 * _uniform(random) - 1.0)) if _uniform(random) < 0.7 else 0.0
    target = 1 + int(_uniform(random) * (len(names) - 1))
    for _ in range(8):
        if names[target] == names[0]:
            break
        target = 1 + int(_uniform(random) * (len(names) - 1))
    right = starts[target + 1] if target < len(names) - 1 else ends[target] + 0.3
    place = ends[target - 1] + (right - ends[target - 1]) * _uniform(random)
    crease[BEND], crease[CENTRE] = mu, bent(near + (far - near) * _uniform(random), mu)
    crease[TIP] = (bent(far, mu) - bent(near, mu)) * 10.0 ** (-2.5 * _uniform(random) - 0.3)
    crease[TILT] = _levelling(crease[CENTRE], crease[TIP], bent(0.5 * (starts[0] + ends[0]), mu), bent(place, mu))


@compiled
def _aligned(random, middle, starts, ends, names, crease):  # type: ignore[no-untyped-def]
    """Change a crease so that marks to the left of a run fall on marks to its right; False if impossible."""
    whole = len(names) > 2 and names.max() > 1 and _uniform(random) < 0.5  # marks: whole runs, or boundaries
    rightmost = len(names) - 1 if whole else len(names) - 2
    left = middle - 1
    skipped = min(left, rightmost - middle)
    if left < 0 or skipped < 0:
        return False
    if _uniform(random) < 0.5:
        left -= int((skipped + 1) ** _uniform(random)) - 1
    right = _partner(random, names, whole, left, 2 * middle - 1 - left, middle, rightmost)
    if right < 0:
        return False
    mu = crease[BEND]
    inner_left, inner_right = (
        _mark(random, starts, ends, whole, left, mu),
        _mark(random, starts, ends, whole, right, mu),
    )
    if inner_left >= inner_right:
        return False
    room = min(left, rightmost - right)
    if room < 1 or _uniform(random) < 0.2:
        if _uniform(random) < 0.5 or not inner_left < crease[CENTRE] < inner_right:
            crease[CENTRE] = inner_left + (inner_right - inner_left) * _uniform(random)
        crease[TILT] = _levelling(crease[CENTRE], crease[TIP], inner_left, inner_right)
        return True
    further = min(int((room + 1) ** _uniform(random)), room)
    outer = _partner(random, names, whole, left - further, right + further, right + 1, rightmost)
    if outer < 0:
        return False
    outer_left = _mark(random, starts, ends, whole, left - further, mu)
    outer_right = _mark(random, starts, ends, whole, outer, mu)
    crease[TIP] = min((inner_right - inner_left) * 10.0 ** (2.0 * _uniform(random) - 1.5), 1.0)
    return _centred(crease, inner_left, inner_right, outer_left, outer_right)


@compiled
def _partner(random, names, whole, left, right, least, most):  # type: ignore[no-untyped-def]
    """A mark near `right` that separates, or carries, the same labels as the mark `left`; −1 if none is found."""
    reach = 2 * names.max() + 2
    for _ in range(8):
        kind = _uniform(random)
        if kind < 0.6:
            mark = right
        elif kind < 0.8:
            mark = right + int(_uniform(random) * (2 * reach + 1)) - reach
        else:
            mark = least + int(_uniform(random) * (most - least + 1))
        if least <= mark <= most:
            if whole:
                if names[mark] == names[left]:
                    return mark
            elif names[mark] == names[left + 1] and names[mark + 1] == names[left]:
                return mark
    return -1


@compiled
def _mark(random, starts, ends, whole, mark, mu):  # type: ignore[no-untyped-def]
    """A place inside run `mark`, or between it and the next."""
    near, far = (starts[mark], ends[mark]) if whole else (ends[mark], starts[mark + 1])
    return bent(near + (far - near) * _uniform(random), mu)


@compiled
def _levelling(c, s, left, right):  # type: ignore[no-untyped-def]
    """The κ that creases left and right onto each other."""
    return (math.sqrt((c - left) ** 2 + s * s) - math.sqrt((right - c) ** 2 + s * s)) / (right - left)


@compiled
def _centred(crease, inner_left, inner_right, outer_left, outer_right):  # type: ignore[no-untyped-def]
    """Set c and κ so that both pairs fall onto each other; False if no c between the inner ones does it."""
    near, far, s = inner_left, inner_right, crease[TIP]
    at_near = _levelling(near, s, inner_left, inner_right) - _levelling(near, s, outer_left, outer_right)
    at_far = _levelling(far, s, inner_left, inner_right) - _levelling(far, s, outer_left, outer_right)
    if at_near * at_far > 0.0:
        return False
    for _ in range(HALVINGS):
        c = 0.5 * (near + far)
        k = _levelling(c, s, inner_left, inner_right)
        if (k - _levelling(c, s, outer_left, outer_right)) * at_near > 0.0:
            near = c
        else:
            far = c
    crease[CENTRE], crease[TILT] = c, k
    return True


@compiled
def _vary(random, crease, varied):  # type: ignore[no-untyped-def]
    """A crease with some of its numbers changed, by up to half or by as little as 1e-5 of their natural scale."""
    varied[:] = crease
    size = 10.0 ** (-5.0 * _uniform(random) - 0.3)
    reach = 1.0 if _uniform(random) < 0.3 else min(crease[CENTRE], 1.0 - crease[CENTRE])
    if _uniform(random) < 0.8:
        varied[CENTRE] += (_uniform(random) - 0.5) * size * reach
    if _uniform(random) < 0.8:
        varied[TIP] *= math.exp((_uniform(random) - 0.5) * 10.0 * size)
    if _uniform(random) < 0.8:
        varied[TILT] += (_uniform(random) - 0.5) * 2.0 * size
    if _uniform(random) < 0.4:
        bend = crease[BEND] + (1.0 + crease[BEND]) * (_uniform(random) - 0.5) * 4.0 * size
        varied[BEND] = min(max(bend, -0.9999), LARGEST_BEND)


@compiled
def _uniform(random):  # type: ignore[no-untyped-def]
    """The next random number in [0, 1): splitmix64, the same on every machine."""
    random[0] += np.uint64(0x9E3779B97F4A7C15)
    bits = random[0]
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    bits ^= bits >> np.uint64(31)
    return float(bits >> np.uint64(11)) * 2.0**-53
