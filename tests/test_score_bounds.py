"""Bounds of rotated channels and attention scores: no input and no angle passes them."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from normscope.bounds import rotary_range, score_range
from normscope.certificates.check_neurons import check_scores

SEEDS = st.integers(0, 2**32 - 1)


def sphere(rng, n, count):
    u = rng.normal(size=(n, count))
    return u / np.linalg.norm(u, axis=0)


@given(seed=SEEDS, n=st.integers(1, 5), shift=st.sampled_from([0.0, 0.1, 1.0, 30.0]))
def test_a_rotated_channel_comes_near_its_bound_and_never_passes_it(seed, n, shift):
    rng = np.random.default_rng(seed)
    rows, offset = rng.normal(size=(2, n)), shift * rng.normal(size=2)
    gram = rows @ rows.T
    found = rotary_range([gram[0, 0]], [gram[1, 1]], [gram[0, 1]], offset[:1], offset[1:])[0]
    angle = np.linspace(0, 2 * np.pi, 20001)
    turned = np.stack([np.cos(angle), np.sin(angle)])
    reached = (offset @ turned + np.linalg.norm(rows.T @ turned, axis=0)).max()
    assert reached <= found <= reached * (1 + 2e-6)


@given(seed=SEEDS)
def test_without_offsets_it_is_the_largest_singular_value(seed):
    rows = np.random.default_rng(seed).normal(size=(6, 2, 4)) * np.array([1e-20, 1.0, 1e20]).repeat(2)[:, None, None]
    gram = rows @ rows.transpose(0, 2, 1)
    found = rotary_range(gram[:, 0, 0], gram[:, 1, 1], gram[:, 0, 1])
    np.testing.assert_allclose(found, np.linalg.norm(rows, 2, axis=(1, 2)), rtol=1e-10)
    zero = rotary_range(gram[:, 0, 0], gram[:, 1, 1], gram[:, 0, 1], np.zeros(6), np.zeros(6))
    np.testing.assert_allclose(found, zero, rtol=1e-6)


def test_a_pair_of_zero_rows_is_its_offset():
    assert rotary_range([0.0], [0.0], [0.0], [3.0], [4.0])[0] == pytest.approx(5, rel=1e-6)
    assert rotary_range([0.0], [0.0], [0.0])[0] == 0


def head(rng, d, n, shifted):
    rows = rng.normal(size=(d, n)) * rng.lognormal(size=(d, 1))
    return rows, rows @ rows.T, rng.normal(size=d) if shifted else None


def ascended(left, right, alpha, beta, angles, pairs):
    """The largest score over two inputs at these angles, by turns: each is linear in one input."""
    turn = np.eye(len(left))
    for (i, j), angle in zip(pairs, angles, strict=True):
        turn[np.ix_([i, j], [i, j])] = [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
    alpha, beta = (np.zeros(len(left)) if x is None else x for x in (alpha, beta))
    w = np.ones(right.shape[1]) / np.sqrt(right.shape[1])
    best = 0.0
    for sign in (1.0, -1.0):
        for _ in range(30):
            g = sign * left.T @ turn @ (right @ w + beta)
            u = g / np.linalg.norm(g)
            g = sign * right.T @ turn.T @ (left @ u + alpha)
            w = g / np.linalg.norm(g)
        best = max(best, abs((left @ u + alpha) @ turn @ (right @ w + beta)))
    return best


@settings(max_examples=40)
@given(seed=SEEDS, shifted=st.tuples(st.booleans(), st.booleans()), planes=st.integers(0, 2), rank=st.integers(1, 6))
def test_no_score_passes_its_bound(seed, shifted, planes, rank):
    rng = np.random.default_rng(seed)
    (left, gram_q, alpha), (right, gram_k, beta) = (head(rng, 5, rank, each) for each in shifted)
    pairs = [(0, 3), (4, 1)][:planes]
    found = score_range(gram_q, gram_k, pairs, alpha, beta)
    reached = max(ascended(left, right, alpha, beta, rng.uniform(0, 7, planes), pairs) for _ in range(8))
    assert reached <= found.bound <= 30 * reached
    assert check_scores(gram_q, gram_k, pairs, found.certificate, alpha, beta)[0]
    if not planes and not any(shifted):
        assert found.bound == pytest.approx(np.linalg.norm(left.T @ right, 2), rel=1e-6)
    assert found.bound <= score_range(gram_q, gram_k, pairs, alpha, beta, steps=0).bound * (1 + 1e-8)


@settings(max_examples=30)
@given(seed=SEEDS, shifted=st.booleans(), planes=st.integers(0, 2), share=st.floats(1e-4, 0.5))
def test_forged_scores_are_refused(seed, shifted, planes, share):
    rng = np.random.default_rng(seed)
    (_, gram_q, alpha), (_, gram_k, beta) = (head(rng, 4, 6, shifted) for _ in range(2))
    pairs = [(0, 1), (2, 3)][:planes]
    proof = score_range(gram_q, gram_k, pairs, alpha, beta).certificate
    for name in ("bound", "lam_q"):
        forged = dataclasses.replace(proof, **{name: getattr(proof, name) * (1 - share)})
        assert not check_scores(gram_q, gram_k, pairs, forged, alpha, beta)[0]
    if planes:
        mu = proof.mu.copy()
        mu[0] *= 1 + share
        assert not check_scores(gram_q, gram_k, pairs, dataclasses.replace(proof, mu=mu), alpha, beta)[0]
    if shifted:
        forged = dataclasses.replace(proof, tau_q=0.0)
        assert not check_scores(gram_q, gram_k, pairs, forged, alpha, beta)[0]
    assert not check_scores(4 * gram_q, gram_k, pairs, proof, alpha, beta)[0]


@pytest.mark.parametrize("size", [1e30, 1e-30])
def test_huge_and_tiny_heads(size):
    rng = np.random.default_rng(1)
    gram = np.cov(rng.normal(size=(4, 9)))
    for pairs in (None, [(0, 1), (2, 3)]):
        found = score_range(size * gram, gram / size, pairs, np.sqrt(size) * np.ones(4), np.ones(4) / np.sqrt(size))
        same = score_range(gram, gram, pairs, np.ones(4), np.ones(4))
        assert found.bound == pytest.approx(same.bound, rel=1e-3)
        assert check_scores(
            size * gram, gram / size, pairs, found.certificate, np.sqrt(size) * np.ones(4), np.ones(4) / np.sqrt(size)
        )[0]


@pytest.mark.parametrize("pairs", [None, [(0, 1)]])
def test_queries_that_are_zero_score_zero(pairs):
    found = score_range(np.zeros((2, 2)), np.eye(2), pairs, None, [1.0, 0.0])
    assert found.bound == 0
    assert check_scores(np.zeros((2, 2)), np.eye(2), pairs, found.certificate, None, [1.0, 0.0])[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([[np.nan]], [[1.0]]), "gram_q must be finite"),
        (([[1.0, 0.0]], [[1.0]]), "gram_q must be a square matrix"),
        (([[1.0]], np.eye(2)), "as many channels"),
        ((np.eye(2), np.eye(2), [(0, 0)]), "at most once"),
        ((np.eye(2), np.eye(2), [(0, 2)]), "at most once"),
        ((np.eye(2), np.eye(2), None, [1.0]), "offset_q must have 2 channels"),
        ((-np.eye(2), np.eye(2)), "no negative entry"),
    ],
)
def test_wrong_scores_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        score_range(*arguments)
