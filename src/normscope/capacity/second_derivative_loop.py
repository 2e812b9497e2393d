"""H of each row of inputs in many numbers of groups at once, compiled: see `second_derivative`.

H of a group needs Σz² and Σw·z² over its channels, w = gain². Those of a large group follow from those of its parts p,
of c channels each,

    Σ(x − m)² = Σₚ [Σ(x − mₚ)² + c(mₚ − m)²]

so each channel is read once or twice, not once for each divisor of their number; and nothing cancels.
"""

import numpy as np

from normscope.compiled import compiled

INSIDE, OUTSIDE = range(2)  # where eps is; elsewhere it is a floor


@compiled
def bend_rows(x, weights, projects, floors, place, own, counts, joins, sources, amounts, units):  # type: ignore[no-untyped-def]
    """H of each row for each number of groups, into amounts (counts, rows), in units of the row.

    counts descend, `own` is the place of the norm's own among them. units (2, rows) are (a·r²)² and 1/r² of its widest
    group, and H = amount·units[0]·units[1]², so that ratios of amounts are finite where H is out of range. Each
    of the counts[k] groups joins joins[k] parts, the first of them number sources[k]: parts are numbered through all
    channels, then all groups.
    """
    size = x.shape[1]
    parts = size + counts.sum()
    channels, weight, mean, square, weighted_mean, weighted_square = np.ones((6, parts))
    weight[:size] = weights
    along = np.empty(parts)
    moved = np.empty((2, joins.max()))
    for row in range(len(x)):
        for n in range(size):
            value = x[row, n]
            mean[n] = weighted_mean[n] = value if projects else 0.0
            square[n] = 0.0 if projects else value**2
            weighted_square[n] = weights[n] * square[n]
        whole = size
        for level in range(len(counts)):
            join = joins[level]
            for group in range(counts[level]):
                start = sources[level] + group * join
                _join(start, join, whole, moved, channels, weight, mean, square, weighted_mean, weighted_square, along)
                whole += 1

        first = size + counts[:own].sum()
        widest = first + np.argmax(square[first : first + counts[own]])
        unit, unit_inverse, _ = radial(square[widest] / channels[widest], floors[row], place)
        if unit in (0.0, np.inf):
            unit = 1.0
        units[0, row], units[1, row] = unit, unit_inverse
        whole = size
        for level in range(len(counts)):
            c = channels[whole]
            n, share, relative, total = c - projects, 1.0 / c, 1.0 / unit_inverse, 0.0
            for _ in range(counts[level]):
                variance = square[whole] * share
                strength, inverse, kappa = radial(variance, floors[row], place)
                if strength == np.inf and n * weight[whole] > 0.0:
                    total = np.inf
                elif 0.0 < strength < np.inf:
                    tilt = along[whole] / variance  # Σw·u²
                    sideways = max(n * weight[whole] - tilt, 0.0) if n > 1.0 else 0.0  # in one dimension u² is 1
                    total += strength * (inverse * relative) ** 2 * (2.0 * sideways + (n - 1.0 + kappa**2) * tilt)
                whole += 1
            amounts[level, row] = total / unit * share**2


@compiled
def radial(variance, floor, place):  # type: ignore[no-untyped-def]
    """(a·r²)², 1/r² and κ of a group of variance ρ²; a is infinite where there is no second derivative.

    `floor` is √ε where eps is inside the root, ε elsewhere.
    """
    square = floor**2
    if place == INSIDE:
        if variance + square == 0.0:
            return np.inf, 1.0, 0.0
        inverse = 1.0 / (variance + square)
        return variance * inverse, inverse, 3.0 * square * inverse
    if place == OUTSIDE:
        inverse = 1.0 / (np.sqrt(variance) + floor) if variance > 0.0 else 1.0
        return 1.0 if variance > 0.0 else np.inf, inverse**2, 2.0 * floor * inverse
    if variance > square:
        return 1.0, 1.0 / variance, 0.0
    return np.inf if variance == square else 0.0, 1.0, 0.0


@compiled
def _join(start, count, whole, moved, channels, weight, mean, square, weighted_mean, weighted_square, along):  # type: ignore[no-untyped-def]
    """Join neighbouring parts; the sums go to number `whole`."""
    # Relative to the first part, so that a small spread beside a large mean keeps its digits.
    origin, heavy, total, weighted_total = mean[start], 0.0, 0.0, 0.0
    for n in range(count):
        part = start + n
        moved[0, n] = mean[part] - origin
        moved[1, n] = weighted_mean[part] - origin
        heavy += weight[part]
        total += moved[0, n]
        weighted_total += weight[part] * moved[1, n]
    centre = total / count
    weighted_centre = weighted_total / heavy if heavy > 0.0 else 0.0
    plain, weighted = 0.0, 0.0
    for n in range(count):
        part = start + n
        plain += square[part] + channels[part] * (moved[0, n] - centre) ** 2
        weighted += weighted_square[part] + weight[part] * (moved[1, n] - weighted_centre) ** 2
    channels[whole] = channels[start] * count
    weight[whole] = heavy
    mean[whole], weighted_mean[whole] = origin + centre, origin + weighted_centre
    square[whole], weighted_square[whole] = plain, weighted
    along[whole] = weighted + heavy * (weighted_centre - centre) ** 2
