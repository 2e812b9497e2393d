"""The checker: its rounding bound is never too small, and it never takes a wrong certificate for a right one."""

import ast
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from normscope.certificates import check_keys
from normscope.certificates.key_margins import margins, residuals
from strategies import seeds


def exact_margin(keys, row, query):
    scores = [sum(Fraction(k) * Fraction(q) for k, q in zip(key, query.tolist(), strict=True)) for key in keys.tolist()]
    return scores[row] - max(score for j, score in enumerate(scores) if j != row)


@given(
    seed=seeds, offset=st.sampled_from([0.0, 1.0, 1e6, 1e15]), scale=st.sampled_from([1e-300, 1e-30, 1.0, 1e30, 1e250])
)
@settings(max_examples=80, deadline=None)
def test_margins_are_proven_only_where_they_are_positive_and_lie_within_their_rounding(seed, offset, scale):
    rng = np.random.default_rng(seed)
    keys = (rng.normal(size=(6, 4)) + offset) * scale
    keys[3] = keys[2] + np.spacing(keys[2]) * rng.integers(-2, 3, 4)  # a near twin
    queries = rng.normal(size=(6, 4)) * 10.0 ** rng.uniform(-3, 3, 4)
    found = margins(keys, np.arange(6), queries)
    for row in range(6):
        exact = exact_margin(keys, row, queries[row])
        assert found.proven[row] == (exact > 0)
        assert abs(Fraction(float(found.least[row])) - exact) <= Fraction(float(found.rounding[row]))


def test_a_query_that_is_not_finite_proves_nothing():
    keys = np.array([[0.0, 1.0], [1.0, 0.0]])
    for broken in (np.nan, np.inf, -np.inf):
        assert not margins(keys, np.array([0]), np.array([[broken, 1.0]])).proven.any()


def test_a_query_of_zeros_prefers_nothing():
    assert not margins(np.eye(3), np.arange(3), np.zeros((3, 3))).proven.any()


def test_weights_must_be_convex_leave_out_the_key_and_reproduce_it():
    keys = np.array([[0.0, 0.0], [2.0, 0.0], [1.0, 0.0], [1.0, 1e-9]])

    def right(row, indices, weights):
        found = residuals(
            keys, False, np.array([row]), np.array([0, len(weights)]), np.array(indices), np.array(weights)
        )
        return bool(found.right[0])

    assert right(2, [0, 1], [0.5, 0.5])
    assert not right(2, [2], [1.0])
    assert not right(2, [0, 1], [0.25, 0.25])
    assert not right(2, [0, 1, 3], [1.5, 1.5, -2.0])
    assert not right(3, [0, 1], [0.5, 0.5])


def test_a_bias_above_what_is_needed_is_welcome_and_one_below_is_not():
    lifted = np.array([[0.0, 1.0], [2.0, 1.0], [1.0, 0.0]])
    single, pair, halves = np.array([2]), np.array([0, 1]), np.array([0.5, 0.5])
    assert residuals(lifted, True, single, np.array([0, 2]), pair, halves).right[0]
    assert not residuals(lifted, False, single, np.array([0, 2]), pair, halves).right[0]
    lifted[2, 1] = 2.0
    assert not residuals(lifted, True, single, np.array([0, 2]), pair, halves).right[0]


@pytest.mark.parametrize(
    "name", ["check_keys", "check_reachable_keys", "hull_proofs", "key_certificates", "key_margins"]
)
def test_the_checker_imports_nothing_of_the_solver(name):
    tree = ast.parse(Path(check_keys.__file__).with_name(f"{name}.py").read_text(encoding="utf-8"))
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    rooms = {module.split(".")[1] for module in imported if module.startswith("normscope")}
    assert rooms <= {"checks", "errors", "progress", "norm", "certificates"}
