"""Pieces that workers of the engine tests do: workers import this file."""

import os
import signal
import threading
import time
from pathlib import Path

import numpy as np

from normscope.errors import InputError
from normscope.studies.key_verdicts import solve


def draw(seed, scale=1.0):
    """Bytes that a different rounding, order or number of threads would change."""
    rng = np.random.default_rng(seed)
    matrix = rng.normal(size=(200, 200)) * scale
    return (np.linalg.inv(matrix) @ matrix @ matrix).tobytes()


def look_up(place, table):
    return float(table["rows"][place].sum()), bool(table["rows"].flags.writeable)


def where(piece):
    """Which process did it, on how many threads."""
    import torch

    return piece, os.getpid(), torch.get_num_threads()


def slow(piece):
    time.sleep(0.3 if piece == 0 else 0.0)
    return piece


def asleep(piece):
    """When it was begun and ended, by the clock that all processes of a machine share."""
    begun = time.monotonic()
    time.sleep(0.3)
    return begun, time.monotonic()


def end_once(piece, folder):
    """End the worker at the first try of piece 3."""
    mark = Path(folder) / f"tried-{piece}"
    if piece == 3 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return draw(piece)


def end_always(piece):
    if piece == 1:
        os._exit(9)
    return piece


def fail(piece, folder):
    """Count tries; the pieces fail each in their own way."""
    with open(Path(folder) / f"{piece}", "a", encoding="utf-8") as file:
        file.write("x")
    if piece == "bug":
        raise ZeroDivisionError("no quotient")
    if piece == "input":
        raise InputError("the input must be better")
    if piece == "unsendable":
        return threading.Lock()
    if piece == "sometimes" and len((Path(folder) / piece).read_text(encoding="utf-8")) < 3:
        raise OSError("not yet")
    return piece


def draw_slowly(seed):
    time.sleep(1.0)
    return draw(seed)


def first_head_fails(question, causal):
    if 0 in question.places:
        raise ZeroDivisionError("no quotient")
    return solve(question, causal)


def no_bound(neurons, row):
    raise OSError("no disk")
