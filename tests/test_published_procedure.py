"""The published procedure: right on ordinary keys, and the three cases where it is wrong and we are not."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from normscope import selectable
from normscope_lab.bench.linear_programs import PREFERS, preference
from normscope_lab.bench.published_procedure import PublishedProcedure
from strategies import seeds

DIAMOND = np.array([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0], [0.2, 0.1]])


def verdicts(keys, bias=None):
    """What the procedure says of each key; None where it stops because its own query prefers another key."""
    procedure = PublishedProcedure(keys, bias)
    found = []
    for key in range(len(keys)):
        try:
            found.append(procedure.selects(key))
        except ArithmeticError:
            found.append(None)
    return found


def assert_ours_is_right(keys, truth, bias=None):
    result = selectable(keys, bias=bias)
    assert result.mask.tolist() == truth
    assert not result.open.any()
    assert result.holds


@given(seed=seeds, channels=st.integers(2, 6), count=st.integers(8, 30), biased=st.booleans())
@settings(max_examples=12)
def test_on_ordinary_keys_it_agrees_with_linear_programs_and_with_us_except_where_its_box_is_too_small(
    seed, channels, count, biased
):
    rng = np.random.default_rng(seed)
    keys, bias = rng.normal(size=(count, channels)), rng.normal(size=count) if biased else None
    by_programs = np.array([preference(keys, key, bias) for key in range(count)])
    clear = (by_programs <= PREFERS) | (by_programs > 1e-3)
    truth, published = by_programs > PREFERS, np.array(verdicts(keys, bias))
    assert (selectable(keys, bias=bias).mask == truth)[clear].all()
    if biased:
        assert (truth | ~published.astype(bool))[clear].all()
    else:
        assert (published == truth)[clear].all()


def test_reflections_find_most_corners_and_programs_find_the_rest():
    keys = np.random.default_rng(0).normal(size=(200, 6)) * np.arange(1, 7) + 10
    procedure, mask = PublishedProcedure(keys), selectable(keys).mask
    reflected = np.array([procedure.reflections_find(key) for key in range(200)])
    assert not (reflected & ~mask).any()
    missed = np.flatnonzero(mask & ~reflected)
    assert 0 < len(missed) < reflected.sum()
    assert all(procedure.program_finds(key) for key in missed)


def test_twins_where_it_calls_the_first_selectable_and_stops_at_the_second():
    keys = np.vstack([DIAMOND, DIAMOND[0]])
    assert verdicts(keys) == [True, True, True, True, False, None]
    assert_ours_is_right(keys, [False, True, True, True, False, False])
    twins = selectable(keys).certificates[0]
    assert (twins.indices.tolist(), twins.weights.tolist()) == ([5], [1.0])


def test_keys_scaled_by_a_millionth_where_it_stops_at_every_key_inside():
    assert verdicts(DIAMOND) == [True, True, True, True, False]
    assert verdicts(1e-6 * DIAMOND) == [True, True, True, True, None]
    assert_ours_is_right(1e-6 * DIAMOND, [True, True, True, True, False])


def test_keys_scaled_by_a_millionth_where_it_calls_a_key_inside_selectable():
    keys = DIAMOND[::-1]  # the key inside comes first, so it is what argmax gives among equal scores
    assert verdicts(keys) == [False, True, True, True, True]
    assert verdicts(1e-6 * keys) == [True, True, True, True, True]
    assert_ours_is_right(1e-6 * keys, [False, True, True, True, True])


def test_a_bias_where_the_query_leaves_its_box_and_it_calls_the_key_unselectable():
    keys, bias = np.array([[0.0], [1.0], [-1.0]]), np.array([0.0, -1000.0, 0.0])
    assert verdicts(keys, bias) == [True, False, True]
    assert (1000.5 * keys[:, 0] + bias).argmax() == 1
    assert_ours_is_right(keys, [True, True, True], bias)


def test_an_ordinary_bias_is_enough_for_that():
    rng = np.random.default_rng(10)
    keys, bias = rng.normal(size=(24, 2)), rng.normal(size=24)
    result = selectable(keys, bias=bias)
    assert result.mask.tolist() == [preference(keys, key, bias) > PREFERS for key in range(24)]
    assert result.holds
    missed = np.flatnonzero(result.mask & ~np.array(verdicts(keys, bias)))
    assert missed.tolist() == [7]
    assert np.abs(result.certificates[7].query).max() > 100


def test_keys_in_a_subspace_are_refused_by_it_and_answered_by_us():
    flat = np.column_stack([DIAMOND, DIAMOND[:, 0]])
    with pytest.raises(ValueError, match="needs keys of full rank, 3, got 2"):
        PublishedProcedure(flat)
    assert_ours_is_right(flat, [True, True, True, True, False])
