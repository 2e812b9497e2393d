"""Models that several arguments, a pattern or a list of paths name."""

import glob
from collections.abc import Sequence
from pathlib import Path

from normscope.errors import InputError

LISTS = ".txt"  # files with a path in every line; or any file after @


def listed(given: Sequence[str | Path]) -> list[Path] | None:
    """The models that several arguments, a pattern or a list name, each once; None where one model is named plainly.

    >>> listed(["a", "b", "a"]), listed(["a"])
    ([PosixPath('a'), PosixPath('b')], None)
    """
    if not given or (len(given) == 1 and not _is_list(str(given[0])) and not _fitting(str(given[0]))):
        return None
    return list(dict.fromkeys(path for each in given for path in _named_by(str(each))))


def _is_list(given: str) -> bool:
    return given.startswith("@") or Path(given).suffix.lower() == LISTS


def _fitting(pattern: str) -> list[Path]:
    """What fits a pattern; nothing for a name without one, or of something that exists."""
    if not glob.has_magic(pattern) or Path(pattern).exists():
        return []
    if not (found := sorted(glob.glob(pattern, recursive=True))):
        raise InputError(f"no file or folder fits the pattern {pattern}")
    return [Path(each) for each in found]


def _named_by(given: str) -> list[Path]:
    fitting = _fitting(given)
    if not _is_list(given):
        return fitting or [Path(given)]
    return [path for file in fitting or [Path(given.removeprefix("@"))] for path in _paths_in(file)]


def _paths_in(file: Path) -> list[Path]:
    """The paths in a list, as seen from the current folder."""
    try:
        lines = [line.strip() for line in file.read_text(encoding="utf-8-sig").splitlines()]
    except UnicodeDecodeError:
        raise InputError(f"{file} must be UTF-8 text with the path of a model in every line") from None
    if not (paths := [Path(line) for line in lines if line and not line.startswith("#")]):
        raise InputError(f"{file} must have the path of a model in every line, and has none")
    return paths
