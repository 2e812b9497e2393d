"""Bounds of plain neurons with the ball divided into parts: nothing passes them, and forged parts prove nothing."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from normscope.bounds import ACTIVATIONS, Division, NeuronCertificate, Neurons, divided, tight, witness
from normscope.certificates.check_neurons import check


def made(seed, name="gelu", n=4, count=24, scale=6.0, shifted=True):
    rng = np.random.default_rng(seed)
    offset = rng.normal(size=count) if shifted else None
    return Neurons(name, scale * rng.normal(size=(count, n)), offset), rng.normal(size=count), rng


def largest(neurons, d, rng, count=4000):
    """Straight from the definition, at many points of the ball, and by ascent."""
    u = rng.normal(size=(neurons.size, count))
    u *= rng.uniform(size=count) ** (0.3 / neurons.size) / np.linalg.norm(u, axis=0) * (1 - 1e-15)
    t = neurons.a @ u + neurons.a_offset[:, None]
    return max(float((d @ ACTIVATIONS[neurons.activation].value(t)).max()), witness(neurons, d)[1])


@pytest.fixture(scope="module")
def example():
    neurons, d, rng = made(0, n=6, count=64)
    whole = tight(neurons, d)
    return neurons, d, whole, divided(neurons, d, whole, 0.0), largest(neurons, d, rng)


@settings(max_examples=6)
@given(
    seed=st.integers(0, 2**32 - 1),
    name=st.sampled_from(sorted(ACTIVATIONS)),
    n=st.integers(1, 4),
    scale=st.sampled_from([0.2, 1.0, 8.0]),
    shifted=st.booleans(),
)
def test_no_input_passes_a_divided_bound_and_its_certificate_holds(seed, name, n, scale, shifted):
    neurons, d, rng = made(seed, name, n, 9, scale, shifted)
    d[0] = 0.0
    whole = tight(neurons, d)
    found = divided(neurons, d, whole, 0.0)
    assert largest(neurons, d, rng) <= found.bound <= whole.bound
    holds, reason = check(neurons, d, found.certificate)
    assert holds, reason


def test_parts_bring_the_bound_nearer_to_what_is_reached(example):
    neurons, d, whole, found, reached = example
    assert found.certificate.kind == "divided"
    assert reached <= found.bound < whole.bound
    holds, reason = check(neurons, d, found.certificate)
    assert holds
    assert "parts prove" in reason


def test_parts_bring_bounds_nearer_on_average():
    """Of one sum, the last bits of a processor's exponentials decide whether it is by 8 or by 17 per cent."""
    shares = []
    for seed in range(8):
        neurons, d, _ = made(seed, n=6, count=64)
        whole = tight(neurons, d)
        shares.append(divided(neurons, d, whole, 0.0).bound / whole.bound)
    assert np.mean(shares) < 0.95


def test_what_is_near_enough_gated_or_by_intervals_is_left_as_it_is(example):
    neurons, d, whole, _, _ = example
    assert divided(neurons, d, whole, whole.bound) is whole
    gated = Neurons("gelu", neurons.a, b=neurons.a)
    assert divided(gated, d, kept := tight(gated, d), 0.0) is kept
    assert divided(neurons, 0 * d, kept := tight(neurons, 0 * d), 0.0) is kept


def test_forged_parts_are_refused(example):
    neurons, d, _, found, _ = example
    proof, parts = found.certificate, found.certificate.division
    worst = int(np.argmax(parts.lam + parts.s))
    axis = int(np.argmax(parts.eta[worst]))
    at = np.zeros_like(parts.eta)
    at[worst, axis] = 1.0
    middle = (parts.low + parts.high) / 2
    others = np.arange(len(parts.lam)) != worst
    step = 1e-4 * proof.bound * (np.arange(len(parts.lam)) == worst)
    for changes in (
        {"low": np.where(at > 0, middle, parts.low)},  # no longer a cover
        {"high": np.where(at > 0, middle, parts.high)},
        {"low": parts.high, "high": parts.low},
        {name: getattr(parts, name)[others] for name in ("low", "high", "eta", "lam", "s")},
        {"directions": 3 * parts.directions},
        {"directions": np.roll(parts.directions, 1, axis=1)},
        {"directions": parts.directions[:, :-1]},
        {"directions": np.repeat(parts.directions, 9, axis=0)},
        {"eta": -parts.eta},
        {"eta": parts.eta * (1 - at)},
        {"eta": parts.eta[:, :-1]},
        {"lam": parts.lam - step},
        {"s": parts.s - step},
        {"lam": -1 - parts.lam},
        {"lam": parts.lam * np.nan},
        {"low": None},
        {"eta": parts.eta.astype(np.float32)},
    ):
        assert not check(neurons, d, replace(proof, division=replace(parts, **changes)))[0], changes
    assert not check(neurons, d, replace(proof, bound=proof.bound * (1 - 1e-6)))[0]
    assert not check(neurons, d, replace(proof, division=None))[0]
    assert not check(neurons, d, replace(proof, division=Division()))[0]
    assert not check(neurons, d, replace(proof, first=proof.first[:, :-1]))[0]
    assert not check(neurons, d, replace(proof, first=0 * proof.first))[0]
    assert not check(Neurons("gelu", neurons.a, neurons.a_offset, neurons.a), d, proof)[0]
    fewer = {name: getattr(parts, name)[others] for name in ("low", "high", "eta", "lam", "s")}
    gap = replace(proof, first=proof.first[others], second=proof.second[others], division=replace(parts, **fewer))
    assert check(neurons, d, gap) == (False, "the parts do not cover the ball")


@settings(max_examples=40)
@given(seed=st.integers(0, 2**32 - 1), axes=st.integers(1, 3), dropped=st.booleans())
def test_parts_that_do_not_cover_the_ball_are_told_from_those_that_do(seed, axes, dropped):
    """Boxes from random splits, or all but one of them."""
    rng = np.random.default_rng(seed)
    boxes = [(np.full(axes, -1.01), np.full(axes, 1.01))]
    for _ in range(rng.integers(0, 6)):
        low, high = boxes.pop(rng.integers(len(boxes)))
        axis = rng.integers(axes)
        middle = low + rng.uniform(0.2, 0.8) * (high - low)
        first, last = high.copy(), low.copy()
        first[axis] = last[axis] = middle[axis]
        boxes += [(low, first), (last, high)]
    rng.shuffle(boxes)
    boxes = boxes[dropped:]
    parts = len(boxes)
    low, high = np.array(boxes).reshape(parts, 2, axes).swapaxes(0, 1)
    one, none = Neurons("relu", np.ones((1, axes))), np.zeros((parts, 1))
    division = Division(np.eye(axes), low, high, np.zeros((parts, axes)), np.ones(parts), np.full(parts, 9.0))
    holds, reason = check(one, [1.0], NeuronCertificate("divided", 10.0, none, none, 0.0, 0.0, division))
    assert holds == (not dropped), reason
    points = rng.uniform(-1, 1, size=(400, axes))
    inside = ((low <= points[:, None]) & (points[:, None] <= high)).all(axis=2).any(axis=1)
    assert dropped or inside.all()
