"""H against torch.func.hessian over the whole family, and what the paper says of it."""

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn

from normscope import Norm
from normscope.capacity import nonlinearity
from normscope.capacity.second_derivative import admissible_groups
from oracles import torch_through
from strategies import seeds

# torch.func.hessian scripts a function of its own when it is first called.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")

PLACES = ["inside", "outside", "floor"]


def squared_hessian(function, x):
    """Σ over outputs and pairs of inputs, straight from the definition."""
    return torch.func.hessian(function)(torch.as_tensor(x)).square().sum().item()


def with_eps_elsewhere(norm, place):
    """The norm through torch, with eps outside the root or as a floor."""

    def forward(row):
        grouped = row.reshape(norm.groups, -1)
        if norm.projects:
            grouped = grouped - grouped.mean(-1, keepdim=True)
        root = grouped.pow(2).mean(-1, keepdim=True).sqrt()
        divisor = root + norm.eps if place == "outside" else root.clamp(min=norm.eps)
        return (grouped / divisor).reshape(row.shape) * torch.as_tensor(norm.gain.copy())

    return forward


@st.composite
def bent_norms(draw, eps=(0.0, 1e-12, 1e-5, 0.3, 10.0)):
    """A norm whose groups have two dimensions or more: H is not the square of a mere rounding error."""
    project = draw(st.booleans())
    groups, channels = draw(st.integers(1, 3)), draw(st.integers(2 + project, 6))
    rng = np.random.default_rng(draw(seeds))
    gain = draw(st.sampled_from([np.ones, lambda n: rng.normal(size=n), lambda n: 10.0 ** rng.uniform(-4, 4, n)]))(
        groups * channels
    )
    return Norm(gain=gain, eps=draw(st.sampled_from(eps)), project=project, groups=groups)


@st.composite
def points(draw, norm):
    rng = np.random.default_rng(draw(seeds))
    return 10.0 ** draw(st.integers(-3, 3)) * (rng.normal(size=norm.size) + rng.normal())


@given(st.data())
def test_equals_the_hessian_over_the_whole_family(data):
    norm = data.draw(bent_norms())
    x = data.draw(points(norm))
    spread = norm.project(x).reshape(norm.groups, -1).std(axis=1).min()
    assume(spread > 1e-2 * np.abs(x).max())  # where autograd itself has 1e-12
    assert nonlinearity(norm, x) == pytest.approx(squared_hessian(lambda row: torch_through(norm, row), x), rel=1e-12)


@given(st.data(), st.sampled_from(["outside", "floor"]))
def test_equals_the_hessian_where_eps_is_elsewhere(data, place):
    norm = data.draw(bent_norms(eps=(0.0, 1e-5, 0.3, 2.0)))
    x = data.draw(points(norm))
    assume(norm.project(x).reshape(norm.groups, -1).std(axis=1).min() > 1e-2 * np.abs(x).max())
    expected = squared_hessian(with_eps_elsewhere(norm, place), x)
    assert nonlinearity(norm, x, eps_place=place) == pytest.approx(expected, rel=1e-12)


@given(st.data(), st.integers(0, 100))
def test_each_channel_alone_equals_its_own_hessian(data, which):
    norm = data.draw(bent_norms())
    x = data.draw(points(norm))
    assume(norm.project(x).reshape(norm.groups, -1).std(axis=1).min() > 1e-2 * np.abs(x).max())
    channel = which % norm.size
    only = Norm(gain=np.eye(norm.size)[channel], eps=norm.eps, project=norm.projects, groups=norm.groups)
    expected = squared_hessian(lambda row: torch_through(only, row)[channel], x)
    assert nonlinearity(only, x) == pytest.approx(expected, rel=1e-11)


@given(size=st.integers(2, 40), seed=seeds, eps=st.sampled_from([0.0, 1e-5, 1.0]))
def test_the_formula_of_an_rms_norm_has_one_dimension_more(size, seed, eps):
    x = np.random.default_rng(seed).normal(size=size) + 1
    v = np.mean(x**2)
    expected = 3 * v / (size * (v + eps) ** 3) * ((size - 1) + 3 * (eps / (v + eps)) ** 2)
    assert nonlinearity(Norm(gain=np.ones(size), project=False, eps=eps), x) == pytest.approx(expected, rel=1e-13)


@given(size=st.integers(3, 40), seed=seeds, eps=st.sampled_from([0.0, 1e-5, 1.0]))
def test_the_formula_of_a_layer_norm(size, seed, eps):
    x = np.random.default_rng(seed).normal(size=size) + 1
    v = np.var(x)
    expected = 3 * v / (size * (v + eps) ** 3) * ((size - 2) + 3 * (eps / (v + eps)) ** 2)
    assert nonlinearity(Norm(gain=np.ones(size), eps=eps), x) == pytest.approx(expected, rel=1e-12)


@given(seed=seeds, groups=st.integers(1, 4), channels=st.integers(1, 5))
def test_the_nonlinearity_of_groups_is_the_sum_of_theirs(seed, groups, channels):
    rng = np.random.default_rng(seed)
    gain, x = rng.normal(size=(2, groups, channels))
    whole = nonlinearity(Norm(gain=gain.ravel(), groups=groups), x.ravel())
    assert whole == pytest.approx(sum(nonlinearity(Norm(gain=gain[i]), x[i]) for i in range(groups)), rel=1e-13)


@pytest.mark.parametrize("project", [True, False])
def test_without_scaling_it_is_zero_everywhere(project):
    x = np.random.default_rng(0).normal(size=(5, 6))
    norm = Norm(gain=np.arange(6.0), project=project, scale=False)
    assert np.array_equal(nonlinearity(norm, x), np.zeros(5))
    assert squared_hessian(lambda row: torch_through(norm, row), x[0]) == 0
    assert nonlinearity(norm, x, "all").factors == {}


def test_a_batch_norm_in_eval_mode_is_affine_and_has_none():
    torch.manual_seed(0)
    module = nn.BatchNorm1d(4).double()
    for _ in range(3):
        module(2 * torch.randn(16, 4, dtype=torch.float64) + 1)
    nn.init.normal_(module.weight)
    module.eval()
    scale = (module.weight / (module.running_var + module.eps).sqrt()).detach()
    affine = Norm(gain=scale, bias=module.bias.detach() - scale * module.running_mean, project=False, scale=False)
    for x in np.random.default_rng(0).normal(size=(5, 4)):
        assert affine(x) == pytest.approx(module(torch.as_tensor(x)[None])[0].detach().numpy())
        assert squared_hessian(lambda row: module(row[None])[0], x) == 0
        assert nonlinearity(affine, x) == 0


def test_two_projected_channels_are_a_sign_that_does_not_bend():
    x = np.random.default_rng(0).normal(size=(20, 6))
    assert not nonlinearity(Norm(gain=[1, 2, 3, 4, 5, 6], groups=3, eps=0), x).any()
    assert not nonlinearity(Norm(gain=[1, 2, 3, 4, 5, 6], groups=6, eps=0, project=False), x).any()


@pytest.mark.parametrize("eps", [1e-12, 1e-5, 1.0])
def test_two_projected_channels_bend_by_eps_alone(eps):
    x, floor = mpmath.mpf("0.7"), mpmath.mpf(eps)
    with mpmath.workdps(60):
        # y = ±z/√(z² + ε) of z = (x₂ − x₁)/2: each output has four second derivatives, (∂²y/∂z²)/4 each
        second = mpmath.diff(lambda z: z / mpmath.sqrt(z * z + floor), x, 2)
        expected = float(2 * 4 * (second / 4) ** 2)
    assert nonlinearity(Norm(gain=[1, 1], eps=eps), [-0.7 + 3, 0.7 + 3]) == pytest.approx(expected, rel=1e-11)


def test_one_projected_channel_is_constant_and_does_not_bend():
    for eps in (0.0, 1e-5):
        assert np.array_equal(nonlinearity(Norm(gain=[2, 3], groups=2, eps=eps), [[1, 2], [0, 0]]), [0, 0])


def test_a_constant_input_has_none_with_eps_and_infinitely_much_without():
    constant, zero, other = np.full(6, 0.1), np.zeros(6), np.array([1, 2, 3, 0.1, 0.1, 0.1])
    for gain in (np.ones(6), np.arange(6.0)):
        assert nonlinearity(Norm(gain=gain, eps=1e-5), constant) == 0
        assert nonlinearity(Norm(gain=gain, eps=0), constant) == np.inf
        assert nonlinearity(Norm(gain=gain, eps=0, project=False), zero) == np.inf
        assert np.isfinite(nonlinearity(Norm(gain=gain, eps=0, project=False), constant))
        assert nonlinearity(Norm(gain=gain, eps=0, groups=2), other) == np.inf
    assert nonlinearity(Norm(gain=[1, 1], eps=0), [3, 3]) == np.inf  # a sign jumps
    assert nonlinearity(Norm(gain=[1, 1, 1, 0, 0, 0], eps=0, groups=2), other) == pytest.approx(2.25)
    assert nonlinearity(Norm(gain=np.zeros(6), eps=0), constant) == 0


def test_without_second_derivative_at_zero_or_at_the_floor_it_is_infinite_too():
    norm = Norm(gain=[1, 1, 1], eps=2.0)
    for place, x, expected in (
        ("outside", [5, 5, 5], np.inf),
        ("floor", [5, 5, 5], 0),
        ("floor", [-2, -2, 4], nonlinearity(Norm(gain=[1, 1, 1], eps=0), [-2, -2, 4])),
    ):
        assert nonlinearity(norm, x, eps_place=place) == pytest.approx(expected, rel=1e-14)
    assert nonlinearity(Norm(gain=[1, 1], eps=2.0), [-2, 2], eps_place="floor") == np.inf


@given(seed=seeds, exponent=st.integers(-480, 480), project=st.booleans(), groups=st.sampled_from([1, 2]))
def test_inputs_of_any_size_scale_by_the_fourth_power(seed, exponent, project, groups):
    rng = np.random.default_rng(seed)
    gain, x = rng.normal(size=(2, 6))
    base = nonlinearity(Norm(gain=gain, eps=0.5, project=project, groups=groups), x)
    # 2^e on inputs and gains, 2^2e on eps: H falls by 2^-2e; beyond that it would be beyond all floats
    unit = 2.0**exponent
    moved = Norm(gain=gain * unit, eps=0.5 * unit**2, project=project, groups=groups)
    assert nonlinearity(moved, x * unit) == pytest.approx(base / unit**2, rel=1e-14)


def test_what_is_beyond_all_floats_is_infinite_or_zero():
    norm = Norm(gain=np.ones(4), eps=0)
    x = np.array([1.0, -1.0, 2.0, 0.5])
    assert np.array_equal(nonlinearity(norm, [1e-200 * x, 1e200 * x]), [np.inf, 0])
    assert nonlinearity(Norm(gain=np.ones(4), eps=1e-5), 1e-140 * x) == pytest.approx(
        1e-280 * 3 * np.var(x) / 4 * (2 + 3) / 1e-15, rel=1e-9
    )
    assert nonlinearity(norm, 1.7e308 * np.array([0.4, -0.4, 0.1, 0.2])) == 0


@given(st.data())
def test_a_batch_has_the_values_of_its_vectors(data):
    norm = data.draw(bent_norms())
    x = np.random.default_rng(data.draw(seeds)).normal(size=(2, 3, norm.size))
    whole = nonlinearity(norm, x, "all")
    assert whole.nonlinearity.shape == (2, 3)
    assert all(factor.shape == (2, 3) for factor in whole.factors.values())
    for place in np.ndindex(2, 3):
        assert nonlinearity(norm, x[place]) == pytest.approx(whole.nonlinearity[place], rel=1e-13)
    assert nonlinearity(norm, np.zeros((0, norm.size))).shape == (0,)
    assert nonlinearity(norm, torch.as_tensor(x)) == pytest.approx(whole.nonlinearity)


sizes = st.sampled_from([6, 9, 12, 16, 24, 30, 32, 36])


@given(size=sizes, seed=seeds, place=st.sampled_from(PLACES), data=st.data())
def test_factors_are_ratios_of_two_nonlinearities(size, seed, place, data):
    rng = np.random.default_rng(seed)
    now = data.draw(st.sampled_from([groups for groups in range(1, size) if size % groups == 0]))
    build = {"gain": rng.normal(size=size), "eps": data.draw(st.sampled_from([0.0, 1e-5, 0.5]))}
    build["project"] = data.draw(st.booleans())
    norm = Norm(**build, groups=now)
    x = rng.normal(size=(3, size)) * 10.0 ** rng.uniform(-2, 2, size) + rng.normal()
    whole = nonlinearity(norm, x, "all", eps_place=place)
    assert set(whole.factors) == set(admissible_groups(norm))
    assume((whole.nonlinearity > 0).all())
    for groups, factor in whole.factors.items():
        expected = nonlinearity(Norm(**build, groups=groups), x, eps_place=place) / whole.nonlinearity
        assert factor == pytest.approx(expected, rel=1e-11)


def test_a_factor_has_a_value_where_neither_nonlinearity_has():
    norm = Norm(gain=np.ones(12), eps=0)
    x = np.random.default_rng(0).normal(size=12)
    for size in (1e-200, 1e200, 1e-300):
        assert nonlinearity(norm, size * x, "all").factors[4] == pytest.approx(
            nonlinearity(norm, x, "all").factors[4], rel=1e-12
        )


def test_there_is_no_factor_where_the_norm_does_not_bend():
    for eps in (0.0, 1.0):
        assert np.isnan(nonlinearity(Norm(gain=np.ones(6), eps=eps), np.ones(6), "all").factors[2])
    assert nonlinearity(Norm(gain=np.ones(6), eps=0), [1, 1, 1, 2, 3, 4], "all").factors[2] == np.inf


@given(size=sizes, seed=seeds, spread=st.floats(0, 6))
@settings(max_examples=200)
def test_without_eps_the_proposition_holds_at_every_point(size, seed, spread):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(20, size)) * 10.0 ** (spread * rng.normal(size=(1, size)) / 3) + rng.normal(size=(20, size))
    for groups, factor in nonlinearity(Norm(gain=np.ones(size), eps=0), x, "all").factors.items():
        assert groups <= size / 3
        assert np.all(factor >= (1 - 1e-12) * groups * (size - 2 * groups) / (size - 2))
        assert np.all(factor >= 1 - 1e-12)
        if 4 * groups == size:
            assert np.all(factor > size / 8)


@given(groups=st.integers(2, 8), channels=st.integers(3, 8), seed=seeds, sign=st.sampled_from([1, -1]))
def test_the_bound_is_reached_where_all_groups_share_mean_and_variance(groups, channels, seed, sign):
    rng = np.random.default_rng(seed)
    one, size = rng.normal(size=channels), groups * channels
    one -= one.mean()
    x = np.concatenate([rng.permutation(one) * rng.choice([1, sign]) for _ in range(groups)]) + 3
    factor = nonlinearity(Norm(gain=np.ones(size), eps=0), x, "all").factors[groups]
    assert factor == pytest.approx(groups * (size - 2 * groups) / (size - 2), rel=1e-10)
    x[:channels] += 1.0  # another mean
    assert nonlinearity(Norm(gain=np.ones(size), eps=0), x, "all").factors[groups] > factor * (1 + 1e-6)


def test_with_eps_groups_can_bend_less():
    rng = np.random.default_rng(0)
    steps = np.repeat(np.arange(4.0), 4) + 1e-9 * rng.normal(size=16)  # groups of hardly any variance
    assert nonlinearity(Norm(gain=np.ones(16), eps=0), steps, "all").factors[4] > 1e20
    assert nonlinearity(Norm(gain=np.ones(16), eps=1e-5), steps, "all").factors[4] < 1


def test_with_gains_that_differ_groups_can_bend_less():
    x = np.array([20.0, 20.1, 20.2, 10.0, 20.0, 30.0])
    gain = np.array([0.0, 0.0, 0.0, 1.0, 1.0, 1.0])
    assert (
        nonlinearity(Norm(gain=gain, eps=0), x, "all").factors[2]
        < 1
        < nonlinearity(Norm(gain=np.ones(6), eps=0), x, "all").factors[2]
    )


def test_a_projected_group_has_three_channels_or_more():
    assert admissible_groups(Norm(gain=np.ones(64))) == (2, 4, 8, 16)
    assert admissible_groups(Norm(gain=np.ones(64), groups=8)) == (1, 2, 4, 16)
    assert admissible_groups(Norm(gain=np.ones(64), project=False)) == (2, 4, 8, 16, 32)
    assert admissible_groups(Norm(gain=np.ones(7))) == ()


def test_bad_arguments_are_refused_with_what_came():
    norm = Norm(gain=[1, 2, 3])
    with pytest.raises(ValueError, match=r"x must have 3 channels in its last axis, got shape \(2,\)"):
        nonlinearity(norm, [1, 2])
    with pytest.raises(ValueError, match="eps_place must be one of inside, outside, floor, got 'within'"):
        nonlinearity(norm, [1, 2, 3], "all", eps_place="within")


def test_the_groups_that_are_asked_for_are_compared_with():
    norm, x = Norm(gain=np.ones(12), eps=0, groups=2), np.random.default_rng(0).normal(size=12)
    every = nonlinearity(norm, x, "all")
    assert list(every.factors) == [1, 3, 4]
    for groups in (3, [3], (3,), np.array([3])):
        assert nonlinearity(norm, x, groups).factors == {3: pytest.approx(every.factors[3], rel=1e-14)}
    assert nonlinearity(norm, x, [4, 2, 4]).factors == {4: pytest.approx(every.factors[4]), 2: 1.0}
    assert nonlinearity(norm, x, []).factors == {}


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ("some", "groups must be numbers, or 'all', got 'some'"),
        (5, "groups must be admissible for the 12 channels, got 5: try 2, 3, 4"),
        (6, "groups must be admissible for the 12 channels, got 6"),
        (2.0, "groups must be a whole number"),
        (0, "groups must be a whole number, 1 or more, got 0"),
    ],
)
def test_groups_that_can_not_be_are_refused(groups, message):
    with pytest.raises(ValueError, match=message):
        nonlinearity(Norm(gain=np.ones(12)), np.arange(12), groups)
