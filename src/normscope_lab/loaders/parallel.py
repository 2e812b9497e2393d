"""Parallel text: files to train, validate and test with, of one sentence a line, in two languages, plain or gzip."""

from pathlib import Path

from normscope.errors import InputError
from normscope_lab.loaders.data_files import text

SPLITS = ("train", "val", "test")


def parallel_files(folder: Path, source: str, target: str) -> list[Path]:
    """The files of each split in both languages: train.de, train.en, val.de, …, test.en, or such names and .gz."""
    return [path for split in SPLITS for path in _pair(folder, split, source, target)]


def read_parallel(folder: Path, source: str, target: str) -> dict[str, tuple[list[str], list[str]]]:
    """The sentences of each split in both languages; pairs with an empty side are left out."""
    found = {}
    for split in SPLITS:
        pair = _pair(folder, split, source, target)
        sides = [text(path).removesuffix("\n").split("\n") for path in pair]  # sentences may have other line separators
        if len(sides[0]) != len(sides[1]):
            raise InputError(
                f"{pair[0]} and {pair[1]} must have as many lines, got {len(sides[0])} and {len(sides[1])}"
            )
        kept = [
            (one.strip(), other.strip()) for one, other in zip(*sides, strict=True) if one.strip() and other.strip()
        ]
        found[split] = [one for one, _ in kept], [other for _, other in kept]
    return found


def _pair(folder: Path, split: str, source: str, target: str) -> tuple[Path, Path]:
    for first in sorted(folder.glob(f"{split}*.{source}*")):
        second = first.with_name(first.name.replace(f".{source}", f".{target}"))
        if second.exists():
            return first, second
    raise FileNotFoundError(
        f"{folder} must have {split}.{source} and {split}.{target} (or such names ending in .gz), and has none"
    )
