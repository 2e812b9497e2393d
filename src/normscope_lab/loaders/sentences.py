"""Labelled sentences: a file to train with and one to test with, as SST-2 comes."""

from pathlib import Path

FILES = ("*train*.tsv", "*dev*.tsv")


def sentence_files(folder: Path) -> list[Path]:
    """The training and the test file."""
    found = [sorted(folder.glob(pattern))[:1] for pattern in FILES]
    if not all(found):
        raise FileNotFoundError(f"{folder} must have files named {' and '.join(FILES)}, but has not")
    return [path for paths in found for path in paths]
