"""Files and arguments that once ended in a traceback: one line, exit code 2 or 1, and no memory taken on trust."""

import gzip
import io
import struct
import subprocess
import sys
import zipfile
import zlib

import numpy as np
import pytest
import torch

import normscope
from normscope import checks
from normscope.errors import CheckpointError
from normscope.files import npz_arrays, unpacked
from normscope.models.checkpoint import open_checkpoint
from normscope.models.labelled_table import read_labelled_table


def npz(**arrays):
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def with_flag(content, offset, value):
    """The flags (offset 0) or the compression (offset 2) of every file in an archive replaced."""
    changed = bytearray(content)
    for mark, place in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        start = content.find(mark)
        while start >= 0:
            struct.pack_into("<H", changed, start + place + offset, value)
            start = content.find(mark, start + 4)
    return bytes(changed)


def archive_of(**members):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return file.getvalue()


def npy(shape, descr="<f8", content=bytes(8)):
    header = repr({"descr": descr, "fortran_order": False, "shape": shape}).encode() + b"\n"
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(header)) + header + content


@pytest.fixture
def little_memory():
    checks.allow_memory(0.01)
    yield
    checks.allow_memory(1.0)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (with_flag(npz(a=np.ones(3)), 0, 1), "encrypted"),
        (with_flag(npz(a=np.ones(3)), 2, 99), "must be stored or compressed by deflate"),
        (with_flag(npz(a=np.ones(3)), 2, 12), "must be stored or compressed by deflate"),
        (archive_of(a=b"\x93NUMPX" + npy((1,))[6:]), "no valid numpy header"),
        (npz(a=np.arange(900.0))[:200] + bytes(60) + npz(a=np.arange(900.0))[260:], "is not a readable .npz file"),
        (archive_of(a=npy((2**45,))), "does not fit the 8 bytes"),
        (archive_of(a=npy((2**45, 2**45, 2**45))), "does not fit the 8 bytes"),
        (archive_of(a=npy((-1,))), "does not fit the 8 bytes"),
        (archive_of(a=npy((1,), "|O")), "must hold numbers or text, got dtype"),
        (archive_of(a=npy((1,), "<c8")), "must hold numbers or text, got dtype"),
        (archive_of(a=npy((8,), "|b1", bytes([0, 1, 7, 0, 0, 0, 0, 0]))), "bytes 0 and 1"),
        (archive_of(a=npy((2,), "<U1", b"\xff" * 8)), "not characters"),
        (archive_of(a=b"\x93NUMPY\1\0" + struct.pack("<H", 9000) + b"(" * 9000), "no valid numpy header"),
        (b"", "it is not an archive"),
    ],
)
def test_damaged_archives_are_refused_in_one_line(content, message):
    with pytest.raises(ValueError, match=message) as caught:
        npz_arrays(content, "x.npz")
    assert len(str(caught.value)) < 400


def test_arrays_come_back_as_they_were_saved():
    arrays = {
        "number": np.array(3),
        "text": np.array("äöü"),
        "columns": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "big": np.arange(3, dtype=">i4"),
        "none": np.zeros((0, 4)),
        "truths": np.array([True, False]),
    }
    found = npz_arrays(npz(**arrays), "x.npz")
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        assert found[name].shape == array.shape
        assert (found[name] == array).all()
        assert found[name].dtype.isnative
    assert npz_arrays(npz(**arrays), "x.npz", only=("text",)).keys() == {"text"}


@pytest.mark.usefixtures("little_memory")
def test_an_archive_that_unpacks_to_far_more_is_refused_before_memory_is_taken():
    content = npz(keys=np.zeros(2 * 10**6))
    assert len(content) < 10**5
    with pytest.raises(ValueError, match=r"0\.016 GB of memory .* 0\.01 GB is the limit.*--max-gigabytes"):
        npz_arrays(content, "x.npz")
    checks.allow_memory(0.1)
    assert npz_arrays(content, "x.npz")["keys"].shape == (2 * 10**6,)


def test_an_archive_that_lies_about_its_size_is_not_unpacked_beyond_it():
    packed = zlib.compressobj(9, zlib.DEFLATED, -15)
    stream = packed.compress(bytes(10**7)) + packed.flush()
    name = b"a.npy"
    local = struct.pack("<4s5H3L2H", b"PK\3\4", 20, 0, 8, 0, 33, 0, len(stream), 10, len(name), 0) + name
    there = struct.pack("<4s6H3L5H2L", b"PK\1\2", 20, 20, 0, 8, 0, 33, 0, len(stream), 10, len(name), 0, 0, 0, 0, 0, 0)
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 1, 1, len(there) + len(name), len(local) + len(stream), 0)
    content = local + stream + there + name + end
    with pytest.raises(ValueError, match="Bad CRC-32"):
        npz_arrays(content, "x.npz")


@pytest.mark.usefixtures("little_memory")
def test_gzip_is_unpacked_only_as_far_as_is_allowed():
    assert unpacked(gzip.compress(b"text"), "x.gz") == b"text"
    with pytest.raises(ValueError, match="--max-gigabytes"):
        unpacked(gzip.compress(bytes(2 * 10**7)), "x.gz")
    for damaged in (gzip.compress(b"text")[:-3], b"\x1f\x8b\x08" + bytes(30), b"x"):
        with pytest.raises(ValueError, match=r"x\.gz is not a readable \.gz file"):
            unpacked(damaged, "x.gz")


@pytest.mark.usefixtures("little_memory")
def test_a_view_of_one_number_may_not_ask_for_all_memory(tmp_path):
    torch.save({"norm.weight": torch.ones(1).expand(10**8)}, tmp_path / "model.pt")
    with pytest.raises(CheckpointError, match=r"tensor 'norm.weight' asks for 0.8 GB.*--max-gigabytes"):
        open_checkpoint(tmp_path / "model.pt")


def test_a_name_without_end_in_a_pickle_is_refused_at_once(tmp_path):
    (tmp_path / "model.bin").write_bytes(b"\x80\x02c" + b"x" * 200_000 + b"\ny\n.")
    with pytest.raises(CheckpointError, match="names in it must have at most 10000 characters"):
        open_checkpoint(tmp_path / "model.bin")


@pytest.mark.parametrize(
    ("text", "label", "message"),
    [
        ("1,a\n" + "x" * 140_000 + ",b\n", None, r"line 2: .* field larger than field limit"),
        ("1,a\n2," + '"' + "b" * 140_000, None, r"a quotation mark may be missing"),
        ("1,a\n2,b\n", "²", r"--label must name a column .* got '²'"),
        ("1,a\n2,b\n", "9" * 5000, r"--label must name a column .* got '999.*…"),
        ("x" * 9000 + ",k\ny,b\n", None, r"expected a finite number, got 'y'"),
    ],
)
def test_tables_that_can_not_be_read_are_refused_in_one_line(tmp_path, text, label, message):
    (tmp_path / "t.csv").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=message) as caught:
        read_labelled_table(tmp_path / "t.csv", label)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize("depth", [65, 10**6, 10**30])
def test_a_depth_beyond_all_use_is_refused(depth):
    with pytest.raises(ValueError, match="depth must be 64 or less"):
        normscope.capacity.shatter(depth)


def test_samples_as_large_as_floats_are_memorised_and_those_that_are_too_small_are_named():
    labels = ["a", "b", "a", "b"]
    assert normscope.capacity.memorize([[1.7e308], [-1.7e308], [0.0], [1.0]], labels).holds
    assert normscope.capacity.memorize([[5e-324, 1], [1e-323, 2], [2e-323, 3], [3e-323, 4]], labels).holds
    with pytest.raises(ValueError, match=r"spread by less than 5\.6e-309 .*got values from 1e-310 to 4e-310"):
        normscope.capacity.memorize([[1e-310], [2e-310], [3e-310], [4e-310]], labels)


def test_words_of_a_command_line_are_shortened():
    for words in (["shatter", "9" * 5000], ["x" * 5000], ["inspect", "--dtype" + "x" * 5000], ["verify", "y" * 5000]):
        done = subprocess.run(
            [sys.executable, "-m", "normscope", *words], capture_output=True, text=True, check=False, timeout=120
        )
        assert done.returncode == 2
        assert "Traceback" not in done.stderr
        assert len(" ".join(done.stderr.split())) < 700


def test_limits_that_a_command_raises_hold_for_that_command_alone():
    from typer.testing import CliRunner

    from normscope.cli import app
    from normscope.models.config_rules import most_modules

    CliRunner().invoke(app, ["--max-gigabytes", "2", "--max-modules", "7", "verify", "nowhere.npz"])
    assert most_modules() == 50_000
    with pytest.raises(ValueError, match="and 1 GB is the limit"):
        checks.require_memory(2**31, 1, "a file")
