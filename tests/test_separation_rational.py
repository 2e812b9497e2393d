"""Whole-number separation: one of the two sides always holds, exactly."""

from fractions import Fraction

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from normscope.separation.exact_simplex import Budget, separate, whole_differences
from strategies import seeds


@given(seed=seeds, count=st.integers(1, 12), channels=st.integers(1, 5), size=st.sampled_from([1, 3, 10**6]))
@settings(max_examples=150, deadline=None)
def test_exactly_one_side_is_found_and_it_holds_exactly(seed, count, channels, size):
    generators = np.random.default_rng(seed).integers(-size, size + 1, (count, channels)).tolist()
    found = separate(generators, Budget(10**7))
    assert (found.weights is None) != (found.direction is None)
    if found.weights is not None:
        assert all(weight >= 0 for weight in found.weights)
        assert sum(found.weights) == 1
        for k in range(channels):
            assert sum(w * g[k] for w, g in zip(found.weights, generators, strict=True)) == 0
    else:
        assert all(sum(v * x for v, x in zip(found.direction, g, strict=True)) > 0 for g in generators)


def test_without_budget_nothing_is_decided():
    assert separate([[1, 0], [0, 1]], Budget(3)) is None


@given(seed=seeds, exponent=st.integers(-300, 300))
def test_differences_are_whole_and_exact(seed, exponent):
    rng = np.random.default_rng(seed)
    keys = rng.normal(size=(3, 2)) * 10.0 ** rng.uniform(exponent - 5, exponent + 5, (3, 2))
    whole, multipliers = whole_differences(keys[1:], keys[0])
    for line, key in zip(whole, keys[1:], strict=True):
        for k in range(2):
            assert isinstance(line[k], int)
            assert line[k] == (Fraction(key[k]) - Fraction(keys[0, k])) * multipliers[k]
