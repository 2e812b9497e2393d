import numpy as np
import pytest
import torch
from hypothesis import given

from normscope import Norm
from oracles import dense_factor
from strategies import norms
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
    ellipsoid = norm.ellipsoid
    axes = ellipsoid.axes()
    for i in range(ellipsoid.dimension):
        assert np.array_equal(ellipsoid.axis(i), axes[:, i])
    if ellipsoid.dimension:
        assert np.array_equal(ellipsoid.axis(-1), axes[:, -1])
        assert np.array_equal(ellipsoid.axes(1), axes[:, :1])


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
