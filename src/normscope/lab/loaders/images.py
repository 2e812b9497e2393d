"""CIFAR-10 and MNIST from the formats they come in.

.npz                                     x_train, y_train, x_test, y_test
data_batch_1.bin … test_batch.bin        CIFAR-10, binary version
data_batch_1 … test_batch                CIFAR-10, Python version: pickles, whose bytes are read and not executed
train-images-idx3-ubyte[.gz] …           MNIST
"""

import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from normscope.lab.loaders.cifar_batches import PIXELS, batch_records
from normscope.lab.loaders.files import content

Bytes = NDArray[np.uint8]
CIFAR_RECORD = 1 + PIXELS  # a label, then red, green, blue
MNIST_FILES = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
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
    digits = [path for name in MNIST_FILES for path in sorted(folder.rglob(f"{name}-ubyte*"))[:1]]
    if len(digits) == len(MNIST_FILES):
        return digits
    raise FileNotFoundError(
        f"{folder} must have an .npz file, data_batch_1 to 5 (.bin too) or {MNIST_FILES[0]}-ubyte, and has none"
    )


def read_images(folder: Path) -> Images:
    files = image_files(folder)
    if files[0].suffix == ".npz":
        return _archive(files[0])
    if "_batch" in files[0].name:
        return _cifar(files)
    x_train, y_train, x_test, y_test = (_idx(path) for path in files)
    return Images(x_train[:, None], y_train, x_test[:, None], y_test)


def _archive(path: Path) -> Images:
    try:
        with np.load(path, allow_pickle=False) as archive:
            x_train, y_train, x_test, y_test = (archive[name] for name in ("x_train", "y_train", "x_test", "y_test"))
    except (KeyError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} must be an .npz with x_train, y_train, x_test, y_test: {error}") from None
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
        raise ValueError(f"{path} must have records of {CIFAR_RECORD} bytes, got {len(raw)} bytes")
    return raw.reshape(-1, CIFAR_RECORD)


def _idx(path: Path) -> Bytes:
    raw = content(path)
    axes = raw[3] if len(raw) > 3 and raw[:3] == b"\0\0\x08" else 0
    if axes not in IDX_HEADERS:
        raise ValueError(f"{path} must be MNIST's images or labels of bytes (IDX), got another header")
    extents = np.frombuffer(raw, ">u4", axes, offset=4).astype(int)
    return np.frombuffer(raw, np.uint8, offset=IDX_HEADERS[axes]).reshape(extents)
