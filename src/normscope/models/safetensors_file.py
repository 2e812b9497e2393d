"""A .safetensors file: every claim of its header checked first, then tensors read one by one from the mapped file.

8 bytes   n, the length of the header, little-endian
n bytes   JSON: {name: {"dtype", "shape", "data_offsets": [begin, end]}, …, "__metadata__": {text: text}}
the rest  the tensors end to end, with neither gaps nor overlaps
"""

import json
from collections import Counter
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open

from normscope.checks import first_line, quoted
from normscope.errors import InputError

LONGEST_HEADER = 100_000_000  # bytes: the limit of the format's own library
MOST_DIMENSIONS = 64  # torch's limit
DAMAGED = "the file is truncated or damaged: copy or download it again"

# name in the header -> (name in torch, bits per element)
DTYPES = {
    "BOOL": ("bool", 8),
    "U8": ("uint8", 8),
    "I8": ("int8", 8),
    "U16": ("uint16", 16),
    "I16": ("int16", 16),
    "U32": ("uint32", 32),
    "I32": ("int32", 32),
    "U64": ("uint64", 64),
    "I64": ("int64", 64),
    "F4": ("float4_e2m1fn", 4),
    "F6_E2M3": ("float6_e2m3fn", 6),
    "F6_E3M2": ("float6_e3m2fn", 6),
    "F8_E4M3": ("float8_e4m3fn", 8),
    "F8_E4M3FNUZ": ("float8_e4m3fnuz", 8),
    "F8_E5M2": ("float8_e5m2", 8),
    "F8_E5M2FNUZ": ("float8_e5m2fnuz", 8),
    "F8_E8M0": ("float8_e8m0fnu", 8),
    "F16": ("float16", 16),
    "BF16": ("bfloat16", 16),
    "F32": ("float32", 32),
    "F64": ("float64", 64),
    "C64": ("complex64", 64),
}


STORED_AS = {name: stored for stored, (name, _) in DTYPES.items()}
Read = Callable[[str], torch.Tensor]
MOST_MAPPED = 2**25  # bytes read before a file is mapped anew: pages that were read count as memory of the process


class SafetensorsFile:
    """The tensors of one file. ValueErrors say what is wrong with it; the caller adds its name."""

    def __init__(self, path: Path) -> None:
        header, data_size = _read_header(path)
        self.metadata = _metadata(header.pop("__metadata__", None))
        extents = {name: _extent(name, entry) for name, entry in header.items()}
        _check_layout(extents, data_size)
        self.shapes = {name: extent.shape for name, extent in extents.items()}
        self.dtypes = {name: DTYPES[extent.dtype][0] for name, extent in extents.items()}
        self.path = path
        self._reader: Any = self._opened()

    def _opened(self) -> Any:
        self._bytes = 0
        try:
            return safe_open(self.path, framework="pt")  # maps the file, reads none of its tensors
        except SafetensorError as error:
            raise InputError(f"{first_line(error)}; {DAMAGED}") from None

    def read(self, name: str) -> torch.Tensor:
        return self._read(name, lambda: self._reader.get_tensor(name))

    def read_rows(self, name: str, rows: slice) -> torch.Tensor:
        return self._read(name, lambda: self._reader.get_slice(name)[rows])

    def _read(self, name: str, read: Callable[[], torch.Tensor]) -> torch.Tensor:
        try:
            found = read()
        except (SafetensorError, RuntimeError) as error:
            raise InputError(
                f"tensor {quoted(name)} of dtype {self.dtypes[name]} cannot be read: {first_line(error)}"
            ) from None
        self._bytes += found.nbytes
        if self._bytes > MOST_MAPPED:
            self._reader = self._opened()
        return found

    def close(self) -> None:
        self._reader = None


def write_safetensors(
    path: Path, dtypes: dict[str, torch.dtype], shapes: dict[str, tuple[int, ...]], read: Read
) -> int:
    """Write a new file, one tensor after the other, so that only one is in memory; return the bytes of all tensors.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     file = Path(folder) / "model.safetensors"
    ...     write_safetensors(file, {"w": torch.float32}, {"w": (2,)}, {"w": torch.tensor([0.5, 2.0])}.__getitem__)
    ...     SafetensorsFile(file).read("w")
    8
    tensor([0.5000, 2.0000])
    """
    names = sorted(dtypes, key=lambda name: (-dtypes[name].itemsize, name))  # so that every tensor is aligned
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name in names:
        begin, end = end, end + prod(shapes[name]) * dtypes[name].itemsize
        stored = STORED_AS[str(dtypes[name]).removeprefix("torch.")]
        header[name] = {"dtype": stored, "shape": list(shapes[name]), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("xb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in names:
            tensor = read(name)
            if tensor.dtype != dtypes[name] or tuple(tensor.shape) != shapes[name]:
                wanted, got = f"{dtypes[name]} {shapes[name]}", f"{tensor.dtype} {tuple(tensor.shape)}"
                raise InputError(f"tensor {quoted(name)} must be {wanted}, got {got}")
            file.write(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return end


class _Extent(NamedTuple):
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def _read_header(path: Path) -> tuple[dict[str, Any], int]:
    """The header, and the number of bytes that follow it."""
    size = path.stat().st_size
    if size < 8:
        raise InputError(f"a safetensors file starts with 8 bytes of header length, got {size} bytes; {DAMAGED}")
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > LONGEST_HEADER:
            raise InputError(
                f"the header claims {length} bytes, more than the {LONGEST_HEADER} the format allows; "
                "this is not a safetensors file, or it is damaged"
            )
        if length > size - 8:
            raise InputError(f"the header claims {length} bytes but {size - 8} follow; {DAMAGED}")
        text = file.read(length)
    try:
        header = json.loads(text.decode("utf-8"), object_pairs_hook=_without_repeats)
    except (ValueError, RecursionError) as error:
        raise InputError(f"the header is not JSON ({first_line(error)}); {DAMAGED}") from None
    if not isinstance(header, dict):
        raise InputError(f"the header must be a JSON object, got {type(header).__name__}; {DAMAGED}")
    return header, size - 8 - length


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) < len(pairs):
        [(name, _)] = Counter(name for name, _ in pairs).most_common(1)
        raise InputError(f"{quoted(name)} is there more than once")
    return entries


def _metadata(entry: Any) -> dict[str, Any]:
    if entry is None:
        return {}
    if not isinstance(entry, dict) or not all(isinstance(value, str) for value in entry.values()):
        raise InputError(f"__metadata__ in the header must map text to text, got {quoted(entry)}; {DAMAGED}")
    return entry


def _extent(name: str, entry: Any) -> _Extent:
    match entry:
        case {"dtype": str(dtype), "shape": [*shape], "data_offsets": [begin, end]}:
            pass
        case _:
            raise InputError(
                f"tensor {quoted(name)} must have dtype, shape and two data_offsets, got {quoted(entry)}; {DAMAGED}"
            )
    if dtype not in DTYPES:
        raise InputError(f"tensor {quoted(name)} must have one of the dtypes {', '.join(DTYPES)}, got {quoted(dtype)}")
    if len(shape) > MOST_DIMENSIONS or not all(_is_size(number) for number in (*shape, begin, end)):
        raise InputError(
            f"tensor {quoted(name)} must have at most {MOST_DIMENSIONS} sizes and offsets, whole numbers from 0, "
            f"got shape {quoted(shape)} and offsets {quoted([begin, end])}; {DAMAGED}"
        )
    if prod(shape) * DTYPES[dtype][1] != 8 * (end - begin):
        raise InputError(
            f"tensor {quoted(name)} of dtype {dtype} and shape {quoted(shape)} does not fit its {end - begin} bytes "
            f"(offsets {begin} to {end}); {DAMAGED}"
        )
    return _Extent(dtype, tuple(shape), begin, end)


def _is_size(number: Any) -> bool:
    return type(number) is int and 0 <= number < 2**63


def _check_layout(extents: dict[str, _Extent], data_size: int) -> None:
    reached, last = 0, ""
    for name, extent in sorted(extents.items(), key=lambda item: (item[1].begin, item[1].end)):
        if extent.end > data_size:
            raise InputError(f"tensor {quoted(name)} ends at byte {extent.end} of {data_size} bytes of data; {DAMAGED}")
        if extent.begin < reached:
            raise InputError(f"tensors {quoted(last)} and {quoted(name)} overlap in the file; {DAMAGED}")
        if extent.begin > reached:
            raise InputError(
                f"bytes {reached} to {extent.begin}, before tensor {quoted(name)}, belong to no tensor; {DAMAGED}"
            )
        reached, last = extent.end, name
    if reached < data_size:
        raise InputError(f"the last {data_size - reached} bytes of the file belong to no tensor; {DAMAGED}")
