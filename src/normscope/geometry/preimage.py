"""How far the nearest input that gives y is from x, in closed form up to one convex function of one variable.

On live channels y gives u = (y − b)/(√c·g), and z = λu there, with λ² = |z|² + cε. On k dead channels u is free:

    z = (λu, −λσ/k + q)     σ = Σu over live channels (0 if the norm does not project), q on the dead ones (q ⊥ 1)
    |q|² = λ²A − cε         A = 1 − |u|² − σ²/k

so the distance from z₀ to such z is least where q points as z₀ does on the dead channels, and

    distance²(λ) = |λu − z₀|²_live + (λσ + Σ_dead z₀)²/k + (√(λ²A − cε) − |q₀|)²

is convex in λ. Without free q (k = 0, or k = 1 where the norm projects), |q| = 0 decides λ = √(cε/A); with ε = 0, that
is |u| = 1 and any λ ≥ 0. Groups have distances of their own, whose squares add up.

Rounding: y stands for all points that differ from it by tol·(|y| + |b| + |g|) in each channel, which makes each square
above that of a distance between a number and an interval. The sum stays convex.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from normscope.checks import Floats
from normscope.geometry.factors import length_of
from normscope.norm import Norm

STEPS = 60  # of the golden section
GOLDEN = (5**0.5 - 1) / 2
FAR = 1e150  # whatever is beyond it is infeasible, and its square is not infinite


def reached(norm: Norm, start: Floats, radius: float, y: Floats, tol: float) -> NDArray[np.bool_]:
    """Whether an input within the radius gives y, for each y in the last axis.

    start is z₀, group by group, (g, c). The radius may be infinite.
    """
    groups, channels = start.shape
    gain, bias = norm.gain.reshape(groups, channels), norm.bias.reshape(groups, channels)
    y = y.reshape(*y.shape[:-1], groups, channels)
    floor = (channels * norm.eps) ** 0.5 if norm.scales else 0.0
    unit = max(float(np.max(length_of(start))), radius if np.isfinite(radius) else 0.0, floor) or 1.0
    start, radius, floor = start / unit, radius / unit, floor / unit  # so that no square overflows
    radius += tol * (radius + float(np.linalg.norm(start)))
    live = gain != 0
    reach = np.where(live, gain * (channels**0.5 if norm.scales else unit), 1.0)
    terms = np.abs(y) + np.abs(bias)
    with np.errstate(over="ignore"):
        u = np.where(live, np.clip((y - bias) / reach, -FAR, FAR), 0.0)
        slack = np.where(live, np.minimum(tol * (terms / np.abs(reach) + channels**-0.5), FAR), 0.0)
    possible = np.all(live | (np.abs(y - bias) <= tol * terms), axis=-1)
    dead = np.count_nonzero(~live, axis=-1)
    if norm.projects:  # the sum over live channels, as one more coordinate where dead channels carry it
        total, total_slack = u.sum(axis=-1), slack.sum(axis=-1)
        possible = possible & ((dead > 0) | (np.abs(total) <= total_slack))
        share = np.where(dead > 0, 1 / np.sqrt(np.maximum(dead, 1)), 0.0)
        carried = -share * np.where(live, 0.0, start).sum(axis=-1)
        u = np.concatenate([u, (share * total)[..., None]], axis=-1)
        slack = np.concatenate([slack, (share * total_slack)[..., None]], axis=-1)
        fixed = np.concatenate([np.where(live, start, 0.0), carried[..., None]], axis=-1)
    else:
        fixed = np.where(live, start, 0.0)
    if not norm.scales:
        squares = np.sum(_beyond(np.abs(u - fixed), slack) ** 2, axis=-1)
    else:
        free = dead > int(norm.projects)
        across = _rest(start, live, norm.projects)
        squares = _scaled_squares(u, slack, fixed, across, free, floor, radius, tol)
    squares = np.where(possible, squares, np.inf).sum(axis=-1)
    within: NDArray[np.bool_] = np.isfinite(squares) & (np.sqrt(squares) <= radius)
    return within


def _scaled_squares(
    u: Floats,
    slack: Floats,
    fixed: Floats,
    across: Floats,
    free: NDArray[np.bool_],
    root: float,
    radius: float,
    tol: float,
) -> Floats:
    """distance² of every group, infinite where no input within the radius gives y; root is √(cε)."""
    lengths = np.hypot(np.linalg.norm(fixed, axis=-1), across)
    least = 1 - tol - np.sum((np.abs(u) + slack) ** 2, axis=-1)  # of A
    most = 1 + tol - np.sum(_beyond(np.abs(u), slack) ** 2, axis=-1)
    nothing = np.all(np.abs(u) <= slack, axis=-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        low = np.where(most > 0, root / np.sqrt(most), np.inf) if root else np.where(most >= 0, 0.0, np.inf)
        high = np.where(free | (least <= 0), np.inf, root / np.sqrt(least))
    if not root:  # |u| = 1, or y = b, the output for an input that is constant
        low = np.where(free | (least <= 0) | nothing, low, np.inf)
    if not np.isfinite(radius):
        return np.where(low <= high, 0.0, np.inf)
    low = np.maximum(low, np.hypot(np.maximum(lengths - radius, 0.0), root))
    high = np.minimum(high, np.hypot(lengths + radius, root))

    def squares(scale: Floats) -> Floats:
        sides = _beyond(np.abs(scale[..., None] * u - fixed), scale[..., None] * slack)
        shortest = np.sqrt(np.maximum(scale**2 * least - root**2, 0.0))
        longest = np.sqrt(np.maximum(scale**2 * most - root**2, 0.0))
        off = np.where(free, np.maximum(shortest - across, 0.0) + np.maximum(across - longest, 0.0), across)
        total: Floats = np.sum(sides**2, axis=-1) + off**2
        return total

    possible = low <= high
    return np.where(possible, _least(squares, np.where(possible, low, 0.0), np.where(possible, high, 0.0)), np.inf)


def _least(convex: Callable[[Floats], Floats], low: Floats, high: Floats) -> Floats:
    """The least value of a convex function between two ends, by golden section, element by element.

    Places are low + t²·(high − low): fine near the low end, where √(λ²A − cε) is steep.
    """

    def value(t: Floats) -> Floats:
        return convex(low + t**2 * (high - low))

    left, right = np.zeros_like(low), np.ones_like(low)
    inner, outer = right - GOLDEN, left + GOLDEN
    at_inner, at_outer = value(inner), value(outer)
    best = np.minimum(np.minimum(value(left), value(right)), np.minimum(at_inner, at_outer))
    for _ in range(STEPS):
        down = at_inner <= at_outer
        left, right = np.where(down, left, inner), np.where(down, outer, right)
        fresh = np.where(down, right - GOLDEN * (right - left), left + GOLDEN * (right - left))
        at_fresh = value(fresh)
        inner, outer = np.where(down, fresh, outer), np.where(down, inner, fresh)
        at_inner, at_outer = np.where(down, at_fresh, at_outer), np.where(down, at_inner, at_fresh)
        best = np.minimum(best, at_fresh)
    return best


def _rest(start: Floats, live: NDArray[np.bool_], projects: bool) -> Floats:
    """|q₀|: the length of z₀ on dead channels, without its mean over them where the norm projects."""
    dead = ~live
    mean = np.where(dead, start, 0.0).sum(axis=-1) / np.maximum(np.count_nonzero(dead, axis=-1), 1)
    length: Floats = np.linalg.norm(np.where(dead, start - projects * mean[..., None], 0.0), axis=-1)
    return length


def _beyond(size: Floats, slack: Floats) -> Floats:
    """What is left of a size once its slack is used."""
    return np.maximum(size - slack, 0.0)
