"""A .gguf file: its header read and checked here, its tensors decoded by the `gguf` package.

    "GGUF", version, number of tensors, number of key/value pairs
    pairs       key, type, value: scalars, text, and arrays of either
    tensors     name, dimensions (fastest first: torch's order reversed), type, offset from the start of the data
    data        from the next multiple of `general.alignment`

The package's own reader builds an object for every token of the vocabulary (seconds of CPU); here arrays are skipped.
"""

from __future__ import annotations

import mmap
import struct
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from normscope.checks import quoted
from normscope.errors import InputError

if TYPE_CHECKING:
    from gguf import GGMLQuantizationType

VERSIONS = (2, 3)
MOST_DIMENSIONS = 4
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}  # type -> struct
TEXT, ARRAY = 8, 9
LENGTH = struct.Struct("<Q")  # of a text
DAMAGED = "the file is truncated or damaged: copy or download it again"

# types that are plain numbers -> (name in torch, numpy's little-endian dtype); all others are decoded
PLAIN = {
    "F16": ("float16", "<f2"),
    "F32": ("float32", "<f4"),
    "F64": ("float64", "<f8"),
    "I8": ("int8", "<i1"),
    "I16": ("int16", "<i2"),
    "I32": ("int32", "<i4"),
    "I64": ("int64", "<i8"),
}


class GgufFile:
    """The tensors of one file. ValueErrors say what is wrong with it; the caller adds its name."""

    def __init__(self, path: Path) -> None:
        _require_gguf()
        size = path.stat().st_size
        if not size:
            raise InputError(f"the file is empty; {DAMAGED}")
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            self.metadata, self._extents = _header(_Cursor(data, size))
        self.shapes = {name: extent.shape for name, extent in self._extents.items()}
        self.dtypes = {name: _dtype_name(extent.type) for name, extent in self._extents.items()}
        self._path = path

    def read(self, name: str) -> torch.Tensor:
        return self._read(name, self._extents[name])

    def read_rows(self, name: str, rows: slice) -> torch.Tensor:
        """Some of the first axis: blocks lie within rows, so that only their bytes are read."""
        extent = self._extents[name]
        start, stop, step = rows.indices(extent.shape[0])
        if len(extent.shape) < 2 or step != 1:
            return self.read(name)[rows]
        width, count = extent.size // max(extent.shape[0], 1), max(stop - start, 0)
        part = extent._replace(shape=(count, *extent.shape[1:]), begin=extent.begin + start * width, size=count * width)
        return self._read(name, part)

    def _read(self, name: str, extent: _Extent) -> torch.Tensor:
        if not extent.size:
            return torch.zeros(extent.shape)
        stored = np.memmap(self._path, dtype=np.uint8, mode="r", offset=extent.begin, shape=(extent.size,))
        return torch.from_numpy(_decoded(name, stored, extent))

    def close(self) -> None:
        """Does nothing: no file stays open between reads."""


def outline(path: Path) -> bytes:
    """A small .gguf file with the same keys, but no vocabulary, and tensors of the same names of one number each.

    What reads only keys and names then need not read an entry for every token, which takes half a second.
    """
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        cursor = _Cursor(data, path.stat().st_size)
        cursor.skip(8)
        count, pairs = cursor.number("Q"), cursor.number("Q")
        kept = []
        for _ in range(pairs):
            begin = cursor.position
            key, kind = cursor.text(), cursor.number("I")
            texts = kind == ARRAY and struct.unpack_from("<I", data, cursor.position)[0] == TEXT
            _skip_value(cursor, key, kind)
            if not texts and not (kind == ARRAY and key.startswith("tokenizer.")) and key != "general.alignment":
                kept.append(data[begin : cursor.position])
        names = [_tensor(cursor)[0].encode() for _ in range(count)]
    tensors = [struct.pack("<Q", len(n)) + n + struct.pack("<IQIQ", 1, 1, 0, 32 * i) for i, n in enumerate(names)]
    header = b"".join([b"GGUF", struct.pack("<IQQ", VERSIONS[-1], count, len(kept)), *kept, *tensors])
    return header + bytes(-len(header) % 32 + 32 * count)


class _Extent(NamedTuple):
    type: GGMLQuantizationType
    shape: tuple[int, ...]
    begin: int
    size: int


class _Cursor:
    """Reads little-endian values one after another; reading past the end of the file is an error."""

    def __init__(self, data: mmap.mmap, size: int) -> None:
        self.data, self.size, self.position = data, size, 0

    def number(self, code: str) -> Any:
        begin = self.skip(struct.calcsize("<" + code))
        return struct.unpack_from("<" + code, self.data, begin)[0]

    def text(self) -> str:
        begin = self.skip(self.number("Q"))
        try:
            return self.data[begin : self.position].decode("utf-8")
        except UnicodeDecodeError:
            raise InputError(f"text at byte {begin} of the header is not UTF-8; {DAMAGED}") from None

    def skip(self, count: int) -> int:
        """Advance, and return the previous position."""
        begin = self.position
        if count > self.size - begin:
            raise InputError(
                f"the header needs {count} bytes at byte {begin}, but the file ends at {self.size}; {DAMAGED}"
            )
        self.position += count
        return begin


def _require_gguf() -> None:
    try:
        import gguf  # noqa: F401
    except ModuleNotFoundError:
        raise InputError("reading .gguf files needs the package gguf: pip install gguf") from None


def _header(cursor: _Cursor) -> tuple[dict[str, Any], dict[str, _Extent]]:
    if cursor.data[:4] != b"GGUF":
        raise InputError("this is not a GGUF file: it does not start with 'GGUF'; use a model converted for llama.cpp")
    cursor.skip(4)
    version = cursor.number("I")
    if version not in VERSIONS:
        raise InputError(
            f"GGUF version must be one of {VERSIONS}, got {version} (a big-endian file shows a huge number); "
            "convert the model again with a current llama.cpp"
        )
    tensors, pairs = cursor.number("Q"), cursor.number("Q")
    metadata = _pairs(cursor, pairs)
    if metadata.get("split.count", 0) not in (0, 1):
        raise InputError(
            f"this is one of {metadata['split.count']} parts of a model; join them with llama-gguf-split --merge"
        )
    return metadata, _tensors(cursor, tensors, metadata.get("general.alignment", 32))


def _pairs(cursor: _Cursor, count: int) -> dict[str, Any]:
    """The scalars and texts among the key/value pairs."""
    values: dict[str, Any] = {}
    for _ in range(count):
        key, kind = cursor.text(), cursor.number("I")
        if key in values:
            raise InputError(f"key {quoted(key)} is there more than once; {DAMAGED}")
        if kind == ARRAY:
            _skip_array(cursor, key)
        else:
            values[key] = cursor.text() if kind == TEXT else cursor.number(_scalar(kind, key))
    return values


def _skip_value(cursor: _Cursor, key: str, kind: int) -> None:
    if kind == ARRAY:
        _skip_array(cursor, key)
    elif kind == TEXT:
        cursor.text()
    else:
        cursor.number(_scalar(kind, key))


def _skip_array(cursor: _Cursor, key: str) -> None:
    kind, length = cursor.number("I"), cursor.number("Q")
    if kind == TEXT:
        data, last, position = cursor.data, cursor.size - LENGTH.size, cursor.position
        for _ in range(length):  # one for each token of a vocabulary
            if position > last:
                break
            position += LENGTH.size + LENGTH.unpack_from(data, position)[0]
        else:
            cursor.skip(position - cursor.position)
            return
        cursor.skip(position + LENGTH.size - cursor.position)  # beyond the end, which is an error
    else:
        cursor.skip(length * struct.calcsize("<" + _scalar(kind, key)))


def _scalar(kind: int, key: str) -> str:
    if kind not in SCALARS:
        raise InputError(f"key {quoted(key)} must have a value of a type from 0 to 12, or an array of such, got {kind}")
    return SCALARS[kind]


def _tensors(cursor: _Cursor, count: int, alignment: Any) -> dict[str, _Extent]:
    if type(alignment) is not int or alignment < 1:
        raise InputError(f"general.alignment must be a whole number from 1, got {quoted(alignment)}; {DAMAGED}")
    extents: dict[str, _Extent] = {}
    for _ in range(count):
        name, extent = _tensor(cursor)
        if name in extents:
            raise InputError(f"tensor {quoted(name)} is there more than once; {DAMAGED}")
        extents[name] = extent
    start = -(-cursor.position // alignment) * alignment
    extents = {name: extent._replace(begin=start + extent.begin) for name, extent in extents.items()}
    reached, last = start, ""
    for name, extent in sorted(extents.items(), key=lambda item: (item[1].begin, item[1].size)):
        if extent.begin < reached:
            raise InputError(f"tensors {quoted(last)} and {quoted(name)} overlap in the file; {DAMAGED}")
        reached, last = extent.begin + extent.size, name
        if reached > cursor.size:
            raise InputError(f"tensor {quoted(name)} ends at byte {reached} but the file at {cursor.size}; {DAMAGED}")
    return extents


def _tensor(cursor: _Cursor) -> tuple[str, _Extent]:
    """One tensor, its place counted from the start of the data."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    name, dimensions = cursor.text(), cursor.number("I")
    if dimensions > MOST_DIMENSIONS:
        raise InputError(
            f"tensor {quoted(name)} must have at most {MOST_DIMENSIONS} dimensions, got {dimensions}; {DAMAGED}"
        )
    shape = tuple(reversed([cursor.number("Q") for _ in range(dimensions)]))
    code, begin = cursor.number("I"), cursor.number("Q")
    if prod(max(length, 1) for length in shape) >= 2**63:
        raise InputError(f"tensor {quoted(name)} cannot have shape {shape}; {DAMAGED}")
    try:
        kind = GGMLQuantizationType(code)
        block, block_bytes = GGML_QUANT_SIZES[kind]
    except (ValueError, KeyError):
        raise InputError(
            f"tensor {quoted(name)} is stored as type {code}, unknown to gguf: pip install -U gguf"
        ) from None
    if (shape[-1] if shape else 1) % block:
        raise InputError(f"tensor {quoted(name)} must have rows in blocks of {block} ({kind.name}), got shape {shape}")
    return name, _Extent(kind, shape, begin, prod(shape) // block * block_bytes)


def _dtype_name(kind: GGMLQuantizationType) -> str:
    """torch's name of a dtype that it has, ggml's otherwise."""
    return "bfloat16" if kind.name == "BF16" else PLAIN.get(kind.name, (kind.name,))[0]


def _decoded(name: str, stored: Any, extent: _Extent) -> Any:
    """Stored bytes as a new array of numbers."""
    if extent.type.name in PLAIN:
        return np.array(stored.view(PLAIN[extent.type.name][1])).reshape(extent.shape)
    from gguf.quants import dequantize, quant_shape_to_byte_shape

    rows = stored.reshape(quant_shape_to_byte_shape(extent.shape, extent.type))
    try:
        with np.errstate(all="ignore"):  # NaN and infinity are values like others here
            return np.array(dequantize(rows, extent.type), dtype=np.float32).reshape(extent.shape)
    except NotImplementedError:
        raise InputError(f"tensor {quoted(name)} is stored as {extent.type.name}, which gguf cannot decode") from None
