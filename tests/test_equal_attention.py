"""Equal attention, against least squares, brute force over random queries, and norms themselves."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from normscope import Norm
from normscope.studies.equal_attention import (
    EqualAttentionGatherer,
    EqualQuery,
    angles_to,
    equal_query,
    least_spread_direction,
    reach_along,
    score_spreads,
)

seeds = st.integers(0, 2**32 - 1)


def degrees_between(a, b):
    return np.degrees(np.arccos(min(1.0, abs(a @ b) / np.linalg.norm(a) / np.linalg.norm(b))))


@given(seed=seeds, channels=st.integers(2, 6), size=st.integers(2, 12))
def test_the_equal_query_is_the_least_squares_preimage_of_the_dead_direction(seed, channels, size):
    rng = np.random.default_rng(seed)
    matrix, norm = rng.normal(size=(channels, size)), Norm(gain=rng.uniform(0.2, 3, size))
    query, angle = equal_query(matrix, norm.ellipsoid.dead_directions)
    alpha = norm.ellipsoid.dead_direction
    fitted = np.linalg.lstsq(matrix.T, alpha, rcond=None)[0]
    assert angle == pytest.approx(degrees_between(matrix.T @ fitted, alpha), abs=1e-5)
    assert degrees_between(matrix.T @ query, alpha) == pytest.approx(angle, abs=1e-5)
    assert np.linalg.norm(query) == pytest.approx(1)
    nearest = min(degrees_between(matrix.T @ other, alpha) for other in rng.normal(size=(50, channels)))
    assert nearest >= angle - 1e-5


@given(seed=seeds, biased=st.booleans())
def test_where_w_can_express_it_all_keys_of_a_layer_norm_score_alike(seed, biased):
    rng = np.random.default_rng(seed)
    norm = Norm(gain=rng.uniform(0.2, 3, 5), bias=rng.normal(size=5) if biased else None)
    matrix = rng.normal(size=(5, 5))
    query, angle = equal_query(matrix, norm.ellipsoid.dead_directions)
    keys = norm(rng.normal(size=(40, 5))) @ matrix.T + rng.normal(size=5)
    assert angle == pytest.approx(0, abs=1e-5)
    assert np.std(keys @ query) < 1e-9 * np.std(keys)


def test_zero_gains_are_dead_directions_for_any_norm():
    rng = np.random.default_rng(0)
    matrix = rng.normal(size=(3, 6))
    for project in (True, False):
        norm = Norm(gain=[0, 0, 0, 1, 2, 3], project=project)
        query, angle = equal_query(matrix, norm.ellipsoid.dead_directions)
        assert norm.ellipsoid.dead_directions.shape == (6, 3)
        some = matrix.T @ rng.normal(size=(3, 200))
        nearest = np.degrees(np.arctan2(np.linalg.norm(some[3:], axis=0), np.linalg.norm(some[:3], axis=0))).min()
        assert 0 < angle <= nearest
        image = matrix.T @ query
        assert np.degrees(np.arctan2(np.linalg.norm(image[3:]), np.linalg.norm(image[:3]))) == pytest.approx(angle)


def test_a_matrix_of_lower_rank_is_asked_for_what_it_can_express():
    matrix = np.array([[1.0, 1.0, 0.0], [2.0, 2.0, 0.0], [0.0, 0.0, 0.0]])
    query, angle = equal_query(matrix, np.array([[1.0], [0.0], [0.0]]))
    assert angle == pytest.approx(45)
    assert matrix.T @ query / np.linalg.norm(matrix.T @ query) == pytest.approx([0.5**0.5, 0.5**0.5, 0])
    with pytest.raises(ValueError, match="W must not be zero"):
        equal_query(np.zeros((2, 3)), np.eye(3)[:, :1])


@given(seed=seeds, away=st.sampled_from([0.0, 0.5, 1.0, 3.0]))
def test_the_reach_is_the_last_multiple_that_is_contained(seed, away):
    rng = np.random.default_rng(seed)
    norm = Norm(gain=rng.uniform(0.5, 2, 8))
    queries = norm.ellipsoid.through(rng.normal(size=(3, 8)), away * rng.normal(size=3))
    direction = rng.normal(size=3)
    direction /= np.linalg.norm(direction)
    found = reach_along(queries, direction)
    line = np.linspace(-60, 60, 24001)
    inside = np.abs(line[queries.contains(line[:, None] * direction)])
    if len(inside):
        assert inside.max() <= found <= inside.max() + 0.0051
    else:
        assert found == 0 or queries.contains(found * direction) or queries.contains(-found * direction)


def test_of_a_flat_set_of_queries_a_line_meets_a_point_or_nothing():
    disk = Norm(gain=[1, 1], project=False).ellipsoid  # of radius √2
    lifted = disk.through([[1, 0], [0, 1], [0, 0]], [0, 0, 2])
    assert reach_along(lifted, np.array([0.0, 0.0, 1.0])) == pytest.approx(2)
    assert reach_along(lifted, np.array([0.6, 0.0, 0.8])) == 0  # it meets the plane at (1.5, 0, 2), beyond √2
    assert reach_along(lifted, np.array([1.0, 0.0, 0.0])) == 0
    through_zero = disk.through([[1, 0], [0, 1], [0, 0]])
    assert reach_along(through_zero, np.array([0.0, 0.0, 1.0])) == 0
    assert reach_along(through_zero, np.array([0.0, 1.0, 0.0])) == pytest.approx(2**0.5)


@given(seed=seeds)
def test_no_query_spreads_the_scores_less_than_the_least(seed):
    rng = np.random.default_rng(seed)
    keys = rng.normal(size=(20, 4)) @ rng.normal(size=(4, 4)) + 10 * rng.normal(size=4)
    least = least_spread_direction(keys)
    others = score_spreads(keys, rng.normal(size=(100, 4)))
    assert score_spreads(keys, least[None])[0] <= others.min() + 1e-12
    assert least_spread_direction(keys[:4]) is None


def test_spreads_are_standard_deviations_of_scores_at_unit_length():
    rng = np.random.default_rng(1)
    keys, queries = rng.normal(size=(9, 3)), rng.normal(size=(5, 3))
    expected = [np.std(keys @ query / np.linalg.norm(query)) for query in queries]
    assert score_spreads(keys, queries) == pytest.approx(expected)
    assert score_spreads(keys, np.zeros((2, 3))).shape == (0,)


def test_angles_are_those_to_a_line_and_zero_has_none():
    queries = np.array([[1.0, 0.0], [-2.0, 0.0], [0.0, 3.0], [1.0, 1.0], [0.0, 0.0]])
    assert angles_to(np.array([1.0, 0.0]), queries) == pytest.approx([0, 0, 90, 45])


def test_figures_of_a_head_are_medians_over_its_sequences():
    rng = np.random.default_rng(2)
    direction = np.array([0.0, 0.0, 1.0])
    gatherer = EqualAttentionGatherer("layer", 3)
    spreads, angles, lengths = [], [], []
    for count in (10, 12, 14):
        keys, queries = rng.normal(size=(count, 3)), rng.normal(size=(count, 3))
        gatherer.add(keys, queries, EqualQuery(direction, 20.0, 5.0, everywhere=True))
        typical = np.median([np.std(keys @ query) / np.linalg.norm(query) for query in queries])
        spreads.append(np.std(keys[:, 2]) / typical)
        angles += np.degrees(np.arccos(np.abs(queries[:, 2]) / np.linalg.norm(queries, axis=1))).tolist()
        lengths += np.linalg.norm(queries, axis=1).tolist()
    result = gatherer.result()
    assert (result.layer, result.head, result.angle, result.reachable, result.reason) == ("layer", 3, 20.0, True, None)
    assert result.spread == pytest.approx(np.median(spreads))
    assert result.query_angle.median == pytest.approx(np.median(angles))
    assert result.reach == pytest.approx(5.0 / np.median(lengths))
    assert result.everywhere
    assert result.least_spread < result.spread


def test_where_the_position_matters_only_the_last_query_is_compared():
    queries = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    gatherer = EqualAttentionGatherer("layer", 0)
    gatherer.add(np.eye(2), queries, EqualQuery(np.array([1.0, 0.0]), 20.0, 0.0, everywhere=False))
    result = gatherer.result()
    assert (result.everywhere, result.reachable, result.query_angle.median) == (False, False, 90.0)
    assert (result.least_spread, result.least_query_angle) == (None, None)  # no more keys than channels


def test_without_a_closed_form_the_reason_and_the_data_are_left():
    rng = np.random.default_rng(3)
    gatherer = EqualAttentionGatherer("layer", 0)
    for _ in range(2):
        gatherer.add(rng.normal(size=(9, 2)), rng.normal(size=(9, 2)), "the norm does not project")
    result = gatherer.result()
    assert result.reason == "the norm does not project"
    assert (result.angle, result.reachable, result.reach, result.spread, result.query_angle) == (None,) * 5
    assert 0 < result.least_spread <= 1


def test_keys_that_are_all_alike_have_no_relative_spread():
    gatherer = EqualAttentionGatherer("layer", 0)
    gatherer.add(np.ones((5, 2)), np.eye(2), EqualQuery(np.array([1.0, 0.0]), 0.0, 1.0, everywhere=True))
    result = gatherer.result()
    assert (result.spread, result.least_spread) == (None, None)
    assert result.query_angle.median == 45
