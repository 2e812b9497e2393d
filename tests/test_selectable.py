"""Which keys can win: against exact oracles, in every corner, and always with a certificate."""

from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from normscope.certificates.key_certificates import Query, Weights
from normscope.separation.selectable import selectable
from strategies import seeds


def exact_selectable(keys, bias=None):
    """By Carathéodory, in fractions: key i loses iff 0 is a convex combination of at most D + 1 generators."""
    points = [[Fraction(float(x)) for x in key] for key in np.asarray(keys)]
    if bias is not None:
        points = [[*point, Fraction(float(b))] for point, b in zip(points, bias, strict=True)]
    answers = []
    for i, own in enumerate(points):
        generators = [[a - b for a, b in zip(p, own, strict=True)] for j, p in enumerate(points) if j != i]
        if bias is not None:
            generators.append([Fraction(0)] * (len(own) - 1) + [Fraction(-1)])
        sizes = range(1, min(len(generators), len(own) + 1) + 1)
        answers.append(not any(holds_zero(some) for size in sizes for some in combinations(generators, size)))
    return np.array(answers)


def holds_zero(simplex):
    """Whether 0 = Σλg with λ ≥ 0 and Σλ = 1, if the g are affinely independent; else False."""
    rows = [[g[k] for g in simplex] + [Fraction(0)] for k in range(len(simplex[0]))] + [
        [Fraction(1)] * (len(simplex) + 1)
    ]
    for column in range(len(simplex)):
        pivot = next((r for r in range(column, len(rows)) if rows[r][column]), None)
        if pivot is None:
            return False
        rows[column], rows[pivot] = rows[pivot], rows[column]
        rows[column] = [x / rows[column][column] for x in rows[column]]
        for r in range(len(rows)):
            if r != column and rows[r][column]:
                rows[r] = [x - rows[r][column] * y for x, y in zip(rows[r], rows[column], strict=True)]
    return all(row[-1] == 0 for row in rows[len(simplex) :]) and all(row[-1] >= 0 for row in rows[: len(simplex)])


def hull_corners(keys):
    """Strict corners of a hull in the plane, by Andrew's monotone chain, in fractions."""
    points = sorted((Fraction(float(x)), Fraction(float(y)), i) for i, (x, y) in enumerate(keys))
    corners = set()
    for line in (points, points[::-1]):
        chain = []
        for p in line:
            while len(chain) > 1 and (chain[-1][0] - chain[-2][0]) * (p[1] - chain[-2][1]) <= (
                chain[-1][1] - chain[-2][1]
            ) * (p[0] - chain[-2][0]):
                chain.pop()
            chain.append(p)
        corners |= {i for _, _, i in chain}
    return corners


@given(seed=seeds, count=st.integers(2, 7), channels=st.integers(1, 3), grid=st.sampled_from([1, 2, 5, 1000]))
@settings(max_examples=60, deadline=None)
def test_agrees_with_exact_arithmetic_on_keys_full_of_ties(seed, count, channels, grid):
    keys = np.random.default_rng(seed).integers(-grid, grid + 1, (count, channels)).astype(float)
    result = selectable(keys)
    assert (result.mask == exact_selectable(keys)).all()
    assert not result.open.any()
    assert result.holds


@given(seed=seeds, count=st.integers(2, 6), channels=st.integers(1, 2), grid=st.sampled_from([1, 2, 1000]))
@settings(max_examples=60, deadline=None)
def test_agrees_with_exact_arithmetic_with_a_bias(seed, count, channels, grid):
    rng = np.random.default_rng(seed)
    keys = rng.integers(-grid, grid + 1, (count, channels)).astype(float)
    bias = rng.integers(-grid, grid + 1, count).astype(float)
    result = selectable(keys, bias=bias)
    assert (result.mask == exact_selectable(keys, bias)).all()
    assert not result.open.any()
    assert result.holds


@given(seed=seeds, exponent=st.integers(-16, -6), count=st.integers(3, 6))
@settings(max_examples=40, deadline=None)
def test_near_ties_are_settled_as_exact_arithmetic_does(seed, exponent, count):
    rng = np.random.default_rng(seed)
    keys = rng.normal(size=(count, 2))
    near_an_edge = (keys[0] + keys[1]) / 2 + 10.0**exponent * rng.normal(size=2)
    near_a_key = keys[2] + 10.0**exponent * rng.normal(size=2)
    keys = np.vstack([keys, near_an_edge, near_a_key])
    result = selectable(keys)
    assert (result.mask | result.open == exact_selectable(keys) | result.open).all()
    assert result.holds


@given(seed=seeds, exponent=st.integers(-18, 0), biased=st.booleans())
@settings(max_examples=60, deadline=None)
def test_nearly_flat_keys_get_the_exact_answer_or_are_called_degenerate(seed, exponent, biased):
    rng = np.random.default_rng(seed)
    keys = rng.normal(size=(6, 2)) * [1.0, 10.0**exponent] @ np.linalg.qr(rng.normal(size=(2, 2)))[0]
    bias = rng.normal(size=6) if biased else None
    result, exact = selectable(keys, bias=bias), exact_selectable(keys, bias)
    assert (exact | ~result.mask).all()
    assert ((result.mask == exact) | result.near_ties).all()
    assert result.holds


def test_two_thousand_keys_of_the_plane_agree_with_their_hull():
    rng = np.random.default_rng(1)
    for count in (200, 800, 1000):
        keys = rng.normal(size=(count, 2)).astype(np.float32)
        result = selectable(keys)
        assert set(np.flatnonzero(result.mask)) == hull_corners(keys)
        assert result.holds


@given(seed=seeds, channels=st.integers(2, 20), scale=st.sampled_from([1e-30, 1e-6, 1.0, 1e30]), biased=st.booleans())
@settings(max_examples=40, deadline=None)
def test_planted_keys_inside_lose_and_planted_corners_win(seed, channels, scale, biased):
    rng = np.random.default_rng(seed)
    corners = rng.normal(size=(3 * channels + 2, channels))
    corners /= np.linalg.norm(corners, axis=1, keepdims=True)
    corners = np.unique(corners, axis=0)
    weights = rng.dirichlet(np.ones(len(corners)), size=5)
    inside = 0.9 * (weights @ corners) + 0.1 * corners.mean(axis=0)
    keys = scale * np.vstack([corners, inside])
    bias = np.full(len(keys), 3.0) if biased else None
    result = selectable(keys, bias=bias)
    assert result.mask[: len(corners)].all()
    assert not result.mask[len(corners) :].any()
    assert result.holds


@given(seed=seeds, channels=st.integers(2, 12))
@settings(max_examples=30, deadline=None)
def test_planted_points_of_a_face_lose(seed, channels):
    rng = np.random.default_rng(seed)
    corners = rng.integers(-1000, 1001, (3 * channels, channels)).astype(float)
    middles = (corners[:channels] + corners[channels : 2 * channels]) / 2
    result = selectable(np.vstack([corners, middles]))
    assert not result.mask[len(corners) :].any()
    assert not result.open.any()
    assert result.holds


@given(seed=seeds, channels=st.integers(2, 16), count=st.integers(2, 60))
@settings(max_examples=40, deadline=None)
def test_distinct_keys_of_equal_norm_all_win(seed, channels, count):
    rng = np.random.default_rng(seed)
    signs = np.unique(rng.choice([-1.0, 1.0], (count, channels)), axis=0)
    result = selectable(signs * np.arange(1, channels + 1) + 7.0)
    assert result.mask.all()
    assert result.holds


@given(seed=seeds)
@settings(max_examples=30, deadline=None)
def test_the_answer_is_the_same_after_an_invertible_affine_map(seed):
    rng = np.random.default_rng(seed)
    keys = rng.normal(size=(60, 4))
    mapped = keys @ (rng.normal(size=(4, 4)) * 10.0 ** rng.uniform(-3, 3, 4)) + 100 * rng.normal(size=4)
    assert (selectable(keys).mask == selectable(mapped).mask).all()
    assert selectable(mapped).holds


def test_every_certificate_is_what_it_says():
    keys = np.random.default_rng(2).normal(size=(300, 5))
    result = selectable(keys)
    assert 0 < result.mask.sum() < 300
    for i, certificate in enumerate(result.certificates):
        if result.mask[i]:
            assert isinstance(certificate, Query)
            scores = keys @ certificate.query
            assert scores[i] - np.delete(scores, i).max() == pytest.approx(certificate.margin)
            assert certificate.margin > 0
        else:
            assert isinstance(certificate, Weights)
            assert i not in certificate.indices
            assert len(certificate.indices) <= 6
            assert (certificate.weights >= 0).all()
            assert certificate.weights.sum() == pytest.approx(1)
            assert np.allclose(certificate.weights @ keys[certificate.indices], keys[i], atol=1e-14)
            assert certificate.residual < 1e-13


def test_twins_lose_both_with_the_other_as_certificate():
    keys = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, -0.0], [-1.0, -1.0]])
    result = selectable(keys)
    assert result.mask.tolist() == [False, True, False, True]
    assert result.near_ties.tolist() == [True, False, True, False]
    assert result.certificates[0].indices.tolist() == [2]
    assert result.certificates[2].indices.tolist() == [0]
    assert result.certificates[0].weights.tolist() == [1.0]
    assert result.holds


def test_of_twins_with_a_bias_the_higher_one_wins():
    result = selectable([[1.0], [1.0], [0.0]], bias=[2.0, 3.0, 0.0])
    assert result.mask.tolist() == [False, True, True]
    assert result.certificates[0].indices.tolist() == [1]
    assert result.holds


def test_keys_scaled_by_a_millionth_keep_their_answer():
    keys = np.random.default_rng(3).normal(size=(200, 6))
    result = selectable(1e-6 * keys)
    assert (result.mask == selectable(keys).mask).all()
    assert not result.near_ties.any()
    assert result.holds


def test_a_certifying_query_may_be_as_large_as_it_must():
    """Key 1 wins only where q > 1000: far outside a box of ±100."""
    result = selectable([[0.0], [1.0], [-1.0]], bias=[0.0, -1000.0, 0.0])
    assert result.mask.all()
    assert result.certificates[1].query[0] > 1000
    assert result.holds


def test_a_bias_that_is_affine_in_the_keys_changes_nothing():
    keys = np.random.default_rng(4).normal(size=(100, 3))
    plain = selectable(keys)
    for bias in (np.full(100, 7.0), keys @ [1.0, -2.0, 3.0] + 4):
        result = selectable(keys, bias=bias)
        assert (result.mask == plain.mask).all()
        assert result.holds


def test_a_key_alone_wins_with_any_query():
    for bias in (None, [3.0]):
        result = selectable([[1.0, 2.0]], bias=bias)
        assert result.mask.tolist() == [True]
        assert result.certificates[0].margin == np.inf
        assert result.holds


def test_keys_that_all_coincide_all_lose():
    result = selectable(np.ones((5, 3)))
    assert not result.mask.any()
    assert result.near_ties.all()
    assert result.holds


def test_fewer_keys_than_channels_in_general_position_all_win():
    result = selectable(np.random.default_rng(5).normal(size=(8, 30)))
    assert result.mask.all()
    assert result.holds


def test_keys_of_low_rank_are_judged_in_their_span():
    rng = np.random.default_rng(6)
    flat = rng.integers(-50, 51, (80, 2)).astype(float)
    flat = np.unique(flat, axis=0)
    result = selectable(flat @ rng.integers(-5, 6, (2, 7)).astype(float))
    assert set(np.flatnonzero(result.mask)) == hull_corners(flat)
    assert not result.open.any()
    assert result.holds


def test_one_key_far_out_does_not_hide_the_others():
    rng = np.random.default_rng(7)
    keys = np.vstack([rng.integers(-9, 10, (12, 2)).astype(float), [[1e30, 0.0]]])
    result = selectable(keys)
    assert ((result.mask == exact_selectable(keys)) | result.open).all()
    assert result.holds


def test_channels_of_very_different_size_are_all_seen():
    rng = np.random.default_rng(8)
    keys = rng.normal(size=(60, 4))
    result = selectable(keys * np.array([1e-30, 1.0, 1e30, 1e-5]))
    assert (result.mask == selectable(keys).mask).all()
    assert result.holds


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_half_precision_keys_are_taken_as_the_numbers_they_are(dtype):
    keys = torch.randn(50, 2, generator=torch.Generator().manual_seed(9)).to(dtype)
    result = selectable(keys)
    exact = keys.double().numpy()
    distinct = [i for i in range(50) if (exact == exact[i]).all(axis=1).sum() == 1]
    assert [i for i in distinct if result.mask[i]] == [i for i in distinct if i in hull_corners(exact)]
    assert result.holds


def test_a_batch_is_answered_set_by_set():
    keys = np.random.default_rng(10).normal(size=(2, 3, 20, 3))
    bias = np.random.default_rng(11).normal(size=(2, 3, 20))
    result = selectable(keys, bias=bias)
    assert result.mask.shape == (2, 3, 20)
    assert result.holds
    for a, b in np.ndindex(2, 3):
        alone = selectable(keys[a, b], bias=bias[a, b])
        assert (result.mask[a, b] == alone.mask).all()
        assert type(result.certificates[a, b, 4]) is type(alone.certificates[4])
        assert type(result.certificates[a, b, -1]) is type(alone.certificates[19])


def test_the_summary_counts_every_key_once():
    result = selectable([[0, 0], [4, 0], [0, 4], [1, 1], [4, 0]])
    assert repr(result) == "Selection(5 keys of 2 channels: 2 selectable, 3 never selected, 2 near ties)"
    summary = result.to_dict()
    (counts,) = summary["counts"]
    assert counts["selectable"] + counts["never_selected"] + counts["open"] == counts["keys"] == 5
    assert summary["shape"] == [5, 2]
    assert counts["least_margin"] > 0


@pytest.mark.parametrize(
    ("keys", "bias", "message"),
    [
        ([[1.0, np.nan]], None, "keys must be finite"),
        ([1.0, 2.0], None, "keys must have shape"),
        (np.zeros((0, 3)), None, "keys must have shape"),
        ([[1.0], [2.0]], [1.0], "bias must have one entry per key"),
        ([[1.0], [2.0]], [1.0, np.inf], "bias must be finite"),
    ],
)
def test_what_is_not_a_set_of_keys_is_refused(keys, bias, message):
    with pytest.raises(ValueError, match=message):
        selectable(keys, bias=bias)


def test_a_place_outside_the_batch_is_refused():
    with pytest.raises(IndexError, match="must name one key"):
        selectable([[1.0], [2.0]]).certificates[2]


def test_keys_that_are_flat_up_to_noise_win_with_room_to_spare():
    # Outputs of a norm in single precision: the hyperplane they fill is off by rounding, which whitening blows up.
    rng = np.random.default_rng(5)
    gain, bias = 1 + 0.3 * rng.normal(size=16), rng.normal(size=16)
    keys = torch.nn.functional.layer_norm(
        torch.from_numpy(rng.normal(size=(200, 16))).float(),
        (16,),
        torch.from_numpy(gain).float(),
        torch.from_numpy(bias).float(),
    )
    result = selectable(keys)
    assert result.mask.all()
    assert not result.near_ties.any()
    assert result.holds
