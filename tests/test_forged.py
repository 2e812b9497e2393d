"""Files that `verify` reads, altered one number at a time: what passes still proves what it says.

Every entry of every array, tensor and piece of metadata is altered in several ways, one at a time. Most alterations
must be refused, whatever they are. What may pass is another certificate: a query, weights, or a network that is a
little different and just as right. Then an oracle in exact arithmetic, straight from the definition, has to agree.
"""

import io
import json
from fractions import Fraction
from itertools import combinations

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load, save
from scipy.optimize import nnls

from normscope import Norm, selectable
from normscope.capacity.ln_net import load_network
from normscope.capacity.memorize import memorize
from normscope.capacity.shatter import shatter, verify_shattering
from normscope.capacity.shatter_state import all_labels, network_of
from normscope.certificates.check_keys import checked, proven
from normscope.certificates.check_tokens import first_fault
from normscope.certificates.hull_proofs import NEAR_TIE, PROVEN, WRONG, judged
from normscope.certificates.token_directions import POWERS
from normscope.certificates.token_table import Outputs, Table
from normscope.studies.memorize import verify_memorized
from normscope.vocabulary.findings import NEVER, TIED, WINS, Findings, load_findings, save_findings
from normscope.vocabulary.search import Clock, search
from saved_results import arrays_of, verdict_on, with_arrays
from strategies import seeds

# Alterations


def altered(array):
    """Copies of an array with one entry altered, and which."""
    for place in np.ndindex(array.shape):
        value = array[place]
        if array.dtype.kind == "b":
            others = [not value]
        elif array.dtype.kind in "iu":
            others = [value + 1, value - 1, 100]
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
    assert result.holds
    found = checked(result.keys, result.bias, result.certificates)
    near = found.near_ties
    unsure = result.open.copy()
    unsure[result.certificates.weight_keys[near]] = True  # between keys of 1e18, 1 is a last digit
    for own in np.flatnonzero(~unsure):
        assert result.mask[own] == (not in_hull(keys, own, biased))
    shown = proven(found, result.certificates)
    assert (shown.selectable, shown.open) == (result.mask.sum(), result.open.sum())
    assert far or (shown.near_ties, shown.open) == (0, 0)
    assert verdict_on(result.to_bytes()) == (True, shown.in_words())


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
        shown = proven(checked(result.keys, None, result.certificates), result.certificates)
        assert (shown.near_ties, shown.open) == (0, 0)


# Files of keys


def keys_file(kind):
    rng = np.random.default_rng(8)
    keys = rng.integers(-4, 5, (7, 2)).astype(float)
    keys[3], keys[4] = keys[2], keys[[0, 1]].mean(axis=0)
    if kind == "biased":
        return selectable(keys, bias=rng.integers(-3, 4, 7)).to_bytes()
    reach = Norm(gain=[0.5, 2.0], bias=[1.0, 0.5], project=False).ellipsoid if kind == "reachable" else None
    return selectable(keys, queries=reach).to_bytes()


def proves(arrays):
    """Whether every certificate of a file is right, in fractions."""
    keys, biased = arrays["keys"], "bias" in arrays
    points = np.column_stack([keys, arrays["bias"]]) if biased else keys
    for number, own in enumerate(arrays["query_keys"]):
        if "semi_axes" in arrays:
            y = arrays["queries"][number]
            if sum(entry**2 for entry in fractions(y)) > 1:
                return False
            query = [
                c + sum(a * b for a, b in zip(fractions(row), fractions(y), strict=True))
                for c, row in zip(fractions(arrays["center"]), arrays["semi_axes"], strict=True)
            ]
            scores = [sum(a * b for a, b in zip(fractions(key), query, strict=True)) for key in keys]
            if not all(scores[own] > score for other, score in enumerate(scores) if other != own):
                return False
        elif not wins(points, own, np.append(arrays["queries"][number], [1.0] * biased)):
            return False
    return "semi_axes" in arrays or all(in_hull(points, own, biased) for own in arrays["weight_keys"])


@pytest.mark.parametrize("kind", ["plain", "biased", "reachable"])
def test_every_number_of_a_file_of_keys_counts(kind):
    content = keys_file(kind)
    arrays = arrays_of(content)
    assert verdict_on(content)[0]
    passed = dict.fromkeys(arrays, 0)
    for name, array in arrays.items():
        for _, other in altered(array):
            holds, reason = verdict_on(with_arrays(content, **{name: other}))
            passed[name] += holds
            if holds:
                assert proves(arrays | {name: other})
            assert holds or refused(reason)
    # Another query may prefer its key by the same margin, an equal key may stand for another, a residual may be off by
    # rounding, and of other keys the same may be so.
    assert {name for name, count in passed.items() if count} <= {
        "queries", "weights", "indices", "residuals", "keys", "bias"
    }  # fmt: skip
    assert passed["indices"] <= 2
    if kind != "reachable":  # of an ellipsoid, other weights may rule it out as well
        assert not passed["weights"]


# States of vocabularies


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


def test_every_number_of_a_state_of_a_vocabulary_counts(tmp_path):
    table, path = small_table(), tmp_path / "state.npz"
    findings = Findings.none_yet(len(table), reachable=True)
    search(table, findings, Clock())
    save_findings(findings, table.sha256, {"path": None, "bundled": False}, path)
    arrays = unpacked(path.read_bytes())
    assert not {name for name in arrays if name.endswith(("asked", "passed"))}
    assert set(arrays["plain_verdict"]) == set(arrays["reachable_verdict"]) == {WINS, NEVER, TIED}
    passed = dict.fromkeys(arrays, 0)
    for name, array in arrays.items():
        if name in {"sha256", "source"}:  # held against the model: see tests/test_vocab.py
            continue
        for place, changed in altered(array):
            path.write_bytes(packed(arrays | {name: changed}))
            try:
                fault = first_fault(table, load_findings(path).findings)
            except ValueError as error:
                fault = str(error)
            assert fault is None or refused(fault)
            passed[name] += fault is None
            if fault is None and name.endswith("power"):
                # It is known to win by a reachable vector, and wins along itself, too.
                assert arrays[name.replace("power", "verdict")][place] == WINS
                assert changed[place] in POWERS
            if fault is None and name == "plain_queries":
                assert wins(table.rows, arrays["plain_query_tokens"][place[0]], changed[place[0]])
            if fault is None and name == "plain_indices":  # an equal token may stand for another
                assert np.array_equal(table.rows[changed[place]], table.rows[array[place]])
            if fault is None and name in {"reachable_weights", "reachable_indices"}:
                now = arrays | {name: changed}
                row = int(np.searchsorted(now["reachable_starts"], place[0], side="right")) - 1
                part = slice(*now["reachable_starts"][row : row + 2])
                token = now["reachable_weight_tokens"][row]
                assert ruled_out(table, token, now["reachable_indices"][part], now["reachable_weights"][part])
    # Other axes make other vectors, each of which is asked of the whole table.
    kinds = ("queries", "power", "center", "axes", "variances")
    may_pass = {f"{question}_{name}" for question in ("plain", "reachable") for name in kinds}
    may_pass |= {"plain_indices", "reachable_indices", "reachable_weights"}
    assert {name for name, count in passed.items() if count} <= may_pass


# Networks


def labels_by_definition(tensors, eps, samples):
    """Of Linear, LayerNorm(3), …, Linear in 60 digits; None where no score is highest."""
    with mpmath.workdps(60):
        found = []
        for sample in samples:
            state = mpmath.matrix(sample.tolist())
            for place in range(0, len(tensors), 2):
                if place:
                    mean = sum(state) / 3
                    size = mpmath.sqrt(sum((entry - mean) ** 2 for entry in state) / 3 + mpmath.mpf(eps))
                    if not size:
                        return None
                    state = mpmath.matrix([(entry - mean) / size for entry in state])
                weight, bias = (tensors[f"{place}.{name}"].double().tolist() for name in ("weight", "bias"))
                state = mpmath.matrix(weight) * state + mpmath.matrix(bias)
            best = max(range(len(state)), key=lambda place: state[place])
            if sum(entry == state[best] for entry in state) > 1:
                return None
            found.append(best)
        return found


@pytest.fixture(scope="module", params=["fold", "merge"])
def network(request, tmp_path_factory):
    """A network in a file, and the file of its samples."""
    folder = tmp_path_factory.mktemp("network")
    samples, labels = np.array([[0.0], [1.0], [2.0], [3.5]]), ["a", "b", "a", "b"]
    memorize(samples, labels, method=request.param).save(folder / "net.safetensors")
    (folder / "samples.csv").write_text("\n".join(f"{x},{y}" for (x,), y in zip(samples, labels, strict=True)))
    return folder / "net.safetensors", folder / "samples.csv", samples


def parts_of(path):
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    return load(content), json.loads(content[8 : 8 + size])["__metadata__"]


def verified(path, samples, tensors, metadata):
    target = path.with_name("altered.safetensors")
    target.write_bytes(save(tensors, metadata=metadata))
    try:
        return verify_memorized(target, samples)
    except ValueError as error:
        return False, str(error)


def test_every_weight_of_a_network_counts(network):
    path, file, samples = network
    tensors, metadata = parts_of(path)
    holds, reason = verified(path, file, tensors, metadata)
    assert holds
    assert ("exact weights of" in reason) == ("exact" in metadata)
    for name, tensor in tensors.items():
        for _, changed in altered(tensor.numpy()):
            other = tensors | {name: tensor.new_tensor(changed)}
            holds, reason = verified(path, file, other, metadata)
            assert holds or refused(reason)
            if holds:  # the network that the file holds is another one, and gives the labels
                assert "exact" not in metadata
                assert labels_by_definition(other, metadata["eps"], samples) == [0, 1, 0, 1]
    zeros = {name: tensor.new_zeros(tensor.shape) for name, tensor in tensors.items()}
    assert not verified(path, file, zeros, metadata)[0]
    assert not verified(path, file, tensors | {"note": tensors["0.bias"].clone()}, metadata)[0]


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("format", ["normscope LN-Net 1", "", "x" * 200_000]),
        ("classes", ['["a", "c"]', '["b", "a"]', '["a"]', "[1, 2]", '["a", "b", "c"]', "{", "[" * 100_000, "null"]),
        ("classes_dtype", ["<U2", "<i8", "|S1", "object", "x" * 200_000, ""]),
        ("eps", ["nan", "-1.0", "inf", "x" * 200_000, "1e6"]),
        ("certificate", ['{"margin": 7.0, "samples": 9}']),
        ("origin", ["{}"]),
    ],
)
def test_every_piece_of_metadata_of_a_network_counts(network, name, values):
    path, file, samples = network
    tensors, metadata = parts_of(path)
    for value in values:
        holds, reason = verified(path, file, tensors, metadata | {name: value})
        assert holds or refused(reason)
        if holds:
            # Longer text has room for the same labels; eps may leave them as they are.
            assert (name, value) in {("classes_dtype", "<U2"), ("eps", "1e6")}
            eps = value if name == "eps" else metadata["eps"]
            assert "exact" not in metadata or name != "eps"
            assert labels_by_definition(tensors, eps, samples) == [0, 1, 0, 1]
    missing = {key: entry for key, entry in metadata.items() if key != name}
    assert missing == metadata or not verified(path, file, tensors, missing)[0]


def test_every_exact_weight_counts(network):
    """More digits than the module holds may be others: then the network is another one, and certified by itself."""
    path, file, _ = network
    tensors, metadata = parts_of(path)
    if "exact" not in metadata:
        pytest.skip("the module is the network")
    exact = json.loads(metadata["exact"])
    refusals = 0
    for number, rows in enumerate(exact["maps"]):
        for line, row in enumerate(rows):
            for column, (mantissa, power) in enumerate(row):
                for digits in ([mantissa, power + 1], [hex(-int(mantissa, 16)), power], ["0x3", power], [mantissa]):
                    other = json.loads(metadata["exact"])
                    if other["maps"][number][line][column] == digits or int(mantissa, 16) == 0:
                        continue
                    other["maps"][number][line][column] = digits
                    holds, reason = verified(path, file, tensors, metadata | {"exact": json.dumps(other)})
                    assert not holds
                    refusals += refused(reason)
    assert refusals > 20
    for damage in ({}, {"line": exact["line"]}, exact | {"maps": []}, exact | {"bits": 7}, exact | {"line": 3}):
        assert not verified(path, file, tensors, metadata | {"exact": json.dumps(damage)})[0]
    # A module of its own weights, certified as such, is another statement.
    without = {name: entry for name, entry in metadata.items() if name != "exact"}
    holds, reason = verified(path, file, tensors, without)
    assert not holds or "the weights that the module stores" in reason


def test_a_loaded_network_says_nothing_of_samples(network):
    path, _, samples = network
    loaded = load_network(path)
    assert loaded.predict(samples).tolist() == ["a", "b", "a", "b"]
    assert not hasattr(loaded, "certificate")


# States of shattering


def test_every_number_of_a_state_of_shattering_counts(tmp_path):
    path = tmp_path / "state.npz"
    shatter(1, state=path)
    arrays = unpacked(path.read_bytes())
    assert set(arrays) == {"format", "depth", "points", "numbers"}
    passed = dict.fromkeys(arrays, 0)
    for name, array in arrays.items():
        for _, changed in altered(array):
            other = arrays | {name: changed}
            path.write_bytes(packed(other))
            holds, reason = verify_shattering(path)
            passed[name] += holds
            assert holds or refused(reason)
            if holds:
                for numbers, labels in zip(other["numbers"], all_labels(3), strict=True):
                    tensors = network_of(numbers).state_dict()
                    assert labels_by_definition(tensors, 0.0, other["points"][:, None]) == labels.tolist()
    # Points that are elsewhere, and networks that are a little different, may be shattered all the same.
    assert {name for name, count in passed.items() if count} <= {"points", "numbers"}
