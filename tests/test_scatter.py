"""SSR and LSSR against their definitions, and what linear networks and one LayerNorm can do about them."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.linalg import eigh

from normscope import Norm
from normscope.capacity import scatter, scatter_ratios
from strategies import seeds

XOR = np.array([[0.0, 0.0], [1.0, 1.0], [0.0, 1.0], [1.0, 0.0]]), np.array([0, 0, 1, 1])


def ssr(x, y):
    return scatter(x, y).ssr


def lssr(x, y):
    return scatter(x, y).lssr


def dense_scatters(x, y):
    """S_w and S_t, straight from the definition."""
    centred = x - x.mean(axis=0)
    own = np.concatenate([x[y == c] - x[y == c].mean(axis=0) for c in np.unique(y)])
    return own.T @ own, centred.T @ centred


def dense_lssr(x, y):
    """For samples of full rank."""
    return eigh(*dense_scatters(x, y), eigvals_only=True)[0]


@st.composite
def labelled(draw, rows=40, channels=5):
    """Random samples in two to four classes, which may have something to do with them."""
    rng = np.random.default_rng(draw(seeds))
    classes = draw(st.integers(2, 4))
    y = np.concatenate([np.arange(classes), rng.integers(0, classes, rows - classes)])
    x = rng.normal(size=(rows, channels)) + draw(st.sampled_from([0.0, 1.0, 10.0])) * rng.normal(size=(4, channels))[y]
    return x, y


@given(labelled())
def test_agrees_with_the_definition(data):
    x, y = data
    within, total = dense_scatters(x, y)
    assert ssr(x, y) == pytest.approx(np.trace(within) / np.trace(total), rel=1e-12)
    assert lssr(x, y) == pytest.approx(dense_lssr(x, y), abs=1e-12)
    found = scatter(x, y)
    assert (found.samples, found.rank, found.trivial) == (40, 5, False)
    assert found.ssr == pytest.approx(ssr(x, y), rel=1e-12)


@given(labelled(), st.integers(1, 4))
def test_the_size_of_the_blocks_does_not_matter(data, step):
    x, y = data
    whole = scatter(x, y)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scatter_ratios, "BLOCK", step)
        assert scatter(x, y).lssr == pytest.approx(whole.lssr, abs=1e-14)
        assert ssr(x, y) == pytest.approx(whole.ssr)


@given(labelled(), seeds)
def test_no_linear_map_changes_it_unless_it_loses_something(data, seed):
    (x, y), rng = data, np.random.default_rng(seed)
    mixing = np.linalg.qr(rng.normal(size=(5, 5)))[0] * rng.uniform(0.5, 2, 5)
    assert lssr(x @ mixing + rng.normal(size=5), y) == pytest.approx(lssr(x, y), abs=1e-12)
    assert lssr(x[:, :3], y) >= lssr(x, y) - 1e-12


@given(labelled(), seeds)
def test_labels_are_names_and_their_order_does_not_matter(data, seed):
    x, y = data
    order = np.random.default_rng(seed).permutation(len(x))
    named = [f"class {label}" for label in y[order]]
    assert lssr(x[order], named) == pytest.approx(lssr(x, y), abs=1e-13)
    assert ssr(torch.as_tensor(x[order]), torch.as_tensor(y[order])) == pytest.approx(ssr(x, y), rel=1e-13)


def random_linear_network(rng, width):
    """One to five linear layers with biases, of any width."""
    widths = [width, *rng.integers(1, 9, rng.integers(1, 6))]
    return [(rng.normal(size=(before, after)), rng.normal(size=after)) for before, after in pairwise(widths)]


def test_no_linear_network_goes_below_in_ten_thousand():
    rng = np.random.default_rng(0)
    margins = []
    for _ in range(100):
        channels, classes = rng.integers(1, 8), rng.integers(2, 5)
        y = np.concatenate([np.arange(classes), rng.integers(0, classes, 40)])
        x = rng.normal(size=(len(y), channels)) @ rng.normal(size=(channels, channels))
        x += rng.choice([0.0, 3.0]) * rng.normal(size=(classes, channels))[y]
        least = lssr(x, y)
        for _ in range(100):
            output = x
            for matrix, bias in random_linear_network(rng, channels):
                output = output @ matrix + bias
            margins.append(ssr(output, y) - least)
    assert len(margins) == 10_000
    assert min(margins) >= -1e-12


@given(labelled())
def test_a_linear_map_to_one_channel_reaches_it(data):
    x, y = data
    within, total = dense_scatters(x, y)
    _, directions = eigh(within, total)
    assert ssr(x @ directions[:, :1], y) == pytest.approx(lssr(x, y), abs=1e-12)


def test_xor_goes_from_one_to_zero_through_one_layer_norm():
    x, y = XOR
    assert lssr(x, y) == ssr(x, y) == 1.0
    layer_norm = Norm(gain=np.ones(3), eps=0)
    p = x.sum(axis=1) - 1
    for shift in (0.1, 1.0, -5.0):
        output = layer_norm(np.stack([p, -p, np.full(4, shift)], axis=1))
        assert not scatter(output, y).trivial
        assert lssr(output, y) <= 1e-25
        assert ssr(output[:, 2:], y) <= 1e-25


def test_a_linear_layer_and_a_layer_norm_go_below_what_linear_networks_reach():
    rng = np.random.default_rng(0)
    centres, y = XOR[0].repeat(50, axis=0), XOR[1].repeat(50)
    x = centres + 0.1 * rng.normal(size=centres.shape)
    layer_norm, least = Norm(gain=np.ones(3)), lssr(x, y)
    assert least > 0.95
    outputs = [layer_norm(x @ rng.normal(size=(2, 3)) + rng.normal(size=3)) for _ in range(300)]
    assert min(ssr(output, y) for output in outputs) < least
    assert min(lssr(output, y) for output in outputs) < 0.5


@given(labelled(), seeds)
def test_singular_scatter_is_no_obstacle(data, seed):
    (x, y), rng = data, np.random.default_rng(seed)
    redundant = np.column_stack([x, x[:, 0], np.full(len(x), 7.3), x @ rng.normal(size=(5, 2))])
    found = scatter(redundant, y)
    assert found.rank == 5
    assert found.lssr == pytest.approx(lssr(x, y), abs=1e-9)


@given(rows=st.integers(3, 12), classes=st.integers(2, 3), channels=st.integers(1, 12), seed=seeds)
def test_too_few_samples_are_trivially_zero_and_it_is_said(rows, classes, channels, seed):
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(rows, channels)), np.arange(rows) % classes
    found = scatter(x, y)
    assert found.rank == min(channels, rows - 1)
    assert found.trivial == (rows <= found.rank + classes - 1)
    if found.trivial:
        assert found.lssr == 0.0
    else:
        assert found.lssr > 0.0


def test_it_is_not_called_trivial_where_the_labels_have_a_say():
    x = np.array([[0.0], [0.0], [1.0], [1.0]])
    for labels, least in (([0, 0, 1, 1], 0.0), ([0, 1, 0, 1], 1.0)):
        found = scatter(x, labels)
        assert (found.lssr, found.trivial) == (least, False)


@given(labelled(), st.integers(-290, 290))
def test_channels_of_any_size_count_alike(data, exponent):
    x, y = data
    sizes = np.array([1.0, 10.0**exponent, 1e5, 1e-7, 1.0])
    assert lssr(x * sizes, y) == pytest.approx(lssr(x, y), abs=1e-11)
    assert lssr(x * 10.0**exponent, y) == pytest.approx(lssr(x, y), abs=1e-11)
    assert ssr(x * 10.0**exponent, y) == pytest.approx(ssr(x, y), rel=1e-9)
    assert 0 <= ssr(x * sizes, y) <= 1


@given(labelled(), st.floats(3, 7))
def test_a_small_ratio_keeps_its_digits(data, decades):
    x, y = data
    means = np.array([x[y == label].mean(axis=0) for label in range(y.max() + 1)])
    apart = means + 10.0**decades * np.eye(5)[: len(means)] * [1, 2, 0, 0, 0]
    far = x - means[y] + apart[y]
    within, _ = dense_scatters(x - means[y], np.zeros_like(y))
    between = np.sqrt(np.bincount(y))[:, None] * (apart - apart[y].mean(axis=0))
    # 1/(1 + J), J the largest of Fisher's ratios: with S_w well conditioned it has all its digits
    fisher = np.linalg.eigvalsh(between @ np.linalg.solve(within, between.T))[-1]
    assert lssr(far, y) == pytest.approx(1 / (1 + fisher), rel=1e-16 * 10 ** (decades + 4))


def test_a_large_mean_does_not_matter():
    rng = np.random.default_rng(0)
    x, y = np.round(rng.normal(size=(60, 4)), 3), np.arange(60) % 3
    assert lssr(x + 1e9, y) == pytest.approx(lssr(x, y), rel=1e-5)
    assert ssr(x + 1e9, y) == pytest.approx(ssr(x, y), rel=1e-5)


def test_more_classes_than_channels():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(400, 3)), np.arange(400) % 50
    assert lssr(x, y) == pytest.approx(dense_lssr(x, y), abs=1e-13)


def test_float32_samples_are_taken_as_they_are():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(50, 4)).astype(np.float32), np.arange(50) % 2
    assert lssr(x, y) == lssr(x.astype(float), y) == lssr(torch.as_tensor(x), y)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@given(seed=seeds, size=st.integers(-3, 3), mean=st.sampled_from([0.0, 1.0, 30.0]))
def test_what_rounding_leaves_behind_is_no_direction(dtype, seed, size, mean):
    rng = np.random.default_rng(seed)
    few, y = rng.normal(size=(60, 3)) + mean, np.arange(60) % 2
    many = few.astype(dtype) @ (10.0**size * rng.normal(size=(3, 10))).astype(dtype)
    found = scatter(many, y)
    assert found.rank == 3
    assert found.lssr == pytest.approx(lssr(few, y), abs=1e-3 if dtype is np.float32 else 1e-10)
    normalized = (many - many.mean(axis=1, keepdims=True)) / many.std(axis=1, keepdims=True)
    assert normalized.dtype == dtype
    assert scatter(normalized, y).rank <= 9  # in the hyperplane of mean 0


def test_samples_that_coincide_up_to_rounding_have_no_scatter():
    x = np.full((8, 2), 0.1, dtype=np.float32)
    x[0] = np.nextafter(x[0], 1)
    with pytest.raises(ValueError, match="samples must not all coincide up to rounding"):
        lssr(x, np.arange(8) % 2)


@pytest.mark.parametrize(
    ("samples", "labels", "message"),
    [
        (np.ones((3, 2)), [0, 1, 1], "samples must not all coincide"),
        (np.ones(3), [0, 1, 1], r"samples must be a matrix \(one row per sample\), got shape \(3,\)"),
        (np.ones((0, 2)), [], r"samples must be a matrix \(one row per sample\), got shape \(0, 2\)"),
        ([[1.0], [np.nan]], [0, 1], "samples must be finite, got 1 NaN or infinite of 2 values"),
        (np.eye(3), [0, 1], r"labels must be one per sample, 3 in all, got shape \(2,\)"),
        (np.eye(3), np.eye(3), r"labels must be one per sample, 3 in all, got shape \(3, 3\)"),
        (np.eye(3), [1, 1, 1], "labels must name two or more classes, got 1"),
        (np.eye(3), np.array(["a", None, 1], dtype=object), "labels must be of one kind"),
    ],
)
def test_bad_arguments_are_refused_with_what_came(samples, labels, message):
    with pytest.raises(ValueError, match=message):
        scatter(samples, labels)
