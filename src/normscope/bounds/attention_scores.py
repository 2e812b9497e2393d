"""How far queries, keys and attention scores can go, with rotary embeddings at any position.

    q = A_q·u + α,  k = A_k·w + β,  |u|, |w| ≤ 1,   R a rotation in the plane of each pair of channels

**A channel** of a pair, over all angles: the largest norm of a point of the pair's ellipse. With g the eigenvalues of
the 2×2 Gram matrix of the two rows, and b the offsets in its eigenvectors,

    sup² = min over λ ≥ g₁ of λ·(1 + Σ bᵢ²/(λ − gᵢ))          without offsets g₁, the largest singular value squared

**A score**, over all angles: for every M = diag(μ), equal in the channels of a pair, so that M commutes with R,

    |q·R·k| ≤ |Mq|·|M⁻¹k|,     |Mq|² ≤ (1 + τ²)·λmax(M(A·Aᵀ + αα'/τ²)M)

for every τ > 0; with the best τ that is the supremum of |Mq|. Where nothing turns, no M is needed: the largest singular
value of [A_q α/τ_q]ᵀ[A_k β/τ_k]. Only d×d Gram matrices are used, so the size of the model hardly matters.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cholesky, eigh
from scipy.optimize import minimize

from normscope.certificates.neuron_certificates import ScoreCertificate
from normscope.checks import Floats, as_floats
from normscope.errors import InputError

EPS = float(np.finfo(float).eps)
TERMS = 2**14  # products in an entry of a Gram matrix, if nothing else is said
SAFE = 1e-9  # relative slack of a certified score


class Scores(NamedTuple):
    """The largest |q·R·k|, and what proves that no score is larger."""

    bound: float
    certificate: ScoreCertificate


def rotary_range(
    first: Any, second: Any, product: Any, first_offset: Any = None, second_offset: Any = None, terms: int = TERMS
) -> Floats:
    """The largest |value| that either channel of a pair takes over all inputs and angles, rounded up.

    Parameters
    ----------
    first, second, product
        (m,) each: |aᵢ|², |aⱼ|² and aᵢ·aⱼ of the rows i and j of every pair.
    first_offset, second_offset
        (m,) each, or None: the offsets of these rows.
    terms
        Products that were summed for each of the first three, for their rounding error.

    Returns
    -------
    Floats
        (m,): a supremum for each pair, up to a few parts in 10⁷ with offsets.

    >>> rotary_range([9.0], [4.0], [0.0]).round(6), rotary_range([9.0], [4.0], [0.0], [1.0], [0.0]).round(6)
    (array([3.]), array([4.000001]))
    """
    ii, jj, ij = (
        np.atleast_1d(as_floats(x, name)) for x, name in ((first, "first"), (second, "second"), (product, "product"))
    )
    if not ii.shape == jj.shape == ij.shape or (ii < 0).any() or (jj < 0).any():
        raise InputError("first, second and product must be as many, and squares not negative")
    error = (terms + 16) * EPS
    ii, jj = ii + error * (ii + jj), jj + error * (ii + jj)
    half = np.hypot((ii - jj) / 2, ij)
    top = ((ii + jj) / 2 + half) * (1 + 16 * EPS)
    if first_offset is None and second_offset is None:
        return np.asarray(np.sqrt(top) * (1 + 4 * EPS))
    zero = np.zeros_like(ii)
    bi = zero if first_offset is None else np.atleast_1d(as_floats(first_offset, "first_offset"))
    bj = zero if second_offset is None else np.atleast_1d(as_floats(second_offset, "second_offset"))
    if bi.shape != ii.shape or bj.shape != ii.shape:
        raise InputError(f"offsets must be {len(ii)}, one for each pair, got {bi.shape} and {bj.shape}")
    angle = np.arctan2(2 * ij, ii - jj) / 2
    along, across = bi * np.cos(angle) + bj * np.sin(angle), bj * np.cos(angle) - bi * np.sin(angle)
    return _farthest(top, 2 * half, along, across, np.hypot(bi, bj))


def score_range(
    gram_q: Any,
    gram_k: Any,
    pairs: Any = None,
    offset_q: Any = None,
    offset_k: Any = None,
    terms: int = TERMS,
    steps: int = 30,
) -> Scores:
    """The largest |q·R·k| over two independent inputs and any angles, before any scale such as 1/√d.

    Parameters
    ----------
    gram_q, gram_k
        (d, d): A_q·A_qᵀ and A_k·A_kᵀ of one head.
    pairs
        (m, 2): channels that turn together, or None where nothing turns. Channels in no pair do not turn.
    offset_q, offset_k
        (d,) each, or None.
    terms
        Products that were summed for an entry of a Gram matrix, for its rounding error.
    steps
        Of L-BFGS for μ and τ.

    Returns
    -------
    Scores
        The bound with its certificate; `normscope.certificates.check_neurons.check_scores` checks it.

    >>> round(score_range(np.diag([9.0, 1.0]), np.diag([1.0, 4.0])).bound, 6)
    3.0
    >>> round(score_range(np.diag([9.0, 1.0]), np.diag([1.0, 4.0]), [[0, 1]]).bound, 6)
    6.0
    """
    queries, alpha = _checked(gram_q, offset_q, "q", terms)
    keys, beta = _checked(gram_k, offset_k, "k", terms)
    if len(queries) != len(keys):
        raise InputError(f"queries and keys must have as many channels, got {len(queries)} and {len(keys)}")
    blocks = _blocks(pairs, len(queries))
    size_q, size_k = float(np.trace(queries)) + float(alpha @ alpha), float(np.trace(keys)) + float(beta @ beta)
    if size_q == 0 or size_k == 0:
        mu, lam_q, lam_k = np.ones(len(queries)), size_q * (1 + 1e-6), size_k * (1 + 1e-6)  # traces, and one is 0
        if blocks is None:
            mu, lam_q, lam_k = np.zeros(0), 0.0, 1.0
        return Scores(0.0, ScoreCertificate(0.0, mu, float(alpha.any()), float(beta.any()), lam_q, lam_k))
    scale_q, scale_k = np.sqrt(size_q), np.sqrt(size_k)
    queries, alpha, keys, beta = queries / size_q, alpha / scale_q, keys / size_k, beta / scale_k
    problem = _Problem(queries, alpha, keys, beta, blocks)
    x = problem.start()
    best = problem.value(x)[0], x
    if steps and len(x):
        found = minimize(problem.value, x, jac=True, method="L-BFGS-B", options={"maxiter": steps})
        best = min(best, (float(found.fun), found.x), key=lambda pair: pair[0])
    mu, tau_q, tau_k = problem.parts(best[1])
    lam_q, lam_k = problem.eigenvalues(best[1])
    lam_q, lam_k = lam_q * (1 + SAFE) * size_q, lam_k * (1 + SAFE) * size_k
    if blocks is None:
        lam_q, lam_k = lam_q * lam_k, 1.0
    bound = float(np.sqrt(lam_q) * np.sqrt(lam_k) * np.sqrt((1 + tau_q**2) * (1 + tau_k**2)) * (1 + 16 * EPS))
    return Scores(bound, ScoreCertificate(bound, mu, tau_q, tau_k, lam_q, lam_k))


class _Problem:
    """log of the bound as a function of log μ (one for each block of channels) and log τ (where there is an offset)."""

    def __init__(self, queries: Floats, alpha: Floats, keys: Floats, beta: Floats, blocks: NDArray[Any] | None) -> None:
        self.queries, self.alpha, self.keys, self.beta, self.blocks = queries, alpha, keys, beta, blocks
        self.count = 0 if blocks is None else int(blocks.max()) + 1
        self.shifts = [bool(alpha.any()), bool(beta.any())]

    def start(self) -> Floats:
        taus = []
        for gram, offset, there in zip((self.queries, self.keys), (self.alpha, self.beta), self.shifts, strict=True):
            if there:
                ratio = (offset @ offset) / max(float(np.trace(gram)), 1e-12)
                taus.append(0.25 * np.log(np.clip(ratio, 1e-8, 1e8)))
        return np.concatenate([np.zeros(self.count), taus])

    def parts(self, x: Floats) -> tuple[Floats, float, float]:
        mu = np.zeros(0) if self.blocks is None else np.exp(x[: self.count])[self.blocks]
        taus = iter(np.exp(x[self.count :]))
        tau_q, tau_k = (float(next(taus)) if there else 0.0 for there in self.shifts)
        return mu, tau_q, tau_k

    def eigenvalues(self, x: Floats) -> tuple[float, float]:
        mu, tau_q, tau_k = self.parts(x)
        left, right = _lifted(self.queries, self.alpha, tau_q), _lifted(self.keys, self.beta, tau_k)
        if self.blocks is None:
            return _top(_sandwich(left, right))[0], 1.0
        return _top(left * np.outer(mu, mu))[0], _top(right / np.outer(mu, mu))[0]

    def value(self, x: Floats) -> tuple[float, Floats]:
        mu, tau_q, tau_k = self.parts(x)
        left, right = _lifted(self.queries, self.alpha, tau_q), _lifted(self.keys, self.beta, tau_k)
        slope: list[float] = []
        if self.blocks is None:
            # The top singular pair of left^½·right^½, as vectors y'·left·y = 1 and z'·right·z = 1.
            top = _top(_sandwich(left, right))[0]
            y, z = _singular(left, right)
            total = 0.5 * np.log(top)
        else:
            (first, p), (second, r) = _top(left * np.outer(mu, mu)), _top(right / np.outer(mu, mu))
            slope = list(np.bincount(self.blocks, p * p - r * r, self.count))
            y, z = p * mu / np.sqrt(first), r / mu / np.sqrt(second)
            total = 0.5 * np.log(first * second)
        for vector, offset, tau, there in (
            (y, self.alpha, tau_q, self.shifts[0]),
            (z, self.beta, tau_k, self.shifts[1]),
        ):
            if there:
                total += 0.5 * np.log1p(tau * tau)
                slope.append(tau * tau / (1 + tau * tau) - float(vector @ offset) ** 2 / tau**2)
        return float(total), np.array(slope)


def _farthest(top: Floats, gap: Floats, along: Floats, across: Floats, size: Floats) -> Floats:
    """√ of the least λ(1 + b₁²/(λ − g₁) + b₂²/(λ − g₂)), λ = g₁ + δ, by bisection of its slope in log δ.

    Every δ gives a bound. A δ of 10⁻⁷·g₁ at least, and 2·10⁻⁷ of the result, cover the rounding of g and b.
    """
    scale = np.where(top > 0, top, 1.0)
    least = 1e-7 * scale
    low, high = np.log(least), np.log(scale + size * np.sqrt(scale) + size * size)
    other = np.maximum(top - gap, 0.0)
    for _ in range(60):
        middle = (low + high) / 2
        delta = np.exp(middle)
        rising = along**2 * top / delta**2 + across**2 * other / (delta + gap) ** 2 <= 1
        low, high = np.where(rising, low, middle), np.where(rising, middle, high)
    delta = np.maximum(np.exp(high), least)
    square = (top + delta) * (1 + along**2 / delta + across**2 / (delta + gap))
    square = np.where(top > 0, square, size * size)
    return np.asarray(np.sqrt(square) * (1 + 2e-7))


def _checked(gram: Any, offset: Any, name: str, terms: int) -> tuple[Floats, Floats]:
    """The Gram matrix with its rounding error on the diagonal, and the offsets."""
    matrix = as_floats(gram, f"gram_{name}")
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not len(matrix):
        raise InputError(f"gram_{name} must be a square matrix, got shape {matrix.shape}")
    shift = np.zeros(len(matrix)) if offset is None else as_floats(offset, f"offset_{name}")
    if shift.shape != (len(matrix),):
        raise InputError(f"offset_{name} must have {len(matrix)} channels, got shape {shift.shape}")
    if (np.diagonal(matrix) < 0).any():
        raise InputError(f"gram_{name} must have no negative entry on its diagonal")
    matrix = (matrix + matrix.T) / 2
    matrix.flat[:: len(matrix) + 1] *= 1 + (terms + 32) * EPS * len(matrix)
    return matrix, shift


def _blocks(pairs: Any, size: int) -> NDArray[Any] | None:
    """The number of the block that each channel belongs to: a pair, or a channel alone; None where nothing turns."""
    planes = np.zeros((0, 2), int) if pairs is None else np.asarray(pairs)
    if not planes.size:
        return None
    used = planes.ravel()
    if planes.ndim != 2 or planes.shape[1] != 2 or used.dtype.kind not in "iu":
        raise InputError(f"pairs must be rows of two channels, got shape {planes.shape}")
    if len(np.unique(used)) != len(used) or used.min() < 0 or used.max() >= size:
        raise InputError(f"pairs must name each of the {size} channels at most once")
    found = np.full(size, -1)
    found[planes] = np.arange(len(planes))[:, None]
    alone = np.flatnonzero(found < 0)
    found[alone] = len(planes) + np.arange(len(alone))
    return found


def _lifted(gram: Floats, offset: Floats, tau: float) -> Floats:
    return np.asarray(gram + np.outer(offset, offset) / tau**2) if tau else gram


def _root(gram: Floats) -> Floats:
    """L with LL' at least gram."""
    jitter = 16 * (len(gram) + 4) * EPS * float(np.trace(gram))
    while True:
        try:
            return np.asarray(cholesky(gram + jitter * np.eye(len(gram)), lower=True))
        except LinAlgError:
            jitter *= 16


def _sandwich(left: Floats, right: Floats) -> Floats:
    """L'·right·L, with the rounding of its product on the diagonal."""
    root = _root(left)
    found = root.T @ right @ root
    slack = 32 * (len(left) + 8) * EPS * float(np.trace(left) * np.trace(right))
    return np.asarray((found + found.T) / 2 + slack * np.eye(len(left)))


def _singular(left: Floats, right: Floats) -> tuple[Floats, Floats]:
    root, other = _root(left), _root(right)
    product = root.T @ other
    x, values, yt = np.linalg.svd(product)
    return other @ yt[0] / values[0], root @ x[:, 0] / values[0]


def _top(matrix: Floats) -> tuple[float, Floats]:
    """λmax, a little more, and its eigenvector."""
    size = len(matrix)
    values, vectors = eigh(matrix, subset_by_index=[size - 1, size - 1])
    return float(values[0]) + 64 * (size + 16) * EPS * float(np.trace(matrix)), vectors[:, 0]
