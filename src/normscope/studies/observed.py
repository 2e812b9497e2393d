"""What happens on a text: least and largest values of module outputs and norm inputs, channel by channel."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from normscope.checks import Floats
from normscope.models.load import run_in_pieces
from normscope.models.subject import Subject
from normscope.progress import Progress, silent

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Observed:
    """What is looked at: the output of a module, or its first input."""

    module: str
    is_input: bool
    axis: int = -1  # of the channels


@dataclass
class Seen:
    """Least and largest values of every channel, and where the largest absolute value of each was."""

    low: Floats
    high: Floats
    token: "np.ndarray[Any, np.dtype[np.int64]]"  # its place in the text, counted over all batches


def observed(subject: Subject, places: Mapping[Key, Observed], progress: Progress = silent) -> dict[Key, Seen]:
    """Run the model on its text or inputs, and keep the ranges at these places."""
    found: dict[Key, Seen] = {}
    count = [0]

    def watch(key: Key, what: Observed) -> Any:
        def note(value: Any) -> None:
            while isinstance(value, (tuple, list)) and value:
                value = value[0]
            if isinstance(value, Tensor) and value.is_floating_point() and value.ndim:
                _keep(found, key, value.detach().movedim(what.axis, -1), count[0])

        if what.is_input:
            return lambda module, args, kwargs: note(args or tuple(kwargs.values()))
        return lambda module, args, output: note(output)

    model = subject.module
    handles = []
    try:
        for key, what in places.items():
            module = attrgetter(what.module)(model) if what.module else model
            hook = watch(key, what)
            handles.append(
                module.register_forward_pre_hook(hook, with_kwargs=True)
                if what.is_input
                else module.register_forward_hook(hook)
            )
        for batch in progress(subject.batches(), "running the model"):
            for _ in run_in_pieces(model, [batch]):
                pass
            first = next(iter(batch.values()))
            count[0] += first.shape[0] * (first.shape[1] if first.ndim > 1 else 1)
    finally:
        for handle in handles:
            handle.remove()
    return found


def _keep(found: dict[Key, Seen], key: Key, value: Tensor, before: int) -> None:
    flat = value.reshape(-1, value.shape[-1]).to(torch.float32)
    low, high = flat.amin(dim=0).double().cpu().numpy(), flat.amax(dim=0).double().cpu().numpy()
    token = flat.abs().argmax(dim=0).cpu().numpy() + before
    if key not in found or len(found[key].low) != len(low):
        found[key] = Seen(low, high, token)
        return
    seen = found[key]
    larger = np.maximum(np.abs(low), np.abs(high)) > np.maximum(np.abs(seen.low), np.abs(seen.high))
    found[key] = Seen(np.minimum(low, seen.low), np.maximum(high, seen.high), np.where(larger, token, seen.token))
