"""Many sets at once: the same answers as one by one, and a checker that misses nothing in a crowd."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from normscope.certificates import key_margins as checking
from normscope.certificates.check_keys import checked, first_fault
from normscope.certificates.key_certificates import joined, placed
from normscope.certificates.key_margins import lifted, margins, residuals
from normscope.separation import passes
from normscope.separation.coordinates import whiten, whiten_sets
from normscope.separation.duplicates import have_duplicates
from normscope.separation.selectable import selectable
from normscope.separation.simplex_weights import inside_simplex, inside_simplices
from strategies import seeds

KINDS = ("ordinary", "normed", "grid", "low rank", "near twins", "twins", "near a face", "all equal", "mixed")
ARRAYS = ("query_keys", "queries", "margins", "weight_keys", "starts", "indices", "weights", "residuals")


def layer_norm(keys):
    centred = keys - keys.mean(axis=-1, keepdims=True)
    lengths = np.sqrt((centred**2).mean(axis=-1, keepdims=True))
    return centred / np.where(lengths > 0, lengths, 1.0)


def some_keys(kind, rng, total, count, channels):
    keys = rng.normal(size=(total, count, channels))
    if kind == "normed":
        return layer_norm(keys)
    if kind == "grid":
        return rng.integers(-3, 4, keys.shape).astype(float)
    if kind == "low rank":
        rank = max(1, channels // 2)
        return keys[..., :rank] @ rng.normal(size=(total, rank, channels))
    away = 10.0 ** rng.uniform(-16, -5) * rng.normal(size=(total, channels))
    if kind == "near twins":
        keys[:, 0] = keys[:, -1] + away
    if kind == "twins":
        keys[::2, 0] = keys[::2, -1]
    if kind == "near a face":
        keys[:, 0] = (keys[:, -1] + keys[:, count // 2]) / 2 + away
    if kind == "all equal":
        keys[:, :] = keys[:, :1]
    if kind == "mixed":
        for number, other in enumerate(("normed", "grid", "low rank", "twins")):
            keys[number::5] = some_keys(other, rng, total, count, channels)[number::5]
    return keys


@st.composite
def batches(draw, kinds=KINDS):
    """Keys (m, n, d) of any kind and scale, and their bias or None."""
    rng = np.random.default_rng(draw(seeds))
    shape = (draw(st.integers(1, 8)), draw(st.integers(1, 24)), draw(st.integers(1, 8)))
    keys = some_keys(draw(st.sampled_from(kinds)), rng, *shape)
    keys = keys * 10.0 ** draw(st.sampled_from([-30.0, -6.0, 0.0, 0.0, 30.0, rng.uniform(-30, 30, shape[2])]))
    bias = draw(st.sampled_from(["none", "none", "constant", "ordinary", "grid"]))
    size = np.abs(keys).max() if draw(st.booleans()) else 1.0
    return keys, {
        "none": None,
        "constant": np.full(shape[:2], 3.0),
        "ordinary": size * rng.normal(size=shape[:2]),
        "grid": size * rng.integers(-2, 3, shape[:2]),
    }[bias]


@given(batches())
@settings(max_examples=150, deadline=None)
def test_every_set_gets_the_answer_it_gets_alone(batch):
    keys, bias = batch
    result = selectable(keys, bias=bias)
    for number, problem in enumerate(keys):
        alone = selectable(problem, bias=None if bias is None else bias[number])
        assert set(np.flatnonzero(result.mask[number])) == set(alone.certificates.query_keys)
        assert set(np.flatnonzero(~result.mask[number] & ~result.open[number])) == set(alone.certificates.weight_keys)
        assert (result.near_ties[number] == alone.near_ties).all()
    assert result.holds


def wins_by_program(keys, i):
    """max t with q·kᵢ ≥ q·kⱼ + t, |q| ≤ 1 in every entry: positive iff key i can win."""
    rivals = np.delete(keys, i, axis=0) - keys[i]
    rows = np.column_stack([rivals, np.ones(len(rivals))])
    cost = np.append(np.zeros(keys.shape[1]), -1.0)
    bounds = [*[(-1, 1)] * keys.shape[1], (None, None)]
    return linprog(cost, A_ub=rows, b_ub=np.zeros(len(rivals)), bounds=bounds).x[-1]


@pytest.mark.parametrize("kind", ["ordinary", "normed"])
def test_linear_programs_agree(kind):
    rng = np.random.default_rng(1)
    for count, channels in ((5, 3), (20, 3), (16, 8), (40, 4)):
        keys = some_keys(kind, rng, 3, count, channels)
        result = selectable(keys)
        for number, i in np.ndindex(3, count):
            assert result.mask[number, i] == (wins_by_program(keys[number], i) > 1e-9)


@pytest.mark.parametrize("kind", ["ordinary", "normed"])
@pytest.mark.parametrize("shape", [(50, 3, 3), (50, 4, 15), (50, 20, 8), (50, 60, 5), (50, 60, 15), (9, 128, 16)])
def test_ordinary_sets_are_not_left_to_be_solved_alone(kind, shape, monkeypatch):
    calls = []
    solve = passes._solve_alone
    monkeypatch.setattr(passes, "_solve_alone", lambda *arguments: calls.append(arguments) or solve(*arguments))
    result = selectable(some_keys(kind, np.random.default_rng(2), *shape))
    assert len(calls) <= 0.1 * shape[0]
    assert result.holds


def test_ordinary_sets_with_a_bias_are_not_left_either(monkeypatch):
    monkeypatch.setattr(passes, "_solve_alone", None)
    rng = np.random.default_rng(3)
    for shape in ((20, 30, 3), (20, 5, 8)):
        result = selectable(rng.normal(size=shape), bias=rng.normal(size=shape[:2]))
        assert result.holds


@pytest.mark.parametrize("shape", [(3, 300, 2), (2, 140, 70)])
def test_large_sets_are_solved_one_by_one(shape, monkeypatch):
    monkeypatch.setattr(passes, "have_duplicates", None)
    result = selectable(np.random.default_rng(4).normal(size=shape))
    assert result.mask.any()
    assert result.holds


def test_sets_in_blocks_get_the_same_answers(monkeypatch):
    keys = some_keys("mixed", np.random.default_rng(5), 23, 15, 3)
    whole = selectable(keys)
    monkeypatch.setattr(passes, "BLOCK", 2000)
    monkeypatch.setattr(checking, "BLOCK", 500)
    blocks = selectable(keys)
    assert blocks.holds
    for name in ARRAYS:
        assert np.array_equal(getattr(blocks.certificates, name), getattr(whole.certificates, name))
    assert (blocks.near_ties == whole.near_ties).all()


def test_a_batch_of_single_keys_and_one_of_twins_leave_nothing_to_solve_together():
    alone = selectable(np.arange(6.0).reshape(3, 1, 2))
    assert alone.mask.all()
    assert alone.holds
    twins = selectable(np.ones((4, 3, 2)))
    assert not twins.mask.any()
    assert twins.near_ties.all()
    assert twins.holds


def test_twins_are_seen_with_either_sign_of_zero():
    sets = np.array([[[0.0, 1.0], [2.0, 1.0], [-0.0, 1.0]], [[0.0, 1.0], [2.0, 1.0], [0.0, 2.0]]])
    assert have_duplicates(sets).tolist() == [True, False]


@given(batches(kinds=("ordinary", "normed", "grid", "low rank")))
@settings(max_examples=60, deadline=None)
def test_round_coordinates_are_those_of_a_set_alone(batch):
    keys, bias = batch
    points = lifted(keys, bias)[~have_duplicates(keys)]
    seen = []
    for group in whiten_sets(points, bias is not None) if len(points) and keys.shape[1] > 1 else ():
        seen += group.numbers.tolist()
        directions = np.random.default_rng(0).normal(size=group.points.shape)
        queries, noise = group.queries(directions), group.noise(np.arange(len(group.numbers)))
        for place, number in enumerate(group.numbers):
            alone = whiten(points[number], bias is not None)
            assert np.allclose(group.points[place], alone.points, rtol=1e-9, atol=1e-9 * alone.longest)
            assert np.allclose(queries[place], alone.queries(directions[place]), rtol=1e-6, atol=0)
            assert group.longest[place] == pytest.approx(alone.longest)
            assert noise[place] == pytest.approx(alone.noise(()))
            assert group.is_flat[place] == alone.is_flat
            assert (group.ray is None) == (alone.ray is None)
            assert (group.tilt is None) == (alone.tilt is None)
    assert sorted(seen) == list(range(len(points) if keys.shape[1] > 1 else 0))


@pytest.mark.parametrize("biased", [False, True])
def test_weights_and_depths_are_those_of_a_set_alone(biased):
    rng = np.random.default_rng(6)
    keys = rng.normal(size=(4, 12, 3))
    (group,) = whiten_sets(keys, biased)
    owner, rows = np.repeat(np.arange(4), 5), np.tile(np.arange(5), 4)
    supports = np.array([5 + rng.permutation(7 + biased)[:4] for _ in rows])  # 12 is the ray
    found = inside_simplices(group, keys, owner, rows, supports)
    for number in range(4):
        alone, mine = whiten(keys[number], biased), owner == number
        expected = inside_simplex(alone, keys[number].__getitem__, rows[mine], supports[mine])
        assert np.allclose(found.weights[mine], expected.weights)
        assert np.allclose(found.depth[mine], expected.depth)


@given(seed=seeds)
@settings(max_examples=30, deadline=None)
def test_parts_are_joined_in_the_order_of_the_keys(seed):
    rng = np.random.default_rng(seed)
    keys = some_keys("grid", rng, 6, 8, 2)
    sets = placed({number: selectable(problem).certificates for number, problem in enumerate(keys)}, (6, 8))
    whole = joined(sets, (6, 8), 2)
    order, cut = rng.permutation(6), rng.integers(0, 7)
    parts = [joined([sets[number] for number in some], (6, 8), 2) for some in (order[:cut], order[cut:])]
    again = joined(parts, (6, 8), 2)
    assert len(again.query_keys) + len(again.weight_keys) == 48
    for name in ARRAYS:
        assert np.array_equal(getattr(again, name), getattr(whole, name))


def exact_margin(keys, row, query):
    scores = [sum(Fraction(k) * Fraction(q) for k, q in zip(key, query.tolist(), strict=True)) for key in keys.tolist()]
    return scores[row] - max(score for j, score in enumerate(scores) if j != row)


@given(seed=seeds, offset=st.sampled_from([0.0, 1e6, 1e15]), block=st.sampled_from([1, 40, 2**18]))
@settings(max_examples=60, deadline=None)
def test_margins_of_many_sets_are_proven_only_where_they_are_positive(seed, offset, block):
    rng = np.random.default_rng(seed)
    keys = (rng.normal(size=(5, 6, 3)) + offset) * 10.0 ** rng.uniform(-200, 200, (5, 1, 1))
    keys[:, 3] = keys[:, 2] + np.spacing(keys[:, 2]) * rng.integers(-2, 3, (5, 3))  # near twins
    rows = np.flatnonzero(rng.random(30) < 0.7)
    queries = rng.normal(size=(len(rows), 3)) * 10.0 ** rng.uniform(-3, 3, 3)
    queries[rng.random(len(rows)) < 0.2] = np.nan
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checking, "BLOCK", block)
        found = margins(keys, rows, queries)
    for place, number in enumerate(rows):
        if np.isnan(queries[place]).any():
            assert not found.proven[place]
            continue
        exact = exact_margin(keys[number // 6], number % 6, queries[place])
        assert found.proven[place] == (exact > 0)
        assert abs(Fraction(float(found.least[place])) - exact) <= Fraction(float(found.rounding[place]))


@given(seed=seeds, biased=st.booleans(), block=st.sampled_from([1, 7, 40, 2**18]))
@example(seed=4220533659, biased=False, block=7)  # weights whose sum is off by a little, and keys far from 0
@settings(max_examples=40, deadline=None)
def test_residuals_of_many_sets_are_as_by_definition(seed, biased, block):
    rng = np.random.default_rng(seed)
    keys = rng.normal(size=(5, 6, 3)) * 10.0 ** rng.uniform(-30, 30, (5, 1, 1))
    rows = np.flatnonzero(rng.random(30) < 0.6)
    starts = np.append(0, np.cumsum(rng.integers(1, 4, len(rows))))
    indices, weights = rng.integers(0, 6, starts[-1]), rng.uniform(-0.1, 1, starts[-1])
    weights /= np.repeat(np.add.reduceat(weights, starts[:-1]), np.diff(starts))
    planted = np.flatnonzero(rng.random(len(rows)) < 0.5)
    keys[rows[planted] // 6, rows[planted] % 6] = keys[rows[planted] // 6, indices[starts[planted]]]
    weights[np.isin(np.repeat(np.arange(len(rows)), np.diff(starts)), planted)] = 0.0
    weights[starts[planted]] = 1.0
    kept = weights != 0
    starts = np.append(0, np.cumsum(np.add.reduceat(kept.astype(int), starts[:-1])))
    indices, weights = indices[kept], weights[kept]
    weights[rng.random(len(weights)) < 0.1] *= 1 + 1e-9
    keys[rng.random((5, 6)) < 0.1] *= 1 + 1e-10
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checking, "BLOCK", block)
        found = residuals(keys, biased, rows, starts, indices, weights)
    for place, number in enumerate(rows):
        some, own = keys[number // 6], number % 6
        named, shares = (part[starts[place] : starts[place + 1]] for part in (indices, weights))
        missing, size = exact_residual(some, own, named, shares)
        if biased:
            missing[-1] = min(missing[-1], Fraction(0))
        length = np.linalg.norm([float(entry) for entry in missing])
        assert abs(found.length[place] - length) <= found.rounding[place]
        assert found.rounding[place] <= 1e-13 * max(np.abs(shares).sum(), 1) * np.linalg.norm(np.ptp(some, axis=0))
        convex = abs(shares.sum() - 1) <= 1e-14 and (shares > 0).all() and own not in named
        relative = max((abs(a) / b for a, b in zip(missing, size, strict=True) if b), default=0)
        assert not found.right[place] or (convex and relative <= 32 * 7 * 2.0**-53)
        assert found.right[place] or not (convex and relative <= 8 * 7 * 2.0**-53)


def exact_residual(keys, own, named, shares):
    """Σλ(k − kᵢ), and Σ|λ||k − kᵢ|, in every channel."""
    terms = [
        [
            Fraction(share) * (Fraction(a) - Fraction(b))
            for a, b in zip(keys[j].tolist(), keys[own].tolist(), strict=True)
        ]
        for j, share in zip(named, shares.tolist(), strict=True)
    ]
    return [sum(column) for column in zip(*terms, strict=True)], [sum(map(abs, c)) for c in zip(*terms, strict=True)]


@given(seed=seeds, what=st.sampled_from(["queries", "margins", "weights", "indices", "residuals"]), grid=st.booleans())
@settings(max_examples=50, deadline=None)
def test_one_wrong_certificate_among_many_is_found_and_named(seed, what, grid):
    rng = np.random.default_rng(seed)
    result = selectable(some_keys("grid" if grid else "ordinary", rng, 15, 12, 3))
    c, wrong = result.certificates, getattr(result.certificates, what).copy()
    keys = c.query_keys if what in {"queries", "margins"} else c.weight_keys
    number = rng.integers(len(keys))
    place = c.starts[number] if what in {"weights", "indices"} else number
    if what == "queries":
        wrong[place] *= -1
    elif what == "indices":
        wrong[place] = keys[number] % 12  # itself
    else:
        wrong[place] += 1e-6
    altered = replace(c, **{what: wrong})
    fault = first_fault(checked(result.keys, None, altered), result.near_ties, altered)
    assert fault is not None
    assert f"of key {keys[number] // 12}, {keys[number] % 12} " in fault


def test_a_query_does_not_count_in_another_set():
    """Equal rows of different sets: whose query it is decides."""
    keys = np.array([[[0.0], [1.0]], [[1.0], [0.0]], [[0.0], [1.0]]])
    assert margins(keys, np.array([1, 3, 5]), np.ones((3, 1))).proven.tolist() == [True, False, True]


def test_a_tie_by_the_last_bit_in_one_of_many_sets_is_found():
    """A margin far below what rounding can do: only fractions tell it from none."""
    rng = np.random.default_rng(7)
    keys = rng.normal(size=(40, 5, 2)) + 1e6
    keys[17] = [[0.1, 0.2], [0.3, 0.4], [0.3, np.nextafter(0.4, 1)], [0.0, 0.0], [0.1, 0.1]]
    queries = np.tile([0.0, 1.0], (40, 1))
    highest = (keys @ [0.0, 1.0]).argmax(axis=1)
    found = margins(keys, np.arange(40) * 5 + highest, queries)
    assert highest[17] == 2
    assert found.proven.all()
    assert found.least[17] == np.nextafter(0.4, 1) - 0.4
    keys[17, 1, 1] = keys[17, 2, 1]
    assert not margins(keys, np.arange(40) * 5 + highest, queries).proven[17]
