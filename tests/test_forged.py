"""Files that `verify` reads, altered one number at a time: what passes still proves what it says.

Every entry of every array, tensor and piece of metadata is altered in several ways, one at a time. Most alterations
must be refused, whatever they are. What may pass is another certificate: a query, weights, or a network that is a
little different and just as right. Then an oracle in exact arithmetic, straight from the definition, has to agree.
"""

import io
import json
from dataclasses import fields, replace
from fractions import Fraction
from itertools import combinations

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load, save
from scipy.optimize import nnls

import normscope as ns
from normscope import Norm, selectable
from normscope.capacity import memorize, shatter
from normscope.certificates.check_networks import all_labels
from normscope.certificates.check_reachable_keys import check_certificates
from normscope.certificates.check_tokens import first_fault
from normscope.certificates.hull_proofs import NEAR_TIE, PROVEN, WRONG, judged
from normscope.certificates.network_weights import layers_of_numbers
from normscope.certificates.token_certificates import NEVER, POWERS, TIED, WINS
from normscope.certificates.token_table import Outputs, Table
from normscope.errors import InputError
from normscope.separation.storage import certificate_bytes, proven_in, verify_bytes
from normscope.vocabulary.findings import Findings
from normscope.vocabulary.search import Clock, search
from strategies import seeds

# Alterations


def altered(array):
    """Copies of an array with one entry altered, and which."""
    for place in np.ndindex(array.shape):
        value = array[place]
        if array.dtype.kind == "b":
            others = [not value]
        elif array.dtype.kind in "iu":
            others = [other for other in (int(value) + 1, int(value) - 1, 100) if 0 <= other < 256 or value.nbytes > 1]
        elif array.dtype.kind == "f":
            others = [-value, value * 1.001 + 1e-9, np.nan]
        else:
            others = [str(value)[:-1], "x" * 200_000, ""]
        for other in others:
            if other != value:
                changed = array.astype(f"U{max(1, len(other))}") if array.dtype.kind == "U" else array.copy()
                changed[place] = other
                yield place, changed


def packed(arrays):
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, **arrays)
    return file.getvalue()


def unpacked(content):
    with np.load(io.BytesIO(content)) as file:
        return dict(file)


def refused(reason):
    """A reason for not accepting a file is one short line."""
    assert len(reason) < 500
    assert "\n" not in reason
    return True


# What is so, in fractions


def fractions(values):
    return [Fraction(value) for value in np.asarray(values, float).tolist()]


def only_solution(rows):
    """The x with a·x = b for rows (a, b); None if there is none, or more than one."""
    rows, unknowns = [list(row) for row in rows], len(rows[0]) - 1
    for place in range(unknowns):
        pivot = next((row for row in rows[place:] if row[place]), None)
        if pivot is None:
            return None
        rows.remove(pivot)
        rows = [[a - row[place] / pivot[place] * b for a, b in zip(row, pivot, strict=True)] for row in rows]
        rows.insert(place, [entry / pivot[place] for entry in pivot])
    return None if any(row[-1] for row in rows[unknowns:]) else [row[-1] for row in rows[:unknowns]]


def in_hull(keys, own, biased=False):
    """Whether a key is a weighted mean of others (of no lower bias, the last channel): by Carathéodory's theorem."""
    points = [fractions(key) for key in keys]
    others = [number for number in range(len(keys)) if number != own]
    channels = len(points[own])
    for size in range(1, channels + 2):
        for some in combinations(others, size):
            rows = [[points[j][c] for j in some] + [points[own][c]] for c in range(channels)]
            rows.append([Fraction(1)] * (size + 1))
            for equations in ([*rows[: channels - 1], rows[-1]], rows) if biased else (rows,):
                found = only_solution(equations)
                if found is None or min(found) < 0:
                    continue
                if not biased or sum(x * points[j][-1] for x, j in zip(found, some, strict=True)) >= points[own][-1]:
                    return True
    return False


def wins(keys, own, query):
    scores = [sum(a * b for a, b in zip(fractions(key), fractions(query), strict=True)) for key in keys]
    return all(scores[own] > score for other, score in enumerate(scores) if other != own)


# Weights


@st.composite
def whole_keys(draw):
    """A few keys of small whole numbers, some equal, some far away; with a bias as last channel or not."""
    rng = np.random.default_rng(draw(seeds))
    count, channels = draw(st.integers(2, 6)), draw(st.integers(1, 3))
    keys = rng.integers(-2, 3, (count, channels)).astype(float)
    far = draw(st.booleans())
    if far:
        keys[rng.random(count) < 0.3] *= 1e18
    return keys, draw(st.booleans()) and channels > 1, far


def best_weights(keys, own, biased):
    """The convex weights of others that come nearest to a key, as a forger would choose them."""
    others = np.delete(np.arange(len(keys)), own)
    differences = (keys[others] - keys[own]).T
    if biased:
        differences = np.column_stack([differences, -np.eye(len(differences))[-1]])
    scale = np.maximum(np.abs(differences).max(axis=1, keepdims=True), 1e-300)
    system = np.vstack([differences / scale, [1.0] * len(others) + [0.0] * biased])
    weights = nnls(system, np.append(np.zeros(len(differences)), 1.0))[0][: len(others)]
    used = weights > 0
    return others[used], weights[used] / weights[used].sum()


@given(asked=whole_keys())
@settings(max_examples=60, deadline=None)
def test_weights_are_proven_only_for_keys_in_the_hull(asked):
    keys, biased, far = asked
    for own in range(len(keys)):
        indices, weights = best_weights(keys, own, biased)
        if len(indices):
            verdict = judged(keys[[own]], keys[indices][None], weights[None], biased)[0]
            if verdict == PROVEN or (verdict == NEAR_TIE and not far):
                assert in_hull(keys, own, biased)


@given(asked=whole_keys())
@settings(max_examples=25, deadline=None)
def test_a_saved_answer_verifies_and_says_what_is_so(asked):
    """And of small whole numbers nothing is left to rounding."""
    keys, biased, far = asked
    result = selectable(keys[:, :-1], bias=keys[:, -1]) if biased else selectable(keys)
    assert result.check()
    near = check_certificates(result.keys, result.bias, None, result.certificates).near_ties
    unsure = result.open.copy()
    unsure[result.certificates.weight_keys[near]] = True  # between keys of 1e18, 1 is a last digit
    for own in np.flatnonzero(~unsure):
        assert result.mask[own] == (not in_hull(keys, own, biased))
    proven, _ = proven_in(certificate_bytes(result), "keys")
    assert (proven.selectable, proven.open) == (result.mask.sum(), result.open.sum())
    assert far or (proven.near_ties, proven.open) == (0, 0)


def test_a_key_outside_by_the_last_digit_is_a_near_tie_and_no_proof():
    keys = np.array([[0.0, 0.0], [0.3, 0.3], [0.1, np.nextafter(0.1, 1)]])
    assert not in_hull(keys, 2)
    assert judged(keys[[2]], keys[None, :2], np.array([[2 / 3, 1 / 3]]), False) == NEAR_TIE
    assert judged(keys[[2]], keys[None, :2], np.array([[0.66, 0.34]]), False) == WRONG


@pytest.mark.parametrize("scale", [1e-300, 1e-160, 1.0, 1e160, 1e300])
def test_units_of_channels_change_nothing(scale):
    rng = np.random.default_rng(3)
    keys = rng.normal(size=(12, 3)) + 4.0
    for units in (np.array([scale, 1.0, 1.0]), np.array([1.0, scale**0.5, scale**-0.5])):
        result = selectable(keys * units)
        assert result.mask.tolist() == selectable(keys).mask.tolist()
        proven, _ = proven_in(certificate_bytes(result), "keys")
        assert (proven.near_ties, proven.open) == (0, 0)


# Files of keys


def keys_file(kind):
    rng = np.random.default_rng(8)
    keys = rng.integers(-4, 5, (7, 2)).astype(float)
    keys[3], keys[4] = keys[2], keys[[0, 1]].mean(axis=0)
    if kind == "biased":
        return certificate_bytes(selectable(keys, bias=rng.integers(-3, 4, 7)))
    reach = Norm(gain=[0.5, 2.0], bias=[1.0, 0.5], project=False).ellipsoid if kind == "reachable" else None
    return certificate_bytes(selectable(keys, queries=reach))


def proves(arrays):
    """Whether every certificate of a file is right, in fractions."""
    keys, biased = arrays["keys"], "bias" in arrays
    points = np.column_stack([keys, arrays["bias"]]) if biased else keys
    for number, own in enumerate(arrays["query_keys"]):
        if "axes" in arrays:
            y = arrays["coordinates"][number]
            if sum(entry**2 for entry in fractions(y)) > 1:
                return False
            query = [
                c + sum(a * b for a, b in zip(fractions(row), fractions(y), strict=True))
                for c, row in zip(fractions(arrays["center"]), arrays["axes"], strict=True)
            ]
            scores = [sum(a * b for a, b in zip(fractions(key), query, strict=True)) for key in keys]
            if not all(scores[own] > score for other, score in enumerate(scores) if other != own):
                return False
        elif not wins(points, own, np.append(arrays["queries"][number], [1.0] * biased)):
            return False
    return "axes" in arrays or all(in_hull(points, own, biased) for own in arrays["weight_keys"])


@pytest.mark.parametrize("kind", ["plain", "biased", "reachable"])
def test_every_number_of_a_file_of_keys_counts(kind):
    arrays = unpacked(keys_file(kind))
    assert verify_bytes(packed(arrays), "keys")[0]
    passed = dict.fromkeys(arrays, 0)
    for name, array in arrays.items():
        for _, changed in altered(array):
            holds, reason = verify_bytes(packed(arrays | {name: changed}), "keys")
            passed[name] += holds
            if holds:
                assert proves(arrays | {name: changed})
            assert holds or refused(reason)
    # Another query, or another point of the ellipsoid, may prefer its key as well; an equal key may stand for another.
    assert {name for name, count in passed.items() if count} <= {"queries", "coordinates", "weights", "indices"}
    assert passed["indices"] <= 2
    if kind != "reachable":  # of an ellipsoid, other weights may rule it out as well
        assert not passed["weights"]


# Verdicts on tokens


def small_table():
    """With every kind of certificate."""
    rng = np.random.default_rng(2)
    rows = rng.normal(size=(10, 2)) * np.exp(0.6 * rng.normal(size=(10, 1)))
    rows[:2] *= 0.05
    rows[5] = rows[6]
    return Table(rows.astype(np.float32), None, Outputs(np.array([1.0, 0.5]), rng.normal(size=2), projects=False))


def ruled_out(table, token, indices, weights):
    """Whether |√N·Gd| + b·d ≤ 0 with d = Σλ(wᵢ − wⱼ), in fractions."""
    own, shares = fractions(table.rows[token]), fractions(weights)
    others = [fractions(table.rows[j]) for j in indices]
    d = [sum(s * (a - other[c]) for s, other in zip(shares, others, strict=True)) for c, a in enumerate(own)]
    gained = sum(b * entry for b, entry in zip(fractions(table.outputs.center), d, strict=True))
    turned = len(d) * sum((g * entry) ** 2 for g, entry in zip(fractions(table.outputs.gain), d, strict=True))
    return gained <= 0 and turned <= gained**2 and min(shares) > 0 and token not in indices


def with_array(found, name, array):
    """Certificates with another array, in the frame of own directions or outside it."""
    if name in ("center", "axes", "variances"):
        return replace(found, frame=replace(found.frame, **{name: array}))
    return replace(found, **{name: array})


def test_every_number_of_verdicts_on_tokens_counts():
    """What else a file says about them, counts and lists: see tests/test_vocab.py."""
    table = small_table()
    findings = Findings.none_yet(len(table), reachable=True)
    search(table, findings, Clock())
    whole = dict(zip(("any_vector", "reachable"), findings.certificates(), strict=True))
    passed = {}
    for vectors, found in whole.items():
        assert set(found.verdict) == {WINS, NEVER, TIED}
        arrays = {each.name: getattr(found, each.name) for each in fields(found) if each.name != "frame"}
        for name, array in (arrays | vars(found.frame)).items():
            for place, changed in altered(array):
                try:
                    now = with_array(found, name, changed)
                    fault = first_fault(table, **(whole | {vectors: now}))
                except InputError as error:
                    fault = str(error)
                assert fault is None or refused(fault)
                passed[vectors, name] = passed.get((vectors, name), 0) + (fault is None)
                if fault is None and name == "power":
                    # It is known to win by a reachable vector, and wins along its own direction, too.
                    assert found.verdict[place] == WINS
                    assert changed[place] in POWERS
                if fault is None and (vectors, name) == ("any_vector", "queries"):
                    assert wins(table.rows, found.query_tokens[place[0]], changed[place[0]])
                if fault is None and (vectors, name) == ("any_vector", "indices"):  # an equal token stands for another
                    assert np.array_equal(table.rows[changed[place]], table.rows[array[place]])
                if fault is None and vectors == "reachable" and name in {"weights", "indices"}:
                    for token, indices, weights in now.weighted():
                        assert ruled_out(table, token, indices, weights) or found.verdict[token] == TIED
    # Other axes make other vectors, each of which is scored against the whole table.
    may_pass = {(vectors, name) for vectors in whole for name in ("queries", "power", "center", "axes", "variances")}
    may_pass |= {("any_vector", "indices"), ("reachable", "indices"), ("reachable", "weights")}
    assert {name for name, count in passed.items() if count} <= may_pass


# Networks


def labels_by_definition(layers, eps, samples):
    """Of Linear, LayerNorm(3), …, Linear in 60 digits, the bias of each Linear in its last column; None for a tie."""
    with mpmath.workdps(60):
        found = []
        for sample in samples:
            state = mpmath.matrix(sample.tolist())
            for place, layer in enumerate(layers):
                if place:
                    mean = sum(state) / 3
                    size = mpmath.sqrt(sum((entry - mean) ** 2 for entry in state) / 3 + mpmath.mpf(eps))
                    if not size:
                        return None
                    state = mpmath.matrix([(entry - mean) / size for entry in state])
                state = mpmath.matrix(layer[:, :-1].tolist()) * state + mpmath.matrix(layer[:, -1].tolist())
            best = max(range(len(state)), key=lambda place: state[place])
            if sum(entry == state[best] for entry in state) > 1:
                return None
            found.append(best)
        return found


def layers_in(arrays):
    return [arrays["memorized.first"], *arrays["memorized.inner"], arrays["memorized.last"]]


def saved_parts(path):
    """The arrays of a result in a file, and what its JSON says."""
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    return load(content), json.loads(json.loads(content[8 : 8 + size])["__metadata__"]["result"])


def verified(path, arrays, payload, **metadata):
    target = path.with_name("altered.safetensors")
    said = {"format": "normscope result 1", "result": json.dumps(payload), **metadata}
    target.write_bytes(save(arrays, metadata=said))
    try:
        found = ns.verify(target)
    except ValueError as error:
        return False, str(error)
    return found.holds, found.reason


def altered_json(value):
    """Copies of a piece of JSON with one value in it altered, and its place."""
    if isinstance(value, dict | list):
        places = value.items() if isinstance(value, dict) else enumerate(value)
        for place, each in places:
            for path, other in altered_json(each):
                changed = value.copy()
                changed[place] = other
                yield (place, *path), changed
        if isinstance(value, dict):
            for name in value:
                yield (name,), {key: each for key, each in value.items() if key != name}
            yield ("note",), {**value, "note": 1}
        elif value:
            yield from (((), [*value, value[-1]]), ((), value[:-1]))
    else:
        others = [None, "x" * 2000, 7, -1, 0.5, True, [], {}, 10**400]
        if isinstance(value, int | float) and not isinstance(value, bool):
            others += [value + 1, value * 1.001 + 1e-9, float("nan"), float("inf")]
        yield from (((), other) for other in others if other != value)


SAMPLES, LABELS = np.array([[0.0], [1.0], [2.0], [3.5], [3.75]]), ["a", "b", "a", "b", "a"]


@pytest.fixture(scope="module", params=["search", "merge"])
def network(request, tmp_path_factory):
    """A network in a file."""
    path = tmp_path_factory.mktemp("network") / "net.safetensors"
    memorize(SAMPLES, LABELS, method=request.param).save(path)
    return path


def test_every_number_in_the_arrays_of_a_network_counts(network):
    arrays, payload = saved_parts(network)
    holds, reason = verified(network, arrays, payload)
    assert holds
    exact = "memorized.line" in arrays
    assert ("exact weights of" in reason) == exact
    passed = dict.fromkeys(arrays, 0)
    for name, array in arrays.items():
        for _, changed in altered(array):
            other = arrays | {name: changed}
            holds, reason = verified(network, other, payload)
            passed[name] += holds
            assert holds or refused(reason)
            if holds:  # the file holds another network, or other samples, and every figure in it is still right
                samples = other["memorized.samples"]
                wanted = other["memorized.label_numbers"].tolist()
                assert exact or labels_by_definition(layers_in(other), payload["eps"], samples) == wanted
        assert not verified(network, {key: each for key, each in arrays.items() if key != name}, payload)[0]
    # The last digits of exact weights are those of another network, with the same module, which is certified too.
    may_pass = {"memorized.first", "memorized.samples", "memorized.mantissas"}
    assert {name for name, count in passed.items() if count} <= may_pass
    zeros = {name: array if "samples" in name else array * 0 for name, array in arrays.items()}
    assert not verified(network, zeros, payload)[0]
    assert not verified(network, arrays | {"note": np.ones(1)}, payload)[0]
    assert not verified(network, arrays | {"memorized.last": arrays["memorized.last"].astype(np.float32)}, payload)[0]


def test_every_value_in_the_json_of_a_network_counts(network):
    arrays, payload = saved_parts(network)
    refusals = 0
    for place, other in altered_json(payload):
        holds, reason = verified(network, arrays, other)
        if holds:  # names that say where samples came from, and room for longer labels
            assert place in {("file",), ("label_column",)}
        else:
            refusals += refused(reason)
    assert refusals > 300
    for name, value in (("label_type", "<U2"), ("label_type", "<i8"), ("label_type", "|S1"), ("label_type", "object")):
        holds, _ = verified(network, arrays, {**payload, name: value})
        assert holds == (value == "<U2")  # the same labels in an array with room for longer ones
    for eps in (1e-12, 1e6):
        assert not verified(network, arrays, {**payload, "eps": eps})[0]


@pytest.mark.parametrize("said", ["normscope LN-Net 2", "", "x" * 200_000])
def test_a_file_of_another_format_is_no_network(network, said):
    holds, reason = verified(network, *saved_parts(network), format=said)
    assert not holds
    assert refused(reason)


def test_other_exact_weights_are_not_those_of_the_module(network):
    arrays, payload = saved_parts(network)
    if "memorized.line" not in arrays:
        pytest.skip("the module is the network")
    mantissas = arrays["memorized.mantissas"]
    wider = np.concatenate([mantissas, np.where(mantissas[:, -1:] > 127, 255, 0).astype(np.uint8)], axis=1)
    assert verified(network, arrays | {"memorized.mantissas": wider}, payload)[0]  # the same numbers
    for damage in (mantissas[:, :-1], mantissas[:-1], np.zeros((len(mantissas), 20_000), np.uint8), mantissas[:, :0]):
        assert not verified(network, arrays | {"memorized.mantissas": damage}, payload)[0]
    # A module of its own weights, certified as such, is another statement.
    names = ("memorized.line", "memorized.mantissas", "memorized.powers")
    assert not verified(network, {name: each for name, each in arrays.items() if name not in names}, payload)[0]


# Results of shattering


def test_every_number_of_a_shattering_counts(tmp_path):
    path = tmp_path / "networks.safetensors"
    shatter(1, resume=path)
    arrays, payload = saved_parts(path)
    assert set(arrays) == {"shattering.numbers"}
    passed = 0
    for _, changed in altered(arrays["shattering.numbers"]):
        holds, reason = verified(path, {"shattering.numbers": changed}, payload)
        assert holds or refused(reason)
        if holds:
            passed += 1
            for numbers, labels in zip(changed, all_labels(3), strict=True):
                found = labels_by_definition(layers_of_numbers(numbers), 0.0, np.array(payload["points"])[:, None])
                assert found == labels.tolist()
    assert passed < 60  # a network may be a little different, where the least margin of its row is that of another
    for place, other in altered_json(payload):
        holds, reason = verified(path, arrays, other)
        assert holds or refused(reason)
        if holds:  # points that are elsewhere may be shattered all the same
            assert place[0] == "points"
            for numbers, labels in zip(arrays["shattering.numbers"], all_labels(3), strict=True):
                found = labels_by_definition(layers_of_numbers(numbers), 0.0, np.array(other["points"])[:, None])
                assert found == labels.tolist()
