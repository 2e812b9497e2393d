"""Checkpoints on disk, opened without loading them: names, shapes and dtypes from the headers, tensors one at a time.

    folder          config.json with model.safetensors or pytorch_model.bin, whole or in the shards of an index
    .safetensors    one file
    .gguf           one file, quantized tensors decoded as they are read
    .pt .pth .bin   a state dict saved by torch

Nothing from a checkpoint is executed, and nothing is downloaded.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from math import prod
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import torch

from normscope.checks import first_line, quoted, shortened
from normscope.errors import CheckpointError, InputError
from normscope.models.gguf_file import GgufFile
from normscope.models.safetensors_file import SafetensorsFile
from normscope.models.torch_file import TorchFile

LFS_POINTER = b"version https://git-lfs"
FILES: dict[str, tuple[str, Callable[[Path], _File]]] = {  # ending -> format, and what opens it
    ".safetensors": ("safetensors", SafetensorsFile),
    ".gguf": ("gguf", GgufFile),
    ".pt": ("torch", TorchFile),
    ".pth": ("torch", TorchFile),
    ".bin": ("torch", TorchFile),
}
FOLDER = ("model.safetensors", "pytorch_model.bin")  # in the order in which transformers looks for them


def open_checkpoint(path: str | Path) -> Checkpoint:
    """The checkpoint at a path: a Hugging Face folder, or a .safetensors, .gguf, .pt, .pth or .bin file.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     file = Path(folder) / "model.pt"
    ...     torch.save({"ln_f.weight": torch.tensor([0.5, 2.0]), "head": torch.zeros(7, 2)}, file)
    ...     with open_checkpoint(file) as checkpoint:
    ...         checkpoint.names, checkpoint.parameters, checkpoint.tensor("ln_f.weight")
    (('ln_f.weight', 'head'), 16, tensor([0.5000, 2.0000]))
    """
    path = Path(path)
    with _explained(path):
        if not path.is_dir():
            tensors = _tensors_of(path)
            return Checkpoint(path, FILES[path.suffix.lower()][0], None, tensors)
        config = read_json(path / "config.json") if (path / "config.json").exists() else None
        if config is None and path.suffix.lower() in FILES:
            raise InputError(f"this is a folder, where a {path.suffix} file is needed; give the file in it")
        return Checkpoint(path, "huggingface", config, _tensors_of_folder(path))


class Checkpoint:
    """Tensors in files, by name. Works with or without `with`: mapped files are released with the object."""

    def __init__(self, path: Path, format: str, config: dict[str, Any] | None, tensors: Mapping[str, _File]) -> None:
        if not tensors:
            raise InputError("there are no tensors in it; give a checkpoint with weights")
        self.path = path
        self.format = format  # "huggingface", "safetensors", "gguf", "torch"
        self.config = config  # of a folder: config.json
        self.names = tuple(tensors)  # in the order of the files
        self._tensors: Mapping[str, _File] = tensors
        self._files = list(dict.fromkeys(tensors.values()))
        self.metadata = {key: value for file in self._files for key, value in file.metadata.items()}
        self._closed = False

    @property
    def parameters(self) -> int:
        """How many numbers the tensors hold, from their shapes."""
        return sum(prod(self.shape(name)) for name in self.names)

    @property
    def shards(self) -> dict[str, tuple[str, ...]]:
        """The safetensors files by name, and the tensors of each; CheckpointError for other formats."""
        shards: dict[str, list[str]] = {}
        for name, file in self._tensors.items():
            if not isinstance(file, SafetensorsFile):
                raise CheckpointError(f"{self.path}: weights must be in .safetensors files to be rewritten one by one")
            shards.setdefault(file.path.name, []).append(name)
        return {shard: tuple(names) for shard, names in shards.items()}

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape in torch's order, also where the file's differs."""
        return self._file(name).shapes[name]

    def dtype(self, name: str) -> str:
        """How the tensor is stored: torch's name ("bfloat16") or, where torch has none, ggml's ("Q4_K")."""
        return self._file(name).dtypes[name]

    def tensor(self, name: str) -> torch.Tensor:
        """One tensor, read now, as float32; as float64 where that would lose digits (float64 and whole numbers)."""
        file = self._file(name)
        with _explained(self.path):
            if self._closed:
                raise InputError("the checkpoint was closed; open it again to read from it")
            return _as_floats(name, file.read(name))

    def stored(self, name: str, rows: slice | None = None) -> torch.Tensor:
        """One tensor, or some of its first axis, read now and decoded, in the dtype in which it is stored."""
        file = self._file(name)
        with _explained(self.path):
            if self._closed:
                raise InputError("the checkpoint was closed; open it again to read from it")
            return file.read(name) if rows is None else file.read_rows(name, rows)

    def close(self) -> None:
        """Release the files. Names, shapes and dtypes stay available."""
        self._closed = True
        for file in self._files:
            file.close()

    def _file(self, name: str) -> _File:
        if name not in self._tensors:
            raise CheckpointError(f"{self.path}: no tensor is called {quoted(name)}; .names lists those that are there")
        return self._tensors[name]

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Checkpoint({self.path}: {self.format}, {len(self.names)} tensors, {self.parameters} parameters)"


class _File(Protocol):
    """The interface of a file format."""

    metadata: dict[str, Any]
    shapes: dict[str, tuple[int, ...]]
    dtypes: dict[str, str]

    def read(self, name: str) -> torch.Tensor: ...

    def read_rows(self, name: str, rows: slice) -> torch.Tensor: ...

    def close(self) -> None: ...


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Adds the path to errors raised inside, in one line; errors of inner files already have one."""
    try:
        yield
    except CheckpointError:
        raise
    except (ValueError, OSError, MemoryError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
        raise CheckpointError(f"{path}: {shortened(reason)}") from error


def _tensors_of(path: Path) -> dict[str, _File]:
    """The tensors of one file, each with the file that holds it."""
    with _explained(path):
        if path.is_dir():
            raise InputError("this is a folder, where a file of weights is needed")
        if not path.exists():
            raise InputError("no such file or folder; give a local path (nothing is downloaded)")
        if path.suffix.lower() not in FILES:
            raise InputError(f"the ending must be one of {', '.join(FILES)}, got {path.suffix or 'none'!r}")
        if not path.is_file():
            raise InputError("this is a device or a pipe, where a file is needed")
        with path.open("rb") as opened:
            if opened.read(len(LFS_POINTER)) == LFS_POINTER:
                raise InputError("this is a Git LFS pointer, not the weights; run: git lfs pull")
        file = FILES[path.suffix.lower()][1](path)
        return dict.fromkeys(file.shapes, file)


def _tensors_of_folder(folder: Path) -> dict[str, _File]:
    for weights in FOLDER:
        if (folder / weights).exists():
            return _tensors_of(folder / weights)
        index = folder / f"{weights}.index.json"
        if index.exists():
            return _tensors_of_shards(index)
    found = [path.name for path in sorted(folder.iterdir()) if path.suffix.lower() in FILES]
    if found:
        raise InputError(
            f"no {' or '.join(FOLDER)} in it, whole or with an index; give one file of it, such as {found[0]!r}"
        )
    raise InputError(f"no weights in the folder; it must hold {' or '.join(FOLDER)}, whole or with an index")


def _tensors_of_shards(index: Path) -> dict[str, _File]:
    """The tensors that an index lists, shard by shard, in the order of each shard."""
    with _explained(index):
        places = read_json(index).get("weight_map")
        if not isinstance(places, dict) or not all(isinstance(shard, str) for shard in places.values()):
            raise InputError("weight_map must map the names of tensors to files; download the index again")
        tensors: dict[str, _File] = {}
        for shard in sorted(set(places.values())):
            tensors |= {name: file for name, file in _shard(index, shard).items() if places.get(name) == shard}
        lost = [name for name in places if name not in tensors]
        if lost:
            raise InputError(
                f"tensor {quoted(lost[0])} should be in {quoted(places[lost[0]])} but is not; "
                "download index and shards again"
            )
        return tensors


def _shard(index: Path, shard: str) -> dict[str, _File]:
    if shard in ("", ".", "..") or "/" in shard or "\\" in shard or ":" in shard:
        raise InputError(
            f"a shard must be a file in the same folder, got {quoted(shard)}; do not trust this checkpoint"
        )
    if not (index.parent / shard).exists():
        raise InputError(f"the shard {quoted(shard)} is missing; download it into the same folder")
    return _tensors_of(index.parent / shard)


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file."""
    with _explained(path):
        try:
            value = json.loads(path.read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as error:
            raise InputError(f"this is not JSON ({first_line(error)}); copy or download it again") from None
        if not isinstance(value, dict):
            raise InputError(f"this must be a JSON object, got {type(value).__name__}; copy or download it again")
        return value


def _as_floats(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """A copy, so that nothing stays mapped through it."""
    odd = tensor.is_complex() or tensor.is_quantized or tensor.is_meta or tensor.layout is not torch.strided
    if odd:
        raise InputError(f"tensor {quoted(name)} must be dense real numbers, got {tensor.dtype}, {tensor.layout}")
    wide = tensor.dtype == torch.float64 or not tensor.is_floating_point()
    try:
        return tensor.detach().to(torch.float64 if wide else torch.float32, copy=True)
    except RuntimeError as error:
        raise InputError(
            f"tensor {quoted(name)} of {tensor.dtype} cannot be read as floats: {first_line(error)}"
        ) from None
