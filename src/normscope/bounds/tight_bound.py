"""How far one weighted sum of neurons can go over the unit ball: a bound that is proven.

    f(u) = Σ dⱼhⱼ(u)  ≤  u'Xu + 2g·u + c  ≤  λ + s      if   [[λI − X, −g], [−g', s − c]] ⪰ 0,  λ ≥ 0

Every neuron is below a quadratic function, one for each value of its multipliers (see `NeuronCertificate`), so X, g and
c depend on the multipliers, and so does the best λ + s, which is convex in log μ, or in p and q. It is minimised by
L-BFGS after −ν·log det of the matrix was added, because without it the minimum is a kink. The slope is an expectation:
with R = (λI − X)⁻¹, E u = Rg and E uu' = νR + Rgg'R, which has trace 1.

Steps are taken in a subspace of some 64 directions, where they cost little; all n dimensions are looked at when the
subspace has no more to give, and the directions that pass its bound join it. The search is in float32, the proof not:
X is formed in float64 from the multipliers found, and Cholesky must run through with the rounding errors of both [1]
taken off the diagonal.

[1] Rump, Verification of positive definiteness, BIT 2006.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cho_solve, cholesky, eigh, solve_triangular
from scipy.optimize import minimize

from normscope.bounds.activations import ACTIVATIONS
from normscope.bounds.neuron_forms import Cuts, Forms, GatedForms, PlainForms, Singles, single
from normscope.bounds.neurons import EPS, hidden_range, intervals, norms, product_multipliers, reader_range, weights
from normscope.certificates.neuron_certificates import NeuronCertificate, Neurons
from normscope.checks import Floats, as_floats

TOP, WIDTH = 32, 64  # eigenvectors that join the subspace at a time, and its dimensions
SOFT = (0.05, 0.008, 0.004, 0.004, 0.002)  # ν·n as a share of the bound, by round
CLOSE, SHARP = 0.003, 0.005  # stop where all dimensions add less than this share, if steps were not softer than that
SMALL = 1024  # dimensions up to which λmax is computed in float64


@dataclass(frozen=True, eq=False)
class Tight:
    """An upper bound of one sum, what proves it, and directions in which to look for an input that nears it."""

    bound: float
    certificate: NeuronCertificate
    directions: Floats  # (n, k), best first
    note: str = ""  # why the bound is by intervals, if it is


def tight(neurons: Neurons, d: Any) -> Tight:
    """An upper bound of Σ dⱼhⱼ(u) over the ball. For a lower bound, call it with −d.

    Parameters
    ----------
    neurons
        F of them.
    d
        (F,): the weights of the sum.

    Returns
    -------
    Tight
        The bound with its certificate; `normscope.certificates.check_neurons.check` checks it.

    >>> from normscope.bounds.ascent import witness
    >>> rng = np.random.default_rng(0)
    >>> many = Neurons("silu", rng.normal(size=(64, 9)), b=rng.normal(size=(64, 9)))
    >>> d = rng.normal(size=64)
    >>> found = tight(many, d)
    >>> bool(witness(many, d, found)[1] <= found.bound <= 2 * witness(many, d, found)[1])
    True
    """
    row = weights(neurons, as_floats(d, "d")[None])[0]
    by_intervals = float(intervals(neurons, row[None])[1][0])
    live = row != 0
    if not live.any():
        return _by_intervals(neurons, row, "every weight is 0")
    reach = reach_of(neurons, row)
    if not np.isfinite(reach) or reach < 1e-250:
        return _by_intervals(neurons, row, "the weights are too large or too small")
    some, chosen = (neurons, row) if live.all() else (neurons.part(live), row[live])
    family = PlainForms(some, chosen / reach) if some.b is None else GatedForms(some, chosen / reach)
    if not family.largest < 1e9:  # far above what single neurons can reach: float32 would see nothing else
        return _by_intervals(neurons, row, "the weights are too large or too small")
    theta, directions, top = searched(family)
    first, second = family.multipliers(theta)
    proven = proven_by(some, chosen, first, second, top * reach)
    if proven is None or proven[0] + proven[1] >= by_intervals:
        return _by_intervals(neurons, row, "no multipliers gave a smaller bound", directions)
    lam, s = proven
    every = np.ones(neurons.count), np.zeros(neurons.count if some.b is None else 0)
    for whole, part in zip(every, (first, second), strict=True):
        if len(whole):
            whole[live] = part
    bound = float(np.nextafter(lam + s, np.inf))
    return Tight(bound, NeuronCertificate("quadratic", bound, *every, lam, s), directions)


def reach_of(neurons: Neurons, d: Floats) -> float:
    """What weights are divided by: near 1, they keep float32 and the square roots of float64 away from their limits."""
    low, high = hidden_range(neurons)
    return float(np.abs(d) @ np.maximum(np.abs(low), np.abs(high)))


def searched(family: GatedForms | PlainForms, rounds: Sequence[float] = SOFT) -> tuple[Floats, Floats, float]:
    """The best multipliers found, directions in which the bound is nearly reached, and λmax(X) in float32."""
    a, b, n = single(family.a), None if family.b is None else single(family.b), family.a.shape[1]
    theta, width = family.start, min(WIDTH, n)
    best: tuple[float, Floats, Floats, float] | None = None
    inside, last, basis = 0.0, np.inf, np.zeros((n, 0), np.float32)
    for soft in rounds:
        X, g, c = summed_forms(family.forms(theta, 0.0), a, family.alpha, b, family.beta)
        kept = min(TOP, n)
        top, vectors = eigh(X, subset_by_index=[n - kept, n - 1], driver="evr", check_finite=False)
        lam, centre = trust_region(X, g, float(top[-1]))
        value = lam + float(g @ centre) + c
        directions = vectors[:, ::-1]
        if g.any():
            directions = np.column_stack([centre, g, directions])
        gained = np.inf if best is None else best[0] - value
        if best is None or gained > 0:
            best = value, theta, np.asarray(directions, float), float(top[-1])
        if last <= SHARP and (value <= inside + CLOSE * abs(inside) or gained < CLOSE * abs(value) / 3):
            break
        basis = np.linalg.qr(np.column_stack([unit_columns(directions), basis]).astype(np.float32))[0][:, :width]
        last, small_a, small_b = soft, a @ basis, _times(b, basis)
        theta = stepped(family, theta, small_a, small_b, soft)
        inside = _softened(family.forms(theta, 0.0), small_a, family.alpha, small_b, family.beta, 1e-9)[0]
    assert best is not None
    return best[1:]


def stepped(family: GatedForms | PlainForms, theta: Floats, a: Singles, b: Singles | None, soft: float) -> Floats:
    """Some steps of L-BFGS within a subspace."""

    def value(theta: Floats) -> tuple[float, Floats]:
        forms = family.forms(theta, soft)
        found, tt, vv, t = _softened(forms, a, family.alpha, b, family.beta, soft)
        return found, family.slope(theta, tt, vv, t)

    options = {"maxiter": family.steps, "maxfun": family.steps + 10}
    found = minimize(value, theta, jac=True, method="L-BFGS-B", bounds=family.limits, options=options)
    return np.asarray(found.x)


def _softened(
    forms: Forms, a: Singles, alpha: Floats, b: Singles | None, beta: Floats | None, soft: float
) -> tuple[float, Floats, Floats, Floats]:
    """The least λ + s − ν·log det in a subspace, and the expectations of t², v² and t there."""
    X, g, c = summed_forms(forms, a, alpha, b, beta)
    x, vectors = np.linalg.eigh(X.astype(float))
    turned = vectors.T @ g
    nu = soft * (max(float(x[-1]), 0.0) + float(np.abs(g).max(initial=0.0)) + 1e-12) / len(x)
    lam = _secular(x, turned, nu)
    gap = np.maximum(lam - x, 1e-300)
    value = lam + float(np.sum(turned * turned / gap)) + c - nu * float(np.log(gap).sum())
    root = (vectors * np.sqrt(nu / gap)).astype(np.float32)
    centre = (vectors @ (turned / gap)).astype(np.float32)
    t = (a @ centre).astype(float) + alpha
    tt = t * t + np.square(a @ root).sum(axis=1)
    if b is None or beta is None:
        return value, tt, tt, t
    v = (b @ centre).astype(float) + beta
    return value, tt, v * v + np.square(b @ root).sum(axis=1), t


def _secular(x: Floats, g: Floats, nu: float) -> float:
    """λ ≥ max(x, 0) with Σ g²/(λ − x)² + ν/(λ − x) = 1, from above; the left end if there is none."""
    low = max(float(x[-1]), 0.0)
    high = low + 2 * float(np.linalg.norm(g)) + 2 * nu * len(x) + 1e-300
    for _ in range(60):
        lam = (low + high) / 2
        gap = np.maximum(lam - x, 1e-300)
        low, high = (lam, high) if np.sum((g / gap) ** 2 + nu / gap) > 1 else (low, lam)
    return high


def summed_forms(
    forms: Forms, a: Singles, alpha: Floats, b: Singles | None, beta: Floats | None
) -> tuple[NDArray[Any], Floats, float]:
    """X, g and c of the sum of the forms, for rows in any dimensions."""
    linear_a = 2 * forms.tt * alpha + forms.t
    c = float(np.sum((forms.tt * alpha + forms.t) * alpha)) + forms.constant
    if b is None or beta is None:
        positive = forms.tt >= 0
        X = _square(a, np.where(positive, forms.tt, 0.0))
        if not positive.all():
            X = X - _square(a, np.where(positive, 0.0, -forms.tt))
        return X, np.asarray(linear_a @ a, float) / 2, c
    linear_a = linear_a + forms.tv * beta
    linear_b = 2 * forms.vv * beta + forms.tv * alpha + forms.v
    c += float(np.sum((forms.vv * beta + forms.tv * alpha + forms.v) * beta))
    g = np.asarray(linear_a @ a + linear_b @ b, float) / 2
    spread = np.sqrt(forms.tt * forms.vv)
    ratio = np.sqrt(np.where(spread > 0, forms.tt / np.where(spread > 0, spread, 1.0), 1.0))
    return _squares(a, b, np.abs(forms.tv) / 2 + spread, np.abs(forms.tv) / 2 - spread, ratio, np.sign(forms.tv)), g, c


def _squares(
    a: NDArray[Any], b: NDArray[Any], plus: Floats, minus: Floats, ratio: Floats, sign: Floats
) -> NDArray[Any]:
    """Σ plus/2·(ra ± b/r)² − minus/2·(ra ∓ b/r)²; the second sum is over few neurons, those with a small range of t."""

    def square(weight: Floats, sign: Floats, rows: Any) -> NDArray[Any]:
        root = np.sqrt(weight[rows] / 2)
        scaled = a[rows] * (root * ratio[rows])[:, None].astype(a.dtype)
        scaled += b[rows] * (sign[rows] * root / ratio[rows])[:, None].astype(a.dtype)
        return np.asarray(scaled.T @ scaled)

    X = square(plus, sign, slice(None))
    some = minus > 1e-9 * plus
    return X - square(minus, -sign, some) if some.any() else X


def trust_region(X: NDArray[Any], g: Floats, top: float) -> tuple[float, Floats]:
    """λ ≥ λmax(X) for which λ + g·(λ − X)⁻¹l is least, and (λ − X)⁻¹l: Newton's method by Cholesky."""
    size = float(np.linalg.norm(g))
    low = max(top, 0.0)
    if size == 0:
        return low, np.zeros(len(g))
    floor = low + 1e-6 * (low + size)
    high, lam = floor + size, floor
    centre, best = np.zeros(len(g)), high
    for _ in range(20):
        try:
            factor = cholesky(lam * np.eye(len(X)) - X, lower=True, overwrite_a=True, check_finite=False)
        except LinAlgError:
            floor = lam
            lam = (lam + high) / 2
            continue
        half = solve_triangular(factor, g, lower=True, check_finite=False)
        centre, best = solve_triangular(factor, half, lower=True, trans="T", check_finite=False), lam
        length = float(np.linalg.norm(centre))
        slope = float(np.square(solve_triangular(factor, centre, lower=True, check_finite=False)).sum())
        floor, high = (lam, high) if length > 1 else (floor, lam)
        step = lam + length * length / slope * (length - 1)
        if abs(length - 1) < 1e-6 or high - floor <= 1e-9 * high or (length < 1 and lam <= low * (1 + 2e-6)):
            break
        lam = step if floor < step < high else (floor + high) / 2
    return best, centre


def proven_by(
    neurons: Neurons, d: Floats, first: Floats, second: Floats, top: float, cuts: Cuts | None = None
) -> tuple[float, float] | None:
    """λ and s that these multipliers prove, in float64; None if they prove nothing. top: λmax(X), roughly."""
    with np.errstate(all="ignore"):  # what overflows proves nothing
        X, g, c, total = _exact_matrix(neurons, d, first, second)
        if cuts is not None:
            X = X - _square(cuts.directions, cuts.eta)
            g = g + (cuts.eta * (cuts.low + cuts.high) / 2) @ cuts.directions
            c -= float(cuts.eta @ (cuts.low * cuts.high))
            total += float(cuts.eta @ ((1 + np.abs(cuts.low)) * (1 + np.abs(cuts.high))))
    if not (np.isfinite(total) and np.isfinite(X).all() and np.isfinite(g).all() and np.isfinite(c)):
        return None
    n, rough = neurons.size, 1e-6
    if n <= SMALL:
        top, rough = float(eigh(X, eigvals_only=True, subset_by_index=[n - 1, n - 1])[0]), 1e-9
    lam, centre = trust_region(X, g, top)
    s = float(g @ centre) + c
    rounding = 8 * (2 * neurons.count + n + 32) * EPS * total + 1e-300
    slack = rough * (abs(lam) + abs(s)) + 4 * rounding
    for _ in range(30):
        if g.any():
            s = float(g @ _solved(X, g, lam + slack / 2)) + c
        if _is_positive(X, g, c, lam + slack, s + slack, rounding):
            return lam + slack, s + slack
        slack = 3 * slack
    return None


def _exact_matrix(neurons: Neurons, d: Floats, first: Floats, second: Floats) -> tuple[Floats, Floats, float, float]:
    """X, g, c in float64, and the sum of the absolute terms, of which their errors are a share."""
    act = ACTIVATIONS[neurons.activation]
    a, alpha, size, weight = neurons.a, neurons.a_offset, np.hypot(norms(neurons.a), neurons.a_offset), np.abs(d)
    low, high = reader_range(neurons.a, alpha)
    if neurons.b is None or neurons.b_offset is None:
        constants = act.least_constant(np.sign(d), first, second, low, high)
        tt, t = weight * first, weight * second
        positive = _square(a, np.where(tt > 0, tt, 0.0))
        X = positive if (tt >= 0).all() else positive - _square(a, np.where(tt > 0, 0.0, -tt))
        c = float(np.sum((tt * alpha + t) * alpha)) + float(weight @ constants)
        total = float(np.abs(tt) @ size**2 + np.abs(t) @ size + weight @ np.abs(constants))
        return X, (2 * tt * alpha + t) @ a / 2, c, total
    b, beta, other = neurons.b, neurons.b_offset, np.hypot(norms(neurons.b), neurons.b_offset)
    least, most = act.factors(low, high)
    least = np.where(least <= 1e-9 * most, 0.0, least)
    most = most * (1 + 8 * EPS)  # covers the rounding of what follows
    spread = weight * (most - least) / 4
    tt, vv, tv, v = spread * first, spread / first, d * (most + least) / 2, act.at_zero * d
    X = _squares(a, b, weight * most / 2, weight * least / 2, np.sqrt(first), np.sign(d))
    g = (2 * tt * alpha + tv * beta) @ a + (2 * vv * beta + tv * alpha + v) @ b
    c = float(np.sum(tt * alpha**2 + tv * alpha * beta + vv * beta**2 + v * beta))
    total = float(tt @ size**2 + 2 * np.abs(tv) @ (size * other) + vv @ other**2 + np.abs(v) @ other)
    return X, g / 2, c, total


def _is_positive(X: Floats, g: Floats, c: float, lam: float, s: float, rounding: float) -> bool:
    """Whether [[λI − X, −g], [−g', s − c]] is positive semidefinite whatever rounding did to X, g, c and Cholesky."""
    n = len(X)
    matrix = np.empty((n + 1, n + 1))
    matrix[:n, :n], matrix[:n, n], matrix[n, :n], matrix[n, n] = -X, -g, -g, s - c
    matrix.flat[: n * (n + 2) : n + 2] += lam
    trace = float(np.abs(matrix.flat[:: n + 2]).sum())
    matrix.flat[:: n + 2] -= rounding + 2 * (n + 4) * EPS * trace
    try:
        cholesky(matrix, lower=True, overwrite_a=True, check_finite=False)
    except LinAlgError:
        return False
    return lam >= 0


def _solved(X: Floats, g: Floats, lam: float) -> Floats:
    """(λ − X)⁻¹l, or 0 if λ is too small."""
    try:
        factor = cholesky(lam * np.eye(len(X)) - X, lower=True, overwrite_a=True, check_finite=False)
    except LinAlgError:
        return np.zeros(len(g))
    return np.asarray(cho_solve((factor, True), g, check_finite=False))


def _by_intervals(neurons: Neurons, d: Floats, note: str, directions: Floats | None = None) -> Tight:
    """The sum of the neurons' suprema, and a little more: a checker may round otherwise."""
    low, high = hidden_range(neurons)
    bound = float(intervals(neurons, d[None])[1][0] + 1e-9 * (np.abs(d) @ np.maximum(np.abs(low), np.abs(high))))
    proof = NeuronCertificate("intervals", bound, product_multipliers(neurons, d), np.zeros(0), 0.0, 0.0)
    return Tight(bound, proof, np.zeros((neurons.size, 0)) if directions is None else directions, note)


def unit_columns(columns: NDArray[Any]) -> NDArray[Any]:
    """Columns of length 1, or a hair less; 0 stays 0."""
    largest = np.abs(columns).max(axis=0, initial=0.0)
    columns = columns / np.where(largest > 0, largest, 1.0)
    size = np.linalg.norm(columns, axis=0) * (1 + len(columns) * EPS)
    return np.asarray(columns / np.where(size > 0, size, 1.0))


def _square(rows: NDArray[Any], weight: Floats) -> NDArray[Any]:
    scaled = rows * np.sqrt(weight)[:, None].astype(rows.dtype)
    return np.asarray(scaled.T @ scaled)


def _column(values: Floats) -> Singles:
    return values[:, None].astype(np.float32)


def _times(rows: Singles | None, basis: Singles) -> Singles | None:
    return None if rows is None else rows @ basis
