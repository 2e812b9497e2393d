"""The identities that a fold promises: true of an honest fold, and of none in which a number was changed."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from normscope.certificates.check_fold import Promise, Taken, TakenBy, identities

SIZE, OUTPUTS = 5, 4


def folded(seed, *, adds_one=False, factor=1.0):
    """Tensors of a norm, its reader and a writer before and after a fold, straight from the formulas."""
    rng = np.random.default_rng(seed)
    g, b, W, c, V = (rng.normal(size=shape) for shape in (SIZE, SIZE, (OUTPUTS, SIZE), OUTPUTS, (SIZE, 3)))
    one = 1.0 if adds_one else 0.0
    before = {"g": g - one, "b": b, "W": W, "c": c, "V": V}
    after = {"g": np.full(SIZE, 1.0 - one), "b": np.zeros(SIZE), "W": W * g, "c": c + factor * W @ b}
    after["V"] = V - V.mean(axis=0)
    taken = Taken("norm", g, b, (TakenBy("reader", "W", 1, "c", factor),), "g", "b", adds_one)
    return Promise({"V": 0}, (taken,)), before, after


def broken(promise, before, after):
    return [words for words, holds in identities(promise, before.__getitem__, after.__getitem__) if not holds]


def folded_stack(axis):
    """The same of three experts, square, with their inputs in one axis; they also write a centred stream."""
    rng = np.random.default_rng(0)
    g, b, W, c = (rng.normal(size=shape) for shape in (SIZE, SIZE, (3, SIZE, SIZE), (3, SIZE)))
    before, after = {"g": g, "b": b, "c": c}, {"g": np.ones(SIZE), "b": np.zeros(SIZE)}
    folded, shifted = (
        np.stack([each * g for each in W]),
        np.stack([own + each @ b for own, each in zip(c, W, strict=True)]),
    )
    folded, shifted = folded - folded.mean(axis=1, keepdims=True), shifted - shifted.mean(axis=1, keepdims=True)
    before["W"], after["W"], after["c"] = np.moveaxis(W, 2, axis), np.moveaxis(folded, 2, axis), shifted
    taken = Taken("norm", g, b, (TakenBy("experts", "W", axis, "c", 1.0),), "g", "b", False)
    return Promise({"W": 3 - axis, "c": 1}, (taken,)), before, after


@pytest.mark.parametrize("axis", [1, 2])
@pytest.mark.parametrize(("name", "words"), [("W", "the gain"), ("c", "the bias")])
def test_one_expert_that_was_left_out_is_noticed(axis, name, words):
    promise, before, after = folded_stack(axis)
    assert broken(promise, before, after) == []
    after[name] = after[name].copy()
    after[name][1] = before[name][1]
    assert f"experts has taken over {words} of norm" in broken(promise, before, after)


@given(seed=st.integers(0, 2**32 - 1), adds_one=st.booleans(), factor=st.sampled_from([1.0, -0.25, 8.0]))
def test_an_honest_fold_keeps_them_all(seed, adds_one, factor):
    assert broken(*folded(seed, adds_one=adds_one, factor=factor)) == []


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("V", "V has mean zero over its outputs"),
        ("g", "the gain of norm is 1, or still 0"),
        ("b", "reader has taken over the bias of norm"),
        ("W", "reader has taken over the gain of norm"),
        ("c", "reader has taken over the bias of norm"),
    ],
)
def test_a_number_that_was_changed_is_named(name, words):
    promise, before, after = folded(0)
    after[name] = after[name].copy()
    after[name].flat[1] += 1e-6
    assert words in broken(promise, before, after)
    after[name].flat[1] = np.nan
    assert words in broken(promise, before, after)


def test_a_centred_reader_may_lose_its_mean_and_nothing_else():
    promise, before, after = folded(0)
    centring = Promise({"W": 0, "c": 0}, promise.taken)
    after["W"], after["c"] = after["W"] - after["W"].mean(axis=0), after["c"] - after["c"].mean()
    assert broken(centring, before, after) == []
    assert broken(promise, before, after)


def test_a_zero_gain_stays():
    promise, before, after = folded(0)
    before["g"][2] = after["g"][2] = 0.0
    after["W"][:, 2], after["b"][2] = before["W"][:, 2], before["b"][2]
    after["c"] = before["c"] + np.delete(before["W"], 2, axis=1) @ np.delete(before["b"], 2)
    assert broken(promise, before, after) == []
