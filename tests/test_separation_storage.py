"""Certificates in a file: they come back, and nothing that was changed passes."""

import zipfile

import numpy as np
import pytest

from normscope.separation.archive import save_archive, verify_archive
from normscope.separation.selectable import selectable
from normscope.separation.storage import save_certificates, verify_certificates


@pytest.fixture(params=[False, True], ids=["plain", "biased"])
def saved(request, tmp_path):
    """A file of certificates of a batch with winners, losers and twins, and its keys."""
    rng = np.random.default_rng(0)
    keys = rng.normal(size=(2, 40, 3))
    keys[1, 7] = keys[1, 8]
    result = selectable(keys, bias=rng.normal(size=(2, 40)) if request.param else None)
    path = tmp_path / "keys.npz"
    save_certificates(result, path)
    return path, keys


def rewritten(path, **changes):
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files} | changes
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})


def test_what_was_saved_verifies_with_and_without_the_keys(saved):
    path, keys = saved
    assert verify_certificates(path)[0]
    ok, reason = verify_certificates(path, keys=keys)
    assert ok
    assert "keys shown selectable" in reason
    assert [file.name for file in path.parent.iterdir()] == ["keys.npz"]


def test_other_keys_are_noticed(saved):
    path, keys = saved
    ok, reason = verify_certificates(path, keys=keys + 1e-15)
    assert not ok
    assert "other keys" in reason


def test_changed_keys_are_noticed(saved):
    path, keys = saved
    rewritten(path, keys=keys + 1.0)
    assert verify_certificates(path) == (
        False,
        "the keys in the file are not those that were saved: their SHA-256 differs",
    )


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        ("queries", lambda x: -x, "does not prefer"),
        ("queries", lambda x: np.where(np.arange(len(x))[:, None] == 3, 0.0, x), "does not prefer"),
        ("queries", lambda x: x * np.nan, "must be finite"),
        ("queries", lambda x: x[:, :2], "one query"),
        ("weights", lambda x: np.roll(x, 1), "do not reproduce"),
        ("weights", lambda x: -x, "do not reproduce"),
        ("indices", lambda x: (x + 1) % 40, "do not reproduce"),
        ("indices", lambda x: x + 40, "of their own problem"),
        ("starts", lambda x: x + 1, "split up"),
        ("query_keys", lambda x: x[::-1].copy(), "in the order of the keys"),
        ("query_keys", lambda x: x - 1000, "in the order of the keys"),
        ("query_keys", lambda x: x[:, None], "plain lists"),
        ("weights", lambda x: x.astype(np.float32), "double precision"),
        ("weights", lambda x: None, "must hold an array 'weights'"),
        ("format", lambda x: np.array("something else"), "must say"),
        ("sha256", lambda x: np.array("0" * 64), "SHA-256"),
    ],
)
def test_any_change_to_a_certificate_is_noticed(saved, name, change, reason):
    path, _ = saved
    with np.load(path) as file:
        changed = change(file[name])
    rewritten(path, **{name: changed})
    ok, why = verify_certificates(path)
    assert not ok
    assert reason in why


def test_what_is_not_proven_is_counted_as_open(saved):
    path, _ = saved
    with np.load(path) as file:
        queries, keys = file["queries"], file["query_keys"]
    rewritten(path, queries=queries[1:], query_keys=keys[1:])
    ok, why = verify_certificates(path)
    assert ok
    assert why.endswith(", 1 left open")


@pytest.mark.parametrize("name", ["mask", "degenerate", "margins", "residuals", "coordinates", "note"])
def test_what_would_not_be_looked_at_is_refused(saved, name):
    path, _ = saved
    rewritten(path, **{name: np.zeros(80)})
    assert verify_certificates(path) == (
        False,
        f"the file must hold nothing that proves nothing, got an array {name!r}",
    )


@pytest.mark.parametrize("channels", [1, 2, 3])
def test_weights_beside_a_key_far_away_are_no_proof(tmp_path, channels):
    """All of them leave a residual of 1, which is nothing beside 1e18 and everything beside the keys that matter."""
    keys = np.zeros((3 + channels, channels))
    keys[1:3, 0] = 1, 2
    keys[3:] = 1e18 * np.eye(channels)
    save_certificates(selectable(keys), tmp_path / "keys.npz")
    assert verify_certificates(tmp_path / "keys.npz")[0]
    with np.load(tmp_path / "keys.npz") as file:
        queries, query_keys, weight_keys = (file[name] for name in ("queries", "query_keys", "weight_keys"))
        starts, indices, weights = (file[name] for name in ("starts", "indices", "weights"))
    assert query_keys[0] == 0
    for forged in ([1.0], [1 - 1e-16, 1e-16], [0.5, 0.5]):
        rewritten(
            tmp_path / "keys.npz",
            queries=queries[1:],
            query_keys=query_keys[1:],
            weight_keys=np.append(0, weight_keys),
            starts=np.append(0, starts + len(forged)),
            indices=np.append(np.arange(1, 1 + len(forged)), indices),
            weights=np.append(forged, weights),
        )
        assert verify_certificates(tmp_path / "keys.npz") == (False, "the weights of key 0 do not reproduce it")


def test_a_damaged_or_missing_file_is_no_proof(saved):
    path, _ = saved
    whole = path.read_bytes()
    for damage in (whole[:1000], b"", b"PK not a zip", whole[:400] + bytes(64) + whole[464:]):
        path.write_bytes(damage)
        ok, why = verify_certificates(path)
        assert not ok
        assert why
    assert not verify_certificates(path.with_name("missing.npz"))[0]


def test_a_part_that_is_there_twice_is_refused(saved):
    """Readers of archives take the last, and what stands in the first would be looked at by nobody."""
    path, keys = saved
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr("weights.npy", archive.read("weights.npy"))
    ok, why = verify_certificates(path)
    assert not ok
    assert "names of their own, got 2 times 'weights.npy'" in why
    save_archive({"a": selectable(keys)}, path.with_suffix(".zip"))
    with zipfile.ZipFile(path.with_suffix(".zip"), "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr("a.npz", archive.read("a.npz"))
    assert not verify_archive(path.with_suffix(".zip"))[0]


def test_a_pickle_is_never_opened(saved):
    path, _ = saved
    rewritten(path, weights=np.array([{"an": "object"}], dtype=object))
    ok, why = verify_certificates(path)
    assert not ok
    assert "not a readable .npz file" in why


def test_another_ending_is_refused(saved):
    path, keys = saved
    with pytest.raises(ValueError, match=r"must end in \.npz"):
        save_certificates(selectable(keys), path.with_suffix(".bin"))


def test_a_save_that_fails_leaves_nothing_behind(tmp_path, monkeypatch):
    def broken(*_, **__):
        raise OSError("disk full")

    monkeypatch.setattr(np, "savez", broken)
    with pytest.raises(OSError, match="disk full"):
        save_certificates(selectable([[1.0], [2.0]]), tmp_path / "keys.npz")
    assert list(tmp_path.iterdir()) == []


def test_an_existing_file_is_replaced_only_by_force(tmp_path):
    file = tmp_path / "certificates.npz"
    file.write_bytes(b"mine")
    result = selectable(np.eye(3))
    with pytest.raises(FileExistsError, match="exists: choose another name"):
        save_certificates(result, file)
    assert file.read_bytes() == b"mine"
    save_certificates(result, file, force=True)
    assert verify_certificates(file)[0]
