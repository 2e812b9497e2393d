"""Check that a certificate proves how far a weighted sum of neurons, or an attention score, can go.

    f(u) = Σ dⱼhⱼ(u) ≤ x'Xx,  x = (u, 1),  |u| ≤ 1;     diag(λ, …, λ, s) ⪰ X,  λ ≥ 0     ⇒     f(u) ≤ λ + s

Nothing of the search is used. From the multipliers, X is formed again as a matrix of n + 1 rows, after verifying here
that each neuron is below its quadratic function:

- gated: act(t) = c + σ(t)·t, and the bounds σ₀ ≤ σ ≤ σ₁ on the interval of t come from σ's monotonicity;
- plain: ψ(t) = sign(d)·act(t) − pt² − qt is at most r, found by dividing the interval of t into cells and bounding ψ in
  each by its Taylor polynomial at the middle, ψ(m) + |ψ'(m)|h + k·h²/2, with ψ'' ≤ k.

A bound may be divided: boxes low ≤ V·u ≤ high cover the ball, and in each box η(v·u − low)(v·u − high) ≤ 0 is taken
off X.

Then Cholesky must run through on diag(λ, …, λ, s) − X less what rounding can have changed, in forming X and in Cholesky
itself (Rump, Verification of positive definiteness, BIT 2006).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cholesky
from scipy.special import erfc

from normscope.certificates.neuron_certificates import NeuronCertificate, Neurons, ScoreCertificate
from normscope.checks import Floats, as_floats

UNIT = 2.0**-52
CAREFUL = 2.0**-43  # more than the relative error of any activation where it is not linear
FLAT = 0.0, 0.0


class _Act(NamedTuple):
    """act, its slope, σ, c, a bound of |act''|, and where act is linear up to 1e-17: (c, slope) on both sides."""

    value: Callable[[Floats], Floats]
    slope: Callable[[Floats], Floats]
    factor: Callable[[Floats], Floats]
    constant: float
    bend: float
    linear_from: float
    left: tuple[float, float]
    right: tuple[float, float]


def check(neurons: Neurons, d: Any, certificate: NeuronCertificate) -> tuple[bool, str]:
    """Whether a certificate proves that Σ dⱼhⱼ(u) ≤ bound for all |u| ≤ 1, and why.

    Parameters
    ----------
    neurons
        F of them.
    d
        (F,): the weights of the sum.
    certificate
        From `normscope.bounds.tight`, or from a file.

    Returns
    -------
    tuple[bool, str]
        Whether it holds, and the reason in one sentence.

    >>> one = Neurons("relu", [[3.0, 4.0]], b=[[2.0, 0.0]])
    >>> none = np.zeros(0)
    >>> check(one, [1.0], NeuronCertificate("quadratic", 8.1, np.array([0.4]), none, 8.1, 0.0))
    (True, 'the quadratic form proves 8.1')
    >>> check(one, [1.0], NeuronCertificate("quadratic", 7.9, np.array([0.4]), none, 7.9, 0.0))
    (False, 'λ and s are too small for these multipliers: the matrix is not positive semidefinite')
    >>> check(one, [1.0], NeuronCertificate("intervals", 8.1, np.array([0.4]), none, 0.0, 0.0))
    (True, 'the ranges of single neurons prove 8.1')
    """
    row = as_floats(d, "d")
    if row.shape != (neurons.count,):
        return False, f"d must have one weight for each of {neurons.count} neurons, got shape {row.shape}"
    if not np.isfinite(certificate.bound):
        return False, f"the bound must be finite, got {certificate.bound!r}"
    with np.errstate(all="ignore"):  # what overflows proves nothing: it is not finite
        if certificate.kind == "intervals":
            return _check_intervals(neurons, row, certificate)
        if certificate.kind == "divided":
            return _check_divided(neurons, row, certificate)
        return _check_quadratic(neurons, row, certificate)


def check_scores(
    gram_q: Any,
    gram_k: Any,
    pairs: Any,
    certificate: ScoreCertificate,
    offset_q: Any = None,
    offset_k: Any = None,
    terms: int = 2**14,
) -> tuple[bool, str]:
    """Whether a certificate proves that |q·R·k| ≤ bound for all inputs and angles, and why.

    Parameters
    ----------
    gram_q, gram_k
        (d, d): A_q·A_qᵀ and A_k·A_kᵀ.
    pairs
        (m, 2): the channels that turn together; None or empty where nothing turns.
    certificate
        From `normscope.bounds.attention_scores`, or from a file.
    offset_q, offset_k
        (d,) each, or None.
    terms
        Products that were summed for an entry of a Gram matrix, for its rounding error.

    Returns
    -------
    tuple[bool, str]
        Whether it holds, and the reason in one sentence.

    >>> proof = ScoreCertificate(6.001, np.ones(2), 0.0, 0.0, 9.001, 4.0001)
    >>> check_scores(np.diag([9.0, 1.0]), np.diag([4.0, 1.0]), [[0, 1]], proof)
    (True, 'μ and λ prove 6.001')
    """
    queries, keys = as_floats(gram_q, "gram_q"), as_floats(gram_k, "gram_k")
    size = len(queries)
    alpha = np.zeros(size) if offset_q is None else as_floats(offset_q, "offset_q")
    beta = np.zeros(size) if offset_k is None else as_floats(offset_k, "offset_k")
    numbers = (certificate.bound, certificate.tau_q, certificate.tau_k, certificate.lam_q, certificate.lam_k)
    if queries.shape != (size, size) or keys.shape != (size, size) or alpha.shape != (size,) or beta.shape != (size,):
        return False, "Gram matrices and offsets must have the same number of channels"
    if not np.isfinite(numbers).all() or min(numbers) < 0:
        return False, "bound, τ and λ must be finite and not negative"
    planes = np.zeros((0, 2), int) if pairs is None else np.asarray(pairs, int).reshape(-1, 2)
    with np.errstate(all="ignore"):  # what overflows proves nothing: it is not finite
        needed = certificate.lam_q * certificate.lam_k * (1 + certificate.tau_q**2) * (1 + certificate.tau_k**2)
        fault = ""
        if (alpha.any() and not certificate.tau_q) or (beta.any() and not certificate.tau_k):
            fault = "τ must be above 0 where there is an offset"
        elif not certificate.bound >= np.sqrt(needed) * (1 + 8 * UNIT):
            fault = f"λ and τ prove {np.sqrt(needed):.6g}, the bound says {certificate.bound:.6g}"
        else:
            left = _with_offset(queries, alpha, certificate.tau_q, terms)
            right = _with_offset(keys, beta, certificate.tau_k, terms)
            fault = _fault(left, right, planes, certificate)
    return (False, fault) if fault else (True, f"μ and λ prove {certificate.bound:.6g}")


def _fault(left: Floats, right: Floats, planes: NDArray[Any], certificate: ScoreCertificate) -> str:
    """Why λ and μ prove nothing about these Gram matrices, or nothing if they do."""
    mu, size = certificate.mu, len(left)
    if not len(planes) and not len(mu):
        shown = certificate.lam_k == 1.0 and _product_at_most(left, right, certificate.lam_q)
    elif mu.shape != (size,) or not (np.isfinite(mu).all() and (mu > 0).all()):
        return f"μ must be {size} positive numbers"
    elif (mu[planes[:, 0]] != mu[planes[:, 1]]).any():
        return "μ must be equal in the channels of a pair"
    else:
        shown = _at_most(left * np.outer(mu, mu), certificate.lam_q)
        shown = shown and _at_most(right / np.outer(mu, mu), certificate.lam_k)
    return "" if shown else "λ is too small for these μ"


def _check_intervals(neurons: Neurons, d: Floats, certificate: NeuronCertificate) -> tuple[bool, str]:
    low, high = _ends(neurons.a, neurons.a_offset)
    zero, sign = np.zeros(neurons.count), np.sign(d)
    most = _largest(neurons.activation, zero + 1, zero, zero, low, high)
    least = -_largest(neurons.activation, zero - 1, zero, zero, low, high)
    if neurons.b is None or neurons.b_offset is None:
        tops = np.where(d > 0, most, -least)
    else:
        mu = certificate.first
        if mu.shape != (neurons.count,) or not (np.isfinite(mu).all() and (mu > 0).all()):
            return False, f"multipliers must be {neurons.count} positive numbers"
        corners = np.stack([sign * x * y for x in (least, most) for y in _ends(neurons.b, neurons.b_offset)])
        tops = _outwards(corners.max(axis=0))
        if _ACTS[neurons.activation].constant == 0:
            both = _factors(neurons.activation, low, high)[1] * _product(neurons, sign, mu)
            tops = np.fmin(tops, _outwards(both))
    terms = np.abs(d) * np.where(d == 0, 0.0, tops)
    shown = float(terms.sum() + (neurons.count + 8) * UNIT * np.abs(terms).sum())
    if shown <= certificate.bound:
        return True, f"the ranges of single neurons prove {certificate.bound:.6g}"
    return False, f"the ranges of single neurons prove {shown:.6g}, the bound says {certificate.bound:.6g}"


def _check_divided(neurons: Neurons, d: Floats, certificate: NeuronCertificate) -> tuple[bool, str]:
    """Boxes low ≤ V·u ≤ high must cover the ball, and the multipliers of each must prove the bound in it."""
    parts, fault = certificate.division, _division_fault(neurons, certificate)
    if fault or parts is None:
        return False, fault
    rows, low, high, eta, lam, s = (as_floats(each, "parts") for each in vars(parts).values())
    reach = np.asarray(_lengths(rows) * (1 + (neurons.size + 8) * UNIT))  # |v·u| is at most that
    if not _covered(-reach, reach, low, high):
        return False, "the parts do not cover the ball"
    for i, multipliers in enumerate(zip(certificate.first, certificate.second, strict=True)):
        proof = NeuronCertificate("quadratic", certificate.bound, *multipliers, float(lam[i]), float(s[i]))
        # −η(v·u − low)(v·u − high) as a form of (u, 1)
        cut = np.column_stack([rows, -(low[i] + high[i]) / 2]) * np.sqrt(eta[i])[:, None]
        form = -cut.T @ cut
        form[-1, -1] += float(eta[i] @ ((high[i] - low[i]) / 2) ** 2)
        terms = float(eta[i] @ (reach + np.abs(low[i]) + np.abs(high[i])) ** 2)
        holds, reason = _check_quadratic(neurons, d, proof, form, terms)
        if not holds:
            return False, f"part {i}: {reason}"
    return True, f"the quadratic forms of {len(lam)} parts prove {certificate.bound:.6g}"


def _division_fault(neurons: Neurons, certificate: NeuronCertificate) -> str:
    """What is wrong with the arrays of a division, or nothing."""
    parts = certificate.division
    if neurons.b is not None or parts is None:
        return "only a bound of plain neurons is divided, and it needs its parts"
    arrays = [np.asarray(each) for each in vars(parts).values()]
    if any(each.dtype != np.float64 or not np.isfinite(each).all() for each in arrays):
        return "parts must be finite float64 numbers"
    shape = arrays[0].shape
    if len(shape) != 2 or not 1 <= shape[0] <= 3 or shape[1] != neurons.size:
        return f"directions must be 1 to 3 rows of {neurons.size} numbers, got shape {shape}"
    count = arrays[4].size
    wanted = [(count, shape[0])] * 3 + [(count,)] * 2 + [(count, neurons.count)] * 2
    if [each.shape for each in (*arrays[1:], certificate.first, certificate.second)] != wanted or count > 32:
        return "every part, 32 at most, must have its box, its multipliers, λ and s"
    return "" if (arrays[3] >= 0).all() else "η must not be negative"


def _covered(left: Floats, right: Floats, low: Floats, high: Floats) -> bool:
    """Whether boxes cover the box from left to right: one holds it, or they cover its halves beside an edge."""
    touching = ((low < right) & (high > left)).all(axis=1)
    low, high = low[touching], high[touching]
    if ((low <= left) & (right <= high)).all(axis=1).any():
        return True
    for axis in range(len(left)):
        edges = np.concatenate([low[:, axis], high[:, axis]])
        inside = edges[(edges > left[axis]) & (edges < right[axis])]
        if len(inside):
            middle = np.sort(inside)[len(inside) // 2]
            first, last = right.copy(), left.copy()
            first[axis] = last[axis] = middle
            return _covered(left, first, low, high) and _covered(last, right, low, high)
    return False


def _check_quadratic(
    neurons: Neurons, d: Floats, certificate: NeuronCertificate, cut: Floats | None = None, cut_terms: float = 0.0
) -> tuple[bool, str]:
    """cut: a form of (u, 1) that is not negative where the bound is claimed, and the size of its terms."""
    first, second, lam, s = certificate.first, certificate.second, certificate.lam, certificate.s
    plain = neurons.b is None
    if first.shape != d.shape or second.shape != (d.shape if plain else (0,)):
        return False, f"multipliers must be one for each of {neurons.count} neurons, two if they are plain"
    if not (np.isfinite(first).all() and np.isfinite(second).all() and np.isfinite([lam, s]).all()):
        return False, "multipliers, λ and s must be finite"
    if lam < 0 or (not plain and not (first > 0).all()):
        return False, "λ must not be negative, nor a multiplier of a gated neuron 0 or less"
    if not certificate.bound >= lam + s:
        return False, f"λ + s is {lam + s:.6g}, the bound says {certificate.bound:.6g}"
    X, total = (_plain_matrix if plain else _gated_matrix)(neurons, d, first, second)
    if cut is not None:
        X, total = X + cut, total + cut_terms
    if not X[-1].any() and s >= 0:  # nothing but squares of u
        X = X[:-1, :-1]
    matrix = -X
    matrix.flat[:: len(X) + 1] += lam
    if len(X) > neurons.size:
        matrix[-1, -1] += s - lam
    # λ and s were added with an error of a share of themselves; forming X made an error of a share of all terms.
    error = 8 * (2 * neurons.count + len(X) + 64) * UNIT * (total + lam + abs(s))
    if not _positive(matrix, error):
        return False, "λ and s are too small for these multipliers: the matrix is not positive semidefinite"
    return True, f"the quadratic form proves {certificate.bound:.6g}"


def _gated_matrix(neurons: Neurons, d: Floats, mu: Floats, _: Floats) -> tuple[Floats, float]:
    """X of (u, 1), and the sum of the absolute terms."""
    assert neurons.b is not None
    assert neurons.b_offset is not None
    a, b = np.column_stack([neurons.a, neurons.a_offset]), np.column_stack([neurons.b, neurons.b_offset])
    least, most = _factors(neurons.activation, *_ends(neurons.a, neurons.a_offset))
    spread = np.abs(d) * ((most - least) / 4 + 4 * UNIT * most)
    cross, linear = d * ((most + least) / 2), _ACTS[neurons.activation].constant * d
    X = a.T @ (a * (spread * mu)[:, None] + b * cross[:, None]) + b.T @ (b * (spread / mu)[:, None])
    X = (X + X.T) / 2
    X[-1] += linear @ b / 2
    X[:, -1] += linear @ b / 2
    size, other = _lengths(a), _lengths(b)
    terms = spread * mu * size**2 + np.abs(cross) * size * other + spread / mu * other**2 + np.abs(linear) * other
    return X, float(terms.sum())


def _plain_matrix(neurons: Neurons, d: Floats, p: Floats, q: Floats) -> tuple[Floats, float]:
    rows = np.column_stack([neurons.a, neurons.a_offset])
    constants = _largest(neurons.activation, np.sign(d), p, q, *_ends(neurons.a, neurons.a_offset))
    constants = np.where(d == 0, 0.0, constants)
    weight, size = np.abs(d), _lengths(rows)
    X = rows.T @ (rows * (weight * p)[:, None])
    X = (X + X.T) / 2
    X[-1] += (weight * q) @ rows / 2
    X[:, -1] += (weight * q) @ rows / 2
    X[-1, -1] += weight @ constants
    return X, float(np.sum(weight * (np.abs(p) * size**2 + np.abs(q) * size + np.abs(constants))))


def _positive(matrix: Floats, error: float) -> bool:
    """Whether a symmetric matrix known up to `error` (as a norm) is positive semidefinite."""
    size = len(matrix)
    trace = float(np.abs(matrix.flat[:: size + 1]).sum())
    if not (np.isfinite(matrix).all() and np.isfinite(error)) or 0 < trace + error < 1e-250:
        return False
    if trace + error == 0:
        return not matrix.any()
    scale = np.ldexp(1.0, -int(np.frexp(trace + error)[1]))  # products neither overflow nor underflow
    shifted = matrix * scale
    shifted.flat[:: size + 1] -= error * scale + 2 * (size + 4) * UNIT * trace * scale + 1e-290
    try:
        cholesky(shifted, lower=True, overwrite_a=True, check_finite=False)
    except LinAlgError:
        return False
    return True


def _with_offset(gram: Floats, offset: Floats, tau: float, terms: int) -> Floats:
    """At least the Gram matrix of the rows with their offset/τ as one more channel."""
    found = (gram + gram.T) / 2 + (np.outer(offset, offset) / tau**2 if offset.any() else 0.0)
    found.flat[:: len(found) + 1] += (terms + 16) * UNIT * len(found) * np.abs(np.diagonal(found))
    return found


def _at_most(gram: Floats, lam: float) -> bool:
    matrix = lam * np.eye(len(gram)) - gram
    return _positive(matrix, 16 * UNIT * (lam + float(np.trace(np.abs(gram)))))


def _product_at_most(left: Floats, right: Floats, lam: float) -> bool:
    """Whether λmax(L'·right·L) ≤ λ for an L with LL' ⪰ left."""
    size, trace = len(left), float(np.trace(np.abs(left)))
    if not left.any() or not right.any():
        return True
    try:
        root = cholesky(left + 8 * (size + 4) * UNIT * trace * np.eye(size), lower=True, check_finite=False)
    except (LinAlgError, ValueError):
        return False
    product = root.T @ right @ root
    error = 8 * (size + 8) * UNIT * float(np.sum(root * root)) * float(np.trace(np.abs(right)))
    return _positive(lam * np.eye(size) - (product + product.T) / 2, error + 4 * UNIT * lam)


def _ends(rows: Floats, offset: Floats) -> tuple[Floats, Floats]:
    """Where rows·u + offset is."""
    radius = _lengths(rows) * (1 + (rows.shape[1] + 8) * UNIT)
    return offset - radius - 2 * UNIT * np.abs(offset), offset + radius + 2 * UNIT * np.abs(offset)


def _lengths(rows: Floats) -> Floats:
    """Lengths of rows, scaled by powers of two so that no square overflows or vanishes."""
    power = np.frexp(np.abs(rows).max(axis=1, initial=0.0))[1]
    return np.asarray(np.ldexp(np.linalg.norm(np.ldexp(rows, -power[:, None]), axis=1), power))


def _product(neurons: Neurons, sign: Floats, mu: Floats) -> Floats:
    """Above max(0, sign·tv): 4·sign·tv ≤ (√μt + sign·v/√μ)², and the root is at most radius + |middle|."""
    assert neurons.b is not None
    assert neurons.b_offset is not None
    root, other = np.sqrt(mu), sign / np.sqrt(mu)
    rows = neurons.a * root[:, None] + neurons.b * other[:, None]
    sizes = np.abs(neurons.a) * root[:, None] + np.abs(neurons.b) * np.abs(other)[:, None]
    middle = np.abs(neurons.a_offset * root + neurons.b_offset * other)
    middle += 8 * UNIT * (np.abs(neurons.a_offset) * root + np.abs(neurons.b_offset * other))
    radius = _lengths(rows) * (1 + (neurons.size + 8) * UNIT)
    radius += 8 * UNIT * _lengths(sizes)
    return np.asarray((radius + middle) ** 2 / 4)


def _factors(name: str, low: Floats, high: Floats) -> tuple[Floats, Floats]:
    """Bounds of σ on [low, high], rounded outwards: it rises with t, or falls with |t|."""
    factor = _ACTS[name].factor
    if name in ("sigmoid", "tanh"):
        far, near = np.maximum(np.abs(low), np.abs(high)), np.maximum(0.0, np.maximum(low, -high))
        low, high = far, near
    edge = _ACTS[name].linear_from
    least = np.where((low < -edge) & (edge > 0), 0.0, factor(low) * (1 - CAREFUL))
    return np.asarray(least), factor(high) * (1 + CAREFUL) + np.where((np.abs(high) > edge) & (edge > 0), 1e-17, 0.0)


def _largest(name: str, sign: Floats, p: Floats, q: Floats, low: Floats, high: Floats) -> Floats:
    """At least max of ψ(t) = sign·act(t) − pt² − qt on [low, high]."""
    act, found = _ACTS[name], np.full(len(p), -np.inf)
    edge, error = act.linear_from, 1e-17 if act.linear_from else 0.0
    found = np.maximum(found, _tail(sign, act.left, p, q, low, np.minimum(high, -edge), name == "relu2", error))
    found = np.maximum(found, _tail(sign, act.right, p, q, np.maximum(low, edge), high, name == "relu2", error))
    if edge == 0:
        return np.asarray(found)
    first, last = np.maximum(low, -edge), np.minimum(high, edge)
    who = np.flatnonzero(first <= last)
    middle, half = (first[who] + last[who]) / 2, (last[who] - first[who]) / 2
    sure = found.copy()  # ψ gets this far
    for depth in range(7):
        parts = 24 if depth == 0 else 6
        who, half = np.repeat(who, parts), np.repeat(half, parts) / parts * (1 + CAREFUL)
        steps = np.tile(2 * np.arange(parts) + 1 - parts, len(who) // parts)
        middle = np.repeat(middle, parts) + steps * half
        terms = sign[who] * act.value(middle), -p[who] * middle**2, -q[who] * middle
        slopes = sign[who] * act.slope(middle), -2 * p[who] * middle, -q[who]
        rounding = CAREFUL * (sum(np.abs(x) for x in terms) + half * sum(np.abs(x) for x in slopes))
        here = terms[0] + terms[1] + terms[2]
        bend = np.maximum(0.0, act.bend - 2 * p[who]) * half**2 / 2  # of ψ'' from above
        above = here + np.abs(slopes[0] + slopes[1] + slopes[2]) * half + bend + rounding
        np.maximum.at(sure, who, here - rounding)
        split = above > sure[who] + 1e-10 * (1e-2 + np.abs(sure[who]))
        if depth == 6:
            split[:] = False
        np.maximum.at(found, who[~split], above[~split])
        who, middle, half = who[split], middle[split], half[split]
    return np.asarray(found)


def _tail(
    sign: Floats,
    line: tuple[float, float],
    p: Floats,
    q: Floats,
    low: Floats,
    high: Floats,
    squared: bool,
    error: float,
) -> Floats:
    """The same where act is a line up to an error, or for relu2 a parabola."""
    bend = (sign if squared and line[1] else 0.0) - p
    slope = sign * (0.0 if squared else line[1]) - q
    turn = np.where(bend < 0, -slope / np.where(bend < 0, 2 * bend, 1.0), low)
    turn = np.clip(np.nan_to_num(turn), low, np.maximum(low, high))
    found = np.full(len(p), -np.inf)
    for t in (low, high, turn):
        terms = sign * line[0], slope * t, bend * t * t
        found = np.maximum(found, sum(terms) + CAREFUL * sum(np.abs(x) for x in terms) + error)
    return np.asarray(np.where(low <= high, found, -np.inf))


def _outwards(value: Floats) -> Floats:
    return np.asarray(value + CAREFUL * np.abs(value))


def _logistic(t: Floats) -> Floats:
    """1/(1 + e⁻ᵗ) with a small relative error on both sides."""
    small = np.exp(-np.abs(t))
    return np.asarray(np.where(t >= 0, 1.0, small) / (1 + small))


def _normal(t: Floats) -> Floats:
    return np.asarray(erfc(-t / np.sqrt(2.0)) / 2)


def _swish(rate: float, bend: float, edge: float) -> _Act:
    """t/(1 + e^(−rate·t))."""

    def slope(t: Floats) -> Floats:
        share = _logistic(rate * t)
        return np.asarray(share + rate * t * share * _logistic(-rate * t))

    return _Act(lambda t: t * _logistic(rate * t), slope, lambda t: _logistic(rate * t), 0.0, bend, edge, FLAT, (0, 1))


def _gelu_tanh() -> _Act:
    def inner(t: Floats) -> Floats:
        return np.asarray(np.sqrt(8 / np.pi) * t * (1 + 0.044715 * t * t))

    def slope(t: Floats) -> Floats:
        share = _logistic(inner(t))
        return np.asarray(share + t * share * _logistic(-inner(t)) * np.sqrt(8 / np.pi) * (1 + 0.134145 * t * t))

    return _Act(lambda t: t * _logistic(inner(t)), slope, lambda t: _logistic(inner(t)), 0.0, 0.86, 9.0, FLAT, (0, 1))


def _half_tanh(t: Floats) -> Floats:
    """tanh(t)/t."""
    near = np.abs(t) < 1e-5
    away = np.where(near, 1.0, t)
    return np.where(near, 1.0 - t * t / 3, np.tanh(away) / away)


_ACTS = {
    "relu": _Act(lambda t: np.maximum(t, 0), np.sign, lambda t: np.heaviside(t, 0.0), 0.0, 0.0, 0.0, FLAT, (0, 1)),
    "relu2": _Act(np.square, np.sign, lambda t: np.maximum(t, 0.0), 0.0, 2.0, 0.0, FLAT, (0, 1)),
    "gelu": _Act(
        lambda t: t * _normal(t),
        lambda t: _normal(t) + t * np.exp(-t * t / 2) / np.sqrt(2 * np.pi),
        _normal,
        0.0,
        0.81,
        9.0,
        FLAT,
        (0, 1),
    ),
    "gelu_tanh": _gelu_tanh(),
    "silu": _swish(1.0, 0.51, 45.0),
    "quick_gelu": _swish(1.702, 0.86, 27.0),
    "sigmoid": _Act(
        _logistic, lambda t: _logistic(t) * _logistic(-t), lambda t: _half_tanh(t / 2) / 4, 0.5, 0.1, 45.0, FLAT, (1, 0)
    ),
    "tanh": _Act(np.tanh, lambda t: 1 / np.cosh(t) ** 2, _half_tanh, 0.0, 0.78, 22.0, (-1, 0), (1, 0)),
    "identity": _Act(lambda t: t, np.ones_like, np.ones_like, 0.0, 0.0, 0.0, (0, 1), (0, 1)),
}
