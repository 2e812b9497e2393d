"""Certificates in a file: they come back, and nothing that was changed passes."""

import numpy as np
import pytest

import normscope as ns
from normscope import selectable
from saved_results import arrays_of, verdict_on, with_arrays


@pytest.fixture(params=[False, True], ids=["plain", "biased"])
def result(request):
    """Of a batch with winners, losers and duplicates."""
    rng = np.random.default_rng(0)
    keys = rng.normal(size=(2, 40, 3))
    keys[1, 7] = keys[1, 8]
    return selectable(keys, bias=rng.normal(size=(2, 40)) if request.param else None)


def test_what_was_saved_verifies_with_and_without_the_keys(result, tmp_path):
    path = tmp_path / "keys.safetensors"
    result.save(path)
    assert ns.verify(path).holds
    found = ns.verify(path, against=result.keys)
    assert found.holds
    assert "keys shown selectable" in found.reason
    other = ns.verify(path, against=result.keys + 1e-15)
    assert (other.holds, other.reason) == (False, "the certificates are for other keys than these")
    assert [file.name for file in tmp_path.iterdir()] == ["keys.safetensors"]


def test_what_was_loaded_is_what_was_saved(result, tmp_path):
    result.save(tmp_path / "keys.safetensors")
    again = ns.load(tmp_path / "keys.safetensors")
    assert again.to_dict() == result.to_dict()
    assert again.holds
    for name, array in arrays_of(result.to_bytes()).items():
        np.testing.assert_array_equal(getattr(again, name), array)
    for one, other in zip(again.certificates, result.certificates, strict=True):
        assert type(one) is type(other)


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        ("queries", lambda x: -x, "does not prefer"),
        ("queries", lambda x: np.where(np.arange(len(x))[:, None] == 3, 0.0, x), "does not prefer"),
        ("queries", lambda x: x * np.nan, "array queries must be finite"),
        ("queries", lambda x: x[:, :2], "one query"),
        ("weights", lambda x: np.roll(x, 1), "do not reproduce"),
        ("weights", lambda x: -x, "do not reproduce"),
        ("indices", lambda x: (x + 1) % 40, "do not reproduce"),
        ("indices", lambda x: x + 40, "of their own set"),
        ("starts", lambda x: x + 1, "split up"),
        ("query_keys", lambda x: x[::-1].copy(), "in the order of the keys"),
        ("query_keys", lambda x: x - 1000, "in the order of the keys"),
        ("query_keys", lambda x: x[:, None], "plain lists"),
        ("query_keys", lambda x: x.astype(np.int32), "array query_keys must be of int64, got int32"),
        ("weights", lambda x: x.astype(np.float32), "array weights must be of float64, got float32"),
        ("weights", lambda x: None, "array weights must be of float64, got none"),
        ("margins", lambda x: x * 1.001, "does not follow|the margin of the query"),
        ("residuals", lambda x: x + 1e-3, "does not follow|the residual of the weights"),
        ("near_ties", np.zeros_like, "does not follow"),
        ("near_ties", lambda x: x[0], "near_ties must have the shape"),
        ("bias", lambda x: np.ones(3), "bias must have one entry per key"),
        ("keys", lambda x: x[0, 0], "keys must have shape"),
        ("keys", lambda x: x[:, :, ::-1].copy(), "does not prefer"),
        ("center", lambda x: np.zeros(3), "array semi_axes must be of float64, got none"),
        ("note", lambda x: np.zeros(80), "'selection.note' is not part of a selection"),
    ],
)
def test_any_change_to_a_certificate_is_noticed(result, name, change, reason):
    import re

    content = result.to_bytes()
    assert verdict_on(content)[0]
    holds, why = verdict_on(with_arrays(content, **{name: change(arrays_of(content).get(name))}))
    assert not holds
    assert re.search(reason, why)


def test_counts_and_marks_must_be_what_follows(result):
    payload = result.to_dict()
    payload["counts"][0]["near_ties"] = 0
    holds, why = verdict_on(with_arrays(result.to_bytes(), payload))
    assert (holds, "'counts' does not follow" in why) == (False, True)
    unmarked = selectable([[0, 0], [0.3, 0.3], [0.1, 0.1]])  # a near tie
    payload = unmarked.to_dict()
    assert payload["counts"][0]["near_ties"] == 1
    payload["counts"][0]["near_ties"] = 0
    forged = with_arrays(unmarked.to_bytes(), payload, near_ties=np.zeros(3, bool))
    assert verdict_on(forged) == (False, "key 2 is open or a near tie, and is not marked as such")


def test_what_is_not_proven_is_counted_as_open(result):
    content, payload = result.to_bytes(), result.to_dict()
    first = int(result.query_keys[0])
    near_ties = result.near_ties.copy()
    near_ties.flat[first] = True
    (counts,) = payload["counts"]
    counts["selectable"] -= 1
    counts["open"] += 1
    counts["near_ties"] += 1
    counts["least_margin"] = float(result.margins[1:].min())
    less = {"queries": result.queries[1:], "query_keys": result.query_keys[1:], "margins": result.margins[1:]}
    holds, why = verdict_on(with_arrays(content, payload, **less, near_ties=near_ties))
    assert holds, why
    assert why.endswith(", 1 left open")


@pytest.mark.parametrize("channels", [1, 2, 3])
def test_weights_beside_a_key_far_away_are_no_proof(channels):
    """All of them leave a residual of 1, which is nothing beside 1e18 and everything beside the keys that matter."""
    keys = np.zeros((3 + channels, channels))
    keys[1:3, 0] = 1, 2
    keys[3:] = 1e18 * np.eye(channels)
    found = selectable(keys)
    assert found.holds
    assert found.query_keys[0] == 0
    for forged in ([1.0], [1 - 1e-16, 1e-16], [0.5, 0.5]):
        wrong = type(found)(
            found.keys,
            None,
            found.near_ties,
            query_keys=found.query_keys[1:],
            queries=found.queries[1:],
            margins=found.margins[1:],
            weight_keys=np.append(0, found.weight_keys),
            starts=np.append(0, found.starts + len(forged)),
            indices=np.append(np.arange(1, 1 + len(forged)), found.indices),
            weights=np.append(forged, found.weights),
            residuals=np.append(1.0, found.residuals),
        )
        assert not wrong.holds
        assert verdict_on(wrong.to_bytes()) == (False, "the weights of key 0 do not reproduce it")


def test_a_damaged_or_missing_file_is_no_proof(result, tmp_path):
    whole = result.to_bytes()
    for damage in (whole[:1000], b"", b"no file of ours", whole[:-100]):
        holds, why = verdict_on(damage)
        assert not holds
        assert why
    with pytest.raises(FileNotFoundError):
        ns.verify(tmp_path / "missing.safetensors")


def test_an_existing_file_is_replaced_only_by_force(tmp_path):
    file = tmp_path / "certificates.safetensors"
    file.write_bytes(b"mine")
    result = selectable(np.eye(3))
    with pytest.raises(FileExistsError, match="exists: choose another name"):
        result.save(file)
    assert file.read_bytes() == b"mine"
    result.save(file, force=True)
    assert ns.verify(file).holds
    with pytest.raises(ValueError, match=r"must end in \.safetensors"):
        result.save(tmp_path / "keys.npz")
