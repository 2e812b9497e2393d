"""A state dict saved by torch: read with weights_only, so that nothing in the pickle is run, and mapped, not loaded.

The state may be the file's object itself, or be under "state_dict" or "model", as training scripts save it.
"""

import io
import mmap
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from pickletools import genops
from typing import Any
from zipfile import ZIP_STORED

import torch

from normscope.checks import quoted, require_memory
from normscope.errors import InputError
from normscope.files import opened_archive, read_member

NESTED_UNDER = ("state_dict", "model")
LONGEST_NAME = 10_000  # characters
LEGACY_PICKLES = 5  # of torch's older format: its mark, version, machine, the object, names of the storages
WIDEST = 8  # bytes of a number, once it is read


class TorchFile:
    """The tensors of one file. ValueErrors say what is wrong with it; the caller adds its name."""

    def __init__(self, path: Path) -> None:
        key, self._tensors = _state(_load(path))
        self.metadata: dict[str, Any] = {} if key is None else {"nested_under": key}
        for name, tensor in self._tensors.items():  # a view can be larger than its storage
            require_memory(WIDEST * tensor.numel(), WIDEST * path.stat().st_size, f"tensor {quoted(name)}")
        self.shapes = {name: tuple(tensor.shape) for name, tensor in self._tensors.items()}
        self.dtypes = {name: str(tensor.dtype).removeprefix("torch.") for name, tensor in self._tensors.items()}

    def read(self, name: str) -> torch.Tensor:
        return self._tensors[name]

    def read_rows(self, name: str, rows: slice) -> torch.Tensor:
        return self._tensors[name][rows]

    def close(self) -> None:
        self._tensors = {}


def _load(path: Path) -> Any:
    with path.open("rb") as file:
        zipped = file.read(4) == b"PK\x03\x04"
    stored = _checked_archive(path) if zipped else _checked_pickles(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns about files that it then refuses
            return torch.load(str(path), map_location="cpu", weights_only=True, mmap=stored)
    except Exception as error:  # a damaged pickle can fail anywhere: KeyError, EOFError, struct.error, …
        raise InputError(_refusal(str(error), error)) from None


def _checked_archive(path: Path) -> bool:
    """torch's format since 1.6, a zip archive: whether nothing in it is compressed, so that it can be mapped."""
    with opened_archive(path, path.name) as archive:
        members = archive.infolist()
        require_memory(sum(member.file_size for member in members), path.stat().st_size, "what it holds")
        for member in members:
            if member.filename.endswith(".pkl"):
                _check_pickle(io.BytesIO(read_member(archive, member)))
        return all(member.compress_type == ZIP_STORED for member in members)


def _checked_pickles(path: Path) -> bool:
    """torch's format before that, pickles one after the other, which can't be mapped."""
    with path.open("rb") as file:
        if not path.stat().st_size:
            raise InputError(_refusal("", EOFError()))
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as pickles:
            for _ in range(LEGACY_PICKLES):
                if pickles.tell() < len(pickles):  # a pickle that torch did not save is refused by torch
                    _check_pickle(pickles)
    return False


def _check_pickle(pickle: Any) -> None:
    """Refuse names that are far too long: torch would search them for minutes before it refuses them."""
    try:
        longest = max((len(value) for _, value, _ in genops(pickle) if isinstance(value, (str, bytes))), default=0)
    except Exception as error:  # a damaged pickle can fail anywhere
        raise InputError(_refusal("", error)) from None
    if longest > LONGEST_NAME:
        raise InputError(f"names in it must have at most {LONGEST_NAME} characters, got one of {longest}")


def _refusal(message: str, error: Exception) -> str:
    needed = re.search(r"GLOBAL ([\w.]+)", message)
    if needed:
        return (
            f"the pickle asks for {needed[1]}, which could run code, so it was not opened and nothing was executed; "
            "save the weights alone: torch.save(model.state_dict(), …) or safetensors"
        )
    if "TorchScript" in message:
        return "this is a TorchScript program, not a state dict; save torch.jit.load(…).state_dict() instead"
    if "Unsupported operand" in message:
        return "this is a pickle, but not one that torch saved; save the weights with torch.save or as safetensors"
    return f"this is not a state dict, or it is truncated or damaged ({type(error).__name__}); copy it again"


def _state(loaded: Any) -> tuple[str | None, dict[str, torch.Tensor]]:
    """Where in the file the state dict is, and its tensors."""
    if not isinstance(loaded, Mapping):
        raise InputError(f"a state dict maps names to tensors, got {type(loaded).__name__}; save model.state_dict()")
    for key in NESTED_UNDER:
        inner = _tensors_of(loaded.get(key))
        if inner:
            return key, inner
    tensors = _tensors_of(loaded)
    if not tensors:
        keys = ", ".join(quoted(key, 40) for key in list(loaded)[:5]) or "nothing"
        raise InputError(
            f"no tensors in it, nor under {' or '.join(NESTED_UNDER)}, only {keys}; save model.state_dict()"
        )
    return None, tensors


def _tensors_of(value: Any) -> dict[str, torch.Tensor]:
    items = value.items() if isinstance(value, Mapping) else ()
    return {name: item for name, item in items if isinstance(name, str) and isinstance(item, torch.Tensor)}
