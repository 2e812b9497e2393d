"""A batch of CIFAR-10's Python version, taken from its pickle without unpickling it.

A pickle is a program, and running one can do anything. Its literals can be read without running it: here the bytes
after the key `data`, and the whole numbers after the key `labels`.
"""

from pathlib import Path
from pickletools import genops

import numpy as np
from numpy.typing import NDArray

from normscope.errors import InputError

PIXELS = 3 * 32 * 32
CLASSES = 10
PROTOCOL = b"\x80\x02"  # the second, as its makers wrote it
STRINGS = ("SHORT_BINSTRING", "BINSTRING")
WHOLE_NUMBERS = ("BININT", "BININT1", "BININT2")
TRUTHS = ("NEWTRUE", "NEWFALSE")


def batch_records(path: Path) -> NDArray[np.uint8]:
    """Records as the binary version has them: a label, then red, green and blue (samples, 1 + 3·32·32)."""
    raw = path.read_bytes()
    key, pixels, by_columns = "", b"", False
    labels: list[int] = []
    try:
        for opcode, value, _ in genops(raw) if raw.startswith(PROTOCOL) else ():
            if isinstance(value, str) and opcode.name in STRINGS:
                if key == "data" and len(value) >= PIXELS:
                    pixels = value.encode("latin-1")
                elif key != "data" or pixels:
                    key = value
            elif isinstance(value, int) and key == "labels" and opcode.name in WHOLE_NUMBERS:
                labels.append(value)
            elif key == "data" and opcode.name in TRUTHS and not pixels:
                by_columns = opcode.name == "NEWTRUE"  # the last one before the bytes is numpy's order of axes
    except ValueError as error:
        raise InputError(f"{path} must be a batch of CIFAR-10's Python version: {error}") from None
    if not labels or len(pixels) != PIXELS * len(labels) or not all(0 <= label < CLASSES for label in labels):
        raise InputError(
            f"{path} must be a batch of CIFAR-10's Python version, {PIXELS} bytes and a label from 0 to {CLASSES - 1} "
            f"an image, got {len(pixels)} bytes and {len(labels)} labels"
        )
    images = np.frombuffer(pixels, np.uint8).reshape((len(labels), PIXELS), order="F" if by_columns else "C")
    return np.concatenate([np.array(labels, np.uint8)[:, None], images], axis=1)
