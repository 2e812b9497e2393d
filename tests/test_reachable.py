"""Keys that a reachable query prefers: against a cone program, against what must hold, and where it degenerates."""

import re

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from normscope import Norm, selectable
from normscope.geometry import Ellipsoid
from normscope.separation.ellipsoid_queries import OPEN, REACHABLE, UNREACHABLE, reach, rivals_of
from saved_results import verdict_on, with_arrays

gurobipy = pytest.importorskip("gurobipy", reason="the cone program needs gurobipy, of the test extra")


def best_advantage(keys, bias, matrix, center, i):
    """max over |y| ≤ 1 of the least advantage of key i, by a general cone solver."""
    difference = np.delete(keys[i] - keys, i, axis=0)
    along, height = difference @ matrix, difference @ center + np.delete(bias[i] - bias, i)
    with gurobipy.Env(params={"OutputFlag": 0}) as env, gurobipy.Model(env=env) as model:
        y = model.addMVar(matrix.shape[1], lb=-1, ub=1)
        least = model.addMVar(1, lb=-gurobipy.GRB.INFINITY)
        model.addConstr(along @ y - np.ones((len(along), 1)) @ least >= -height)
        model.addConstr(y @ y <= 1)
        model.setObjective(least.sum(), gurobipy.GRB.MAXIMIZE)
        model.optimize()
        return float(model.ObjVal)


def around(center, matrix):
    """The ellipsoid center + matrix·ball: that of an RMSNorm, through a linear map."""
    unit = Norm(gain=np.full(matrix.shape[1], matrix.shape[1] ** -0.5), project=False)
    return unit.ellipsoid.through(matrix, center)


def random_problem(seed, count, channels, rank, lift):
    rng = np.random.default_rng(seed)
    keys = rng.normal(size=(count, channels))
    return keys, rng.normal(size=(channels, rank)), lift * rng.normal(size=channels), rng


@given(
    seed=st.integers(0, 2**32 - 1),
    count=st.integers(2, 25),
    channels=st.integers(1, 6),
    rank=st.integers(1, 6),
    lift=st.sampled_from([0.0, 0.1, 1.0, 10.0]),
    biased=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_verdicts_are_those_of_a_cone_program(seed, count, channels, rank, lift, biased):
    keys, matrix, center, rng = random_problem(seed, count, channels, rank, lift)
    bias = rng.normal(size=count) if biased else np.zeros(count)
    result = selectable(keys, bias=bias if biased else None, queries=around(center, matrix))
    assert result.holds
    size = np.abs(keys).max() * (np.abs(matrix).sum() + np.abs(center).sum()) + np.abs(bias).max()
    for i in rng.choice(count, min(count, 3), replace=False):
        best = best_advantage(keys, bias, matrix, center, i)
        if abs(best) > 1e-5 * size:
            assert result.mask[i] == (best > 0)
            assert not result.open[i]


@given(seed=st.integers(0, 2**32 - 1), channels=st.integers(1, 5), reach_of=st.sampled_from([1e-3, 1.0, 1e3]))
@settings(deadline=None)
def test_around_the_origin_every_direction_is_reachable(seed, channels, reach_of):
    keys, matrix, center, _ = random_problem(seed, 20, channels, channels, 0.0)
    assume(np.linalg.cond(matrix) < 1e3)
    plain, reachable = selectable(keys), selectable(keys, queries=around(center, reach_of * matrix))
    clear = ~plain.near_ties & ~reachable.near_ties
    assert (plain.mask == reachable.mask)[clear].all()
    assert reachable.near_ties.sum() <= plain.near_ties.sum() + 1


@given(seed=st.integers(0, 2**32 - 1), channels=st.integers(1, 5))
@settings(deadline=None)
def test_what_is_reachable_grows_with_the_ellipsoid(seed, channels):
    keys, matrix, center, _ = random_problem(seed, 20, channels, channels, 3.0)
    before = np.zeros(20, bool)
    for size in (1e-6, 0.1, 1.0, 10.0):
        result = selectable(keys, queries=around(center, size * matrix))
        assert result.holds
        assert (result.mask | result.near_ties)[before].all()
        before = result.mask & ~result.near_ties
    assert not (before & ~selectable(keys).mask).any()


def test_a_single_reachable_query_prefers_one_key():
    keys = np.random.default_rng(0).normal(size=(30, 4))
    center = np.array([1.0, -2.0, 0.5, 3.0])
    result = selectable(keys, queries=around(center, np.zeros((4, 2))))
    assert np.flatnonzero(result.mask).tolist() == [int(np.argmax(keys @ center))]
    assert result.holds
    assert not result.open.any()


def test_a_query_well_inside_the_ellipsoid_may_be_what_it_takes():
    # Key 1 lies just above the segment from 0 to 2: it wins only near q = 0 sideways.
    keys, bias = np.array([[-1.0], [0.0], [1.0]]), np.array([0.0, 0.1, 0.0])
    result = selectable(keys, bias=bias, queries=around(np.zeros(1), np.array([[5.0]])))
    assert result.mask.all()
    assert np.linalg.norm(result.certificates[1].coordinates) < 0.1
    assert result.holds


def test_queries_of_a_model_come_from_its_norm_through_its_weights():
    rng = np.random.default_rng(1)
    norm = Norm(gain=1 + 0.3 * rng.normal(size=16), bias=rng.normal(size=16), eps=1e-5)
    weights, shift, keys = rng.normal(size=(4, 16)), 8 * rng.normal(size=4), rng.normal(size=(60, 4))
    result = selectable(keys, queries=norm.ellipsoid.through(weights, shift))
    assert result.holds
    assert 0 < result.mask.sum() < selectable(keys).mask.sum()
    winners = (norm(rng.normal(size=(20_000, 16))) @ weights.T + shift) @ keys.T
    assert result.mask[np.unique(winners.argmax(axis=1))].all()


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
@pytest.mark.parametrize("reach_scale", [1e-20, 1.0, 1e20])
def test_the_scale_of_keys_and_queries_does_not_matter(scale, reach_scale):
    keys, matrix, center, _ = random_problem(2, 40, 3, 3, 1.0)
    expected = selectable(keys, queries=around(center, matrix))
    result = selectable(scale * keys, queries=around(reach_scale * center, reach_scale * matrix))
    assert (result.mask == expected.mask).all()
    assert result.holds


def test_twins_lose_and_still_block_others():
    keys = np.array([[2.0, 0.0], [2.0, 0.0], [0.0, 0.0], [1.0, 0.5]])
    result = selectable(keys, queries=around(np.array([5.0, 0.0]), np.eye(2)))
    assert result.mask.tolist() == [False, False, False, False]
    assert result.near_ties.tolist() == [True, True, False, False]
    assert result.certificates[0].indices.tolist() == [1]
    assert result.holds


def test_one_key_wins_and_equal_keys_all_lose():
    one = around(np.ones(2), np.eye(2))
    assert selectable([[3.0, 4.0]], queries=one).mask.tolist() == [True]
    equal = selectable(np.ones((3, 2)), queries=one)
    assert equal.mask.tolist() == [False] * 3
    assert equal.holds


def test_a_near_tie_is_left_open_and_called_a_near_tie():
    # Key 1 is beaten at every reachable query but one, where it ties.
    keys = np.array([[0.0], [1.0]])
    result = selectable(keys, queries=around(np.array([-1.0]), np.array([[1.0]])))
    assert result.mask.tolist() == [True, False]
    assert result.near_ties[1]
    assert result.holds


def test_a_batch_has_certificates_by_place():
    rng = np.random.default_rng(3)
    keys, bias = rng.normal(size=(2, 3, 10, 4)), rng.normal(size=(2, 3, 10))
    queries = around(rng.normal(size=4), rng.normal(size=(4, 4)))
    result = selectable(keys, bias=bias, queries=queries)
    alone = selectable(keys[1, 2], bias=bias[1, 2], queries=queries)
    assert (result.mask[1, 2] == alone.mask).all()
    winner = int(np.flatnonzero(alone.mask)[0])
    certificate = result.certificates[1, 2, winner]
    assert queries.contains(certificate.query)
    scores = keys[1, 2] @ certificate.query + bias[1, 2]
    assert scores[winner] - np.delete(scores, winner).max() == pytest.approx(certificate.margin)
    assert "reachable queries" in repr(result)
    assert result.to_dict()["reachable"]


@pytest.mark.parametrize(
    ("queries", "message"),
    [
        (Norm(gain=np.ones(4), groups=2).ellipsoid, "one bounded ellipsoid"),
        (Norm(gain=np.ones(4), groups=2).ellipsoid.through(np.eye(4)), "one bounded ellipsoid"),
        (Norm(gain=np.ones(4), scale=False).ellipsoid, "one bounded ellipsoid"),
        (Norm(gain=np.ones(3)).ellipsoid, "as many channels as the keys, 4, got 3"),
        (np.eye(4), "one bounded ellipsoid"),
    ],
)
def test_other_sets_of_queries_are_refused(queries, message):
    with pytest.raises(ValueError, match=message):
        selectable(np.eye(4), queries=queries)


@pytest.fixture(scope="module")
def saved():
    keys, matrix, center, _ = random_problem(4, 30, 3, 3, 2.0)
    return selectable(keys, queries=around(center, 0.2 * matrix))


def test_saved_certificates_are_verified_without_the_solver(saved):
    holds, reason = verdict_on(saved.to_bytes())
    assert holds
    assert reason == (
        f"{saved.mask.sum()} keys shown selectable by reachable queries, {(~saved.mask).sum()} never selected"
    )


def times(factor):
    return lambda array: array * factor


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        ("queries", times(2.0), "not reachable"),
        ("queries", times(-1.0), "not reachable, or does not prefer"),
        ("queries", lambda array: array[:, :1], "one query with its margin"),
        ("queries", times(np.nan), "must be finite"),
        ("center", times(1.5), "does not prefer|the margin of the query|do not rule out"),
        ("semi_axes", times(1.5), "does not prefer|the margin of the query|do not rule out"),
        ("semi_axes", lambda array: array[:2], "must have 3 rows"),
        ("weights", times(1.01), "do not rule out"),
    ],
)
def test_any_change_is_noticed(saved, name, change, reason):
    holds, why = verdict_on(with_arrays(saved.to_bytes(), **{name: change(getattr(saved, name))}))
    assert not holds
    assert re.search(reason, why)


@given(seed=st.integers(0, 2**32 - 1), count=st.integers(2, 40), size=st.integers(1, 8))
@settings(deadline=None)
def test_the_method_proves_what_it_says(seed, count, size):
    rng = np.random.default_rng(seed)
    points, heights = rng.normal(size=(count, size)), rng.normal(size=count) * rng.choice([0.0, 0.3, 3.0])
    queue = np.arange(count)
    status, y, supports, weights = reach(rivals_of(points, heights), queue, (queue + 1) % count)
    for i in queue:
        beaten_by = np.delete((points[i] - points) @ y[i] + heights[i] - heights, i)
        if status[i] == REACHABLE:
            assert np.linalg.norm(y[i]) <= 1
            assert beaten_by.min() > 0
        elif status[i] == UNREACHABLE:
            used = supports[i] >= 0
            share, rivals = weights[i, used], supports[i, used]
            assert share.min() >= 0
            assert share.sum() == pytest.approx(1)
            x = share @ (points[i] - points[rivals])
            assert np.linalg.norm(x) + share @ (heights[i] - heights[rivals]) < 0
        else:
            assert status[i] == OPEN


def test_the_ellipsoid_of_a_through_is_one_part():
    assert Norm(gain=np.ones(4)).ellipsoid.parts == 1
    assert isinstance(Norm(gain=np.ones(4)).ellipsoid.through(np.eye(4)), Ellipsoid)
    assert Norm(gain=np.ones(4), groups=2).ellipsoid.parts == 2
