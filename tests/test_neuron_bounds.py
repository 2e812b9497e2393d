"""Bounds of weighted sums of neurons: nothing passes them, and forged certificates prove nothing."""

import dataclasses

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from normscope.bounds import ACTIVATIONS, NeuronCertificate, Neurons, cheap, hidden_range, intervals, tight, witness
from normscope.certificates.check_neurons import check

NAMES = st.sampled_from(sorted(ACTIVATIONS))


@st.composite
def sums(draw, most=12):
    """Neurons of every kind with weights, and a random generator."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n, count = draw(st.integers(1, 4)), draw(st.integers(1, most))
    scale = draw(st.sampled_from([0.2, 1.0, 8.0]))
    gated, shifted = draw(st.booleans()), draw(st.booleans())
    neurons = Neurons(
        draw(NAMES),
        scale * rng.normal(size=(count, n)),
        scale * rng.normal(size=count) if shifted else None,
        rng.normal(size=(count, n)) if gated else None,
        rng.normal(size=count) if shifted and gated else None,
    )
    return neurons, rng.normal(size=count), rng


def hidden(neurons, u):
    """Straight from the definition, u one per column."""
    h = ACTIVATIONS[neurons.activation].value(neurons.a @ u + neurons.a_offset[:, None])
    return h if neurons.b is None else h * (neurons.b @ u + neurons.b_offset[:, None])


def ball(rng, n, count=3000):
    """Points of the ball, most of them near its surface; in one and two dimensions, all of it."""
    if n == 1:
        return np.linspace(-1, 1, count)[None]
    if n == 2:
        angle, radius = np.linspace(0, 2 * np.pi, 200), np.linspace(0, 1, 25)
        points = np.multiply.outer(np.stack([np.cos(angle), np.sin(angle)]), radius)
        return points.reshape(2, -1) * (1 - 1e-15)
    u = rng.normal(size=(n, count))
    return u / np.linalg.norm(u, axis=0) * rng.uniform(size=count) ** (0.3 / n) * (1 - 1e-15)


def reach(neurons, d):
    low, high = hidden_range(neurons)
    return float(np.abs(d) @ np.maximum(np.abs(low), np.abs(high)))


@given(case=sums())
def test_no_input_leaves_a_range(case):
    neurons, d, rng = case
    h = hidden(neurons, ball(rng, neurons.size))
    low, high = hidden_range(neurons)
    assert (h >= low[:, None]).all()
    assert (h <= high[:, None]).all()
    for bounds in (intervals, cheap):
        lows, highs = bounds(neurons, np.stack([d, -d]))
        assert lows[0] <= (d @ h).min() <= (d @ h).max() <= highs[0]
        np.testing.assert_allclose(lows[::-1], -highs, rtol=1e-12, atol=1e-12 * reach(neurons, d))


@settings(max_examples=30)
@given(case=sums())
def test_cheap_is_above_tight_and_tight_above_every_input(case):
    neurons, d, rng = case
    found = tight(neurons, d)
    u, value = witness(neurons, d, found)
    highest = cheap(neurons, d[None])[1][0]
    assert (d @ hidden(neurons, ball(rng, neurons.size))).max() <= found.bound
    assert np.linalg.norm(u) <= 1
    assert value == pytest.approx(float(d @ hidden(neurons, u[:, None])[:, 0]), abs=1e-12 * (1 + reach(neurons, d)))
    assert value <= found.bound <= highest + 1e-4 * abs(highest) + 1e-7 * reach(neurons, d)
    assert check(neurons, d, found.certificate)[0]


@settings(max_examples=20)
@given(case=sums(most=5), share=st.floats(1e-3, 0.5), place=st.integers(0, 4))
def test_forged_certificates_are_refused_or_still_prove_their_bound(case, share, place):
    neurons, d, rng = case
    proof = tight(neurons, d).certificate
    largest = max(float((d @ hidden(neurons, ball(rng, neurons.size))).max()), witness(neurons, d)[1])
    forged = [
        dataclasses.replace(proof, bound=proof.bound - share * abs(proof.bound)),
        dataclasses.replace(proof, lam=proof.lam * (1 - share)),
        dataclasses.replace(proof, s=proof.s - share * abs(proof.s), bound=proof.bound - share * abs(proof.s)),
        dataclasses.replace(proof, first=np.where(np.arange(len(proof.first)) == place, -1.0, proof.first)),
        dataclasses.replace(proof, first=proof.first * (1 + share), bound=proof.bound * (1 - share)),
        dataclasses.replace(proof, second=proof.second[:-1]),
        dataclasses.replace(proof, bound=float("nan")),
    ]
    for each in forged:
        holds, _ = check(neurons, d, each)
        assert not holds or each.bound >= largest
    below = dataclasses.replace(proof, bound=largest - 1e-6 * (1 + abs(largest)))
    assert not check(neurons, d, below)[0]


@pytest.mark.parametrize("other", ["relu", "gelu", "tanh"])
def test_the_certificate_of_one_activation_does_not_serve_another(other):
    rng = np.random.default_rng(0)
    a, b, d = rng.normal(size=(6, 3)), rng.normal(size=(6, 3)), rng.normal(size=6)
    for arrays in ({"a": 0.5 * a}, {"a": 0.5 * a, "b": b}):
        proof = tight(Neurons("sigmoid", **arrays), d).certificate
        same, another = Neurons("sigmoid", **arrays), Neurons(other, **arrays)
        assert check(same, d, proof)[0]
        largest = witness(another, d)[1]
        assert largest <= proof.bound or not check(another, d, proof)[0]


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_one_gated_relu_is_exact(sign):
    rng = np.random.default_rng(3)
    a, b = rng.normal(size=(2, 1, 5))
    neurons = Neurons("relu", a, b=b)
    exact = 2.5 * (np.linalg.norm(a) * np.linalg.norm(b) + sign * float(a[0] @ b[0])) / 2
    for bound in (cheap(neurons, [[2.5 * sign]])[1][0], tight(neurons, [2.5 * sign]).bound):
        assert exact <= bound <= exact * (1 + 1e-8)
    assert witness(neurons, [2.5 * sign])[1] == pytest.approx(exact, rel=1e-6)


def test_a_linear_map_is_exact():
    rng = np.random.default_rng(4)
    a, offset, d = rng.normal(size=(7, 4)), rng.normal(size=7), rng.normal(size=7)
    exact = float(d @ offset + np.linalg.norm(d @ a))
    neurons = Neurons("identity", a, offset)
    assert exact <= cheap(neurons, d[None])[1][0] <= exact * (1 + 1e-9) + 1e-12
    assert exact <= tight(neurons, d).bound <= exact * (1 + 1e-4)


def test_bilinear_neurons_are_one_quadratic_form():
    rng = np.random.default_rng(5)
    a, b, d = rng.normal(size=(9, 4)), rng.normal(size=(9, 4)), rng.normal(size=9)
    form = (a * d[:, None]).T @ b
    exact = np.linalg.eigvalsh((form + form.T) / 2)[-1]
    assert exact <= tight(Neurons("identity", a, b=b), d).bound <= exact * (1 + 1e-5)


@pytest.mark.parametrize("gated", [False, True])
def test_degenerate_neurons(gated):
    rng = np.random.default_rng(6)
    a, b = rng.normal(size=(4, 3)), rng.normal(size=(4, 3))
    a[1], b[2] = 0, 0
    a[3], b[3] = a[0], b[0]  # a duplicate
    for d in (np.array([1.0, -2.0, 3.0, -1.0]), np.zeros(4), np.ones(4)):
        for name in ACTIVATIONS:
            neurons = Neurons(name, a, b=b if gated else None)
            found = tight(neurons, d)
            assert check(neurons, d, found.certificate)[0]
            assert (d @ hidden(neurons, ball(rng, 3))).max() <= found.bound + 1e-15
            assert witness(neurons, d, found)[1] <= found.bound + 1e-15


@pytest.mark.parametrize("size", [1e30, 1e-30, 1e-8])
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("name", ["relu", "silu", "gelu_tanh", "tanh", "relu2"])
def test_huge_and_tiny_weights(name, gated, size):
    rng = np.random.default_rng(7)
    a, b, d = rng.normal(size=(3, 6, 3))
    neurons, d = Neurons(name, size * a, size * a[:, 0], size * b if gated else None), size * d[:, 0]
    found = tight(neurons, d)
    assert np.isfinite(found.bound)
    assert check(neurons, d, found.certificate)[0]
    largest = max(float((d @ hidden(neurons, ball(rng, 3))).max()), witness(neurons, d, found)[1])
    assert largest <= found.bound <= intervals(neurons, d[None])[1][0] * (1 + 1e-6) + 1e-9 * reach(neurons, d)


def test_no_neurons_add_nothing():
    for b in (None, np.zeros((0, 3))):
        neurons, d = Neurons("silu", np.zeros((0, 3)), b=b), np.zeros(0)
        assert cheap(neurons, np.zeros((2, 0)))[1].tolist() == [0.0, 0.0]
        found = tight(neurons, d)
        assert found.bound == 0
        assert check(neurons, d, found.certificate)[0]
        assert witness(neurons, d, found)[1] == 0


def test_float32_weights_are_taken_as_they_are():
    rng = np.random.default_rng(8)
    a, b, d = (rng.normal(size=(5, 3)).astype(np.float32) for _ in range(3))
    same = Neurons("silu", a.astype(float), b=b.astype(float))
    assert tight(Neurons("silu", a, b=b), d[:, 0]).bound == tight(same, d[:, 0].astype(float)).bound


def test_a_witness_stays_in_the_subspace_that_it_is_given():
    rng = np.random.default_rng(9)
    neurons, d = Neurons("silu", rng.normal(size=(8, 5)), b=rng.normal(size=(8, 5))), rng.normal(size=8)
    u, value = witness(neurons, d, tight(neurons, d), project=lambda x: x - x.mean(axis=0))
    assert abs(u.sum()) < 1e-12
    assert 0 < value <= witness(neurons, d)[1] * (1 + 1e-6)
    a, b = (rows - rows.mean(axis=1, keepdims=True) for rows in (neurons.a, neurons.b))
    assert value <= tight(Neurons("silu", a, b=b), d).bound


def test_what_is_not_a_number_is_refused():
    with pytest.raises(ValueError, match="a must be finite, got 1 NaN"):
        Neurons("silu", [[np.nan, 1.0]])
    one = Neurons("silu", [[1.0, 1.0]])
    for call in (cheap, intervals):
        with pytest.raises(ValueError, match="d must be finite"):
            call(one, [[np.inf]])
    with pytest.raises(ValueError, match="d must be finite"):
        tight(one, [np.nan])
    for call in (tight, witness):
        with pytest.raises(ValueError, match="a column for each of 1 neurons"):
            call(one, [[1.0], [2.0]])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("swish", [[1.0]]), "activation must be one of relu, .*got 'swish'"),
        (("silu", [1.0]), "a must be a matrix"),
        (("silu", [[1.0]], [1.0, 2.0]), "a_offset must have one entry for each of 1 neurons"),
        (("silu", [[1.0]], None, [[1.0, 2.0]]), "b must have the shape of a"),
        (("silu", [[1.0]], None, None, [1.0]), "b_offset must be None"),
    ],
)
def test_wrong_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Neurons(*arguments)


REFERENCE = {
    "relu": lambda t: max(t, mpmath.mpf(0)),
    "relu2": lambda t: max(t, mpmath.mpf(0)) ** 2,
    "gelu": lambda t: t * mpmath.ncdf(t),
    "gelu_tanh": lambda t: t * (1 + mpmath.tanh(mpmath.sqrt(2 / mpmath.pi) * (t + mpmath.mpf("0.044715") * t**3))) / 2,
    "silu": lambda t: t / (1 + mpmath.exp(-t)),
    "quick_gelu": lambda t: t / (1 + mpmath.exp(-mpmath.mpf("1.702") * t)),
    "sigmoid": lambda t: 1 / (1 + mpmath.exp(-t)),
    "tanh": mpmath.tanh,
    "identity": lambda t: t,
}


@settings(max_examples=60)
@given(name=NAMES, ends=st.tuples(st.floats(-60, 60), st.floats(-60, 60)), where=st.floats(0, 1))
def test_activations_stay_within_their_bounds_in_many_digits(name, ends, where):
    low, high = (np.array([x]) for x in sorted(ends))
    t = float(np.clip(low[0] + where * (high[0] - low[0]), low[0], high[0]))
    act = ACTIVATIONS[name]
    with mpmath.workdps(60):
        exact = REFERENCE[name](mpmath.mpf(t))
        share = (exact - mpmath.mpf(act.at_zero)) / mpmath.mpf(t or 1)
    assert float(act.value(np.array(t))) == pytest.approx(float(exact), rel=1e-13, abs=1e-17)
    bottom, top = act.range(low, high)
    assert bottom[0] <= exact <= top[0]
    least, most = act.factors(low, high)
    if t:
        assert least[0] <= share <= most[0]


@settings(max_examples=60)
@given(
    name=NAMES,
    ends=st.tuples(st.floats(-60, 60), st.floats(-60, 60)),
    p=st.floats(-1, 2),
    q=st.floats(-2, 2),
    sign=st.sampled_from([1.0, -1.0]),
)
def test_the_least_constant_is_above_a_dense_scan_and_not_much(name, ends, p, q, sign):
    low, high = sorted(ends)
    t = np.linspace(low, high, 20001)
    scan = float((sign * ACTIVATIONS[name].value(t) - p * t * t - q * t).max())
    size = 1 + abs(scan) + abs(p) * max(low * low, high * high)
    arrays = (np.array([x]) for x in (sign, p, q, low, high))
    found = float(ACTIVATIONS[name].least_constant(*arrays)[0])
    assert scan - 1e-14 * size <= found <= scan + 1e-4 * size


def test_intervals_certificates_name_their_reason():
    found = tight(Neurons("relu", [[1.0, 0.0]]), [0.0])
    assert found.note == "every weight is 0"
    assert found.certificate.kind == "intervals"
    forged = NeuronCertificate("intervals", -1.0, np.zeros(0), np.zeros(0), 0.0, 0.0)
    assert not check(Neurons("relu", [[1.0, 0.0]]), [0.0], forged)[0]
