import copy
import pickle

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from normscope import Norm
from oracles import jacobian, torch_norm
from strategies import FLAGS, inputs, norms, seeds

RANDOM = np.random.default_rng(0)


def steepest(norm, x):
    """The largest that a singular value of the Jacobian could be: max|g|/r; what rounding errors are relative to."""
    spread = np.mean(norm.project(x).reshape(norm.groups, -1) ** 2, axis=1) + norm.eps
    return np.abs(norm.gain).max() / (np.sqrt(spread.min()) if norm.scales else 1.0) + 1e-300


@given(st.data())
def test_agrees_with_torch_over_the_whole_family(data):
    norm = data.draw(norms())
    x = data.draw(inputs(norm))
    channels = norm.size // norm.groups
    assume(channels > 1 or not norm.projects)  # one channel minus itself is all rounding in torch; tested below
    expected = torch_norm(norm, x).numpy()
    reach = np.sqrt(channels) if norm.scales else np.abs(x).max()
    assert np.all(np.abs(norm(x) - expected) <= 1e-12 * (np.abs(norm.gain) * reach + np.abs(norm.bias)) + 1e-300)


@given(st.data())
def test_the_three_steps_compose_to_the_call(data):
    norm = data.draw(norms())
    x = data.draw(inputs(norm))
    assert np.array_equal(norm.affine(norm.scale(norm.project(x))), norm(x))


@given(size=st.integers(2, 40), seed=seeds, exponent=st.integers(-150, 150), spread=st.sampled_from([1.0, 1e-6, 1e-15]))
def test_without_affine_and_eps_every_output_has_length_root_n(size, seed, exponent, spread):
    x = 10.0**exponent * (1 + spread * np.random.default_rng(seed).normal(size=size))
    assume(not np.all(x == x[0]))
    y = Norm(gain=np.ones(size), eps=0)(x)
    assert np.linalg.norm(y) == pytest.approx(np.sqrt(size), rel=1e-15)
    assert abs(y.sum()) <= 1e-14 * size


@given(st.lists(st.floats(-8e307, 8e307, allow_subnormal=False), min_size=2, max_size=8))
def test_any_finite_input_has_a_finite_output(values):
    norm = Norm(gain=np.ones(len(values)), eps=0)
    y = norm(values)
    assert np.all(np.isfinite(y))
    spread = max(values) / 2 - min(values) / 2
    if spread > 1e-290:  # a spread that is itself subnormal can't be held by the projection
        assert np.linalg.norm(y) == pytest.approx(np.sqrt(len(values)), rel=1e-14)


def test_neighbouring_floats_far_from_zero_are_told_apart():
    x = [1.0, 1.0 + np.finfo(float).eps]
    assert np.array_equal(Norm(gain=[1, 1], eps=0)(x), [-1.0, 1.0])


@pytest.mark.parametrize("groups", [1, 2])
def test_a_constant_input_with_eps_zero_gives_the_bias(groups):
    bias = np.array([3.0, -1.0, 0.5, 2.0])
    assert np.array_equal(Norm(gain=np.ones(4), bias=bias, eps=0, groups=groups)(np.full(4, 7.3)), bias)
    assert np.array_equal(Norm(gain=np.ones(4), bias=bias, eps=0, groups=groups, project=False)(np.zeros(4)), bias)


def test_one_channel_has_nothing_left_after_projection():
    assert np.array_equal(Norm(gain=[2.0], bias=[5.0])([[1.0], [-3.0]]), [[5.0], [5.0]])
    assert Norm(gain=[2.0], project=False, eps=0)([-3.0]) == [-2.0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_torch_tensors_of_every_float_dtype_are_read_exactly(dtype):
    gain = torch.linspace(0.1, 2, 6).to(dtype).requires_grad_()
    norm = Norm(gain=gain)
    assert np.array_equal(norm.gain, gain.detach().double().numpy())
    x = torch.randn(3, 6, generator=torch.Generator().manual_seed(0)).to(dtype)
    assert np.array_equal(norm(x), norm(x.double().numpy()))


def test_stacks_of_any_depth_and_empty_stacks_keep_their_shape():
    norm = Norm(gain=np.ones(6), groups=3)
    assert norm(np.ones((2, 3, 4, 6))).shape == (2, 3, 4, 6)
    assert norm(np.ones((0, 6))).shape == (0, 6)
    assert norm.nearness(np.ones((2, 5, 6))).shape == (2, 5, 3)


@given(st.data())
def test_products_with_the_jacobian_agree_with_autograd(data):
    norm = data.draw(norms(eps=(1e-5, 1.0)))
    rng = np.random.default_rng(data.draw(seeds))
    x, basis = rng.normal(size=norm.size), np.eye(norm.size)
    dense = jacobian(norm, x)
    assert norm.jvp(x, basis).T == pytest.approx(dense, abs=1e-12 * steepest(norm, x))
    assert norm.vjp(x, basis) == pytest.approx(dense, abs=1e-12 * steepest(norm, x))


@given(st.data())
def test_singular_values_of_the_jacobian_agree_with_dense_svd(data):
    norm = data.draw(norms(eps=(1e-5, 1e-2, 1.0)))
    x = np.random.default_rng(data.draw(seeds)).normal(size=norm.size)
    dense = np.linalg.svd(norm.jvp(x, np.eye(norm.size)).T, compute_uv=False)
    assert norm.singular_values(x) == pytest.approx(dense, abs=1e-12 * steepest(norm, x))


def test_small_singular_values_of_the_jacobian_keep_their_digits():
    """With equal gains they are g/r (N − 2 times), δ·g/r and 0, by hand: dense SVD would lose δ = 1e-12."""
    size, eps = 5, 1e-12
    x = RANDOM.normal(size=size)
    x = (x - x.mean()) / x.std()
    values = Norm(gain=np.full(size, 3.0), eps=eps).singular_values(x)
    root = np.sqrt(1 + eps)
    assert values == pytest.approx([3 / root] * 3 + [3 / root * eps / root**2, 0.0], rel=1e-14)


def test_no_derivative_is_made_up_where_there_is_none():
    norm = Norm(gain=np.ones(4), eps=0)
    for call in (lambda: norm.jvp(np.ones(4), np.ones(4)), lambda: norm.singular_values(np.ones(4))):
        with pytest.raises(ValueError, match="no derivative here: x is constant in a group and eps is 0"):
            call()


@given(st.data())
def test_nearness_is_the_radius_of_the_output(data):
    norm = data.draw(norms(flags=[f for f in FLAGS if f[1]], biased=False))
    x = data.draw(inputs(norm))
    assume(norm.gain.all())
    nearness = norm.nearness(x)
    assert np.all((nearness >= 0) & (nearness <= 1))
    assert norm.ellipsoid.radius(norm(x)) == pytest.approx(nearness.max(axis=-1), rel=1e-9, abs=1e-12)


def test_nearness_has_no_meaning_without_scaling():
    with pytest.raises(ValueError, match="needs a norm that scales"):
        Norm(gain=[1, 2], scale=False).nearness([1, 2])


def test_flags_are_read_back_and_named():
    kinds = {
        (True, True, 1): "layernorm",
        (True, True, 2): "lng",
        (False, True, 1): "rmsnorm",
        (True, False, 1): "projection",
        (False, False, 1): "affine",
    }
    for (project, scale, groups), kind in kinds.items():
        norm = Norm(gain=np.ones(4), project=project, scale=scale, groups=groups)
        assert (norm.projects, norm.scales, norm.groups, norm.kind) == (project, scale, groups, kind)
        assert kind in repr(norm)


def test_a_norm_can_not_be_changed():
    source = np.ones(3)
    norm = Norm(gain=source)
    source[0] = 5
    assert norm.gain[0] == 1
    with pytest.raises(ValueError, match="read-only"):
        norm.gain[0] = 2
    with pytest.raises(AttributeError):
        norm.eps = 0
    with pytest.raises(ValueError, match="read-only"):
        pickle.loads(pickle.dumps(norm)).gain[0] = 2


def test_equal_norms_are_equal_and_hash_alike():
    norm = Norm(gain=[1, 2, 0.0], groups=3)
    same = Norm(gain=[1, 2, -0.0], groups=3)
    assert norm == same == copy.deepcopy(norm)
    assert hash(norm) == hash(same)
    assert norm != Norm(gain=[1, 2, 0.0])
    assert norm != "norm"


def test_calling_does_not_change_or_share_the_input():
    x = np.arange(4.0)
    norm = Norm(gain=np.ones(4), project=False, scale=False)
    norm.project(x)[0] = 9
    norm.scale(x)[0] = 9
    assert np.array_equal(x, np.arange(4.0))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"gain": []}, r"gain must be a vector of one or more channels, got shape \(0,\)"),
        ({"gain": [[1, 2]]}, r"gain must be a vector of one or more channels, got shape \(1, 2\)"),
        ({"gain": [1, np.nan, np.inf]}, "gain must be finite, got 2 NaN or infinite of 3 values"),
        ({"gain": ["a"]}, "gain must be an array of real numbers, got list"),
        ({"gain": [1j]}, "gain must be an array of real numbers, got list: values of dtype complex128"),
        ({"gain": ["1", "2"]}, "gain must be an array of real numbers, got list: values of dtype"),
        ({"gain": [1, 2], "bias": [1]}, r"bias must have the shape of gain, \(2,\), got \(1,\)"),
        ({"gain": [1, 2], "bias": [1, np.nan]}, "bias must be finite"),
        ({"gain": [1, 2, 3], "groups": 2}, "groups must divide the number of channels, got 2 groups of 3 channels"),
        ({"gain": [1, 2], "groups": 0}, "groups must be a whole number, 1 or more, got 0"),
        ({"gain": [1, 2], "groups": 1.0}, "groups must be a whole number, 1 or more, got 1.0"),
        ({"gain": [1, 2], "groups": True}, "groups must be a whole number"),
        ({"gain": [1, 2], "eps": -1e-5}, "eps must be one number, 0 or more, got -1e-05"),
        ({"gain": [1, 2], "eps": [0.1]}, r"eps must be one number, 0 or more, got \[0.1\]"),
        ({"gain": [1, 2], "eps": np.nan}, "eps must be finite"),
        ({"gain": [1, 2], "project": 1}, "project must be True or False, got 1"),
        ({"gain": [1, 2], "scale": None}, "scale must be True or False, got None"),
    ],
)
def test_bad_arguments_are_refused_with_what_came(arguments, message):
    with pytest.raises(ValueError, match=message):
        Norm(**arguments)


@pytest.mark.parametrize("method", ["__call__", "project", "scale", "affine", "nearness"])
def test_bad_inputs_are_refused_with_what_came(method):
    norm = Norm(gain=[1, 2, 3])
    with pytest.raises(ValueError, match=r"x must have 3 channels in its last axis, got shape \(2, 4\)"):
        getattr(norm, method)(np.ones((2, 4)))
    with pytest.raises(ValueError, match=r"x must have 3 channels in its last axis, got shape \(\)"):
        getattr(norm, method)(1.0)
    with pytest.raises(ValueError, match="x must be finite, got 1 NaN or infinite of 3 values"):
        getattr(norm, method)([1, np.nan, 2])
