"""How far every weighted sum of neurons can go over the unit ball, for many sums at once.

    f(u) = Σ dⱼhⱼ(u),   hⱼ = act(tⱼ) or act(tⱼ)·vⱼ,   tⱼ = aⱼ·u + αⱼ,  vⱼ = bⱼ·u + βⱼ

**Intervals**: the sum of the neurons' own suprema. One gated neuron, act(t) = σ(t)·t with 0 ≤ σ ≤ σ₁, no offsets:

    −σ₁(|a||b| − a·b)/2  ≤  act(t)·v  ≤  σ₁(|a||b| + a·b)/2          exact for ReLU, σ₁ = 1

**Eigenvalues**, gated: f(u) ≤ u'Xu, X = Σ dⱼσ̄ⱼ·sym(aⱼbⱼ') + |dⱼ|wⱼ/4·(μⱼaⱼaⱼ' + bⱼbⱼ'/μⱼ), with σ in σ̄ ± w/2 and μ =
|b|/|a|; and from trace and Frobenius norm of X alone (Wolkowicz and Styan)

    λmax(X) ≤ tr/n + √((n − 1)/n·(|X|² − tr²/n))

**Plain**, act(t) = t/2 + e(t), 0 ≤ e ≤ |t|/2: the linear half is exact, and Σ d|t| ≤ √(Σ d|a|·Σ d·t²/|a|), the second
sum a quadratic form as above. Offsets are one more channel: a → (a, α/τ), u → (u, τ), |(u, τ)|² ≤ 1 + τ².

All sums are in float64, and the most that rounding can change is added outwards.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from normscope.bounds.activations import ACTIVATIONS, ROUND, down, up
from normscope.certificates.neuron_certificates import Neurons
from normscope.checks import Floats, as_floats
from normscope.errors import InputError

EPS = float(np.finfo(float).eps)
ROWS = 512  # of a matrix at a time
RATIOS = np.geomspace(1 / 32, 32, 21)  # of μ to its usual value, tried for neurons with offsets


def hidden_range(neurons: Neurons) -> tuple[Floats, Floats]:
    """The least and the largest value of each neuron over the ball: bounds, exact for a ReLU gate without offsets.

    Parameters
    ----------
    neurons
        F of them.

    Returns
    -------
    tuple[Floats, Floats]
        Lows (F,) and highs (F,).

    >>> low, high = hidden_range(Neurons("relu", [[3.0, 4.0]], b=[[2.0, 0.0]]))
    >>> round(float(low[0]), 9), round(float(high[0]), 9)
    (-2.0, 8.0)
    """
    act = ACTIVATIONS[neurons.activation]
    size = norms(neurons.a)
    ends = _reader_range(size, neurons.a_offset, neurons.size)
    low, high = act.range(*ends)
    if neurons.b is None or neurons.b_offset is None:
        return low, high
    sizes = (size, norms(neurons.b), np.einsum("jn,jn->j", neurons.a, neurons.b))
    others = _reader_range(sizes[1], neurons.b_offset, neurons.size)
    corners = np.stack([x * y for x in (low, high) for y in others])
    low, high = down(corners.min(axis=0)), up(corners.max(axis=0))
    if act.at_zero == 0.0:
        most = act.factors(*ends)[1]
        high = np.minimum(high, up(most * _largest_product(neurons, sizes, 1.0)[0]))
        low = np.maximum(low, -up(most * _largest_product(neurons, sizes, -1.0)[0]))
    return low, high


def intervals(neurons: Neurons, d: Any) -> tuple[Floats, Floats]:
    """Bounds of each sum by adding the ranges of its neurons: F·(n + C) operations, no matrix besides d.

    Parameters
    ----------
    neurons
        F of them.
    d
        (C, F): a row for each sum. A caller with many rows may pass them in blocks.

    Returns
    -------
    tuple[Floats, Floats]
        Lows (C,) and highs (C,).

    >>> low, high = intervals(Neurons("relu", [[3.0, 4.0]]), [[1.0], [-1.0]])
    >>> [abs(round(float(x), 9)) for x in (*low, *high)]
    [0.0, 5.0, 5.0, 0.0]
    """
    d = weights(neurons, d)
    low, high = hidden_range(neurons)
    lows, highs = np.zeros(len(d)), np.zeros(len(d))
    slack = (neurons.count + 4) * EPS * np.maximum(np.abs(low), np.abs(high))
    for rows in _blocks(len(d)):
        above, below = np.maximum(d[rows], 0.0), np.minimum(d[rows], 0.0)
        off = (above - below) @ slack
        highs[rows] = above @ high + below @ low + off
        lows[rows] = above @ low + below @ high - off
    return lows, highs


def cheap(neurons: Neurons, d: Any) -> tuple[Floats, Floats]:
    """Bounds of each sum, the better of intervals and eigenvalues: about 12·n·F² operations if C is n.

    Parameters
    ----------
    neurons
        F of them.
    d
        (C, F): a row for each sum.

    Returns
    -------
    tuple[Floats, Floats]
        Lows (C,) and highs (C,).

    >>> rng = np.random.default_rng(0)
    >>> many = Neurons("silu", rng.normal(size=(64, 9)), b=rng.normal(size=(64, 9)))
    >>> d = rng.normal(size=(1, 64))
    >>> bool(cheap(many, d)[1] < 0.6 * intervals(many, d)[1])
    True
    """
    d = weights(neurons, d)
    lows, highs = intervals(neurons, d)
    if not neurons.count or not len(d):
        return lows, highs
    act = ACTIVATIONS[neurons.activation]
    if neurons.b is not None:
        low, high = _gated(neurons, d)
    elif neurons.activation == "identity":
        low, high = _linear(neurons.a, neurons.a_offset, d)
    elif act.halves:
        low, high = _plain(neurons, d)
    else:
        return lows, highs
    # An overflow leaves NaN, and fmin the interval.
    return np.fmax(lows, low), np.fmin(highs, high)


def weights(neurons: Neurons, d: Any) -> Floats:
    """d as a checked matrix (C, F)."""
    rows = as_floats(d, "d")
    if rows.ndim != 2 or rows.shape[1] != neurons.count:
        raise InputError(f"d must be a matrix with a column for each of {neurons.count} neurons, got {rows.shape}")
    return rows


def reader_range(rows: Floats, offset: Floats) -> tuple[Floats, Floats]:
    """Range of rows·u + offset over the ball, rounded outwards."""
    return _reader_range(norms(rows), offset, rows.shape[1])


def _reader_range(size: Floats, offset: Floats, terms: int) -> tuple[Floats, Floats]:
    radius = size * (1 + (terms + 4) * EPS)
    return offset - radius - ROUND * np.abs(offset), offset + radius + ROUND * np.abs(offset)


def norms(rows: Floats) -> Floats:
    """Lengths of rows of any size."""
    square = np.asarray(np.einsum("jn,jn->j", rows, rows))
    length: Floats = np.sqrt(square)
    odd = np.flatnonzero(~((square > 1e-280) & (square < 1e280)))  # squares that underflow or overflow
    if len(odd):
        scale = np.maximum(rows[odd].max(axis=1, initial=0.0), -rows[odd].min(axis=1, initial=0.0))
        odd, scale = odd[scale > 0], scale[scale > 0]
        length[odd] = np.linalg.norm(rows[odd] / scale[:, None], axis=1) * scale
    return length


def lift_weight(neurons: Neurons) -> float:
    """τ: how much of the ball's radius offsets get; 0 without offsets, any value gives a bound."""
    shift, size = np.abs(neurons.a_offset).sum(), norms(neurons.a).sum()
    if neurons.b is not None and neurons.b_offset is not None:
        shift, size = shift + np.abs(neurons.b_offset).sum(), size + norms(neurons.b).sum()
    return float(np.sqrt(np.clip(shift / max(size, 1e-300), 1e-4, 1e4))) if shift > 0 else 0.0


def largest_eigenvalue(trace: Floats, square: Floats, size: int, error: Floats) -> Floats:
    """Above λmax of symmetric matrices, from squared Frobenius norms and from traces with an error.

    The bound rises with the trace up to the Frobenius norm, then falls: the worst trace is the one nearest to it.
    """
    worst = np.clip(np.sqrt(np.maximum(square, 0.0)), trace - error, trace + error)
    inside = np.maximum(0.0, (size - 1) / size * (square - worst * worst / size))
    return np.asarray(worst / size + np.sqrt(inside))


def product_multipliers(neurons: Neurons, d: Floats) -> Floats:
    """The μ with which `hidden_range` bounds gated neurons that count with weights d; empty for plain ones."""
    if neurons.b is None:
        return np.zeros(0)
    sizes = (norms(neurons.a), norms(neurons.b), np.einsum("jn,jn->j", neurons.a, neurons.b))
    return np.where(d > 0, _largest_product(neurons, sizes, 1.0)[1], _largest_product(neurons, sizes, -1.0)[1])


def _largest_product(neurons: Neurons, sizes: tuple[Floats, Floats, Floats], sign: float) -> tuple[Floats, Floats]:
    """Above max(0, sign·t·v) over the ball, (|√μa ± b/√μ| + |√μα ± β/√μ|)²/4 for the best μ of some; and that μ.

    sizes: |a|, |b| and a·b.
    """
    assert neurons.b_offset is not None
    alpha, beta = neurons.a_offset, neurons.b_offset
    size_a, size_b, dot = sizes
    reach_a, reach_b = size_a + np.abs(alpha), size_b + np.abs(beta)
    best = np.where((reach_a == 0) | (reach_b == 0), 0.0, np.inf)
    usual = np.where(best == 0, 1.0, np.maximum(reach_b, 1e-150) / np.where(reach_a > 0, reach_a, 1.0))
    chosen = usual
    for ratio in RATIOS if (alpha.any() or beta.any()) else (1.0,):
        mu = usual * ratio
        slack = (neurons.size + 8) * EPS * (mu * reach_a * reach_a + reach_b * reach_b / mu)
        radius = np.sqrt(np.maximum(mu * size_a**2 + size_b**2 / mu + 2 * sign * dot, 0.0) + slack)
        centre = np.sqrt(np.maximum(mu * alpha**2 + beta**2 / mu + 2 * sign * alpha * beta, 0.0) + slack)
        if not (alpha.any() or beta.any()):
            centre = np.zeros_like(radius)
        found = (radius + centre) ** 2 / 4
        best, chosen = np.fmin(best, found), np.where(found < best, mu, chosen)
    return up(best), chosen


def _gated(neurons: Neurons, d: Floats) -> tuple[Floats, Floats]:
    """Lows and highs of gated sums by the eigenvalue bound, and the linear part of act on top."""
    assert neurons.b is not None
    assert neurons.b_offset is not None
    act, tau = ACTIVATIONS[neurons.activation], lift_weight(neurons)
    least, most = act.factors(*reader_range(neurons.a, neurons.a_offset))
    a, size_a = _unit(_lifted(neurons.a, neurons.a_offset, tau))
    b, size_b = _unit(_lifted(neurons.b, neurons.b_offset, tau))
    n = a.shape[1]
    middle, half = (most + least) / 2, (most - least) / 2 * (1 + 4 * EPS) + 4 * EPS * most
    scale = size_a * size_b
    # X = Σ D·sym(ab') + E·(aa' + bb')/2 with rows of length 1; its square from Gram matrices, some rows at a time.
    count, dot = neurons.count, np.einsum("jn,jn->j", a, b)
    signed, plain = d * (middle * scale), np.abs(d) * (half * scale)
    ss, sp, pp = np.zeros(len(d)), np.zeros(len(d)), np.zeros(len(d))
    for part in _blocks(count):
        aa, bb, ab, ba = a[part] @ a.T, b[part] @ b.T, a[part] @ b.T, b[part] @ a.T
        ss += np.einsum("cj,cj->c", signed @ (aa * bb + ab * ba).T / 2, signed[:, part])
        sp += np.einsum("cj,cj->c", plain @ (aa * ba + ab * bb).T / 2, signed[:, part])
        pp += np.einsum("cj,cj->c", plain @ (aa * aa + bb * bb + ab * ab + ba * ba).T / 4, plain[:, part])
    total = np.abs(signed).sum(axis=1) + plain.sum(axis=1)
    slack = 8 * (n + count + 16) * EPS * total
    ends = []
    for sign in (1.0, -1.0):
        trace = plain.sum(axis=1) + sign * (signed @ dot)
        top = largest_eigenvalue(trace, ss + pp + 2 * sign * sp + slack * total, n, slack)
        ends.append(np.maximum(top + slack, 0.0) * (1 + tau * tau) * (1 + ROUND))
    low, high = -ends[1], ends[0]
    if act.at_zero:
        first, last = _linear(neurons.b, neurons.b_offset, act.at_zero * d)
        low, high = low + first, high + last
    return low, high


def _plain(neurons: Neurons, d: Floats) -> tuple[Floats, Floats]:
    """Lows and highs of plain sums: half of the linear map, and Cauchy–Schwarz for what is above it."""
    act, tau = ACTIVATIONS[neurons.activation], lift_weight(neurons)
    first, last = _linear(neurons.a, neurons.a_offset, d / 2)
    low, high = reader_range(neurons.a, neurons.a_offset)
    share = np.clip(2 * act.factors(low, np.maximum(np.abs(low), np.abs(high)))[1] - 1, 0.0, 1.0)
    rows, size = _unit(_lifted(neurons.a, neurons.a_offset, tau))
    n, count = rows.shape[1], neurons.count
    size = size * share
    above, below = np.maximum(d, 0.0), np.maximum(-d, 0.0)
    squares = np.zeros((2, len(d)))
    for part in _blocks(count):
        gram = (rows[part] @ rows.T) ** 2 * np.outer(size[part], size)
        for side, positive in enumerate((above, below)):
            squares[side] += np.einsum("cj,cj->c", positive @ gram.T, positive[:, part])
    reach = []
    for square, positive in zip(squares, (above, below), strict=True):
        trace = positive @ size  # of Σ D·aa'/|a|, and Σ D·|a|
        slack = 8 * (n + count + 16) * EPS * trace
        top = largest_eigenvalue(trace, square + slack * trace, n, slack) + slack
        reach.append(np.sqrt((trace + slack) * (1 + tau * tau) * np.minimum(top, trace + slack)) / 2 * (1 + ROUND))
    return first - reach[1], last + reach[0]


def _linear(rows: Floats, offset: Floats, d: Floats) -> tuple[Floats, Floats]:
    """Range of d·(rows·u + offset), exact up to rounding."""
    count, n = rows.shape
    total = np.abs(d) @ (norms(rows) + np.abs(offset))
    middle, radius = d @ offset, norms(d @ rows)
    slack = 4 * (count + n + 8) * EPS * total
    return middle - radius - slack, middle + radius + slack


def _lifted(rows: Floats, offset: Floats, tau: float) -> Floats:
    return np.column_stack([rows, offset / tau]) if tau else rows


def _unit(rows: Floats) -> tuple[Floats, Floats]:
    """Rows of length 1 (or 0), and their lengths."""
    size = norms(rows)
    return rows / np.where(size > 0, size, 1.0)[:, None], size


def _blocks(count: int) -> Iterator[slice]:
    for start in range(0, count, ROWS):
        yield slice(start, min(start + ROWS, count))
