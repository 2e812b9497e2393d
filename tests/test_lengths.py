"""Semi-axis lengths against references of another make: 60 and more digits, dense SVD, the paper's form."""

import mpmath
import numba
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from normscope import Norm
from normscope.compiled import compiled
from oracles import dense_lengths
from strategies import FLAGS, gains, norms, seeds

RANDOM = np.random.default_rng(0)
ULP = np.finfo(float).eps

EDGE_CASES = {
    "one channel": [3.0],
    "one zero channel": [0.0],
    "two channels": [1.0, 2.0],
    "two equal up to sign": [1.0, -1.0],
    "three channels": [-0.3, 2.0, 7.0],
    "all equal": np.ones(9),
    "neighbouring floats": 1 + ULP * np.arange(12),
    "neighbouring floats, tied": 1 + ULP * np.repeat(np.arange(4), 3),
    "clusters": np.r_[1 + 4 * ULP * np.arange(6), 2 + 1e-12 * np.arange(6), 5.0],
    "cluster at the end": np.r_[0.1, 1 - ULP * np.arange(8)],
    "span 1e-8 to 1e8": 10.0 ** np.linspace(-8, 8, 17),
    "span 1e-8 to 1e8, with signs": 10.0 ** RANDOM.uniform(-8, 8, 17) * RANDOM.choice([-1, 1], 17),
    "one zero": np.r_[0.0, RANDOM.normal(size=14)],
    "three zeros": np.r_[np.zeros(3), RANDOM.normal(size=12)],
    "three zeros and ties": np.r_[np.zeros(3), 1.0, -1.0, 1.0, 2.0, 2.0],
    "one that is not zero": np.r_[np.zeros(7), 3.0],
    "all zero": np.zeros(6),
    "tiny": 1e-30 * RANDOM.normal(size=12),
    "one huge": np.r_[1e8, 1 + 1e-9 * RANDOM.normal(size=10)],
    "bfloat16": torch.tensor(1 + 0.02 * RANDOM.normal(size=30)).bfloat16().double().numpy(),
    "float16": torch.tensor(RANDOM.normal(size=20)).half().double().numpy(),
}
# Beyond what a square in float64 can hold, on one or both sides.
EXTREME_CASES = {
    "1e-200": 1e-200 * RANDOM.normal(size=6),
    "1e200": 1e200 * RANDOM.normal(size=6),
    "smallest floats": [5e-324, 1e-323, 2e-320, 1e-310],
    "one tiny beside ordinary": [1e-200, 1.0, 2.0],
    "two tiny beside ordinary": [1e-200, 2e-200, 2e-200, 1.0, 2.0, -2.0],
    "three sizes and zeros": [0.0, 0.0, 1e-150, 3e-150, 1.0, 1.5, 1e150, 1e150, 4e150],
}


def reference_lengths(gain, digits):
    """√(N·eigenvalues) of G² − ggᵀ/N with many digits, descending."""
    with mpmath.workdps(digits):
        g = [mpmath.mpf(float(value)) for value in gain]
        n = len(g)
        matrix = mpmath.matrix(n, n)
        for i in range(n):
            for j in range(n):
                matrix[i, j] = (g[i] ** 2 if i == j else 0) - g[i] * g[j] / n
        values = mpmath.eigsy(matrix, eigvals_only=True) if n > 1 else [matrix[0, 0]]
        return sorted((float(mpmath.sqrt(abs(value) * n)) for value in values), reverse=True)


@pytest.mark.parametrize("gain", EDGE_CASES.values(), ids=EDGE_CASES)
def test_lengths_agree_with_a_60_digit_reference(gain):
    lengths = Norm(gain=gain).ellipsoid.lengths
    reference = reference_lengths(gain, digits=60)
    assert lengths == pytest.approx(reference[: len(lengths)], rel=1e-15, abs=0)
    assert all(rest <= 1e-20 * max(reference) for rest in reference[len(lengths) :])


@pytest.mark.parametrize("gain", EXTREME_CASES.values(), ids=EXTREME_CASES)
def test_lengths_agree_with_the_reference_where_squares_overflow(gain):
    lengths = Norm(gain=gain).ellipsoid.lengths
    reference = reference_lengths(gain, digits=1400)
    smallest_float = 5e-324  # a length below the normal range can't have all its digits
    assert lengths == pytest.approx(reference[: len(lengths)], rel=1e-15, abs=4 * smallest_float)
    assert len(lengths) == len(gain) - max(1, np.count_nonzero(np.asarray(gain) == 0))


@pytest.mark.parametrize("kind", ["near one", "heavy tails", "eight decades", "clusters", "even"])
def test_as_many_eigenvalues_lie_below_each_length_as_should(kind):
    """N = 400 goes through the far field. Sylvester's law of inertia counts eigenvalues, here with 40 digits."""
    rng = np.random.default_rng(1)
    gain = {
        "near one": 1 + 0.1 * rng.normal(size=400),
        "heavy tails": rng.standard_t(1.5, size=400),
        "eight decades": 10 ** rng.uniform(-6, 2, 400),
        "clusters": np.concatenate([c + 1e-12 * rng.normal(size=100) for c in (0.5, 1.0, 1.1, 30.0)]),
        "even": np.linspace(0.5, 1.5, 400),
    }[kind]
    ascending = Norm(gain=gain).ellipsoid.lengths[::-1]
    with mpmath.workdps(40):
        squares = [mpmath.mpf(float(g)) ** 2 for g in gain]

        def count_below(length):
            mu = length**2 / len(gain)
            return sum(square < mu for square in squares) + (sum(1 / (square - mu) for square in squares) > 0)

        for i in range(0, len(ascending), 5):  # eigenvalue 0 is that of the dead direction
            assert count_below(ascending[i] * (1 - mpmath.mpf("1e-15"))) <= i + 1
            assert count_below(ascending[i] * (1 + mpmath.mpf("1e-15"))) >= i + 2


@given(norms(flags=[f for f in FLAGS if f[1]]))
def test_lengths_and_dimension_agree_with_dense_svd_over_the_family(norm):
    dense = dense_lengths(norm)
    lengths = norm.ellipsoid.lengths
    assert len(lengths) == norm.ellipsoid.dimension
    assert lengths == pytest.approx(dense[: len(lengths)], abs=1e-13 * dense[0])
    assert np.all(dense[len(lengths) :] <= 1e-13 * dense[0])
    assert np.all(np.diff(lengths) <= 0)
    assert np.all(lengths > 0)


@given(st.integers(1, 30).flatmap(gains), seeds)
def test_lengths_do_not_depend_on_order_or_sign(gain, seed):
    rng = np.random.default_rng(seed)
    changed = rng.permutation(gain) * rng.choice([-1, 1], len(gain))
    assert np.array_equal(Norm(gain=gain).ellipsoid.lengths, Norm(gain=changed).ellipsoid.lengths)


@given(st.integers(2, 30).flatmap(gains), st.integers(-60, 60))
def test_lengths_scale_exactly_with_a_power_of_two(gain, power):
    scaled = Norm(gain=np.ldexp(gain, power)).ellipsoid.lengths
    assert np.array_equal(scaled, np.ldexp(Norm(gain=gain).ellipsoid.lengths, power))


def paper_lengths(gain):
    """Riechers' form: √(N/λ) over the non-zero eigenvalues λ of Π₂G⁻²Π₂, with the Drazin inverse of G for zeros."""
    inverse = np.divide(1.0, gain, out=np.zeros_like(gain), where=gain != 0)
    normal = inverse / np.linalg.norm(inverse)
    project = np.eye(len(gain)) - np.outer(normal, normal)
    values = np.linalg.eigvalsh(project @ np.diag(inverse**2) @ project)
    return np.sort(np.sqrt(len(gain) / values[values > 1e-9 * values[-1]]))[::-1]


@given(size=st.integers(2, 20), seed=seeds)
def test_the_papers_form_gives_the_same_lengths_without_zero_gains(size, seed):
    rng = np.random.default_rng(seed)
    gain = rng.uniform(0.3, 3, size) * rng.choice([-1, 1], size)
    assert Norm(gain=gain).ellipsoid.lengths == pytest.approx(paper_lengths(gain), rel=1e-10)


@pytest.mark.parametrize("zeros", [1, 2, 5])
def test_with_zero_gains_the_drazin_form_loses_one_axis(zeros):
    gain = np.r_[np.zeros(zeros), np.random.default_rng(zeros).uniform(0.5, 2, 12)]
    lengths = Norm(gain=gain).ellipsoid.lengths
    dense = dense_lengths(Norm(gain=gain))
    assert len(lengths) == 12 == np.count_nonzero(dense > 1e-10)
    assert lengths == pytest.approx(dense[:12], rel=1e-13)
    drazin = paper_lengths(gain)
    assert len(drazin) == 11
    assert np.abs(drazin - lengths[:11]).max() > 1e-3  # and those it keeps are not those of the image


def test_without_a_place_for_the_cache_functions_are_compiled_all_the_same(monkeypatch):
    """numba refuses to cache where neither the package nor a home can be written."""
    njit = numba.njit

    def without_a_place(**options):
        if options.pop("cache", False):
            raise RuntimeError("cannot cache function: no locator available")
        return njit(**options)

    monkeypatch.setattr(numba, "njit", without_a_place)
    assert compiled(lambda x: x + 1)(1.5) == 2.5
