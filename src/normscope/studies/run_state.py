"""The state of a run over a long text, saved beside its result now and then, so that a run that is killed is resumed.

The state of an object are its numbers, arrays and random generators, and those of the objects in it; it is put into an
object that is made in the same way. Nothing in the file is executed when it is read.
"""

import hashlib
import io
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from normscope import __version__
from normscope.errors import InputError
from normscope.files import write_atomically

SECONDS = 60.0  # between two saves, at least;
SHARE = 20.0  # times what the last save took, at least
PLAIN = (int, float, str, bool, type(None))


class RunState:
    """A file that holds what a run has found after a number of batches."""

    def __init__(self, path: Path, about: Mapping[str, Any]) -> None:
        """`about`: what the run depends on; a file of a run about something else is refused."""
        self._path = path
        self._about = hashlib.sha256(json.dumps([__version__, about], sort_keys=True).encode()).hexdigest()
        self._due = time.monotonic() + SECONDS

    def load(self) -> tuple[int, Any] | None:
        """The number of batches that are done, and the state after them; None if there is no file."""
        if not self._path.exists():
            return None
        try:
            about, done, state = torch.load(self._path, map_location="cpu", weights_only=True)
        except Exception as error:  # a damaged file can fail anywhere
            raise InputError(
                f"{self._path} is damaged ({type(error).__name__}): remove it to begin the run again"
            ) from None
        if about != self._about:
            raise InputError(
                f"{self._path} holds a run with another model, text, options or version: repeat that run, or remove "
                "the file to begin again"
            )
        return int(done), state

    def save_if_due(self, done: int, things: Any) -> None:
        """Save after some time, which is never much in comparison with the work."""
        begun = time.monotonic()
        if begun < self._due:
            return
        file = io.BytesIO()
        torch.save((self._about, done, state_of(things)), file)
        write_atomically(file.getvalue(), self._path)
        now = time.monotonic()
        self._due = now + max(SECONDS, SHARE * (now - begun))


def state_of(thing: Any) -> Any:
    """The state of an object, or of a dictionary of them, as tensors and plain values.

    >>> state_of({"rows": [1, 2.5], "of": np.arange(2)})
    {'rows': [1, 2.5], 'of': tensor([0, 1])}
    """
    if isinstance(thing, np.ndarray):
        return torch.from_numpy(thing.copy())
    if isinstance(thing, np.random.Generator):
        return json.dumps(thing.bit_generator.state)
    if isinstance(thing, PLAIN):
        return thing
    if isinstance(thing, set | list | tuple):
        return [state_of(each) for each in (sorted(thing) if isinstance(thing, set) else thing)]
    members = thing if isinstance(thing, dict) else vars(thing)
    return {name: state_of(each) for name, each in members.items() if _changes(each)}


def put_back(thing: Any, state: Any) -> Any:
    """The object with the state of another that was made in the same way.

    >>> put_back({"of": np.zeros(2), "rng": None}, state_of({"of": np.arange(2.0), "rng": (1, 2)}))
    {'of': array([0., 1.]), 'rng': (1, 2)}
    """
    if isinstance(state, torch.Tensor):
        return state.numpy()
    if isinstance(thing, np.random.Generator):
        thing.bit_generator.state = json.loads(state)
    elif isinstance(thing, dict):
        for name, each in state.items():
            thing[name] = put_back(thing.get(name), each)
    elif isinstance(thing, set):
        thing.update(state)
    elif isinstance(state, list):
        return tuple(put_back(old, each) for old, each in zip(_as_many(thing, len(state)), state, strict=True))
    elif isinstance(state, dict):
        for name, each in state.items():
            setattr(thing, name, put_back(getattr(thing, name), each))
    else:
        return state
    return thing


def _as_many(thing: Any, count: int) -> Any:
    return thing if isinstance(thing, list | tuple) else [None] * count


def _changes(value: Any) -> bool:
    """Whether a value is part of the state: norms and functions are made anew."""
    if isinstance(value, (np.ndarray, np.random.Generator, *PLAIN, dict, set, list, tuple)):
        return True
    return type(value).__module__.startswith("normscope.studies")
