import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from normscope import Norm
from oracles import dense_factor
from strategies import norms, seeds
from test_lengths import EDGE_CASES, EXTREME_CASES

RNG = np.random.default_rng(7)
LARGE = {
    "near one": 1 + 0.1 * RNG.normal(size=1200),
    "heavy tails": RNG.standard_t(1.5, size=1200),
    "eight decades": 10 ** RNG.uniform(-6, 2, 1200) * RNG.choice([-1, 1], 1200),
    "bfloat16": torch.tensor(1 + 0.1 * RNG.normal(size=1200)).bfloat16().double().numpy(),
    "float32": (1 + 0.1 * RNG.normal(size=1200)).astype(np.float32),
    "some zero": RNG.normal(size=1200) * (RNG.random(1200) < 0.9),
}


@pytest.mark.parametrize("gain", (EDGE_CASES | EXTREME_CASES | LARGE).values(), ids=EDGE_CASES | EXTREME_CASES | LARGE)
def test_axes_are_orthonormal_and_orthogonal_to_the_dead_directions(gain):
    ellipsoid = Norm(gain=gain).ellipsoid
    axes, dead = ellipsoid.axes(), ellipsoid.dead_directions
    everything = np.concatenate([axes, dead], axis=1)
    assert everything.shape == (ellipsoid.size, ellipsoid.size)
    assert np.abs(everything.T @ everything - np.eye(ellipsoid.size)).max() <= 1e-13


def gains_over_decades(rng, size, decades, kind):
    """Signed gains spread evenly over 10^±decades: distinct, with ties, with zeros, with both, or two by two."""
    gain = 10.0 ** rng.uniform(-decades, decades, size) * rng.choice([-1, 1], size)
    if "tied" in kind:
        gain[rng.permutation(size)[: size // 2]] *= 0.0
        gain = np.where(gain == 0.0, gain[np.argmax(np.abs(gain))] * rng.choice([-1, 1], size), gain)
    if "zero" in kind:
        gain *= rng.random(size) < 0.7
    if "pairs" in kind:
        gain[1::2] = gain[: size // 2 * 2 : 2] * (1 + rng.choice([1e-15, 1e-8, 1e-2, 1.0], size // 2))
    return gain


SPREAD_KINDS = ["distinct", "tied", "zero", "tied and zero", "pairs"]


@given(seeds, st.integers(1, 24), st.sampled_from([30, 100, 150]), st.sampled_from(SPREAD_KINDS))
def test_axes_are_orthonormal_however_far_gains_are_spread(seed, size, decades, kind):
    ellipsoid = Norm(gain=gains_over_decades(np.random.default_rng(seed), size, decades, kind)).ellipsoid
    everything = np.concatenate([ellipsoid.axes(), ellipsoid.dead_directions], axis=1)
    assert np.abs(everything.T @ everything - np.eye(size)).max() <= 1e-13


def test_axes_are_orthonormal_where_many_gains_leave_no_gap():
    """Windows overlap all along: wherever one ends there is a neighbour within a factor of two."""
    gain = 10.0 ** RNG.uniform(-150, 150, 1500)
    ellipsoid = Norm(gain=gain).ellipsoid
    everything = np.concatenate([ellipsoid.axes(), ellipsoid.dead_directions], axis=1)
    assert np.abs(everything.T @ everything - np.eye(len(gain))).max() <= 1e-13


def reference_spaces(gain, digits):
    """Lengths, descending, and the projector onto the axes of each, from G² − ggᵀ/N with many digits."""
    with mpmath.workdps(digits):
        g = mpmath.matrix([mpmath.mpf(float(value)) for value in gain])
        values, vectors = mpmath.eigsy(mpmath.diag([x**2 for x in g]) - g * g.T / len(g))
        zero = values[len(g) - 1] * mpmath.mpf(10) ** (40 - digits)
        spaces = []
        for n in range(len(g) - 1, -1, -1):  # eigsy ascends
            column = np.array([float(x) for x in vectors[:, n]])
            if spaces and abs(spaces[-1][0] - values[n]) <= max(zero, values[n] * mpmath.mpf("1e-60")):
                spaces[-1][1].append(column)
            else:
                spaces.append((values[n], [column]))
        return [(float(mpmath.sqrt(abs(value) * len(g))), np.array(columns)) for value, columns in spaces]


@pytest.mark.parametrize("kind", [*SPREAD_KINDS, "where windows end"])
@pytest.mark.parametrize("decades", [30, 100, 150])
def test_axes_and_lengths_agree_with_a_reference_of_many_digits(decades, kind):
    """The reference needs the digits of the largest gain's square beside the smallest's, and some."""
    gain = gains_over_decades(np.random.default_rng(decades), 7, decades, kind)
    if kind == "where windows end":
        gain = np.array([1.0, 1.2e-35, 0.9e-35, 1.1e-50, 0.9e-50, 0.8e-50]) * 10.0**decades
    ellipsoid = Norm(gain=gain).ellipsoid
    lengths, axes = ellipsoid.lengths, ellipsoid.axes()
    first = 0
    for length, rows in reference_spaces(gain, 4 * decades + 100):
        if first == ellipsoid.dimension:
            mine = ellipsoid.dead_directions.T
        else:
            mine = axes[:, first : first + len(rows)].T
            assert lengths[first : first + len(rows)] == pytest.approx([length] * len(rows), rel=1e-15, abs=0)
            first += len(rows)
        assert mine.T @ mine == pytest.approx(rows.T @ rows, abs=1e-14)
    assert first == ellipsoid.dimension


@given(norms())
def test_axes_diagonalise_the_dense_factor(norm):
    factor = dense_factor(norm)
    largest = np.linalg.norm(factor, 2)
    axes = norm.ellipsoid.axes()
    lengths = norm.ellipsoid.lengths if norm.scales else np.linalg.norm(axes.T @ factor, axis=1)
    gram = (axes.T @ factor / (largest or 1.0)) @ (axes.T @ factor / (largest or 1.0)).T
    assert gram == pytest.approx(np.diag((lengths / (largest or 1.0)) ** 2), abs=1e-13)
    assert np.abs(norm.ellipsoid.dead_directions.T @ factor).max(initial=0.0) <= 1e-13 * largest


@given(norms())
def test_one_axis_is_a_column_of_all_axes(norm):
    """Up to the last digit: compiled sums may be added up in another order where arrays lie otherwise in memory."""
    ellipsoid = norm.ellipsoid
    axes = ellipsoid.axes()
    for i in range(ellipsoid.dimension):
        np.testing.assert_allclose(ellipsoid.axis(i), axes[:, i], rtol=1e-14, atol=0)
    if ellipsoid.dimension:
        np.testing.assert_allclose(ellipsoid.axis(-1), axes[:, -1], rtol=1e-14, atol=0)
        np.testing.assert_allclose(ellipsoid.axes(1), axes[:, :1], rtol=1e-14, atol=0)


@pytest.mark.parametrize("zeros", [0, 1, 3])
def test_dead_directions_span_the_left_null_space_of_the_paper(zeros):
    """The left null space of diag(g) − g1ᵀ/N, by dense SVD."""
    gain = np.r_[np.zeros(zeros), RNG.normal(size=9)]
    left, values, _ = np.linalg.svd(np.diag(gain) - np.outer(gain, np.ones(len(gain))) / len(gain))
    null = left[:, values <= 1e-12 * values[0]]
    dead = Norm(gain=gain).ellipsoid.dead_directions
    assert dead.shape == null.shape
    assert dead @ dead.T == pytest.approx(null @ null.T, abs=1e-12)


def test_where_gains_span_eight_decades_dense_eigh_leaves_the_hyperplane_and_we_do_not():
    gain = LARGE["eight decades"]
    normal = 1 / gain / np.linalg.norm(1 / gain)
    dense = np.linalg.eigh(np.diag(gain**2) - np.outer(gain, gain) / len(gain))[1][:, 1:]
    assert np.abs(normal @ Norm(gain=gain).ellipsoid.axes()).max() < 1e-14
    assert np.abs(normal @ dense).max() > 1e-6


def test_an_axis_out_of_range_is_refused():
    ellipsoid = Norm(gain=[1, 2, 3]).ellipsoid
    with pytest.raises(IndexError, match="axis must be from 0 to 1, got 2"):
        ellipsoid.axis(2)
    with pytest.raises(ValueError, match="k must be at most the dimension, 2, got 3"):
        ellipsoid.axes(3)
    with pytest.raises(ValueError, match="k must be a whole number, 0 or more, got -1"):
        ellipsoid.axes(-1)
