"""Where data is, and what it is: files named by their content, so that a run knows its data wherever it lies."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

from normscope.errors import InputError
from normscope.files import unpacked


def place(data: Path, name: str) -> Path:
    """The folder `name` in a folder with many data sets, or the folder itself."""
    if not data.exists():
        raise FileNotFoundError(f"{data} does not exist: --data must be the folder of the data")
    return data / name if (data / name).is_dir() else data


def content(path: Path) -> bytes:
    """The bytes of a file, unpacked if it ends in .gz."""
    raw = path.read_bytes()
    return unpacked(raw, str(path)) if path.suffix == ".gz" else raw


def text(path: Path) -> str:
    try:
        return content(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} must be text in UTF-8: {error.reason} at byte {error.start}") from None


def fingerprints(files: Sequence[Path]) -> dict[str, str]:
    """The first 16 digits of SHA-256 of each file, by name; with its folder's where two have the same."""
    names = [path.name for path in files]
    unique = [
        name if names.count(name) == 1 else f"{path.parent.name}/{name}"
        for path, name in zip(files, names, strict=True)
    ]
    return {name: hashlib.sha256(path.read_bytes()).hexdigest()[:16] for name, path in zip(unique, files, strict=True)}
