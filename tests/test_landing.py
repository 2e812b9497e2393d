import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from normscope import Norm
from normscope.capacity import nonlinearity
from normscope.studies import affine_fit
from normscope.studies.landing import LandingGatherer
from normscope.studies.sampled_inputs import KEPT
from strategies import seeds


def gathered(norm, x, pieces=3):
    gatherer = LandingGatherer(norm)
    for piece in np.array_split(x, pieces):
        gatherer.add(piece)
    return gatherer


@given(size=st.integers(2, 12), seed=seeds, project=st.booleans(), mean=st.floats(0, 10))
def test_figures_agree_with_their_definitions(size, seed, project, mean):
    rng = np.random.default_rng(seed)
    norm = Norm(gain=rng.uniform(0.5, 2, size), project=project, eps=0.1)
    x = rng.normal(size=(50, size)) + mean
    landing = gathered(norm, x).result()
    centred = x - x.mean(axis=1, keepdims=True)
    share = 1 - np.sum(centred**2, axis=1) / np.sum(x**2, axis=1)
    risk = np.abs(x.mean(axis=1)) / x.std(axis=1)
    cosine = np.sum(centred * x, axis=1) / np.linalg.norm(centred, axis=1) / np.linalg.norm(x, axis=1)
    assert landing.inputs == 50
    for spread, values in (
        (landing.nearness, norm.nearness(x)[:, 0]),
        (landing.ones_share, share),
        (landing.mean_over_sigma, risk),
        (landing.rms_angle, np.degrees(np.arccos(np.clip(cosine, -1, 1)))),
    ):
        expected = np.quantile(values, [0.05, 0.5, 0.95])
        assert [spread.low, spread.median, spread.high] == pytest.approx(expected, rel=1e-6, abs=1e-6)
    assert landing.mean_over_sigma_max == pytest.approx(risk.max())
    if project:
        dead = (1 / norm.gain) / np.linalg.norm(1 / norm.gain)
        assume(x.var(axis=0).mean() > 1e-6)
        assert landing.dead_variance == pytest.approx((x @ dead).var() / x.var(axis=0).mean(), rel=1e-6)
    else:
        assert landing.dead_variance is None


@given(seeds, st.integers(1, 9))
def test_the_number_of_pieces_does_not_matter(seed, pieces):
    rng = np.random.default_rng(seed)
    norm, x = Norm(gain=rng.normal(size=6), groups=2), rng.normal(size=(40, 6))
    one, many = gathered(norm, x, 1).result(), gathered(norm, x, pieces).result()
    assert one.dead_variance == pytest.approx(many.dead_variance)
    assert (one.nearness, one.ones_share, one.rms_angle) == (many.nearness, many.ones_share, many.rms_angle)


def test_quantiles_of_a_long_text_come_from_a_fair_sample_of_fixed_size():
    norm = Norm(gain=np.ones(2), project=False, eps=0)
    gatherer = LandingGatherer(norm)
    angles = np.linspace(0, np.pi / 2, 20 * KEPT)
    for piece in np.array_split(angles, 37):
        gatherer.add(np.stack([np.cos(piece), np.sin(piece)], axis=1))
    landing = gatherer.result()
    share = (1 + np.sin(2 * angles)) / 2  # of (cos, sin) along the ones vector
    assert landing.ones_share.median == pytest.approx(np.quantile(share, 0.5), abs=0.02)
    assert landing.ones_share.low == pytest.approx(np.quantile(share, 0.05), abs=0.02)
    assert len(gatherer._figures["ones_share"]._values) == KEPT


def test_constant_and_zero_inputs_have_figures_too():
    norm = Norm(gain=np.ones(4), eps=0)
    landing = gathered(norm, np.vstack([np.zeros((2, 4)), np.ones((2, 4))])).result()
    assert landing.inputs == 4
    assert landing.ones_share.median == 1.0
    assert landing.nearness.high == 0.0
    assert landing.rms_angle is None
    assert landing.mean_over_sigma_max == np.finfo(float).max  # infinite, as far as JSON can say
    assert landing.nonlinearity.median == np.finfo(float).max


def test_without_inputs_there_is_nothing_to_say():
    gatherer = LandingGatherer(Norm(gain=np.ones(4)))
    assert gatherer.result() is None


def test_points_are_outputs_along_the_three_longest_axes():
    rng = np.random.default_rng(0)
    norm = Norm(gain=rng.normal(size=6), bias=rng.normal(size=6))
    x = rng.normal(size=(10, 6))
    points = gathered(norm, x).result().points
    assert points == pytest.approx((norm(x) - norm.bias) @ norm.ellipsoid.axes()[:, :3])
    assert np.all(np.sum((points / norm.ellipsoid.lengths[:3]) ** 2, axis=1) <= 1)


def test_a_norm_without_scaling_has_no_nearness():
    landing = gathered(Norm(gain=np.ones(4), scale=False), np.random.default_rng(0).normal(size=(9, 4))).result()
    assert landing.nearness is None
    assert landing.ones_share is not None


@pytest.mark.parametrize(("project", "others"), [(True, [2, 3, 4]), (False, [2, 3, 4, 6])])
def test_bending_and_its_factors_are_quantiles_over_the_inputs(project, others):
    rng = np.random.default_rng(0)
    gain, x = rng.normal(size=12), rng.normal(size=(70, 12))
    landing = gathered(Norm(gain=gain, project=project), x).result()
    now = nonlinearity(Norm(gain=gain, project=project), x)
    bent = landing.nonlinearity
    assert [bent.low, bent.median, bent.high] == pytest.approx(np.quantile(now, [0.05, 0.5, 0.95]))
    assert [entry.groups for entry in landing.group_factors] == others
    for entry in landing.group_factors:
        factor = nonlinearity(Norm(gain=gain, project=project, groups=entry.groups), x) / now
        measured = [entry.factor.low, entry.factor.median, entry.factor.high]
        assert measured == pytest.approx(np.quantile(factor, [0.05, 0.5, 0.95]))


@pytest.mark.parametrize("place", ["inside", "outside", "floor"])
def test_bending_knows_where_eps_sits(place):
    norm, x = Norm(gain=np.ones(6), eps=0.5), np.random.default_rng(0).normal(size=(9, 6))
    gatherer = LandingGatherer(norm, place)
    gatherer.add(x)
    expected = np.median(nonlinearity(norm, x, eps_place=place))
    assert gatherer.result().nonlinearity.median == pytest.approx(expected)


def test_inputs_at_which_a_norm_does_not_bend_have_no_factor():
    norm = Norm(gain=np.ones(6), eps=1e-5)
    assert gathered(norm, np.ones((5, 6))).result().group_factors == ()
    bent = np.array([[1.0, 2.0, 3.0, 3.0, 1.0, 2.0]])
    (entry,) = gathered(norm, np.concatenate([np.ones((5, 6)), bent])).result().group_factors
    assert (entry.groups, entry.factor.median) == (2, pytest.approx(1.0, rel=1e-4))


def test_a_norm_without_scaling_does_not_bend():
    landing = gathered(Norm(gain=np.ones(6), scale=False), np.random.default_rng(0).normal(size=(9, 6))).result()
    assert (landing.nonlinearity.high, landing.group_factors) == (0.0, ())


def test_variance_along_the_dead_direction_keeps_its_digits_beside_a_large_mean():
    rng = np.random.default_rng(0)
    norm, x = Norm(gain=rng.uniform(0.5, 2, 8)), rng.normal(size=(200, 8))
    expected = gathered(norm, x).result().dead_variance
    assert gathered(norm, x + 1e8).result().dead_variance == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(("place", "expected"), [("inside", np.sqrt(0.5)), ("outside", 0.5), ("floor", 1.0)])
def test_nearness_knows_where_eps_sits(place, expected):
    eps = 4.0 if place != "inside" else 16.0
    gatherer = LandingGatherer(Norm(gain=[1.0, 1.0], eps=eps), place)
    gatherer.add(np.array([[-4.0, 4.0]]))
    assert gatherer.result().nearness.median == pytest.approx(expected)


def share_by_least_squares(norm, x, full):
    """Fit on every second input, by numpy's own solver; what is left of the variance of the others."""
    z = x.reshape(len(x), norm.groups, -1)
    z = z - z.mean(axis=-1, keepdims=True) if norm.projects else z
    linear, y = (norm.gain * z.reshape(x.shape)), norm(x)
    predicted = np.empty(y[1::2].shape)
    for group in np.split(np.arange(norm.size), norm.groups):
        if full:
            design = np.c_[x, np.ones(len(x))]
            solution = np.linalg.lstsq(design[::2], y[::2][:, group], rcond=None)[0]
            predicted[:, group] = design[1::2] @ solution
        else:  # one slope for all channels of the group, a constant for each
            mean, target = linear[::2][:, group].mean(axis=0), y[::2][:, group].mean(axis=0)
            centred = linear[::2][:, group] - mean
            slope = np.sum(centred * (y[::2][:, group] - target)) / np.sum(centred**2)
            predicted[:, group] = target + slope * (linear[1::2][:, group] - mean)
    return np.sum((y[1::2] - predicted) ** 2) / np.sum((y[1::2] - y[1::2].mean(axis=0)) ** 2)


@given(
    seed=seeds,
    groups=st.sampled_from([1, 2]),
    project=st.booleans(),
    full=st.booleans(),
    pieces=st.integers(1, 7),
    mean=st.sampled_from([0.0, 3.0]),
)
def test_the_unexplained_share_is_that_of_least_squares(seed, groups, project, full, pieces, mean):
    rng = np.random.default_rng(seed)
    norm = Norm(gain=rng.normal(size=6), bias=rng.normal(size=6), groups=groups, project=project, eps=1e-3)
    x = (rng.normal(size=(150, 6)) @ rng.normal(size=(6, 6))) * rng.lognormal(size=(150, 1)) + mean * rng.normal(size=6)
    gatherer = LandingGatherer(norm, full_fit=full)
    for piece in np.array_split(x, pieces):
        gatherer.add(piece)
    fit = gatherer.result().affine_fit
    assert (fit.fit, fit.fitted, fit.held_out) == ("full" if full else "frozen scale", 75, 75)
    assert fit.unexplained == pytest.approx(share_by_least_squares(norm, x, full), rel=1e-4, abs=1e-8)


def test_with_too_few_inputs_per_channel_the_scale_is_frozen():
    rng = np.random.default_rng(0)
    norm = Norm(gain=rng.normal(size=6))
    few, enough = (gathered(norm, rng.normal(size=(count, 6))).result() for count in (118, 120))
    assert (few.affine_fit.fit, enough.affine_fit.fit) == ("frozen scale", "full")


def test_inputs_of_one_size_are_explained_by_a_frozen_scale_and_outputs_that_do_not_differ_by_nothing():
    rng = np.random.default_rng(0)
    norm = Norm(gain=rng.normal(size=6), eps=0)
    x = rng.normal(size=(500, 6))
    x -= x.mean(axis=1, keepdims=True)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    assert gathered(norm, x).result().affine_fit.unexplained < 1e-12
    assert gathered(norm, np.ones((500, 6)) * rng.normal(size=(500, 1))).result().affine_fit is None
    assert gathered(Norm(gain=[1.0, 2.0], scale=False), x[:, :2]).result().affine_fit is None
    assert gathered(norm, x[:2]).result().affine_fit is None


def test_a_channel_that_never_changes_and_one_that_is_huge_do_no_harm():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 6))
    x[:, 2], x[:, 4] = 7.0, 1e6 * x[:, 4]
    norm = Norm(gain=rng.normal(size=6))
    fit = gathered(norm, x).result().affine_fit
    assert fit.unexplained == pytest.approx(share_by_least_squares(norm, x, True), rel=1e-3)


def test_wide_models_have_no_room_for_full_fits():
    assert affine_fit.room_for_full_fits([576] * 61)
    assert not affine_fit.room_for_full_fits([8192])


@given(size=st.integers(2, 12), seed=seeds, project=st.booleans(), count=st.integers(1, 300))
def test_a_sample_has_shares_distances_and_planes_as_they_are_defined(size, seed, project, count):
    rng = np.random.default_rng(seed)
    norm = Norm(gain=rng.uniform(0.5, 2, size) * rng.choice([-1, 1], size), bias=rng.normal(size=size), project=project)
    x = rng.normal(size=(count, size)) * rng.choice([1e-4, 1.0, 1e4], (count, 1))
    landing = gathered(norm, x).result()
    sample, ellipsoid = landing.sample, norm.ellipsoid
    assert {0, int(np.abs(x).max(axis=1).argmax())} <= set(sample.numbers.tolist())
    assert float(landing.largest) == np.abs(x).max()
    rows = x[sample.numbers]
    u = (norm(rows) - norm.bias) @ ellipsoid.axes() / ellipsoid.lengths
    used = [np.median(u**2, axis=0), np.quantile(u**2, 0.95, axis=0), np.max(u**2, axis=0)]
    if len(np.unique(ellipsoid.lengths.round(9))) == ellipsoid.dimension:  # otherwise axes are free to turn
        assert sample.shares == pytest.approx(np.transpose(used), abs=1e-9)
        if sample.planes is not None:
            assert np.abs(sample.planes) == pytest.approx(np.abs(u[:, sample.plane_axes]), abs=1e-9)
    assert sample.distances == pytest.approx(1 - norm.nearness(rows)[:, 0], abs=1e-12)
    assert sample.peaks.tolist() == np.abs(rows).max(axis=1).tolist()
    projected = rows - rows.mean(axis=1, keepdims=True) * project
    if count <= 200:  # all inputs are in the sample
        steps = np.tan(np.radians(10)) * np.linalg.norm(projected, axis=1)
        assert landing.step.median == pytest.approx(np.median(steps))


def test_the_distance_to_the_surface_keeps_its_digits_and_knows_where_eps_stands():
    norm, x = Norm(gain=np.ones(2), project=False, eps=1e-12), np.array([[1e3, 1e3], [0.0, 0.0]])
    for place, expected in (("inside", 0.5e-18), ("outside", 1e-15), ("floor", 0.0)):
        gatherer = LandingGatherer(norm, place)
        gatherer.add(x)
        found = gatherer.result().sample.distances
        assert found[0] == pytest.approx(expected, rel=1e-6)
        assert found[1] == 1.0


def test_a_norm_without_a_surface_has_neither_shares_nor_distances():
    landing = gathered(Norm(gain=np.ones(4), scale=False), np.eye(4)).result()
    assert landing.sample.shares is landing.sample.distances is landing.step is None
    assert landing.sample.input_shares.tolist() == [0.0] * 4  # the median of 0, 0, 0, 1
