import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from normscope import Ellipsoid, Norm
from normscope.geometry import EllipsoidSum
from oracles import dense_factor
from strategies import FLAGS, gains, inputs, norms, seeds

SCALING = [flags for flags in FLAGS if flags[1]]


def dense_support(norm, w):
    """w·b + Σ over groups of |Fᵀw|, with F as a matrix."""
    pulled = (w @ dense_factor(norm)).reshape(*w.shape[:-1], norm.groups, -1)
    return w @ norm.bias + np.linalg.norm(pulled, axis=-1).sum(axis=-1)


def sum_of_sizes(norm, W, c, w):
    """What rounding in w·(Wy + c) is relative to: the same sum with every term made positive."""
    reach = np.abs(norm.gain) * np.sqrt(norm.size) + np.abs(norm.bias)
    return np.abs(w) @ (np.abs(W) @ reach + np.abs(c))


@given(norms(flags=SCALING), seeds)
def test_support_agrees_with_the_dense_factor(norm, seed):
    w = np.random.default_rng(seed).normal(size=(3, 2, norm.size))
    expected = dense_support(norm, w)
    assert norm.ellipsoid.support(w) == pytest.approx(expected, abs=1e-12 * np.abs(expected).max())
    assert norm.ellipsoid.support(w[0, 0]) == pytest.approx(expected[0, 0], abs=1e-12 * np.abs(expected).max())


@given(st.data())
def test_no_output_goes_beyond_the_support(data):
    norm = data.draw(norms(flags=SCALING))
    y = norm(data.draw(inputs(norm)))
    w = np.random.default_rng(data.draw(seeds)).normal(size=(5, norm.size))
    support = norm.ellipsoid.support(w)
    assert np.all(y @ w.T <= support + 1e-12 * np.abs(w) @ (np.abs(norm.gain) * np.sqrt(norm.size) + np.abs(norm.bias)))


@given(norms(flags=SCALING, eps=(0.0,)), seeds)
def test_support_is_attained_by_the_output_for_the_input_gain_times_w(norm, seed):
    w = np.random.default_rng(seed).normal(size=norm.size)
    assume(not np.ptp(norm.gain) > 1e6)  # the input is centred in float64
    assert norm(norm.gain * w) @ w == pytest.approx(
        norm.ellipsoid.support(w), rel=1e-9, abs=1e-9 * np.abs(norm.gain).max()
    )


def test_the_reach_of_a_channel_is_known_in_closed_form():
    gain, bias = np.array([3.0, -2.0, 0.0, 0.5]), np.array([1.0, 0.0, 2.0, -1.0])
    channels = np.eye(4)
    for norm, root in (
        (Norm(gain=gain, bias=bias), np.sqrt(3)),
        (Norm(gain=gain, bias=bias, project=False), np.sqrt(4)),
        (Norm(gain=gain, bias=bias, groups=2), np.sqrt(1)),
        (Norm(gain=gain, bias=bias, groups=2, project=False), np.sqrt(2)),
    ):
        assert norm.ellipsoid.support(channels) == pytest.approx(bias + root * np.abs(gain), rel=1e-14)
        assert -norm.ellipsoid.support(-channels) == pytest.approx(bias - root * np.abs(gain), rel=1e-14)


@given(st.data())
def test_every_output_is_contained(data):
    norm = data.draw(norms())
    y = norm(data.draw(inputs(norm)))
    assert norm.ellipsoid.contains(y, tol=1e-9).all()


@given(norms(flags=SCALING), seeds)
def test_samples_lie_on_the_surface(norm, seed):
    points = norm.ellipsoid.sample(6, seed=seed)
    assert points.shape == (6, norm.size)
    assert norm.ellipsoid.contains(points).all()
    assume(norm.ellipsoid.dimension and np.abs(norm.gain)[norm.gain != 0].min() > 1e-3 * np.abs(norm.bias).max())
    assert norm.ellipsoid.radius(points) == pytest.approx(np.ones(6), rel=1e-9)


@given(norms(flags=SCALING), st.floats(0.1, 3), seeds)
def test_radius_is_the_distance_in_units_of_the_axes(norm, stretch, seed):
    ellipsoid = norm.ellipsoid
    live = np.abs(norm.gain)[norm.gain != 0]
    assume(ellipsoid.dimension and live.max() < 1e3 * live.min())
    direction = np.random.default_rng(seed).normal(size=ellipsoid.dimension)
    blocks = np.abs(ellipsoid.axes().T.reshape(ellipsoid.dimension, norm.groups, -1)).sum(axis=-1).argmax(axis=-1)
    length = max(np.linalg.norm(direction[blocks == group]) for group in range(norm.groups))
    y = ellipsoid.center + ellipsoid.axes() @ (ellipsoid.lengths * direction / length * stretch)
    assert ellipsoid.radius(y) == pytest.approx(stretch, rel=1e-8)
    assert ellipsoid.contains(y) == (stretch <= 1 + 1e-8) or abs(stretch - 1) < 1e-7


def test_a_point_off_the_flat_is_infinitely_far():
    ellipsoid = Norm(gain=[1.0, 2.0, 4.0]).ellipsoid
    assert ellipsoid.radius(1e-3 * ellipsoid.dead_directions[:, 0]) == np.inf
    assert not ellipsoid.contains(1e-3 * ellipsoid.dead_directions[:, 0])
    assert Norm(gain=[0.0, 0.0, 1.0]).ellipsoid.radius([0.1, 0.0, 0.0]) == np.inf
    assert Norm(gain=[0.0, 1.0], project=False).ellipsoid.radius([0.1, 0.0]) == np.inf


def test_dead_channels_absorb_the_sum_constraint():
    """With one zero gain the others are free: (0, ½, ½) is reached although its parts do not sum to zero."""
    ellipsoid = Norm(gain=[0.0, 1.0, 1.0]).ellipsoid
    assert ellipsoid.dimension == 2
    assert ellipsoid.radius([0.0, 0.5, 0.5]) == pytest.approx(np.sqrt((0.5 + 1.0) / 3))


@given(norms(flags=SCALING), st.integers(1, 30), seeds)
def test_through_agrees_with_the_dense_product(norm, rows, seed):
    rng = np.random.default_rng(seed)
    W, c = rng.normal(size=(rows, norm.size)), rng.normal(size=rows)
    image = norm.ellipsoid.through(W, c)
    factor = W @ dense_factor(norm)
    scale = np.abs(factor).max() + 1e-300
    assert image.center == pytest.approx(W @ norm.bias + c, rel=1e-12, abs=1e-12 * scale)
    w = rng.normal(size=(4, rows))
    expected = w @ c + dense_support(norm, w @ W)
    assert image.support(w) == pytest.approx(expected, abs=1e-12 * sum_of_sizes(norm, W, c, w).max())
    assert image.dimension == np.linalg.matrix_rank(factor) or np.ptp(norm.gain) > 1e6
    if norm.groups == 1:
        assert isinstance(image, Ellipsoid)
        dense = np.linalg.svd(factor, compute_uv=False)
        assert image.lengths == pytest.approx(dense[: image.dimension], abs=1e-12 * scale)
        assert image.contains(image.sample(3, seed=0)).all()
    else:
        assert isinstance(image, EllipsoidSum)
    assert np.abs(image.dead_directions.T @ factor).max(initial=0) <= 1e-10 * scale


@given(norms(flags=SCALING), seeds)
def test_outputs_pushed_through_stay_within_the_image(norm, seed):
    rng = np.random.default_rng(seed)
    W, c = rng.normal(size=(3, norm.size)), rng.normal(size=3)
    image = norm.ellipsoid.through(W, c)
    pushed = norm(rng.normal(size=(8, norm.size))) @ W.T + c
    w = rng.normal(size=(5, 3))
    size = sum_of_sizes(norm, W, c, w)
    assert np.all(pushed @ w.T <= image.support(w) + 1e-12 * size)
    points = image.sample(8, seed=seed)
    assert np.all(points @ w.T <= image.support(w) + 1e-12 * size)


def test_through_twice_is_through_the_product():
    rng = np.random.default_rng(0)
    first, second = rng.normal(size=(5, 8)), rng.normal(size=(3, 5))
    for groups in (1, 2):
        ellipsoid = Norm(gain=rng.normal(size=8), bias=rng.normal(size=8), groups=groups).ellipsoid
        w = rng.normal(size=(6, 3))
        twice, once = ellipsoid.through(first).through(second), ellipsoid.through(second @ first)
        assert twice.support(w) == pytest.approx(once.support(w), rel=1e-12)


def test_a_map_to_zero_leaves_a_point():
    image = Norm(gain=[1.0, 2.0]).ellipsoid.through([[0.0, 0.0]], [3.0])
    assert image.dimension == 0
    assert image.dead_directions.shape == (1, 1)
    assert image.contains([3.0])
    assert not image.contains([3.1])


@given(st.integers(1, 12).flatmap(gains), st.booleans())
def test_without_scaling_the_set_is_unbounded_and_says_so(gain, project):
    ellipsoid = Norm(gain=gain, scale=False, project=project).ellipsoid
    bounded = Norm(gain=gain, project=project).ellipsoid
    assert not ellipsoid.bounded
    assert ellipsoid.dimension == bounded.dimension
    assert np.all(ellipsoid.lengths == np.inf)
    assert np.array_equal(ellipsoid.dead_directions, bounded.dead_directions)
    for ask in (ellipsoid.support, ellipsoid.radius, ellipsoid.through):
        with pytest.raises(ValueError, match="needs a bounded set: without the scale step"):
            ask(np.ones(len(gain)))
    with pytest.raises(ValueError, match="needs a bounded set"):
        ellipsoid.sample(3)
    assert "unbounded" in repr(ellipsoid)


def test_bad_arguments_are_refused_with_what_came():
    ellipsoid = Norm(gain=[1.0, 2.0, 3.0]).ellipsoid
    for call, message in (
        (lambda: ellipsoid.support([1.0, 2.0]), r"w must have 3 channels in its last axis, got shape \(2,\)"),
        (lambda: ellipsoid.contains([1.0, np.nan, 0.0]), "y must be finite, got 1 NaN"),
        (lambda: ellipsoid.through(np.ones((2, 2))), r"W must have 3 channels in its last axis, got shape \(2, 2\)"),
        (lambda: ellipsoid.through(np.ones(3)), r"W must be a matrix with 3 columns .* got shape \(3,\)"),
        (
            lambda: ellipsoid.through(np.ones((2, 3)), [1.0]),
            r"c must have one entry per row of W, \(2,\), got shape \(1,\)",
        ),
        (lambda: ellipsoid.sample(-1), "n must be a whole number, 0 or more, got -1"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    assert ellipsoid.sample(0).shape == (0, 3)


@pytest.mark.parametrize("size", [1e-200, 1e-160, 1e160])
def test_support_does_not_overflow_or_vanish_with_extreme_gains(size):
    gain, w = np.array([1.0, -2.0, 3.0, 0.5]), np.array([0.3, 1.0, -2.0, 0.1])
    ordinary = Norm(gain=gain).ellipsoid
    assert Norm(gain=size * gain).ellipsoid.support(w) == pytest.approx(size * ordinary.support(w), rel=1e-12)
    assert ordinary.through(size * np.eye(4)).support(w) == pytest.approx(size * ordinary.support(w), rel=1e-12)


@given(norms())
def test_the_first_dead_direction_is_the_first_of_all(norm):
    dead = norm.ellipsoid.dead_directions
    first = norm.ellipsoid.dead_direction
    assert np.array_equal(first, dead[:, 0]) if dead.shape[1] else first is None


def test_an_ellipsoid_can_not_be_changed():
    ellipsoid = Norm(gain=[1.0, 2.0]).ellipsoid
    with pytest.raises(AttributeError):
        ellipsoid.center = np.ones(2)
