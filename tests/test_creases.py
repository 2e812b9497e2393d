"""The pieces that networks of LayerNorms are made of: scaling, creases, ball arithmetic, each against a slow way."""

import math

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from normscope.capacity import scaling_layer
from normscope.capacity.crease_cost import WORST, crease_cost, creased, lined_up
from normscope.capacity.crease_network import Items, apart
from normscope.capacity.crease_search import BEND, BOUNDARIES, CENTRE, COST, TILT, TIP, best_creases, best_moves
from normscope.capacity.ln_net import torch_winners
from normscope.capacity.plane_scaling import AffineMap, layer_norm_network, layers_of, module_of
from normscope.capacity.samples import choose_line
from normscope.certificates.check_networks import OPEN, exact_labels, figures, float_winners
from normscope.certificates.network_weights import StoredNetwork

seeds = st.integers(0, 2**32 - 1)


@given(seed=seeds, exponent=st.integers(-100, 100))
def test_the_scaling_layer_is_a_vector_over_its_length(seed, exponent):
    x = np.random.default_rng(seed).normal(size=(5, 2)) * 10.0**exponent
    out = scaling_layer()(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(out, x / np.hypot(x[:, :1], x[:, 1:]), atol=1e-14)


def test_the_scaling_layer_is_two_linear_maps_around_one_layer_norm_of_width_three():
    before, norm, after = scaling_layer(eps=1e-5)
    assert (type(before), type(norm), type(after)) == (nn.Linear, nn.LayerNorm, nn.Linear)
    assert (norm.normalized_shape, norm.weight, norm.eps) == ((3,), None, 1e-5)
    x = torch.tensor([[3e-3, 4e-3], [0.0, 0.0]], dtype=torch.float64)
    expected = x / torch.sqrt((x * x).sum(1, keepdim=True) + 3e-5)
    torch.testing.assert_close(scaling_layer(eps=1e-5)(x), expected, atol=1e-15, rtol=1e-12)


def mp_scores(module, sample):
    """The scores of one sample in 80 digits, LayerNorm taken at its word in R³."""
    with mpmath.workdps(80):
        vector = [mpmath.mpf(float(value)) for value in sample]
        for layer in module:
            if isinstance(layer, nn.Linear):
                weight, bias = layer.weight.double().tolist(), layer.bias.double().tolist()
                vector = [
                    mpmath.fsum(mpmath.mpf(w) * v for w, v in zip(row, vector, strict=True)) + mpmath.mpf(b)
                    for row, b in zip(weight, bias, strict=True)
                ]
            else:
                mean = mpmath.fsum(vector) / 3
                centred = [v - mean for v in vector]
                root = mpmath.sqrt(mpmath.fsum(v * v for v in centred) / 3 + mpmath.mpf(layer.eps))
                vector = [v / root for v in centred]
        return vector


@pytest.mark.parametrize("eps", [0.0, 1e-5])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_exact_labels_are_those_of_80_digits(eps, dtype):
    rng = np.random.default_rng(1)
    maps = [AffineMap(rng.normal(size=(2, 4)), rng.normal(size=2))]
    maps += [AffineMap(rng.normal(size=(2, 2)), rng.normal(size=2)) for _ in range(3)]
    module = layer_norm_network([*maps, AffineMap(rng.normal(size=(3, 2)), rng.normal(size=3))], eps=eps, dtype=dtype)
    samples = rng.normal(size=(40, 4)).astype(np.float32).astype(float)
    layers = layers_of(module)
    found = exact_labels(StoredNetwork(layers, eps), samples)
    expected = [mp_scores(module, sample) for sample in samples]
    assert found.winners.tolist() == [int(np.argmax([float(v) for v in row])) for row in expected]
    leads = [float(a - b) for a, b, *_ in (sorted(row, reverse=True) for row in expected)]
    assert found.leads == pytest.approx(leads, rel=1e-9)
    for winners in (float_winners(layers, eps, samples), *torch_winners(module_of(layers, eps), samples)):
        assert winners.tolist() == found.winners.tolist()


def test_a_tie_is_left_open():
    assert exact_labels(StoredNetwork([np.array([[1.0, 0.5]] * 2)], 0.0), np.array([[0.25]])).winners.tolist() == [OPEN]


def test_figures_see_a_wrong_weight():
    layers = layers_of(scaling_layer())
    samples, labels = np.array([[1.0, 0.2], [0.2, 1.0], [3.0, 1.0]]), np.array([0, 1, 0])
    right = figures(layers, 0.0, None, samples, labels, 2)
    assert (right.certified, right.float_right, right.samples) == ([2, 1], [2, 1], [2, 1])
    layers[-1][:] *= -1
    wrong = figures(layers, 0.0, None, samples, labels, 2)
    assert (wrong.certified, wrong.float_right, wrong.margins) == ([0, 0], [0, 0], [None, None])


def slow_boundaries(places, label, crease):
    """Crease every sample, sort, count changes of label."""
    where = np.array([creased(place, crease[CENTRE], crease[TIP], crease[TILT], crease[BEND]) for place in places])
    order = np.argsort(where, kind="stable")
    return int(np.count_nonzero(np.diff(label[order]))), np.diff(where[order])[np.diff(label[order]) != 0]


@given(seed=seeds, count=st.integers(3, 30), classes=st.integers(2, 4))
def test_boundaries_after_a_crease_are_those_of_sorting(seed, count, classes):
    rng = np.random.default_rng(seed)
    places = np.sort(rng.random(count))
    places = (places - places[0]) / (places[-1] - places[0])
    label = rng.integers(0, classes, count)
    line = lined_up(places, places, label, 0.05, 1 / 3)
    for _ in range(20):
        crease = np.zeros(6)
        crease[[CENTRE, TIP, TILT, BEND]] = (
            rng.random(),
            10 ** rng.uniform(-3, 0),
            rng.uniform(-0.9, 0.9),
            rng.exponential() - 0.9,
        )
        cost, boundaries = crease_cost(line, crease[CENTRE], crease[TIP], crease[TILT], crease[BEND], 0.0, 1e9)
        expected, _ = slow_boundaries(places, label, crease)
        assert (cost, boundaries) == (WORST, 0) or boundaries == expected
        assert cost >= boundaries


@given(seed=seeds)
def test_a_found_crease_does_what_it_says_and_keeps_its_gaps(seed):
    rng = np.random.default_rng(seed)
    places, label, floor = np.sort(np.append(rng.random(28), [0.0, 1.0])), rng.integers(0, 2, 30), 1e-6
    boundaries = int(np.count_nonzero(np.diff(label)))
    for search in (best_creases, best_moves):
        for crease in search(places, places, label, boundaries, 500, (0.01, 0.9, floor), 0.05, 1 / 3, seed):
            if crease[COST] < WORST:
                expected, gaps = slow_boundaries(places, label, crease)
                assert crease[BOUNDARIES] == expected <= boundaries
                assert gaps.min(initial=math.inf) > 0


def test_intervals_that_overlap_become_one_item_whatever_their_order():
    items = Items(np.array([0.0, 0.3, 0.1, 0.9]), np.array([0.6, 0.4, 0.2, 1.0]), np.array([0, 0, 0, 1]))
    low, high, label = items.joined(0.0)
    assert (low.tolist(), high.tolist(), label.tolist()) == ([0.0, 0.9], [0.6, 1.0], [0, 1])


def test_a_sample_whose_floats_are_lost_no_longer_counts_as_an_interval():
    places, followed = np.array([0.0, 0.4, 0.5, 1.0]), np.ones(4, bool)
    items = apart(places, np.array([0.01, 0.2, 0.01, 0.01]), np.array([0, 0, 1, 1]), followed)
    assert followed.tolist() == [True, False, True, True]
    assert (items.low[1], items.high[1]) == (0.4, 0.4)


def test_two_labels_at_one_place_are_not_apart():
    assert apart(np.array([0.0, 0.0]), np.zeros(2), np.array([0, 1]), np.ones(2, bool)) is None


@given(seed=seeds, exponent=st.integers(-290, 290))
def test_the_line_keeps_labels_apart_at_any_scale(seed, exponent):
    rng = np.random.default_rng(seed)
    samples, labels = rng.normal(size=(20, 3)) * 10.0**exponent, rng.integers(0, 2, 20)
    labels[:2] = 0, 1
    line = choose_line(samples, labels, seed)
    assert line.gap > 0
    assert (line.places.min(), line.places.max()) == pytest.approx((0.0, 1.0), abs=1e-12)
    order = np.argsort(line.places)
    assert line.runs == 1 + np.count_nonzero(np.diff(labels[order]))
