"""What rounding costs on a text: tensors are seen while the model runs, twice, and none is kept.

first run      largest |x|
second run     √(Σ (x − s·Q(x/s))² / Σ x²)      Q rounds to the nearest number of a type, after cutting off
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn

from normscope.models.cache_watch import cache_watch
from normscope.models.load import TextBatches, run_in_pieces
from normscope.models.subject import Subject
from normscope.progress import Progress, silent
from normscope.results.static_scales import E4M3, INT8, scale_of


@dataclass(frozen=True)
class Seat:
    """Where a tensor is seen: `what` is "input" for what a module reads first, "keys" or "values" for its attention."""

    module: str
    what: str


@dataclass
class Cost:
    """The largest value, and relative errors for each type: with the certified scale, and with that of the text."""

    observed: float = 0.0
    squares: float = 0.0
    errors: dict[tuple[str, bool], float] = field(
        default_factory=dict
    )  # sums of squares, by type and whether certified

    def error(self, kind: str, certified: bool) -> float | None:
        """Relative root mean square error."""
        return (self.errors[kind, certified] / self.squares) ** 0.5 if self.squares else None


def rounded_e4m3(values: Tensor, scale: float) -> Tensor:
    """Values after a cast to float8_e4m3 and back.

    >>> rounded_e4m3(torch.tensor([1.0, 1.05, 1000.0]), 1.0)
    tensor([  1.,   1., 448.])
    """
    kept = (values.float() / scale).clamp(-E4M3, E4M3)
    return kept.to(torch.float8_e4m3fn).to(torch.float32) * scale


def rounded_int8(values: Tensor, scale: float) -> Tensor:
    """Values after rounding to whole multiples of the scale, from −127 to 127.

    >>> rounded_int8(torch.tensor([1.0, 1.4, -1000.0]), 1.0)
    tensor([   1.,    1., -127.])
    """
    return (values.float() / scale).round().clamp(-INT8, INT8) * scale


TYPES: dict[str, tuple[float, Callable[[Tensor, float], Tensor]]] = {
    "e4m3": (E4M3, rounded_e4m3),
    "int8": (INT8, rounded_int8),
}


def rounding_cost(subject: Subject, amax: Mapping[Seat, float], progress: Progress = silent) -> dict[Seat, Cost]:
    """Run the model on its text or inputs, and round what is seen at these seats, whose certified maxima are given."""
    found: dict[Seat, Cost] = {}
    given = subject.batches()
    batches = given if isinstance(given, TextBatches) else list(given)  # a text is read anew each time

    def largest(seat: Seat, value: Tensor) -> None:
        cost = found.setdefault(seat, Cost())
        cost.observed = max(cost.observed, float(value.abs().max()) if value.numel() else 0.0)

    def errors(seat: Seat, value: Tensor) -> None:
        cost = found[seat]
        values = value.float()
        cost.squares += float(values.double().square().sum())
        for kind, (most, rounded) in TYPES.items():
            for certified in (True, False):
                scale = scale_of(amax[seat] if certified else cost.observed, most)
                wrong = float((rounded(values, scale) - values).double().square().sum())
                cost.errors[kind, certified] = cost.errors.get((kind, certified), 0.0) + wrong

    for note, what in ((largest, "largest values"), (errors, "rounding errors")):
        with _watched(subject.module, amax, note):
            for _ in progress(_Runs(subject.module, batches), what):
                pass
    return found


class _Runs:
    """A run of the model on every batch; knows how many, for progress bars."""

    def __init__(self, model: nn.Module, batches: TextBatches | list[Any]) -> None:
        self._model, self._batches = model, batches

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[None]:
        return run_in_pieces(self._model, self._batches)


@contextmanager
def _watched(model: nn.Module, seats: Mapping[Seat, float], note: Callable[[Seat, Tensor], None]) -> Iterator[None]:
    """Pass every tensor that is seen at one of the seats to `note`."""

    def reads(seat: Seat) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            value = next((each for each in (*args, *kwargs.values()) if isinstance(each, Tensor)), None)
            if value is not None and value.is_floating_point():
                note(seat, value.detach())

        return hook

    def caches(layer: str, what: str, value: Tensor) -> None:
        if (seat := Seat(layer, what)) in seats:
            note(seat, value.detach())

    with ExitStack() as stack:
        for seat in [each for each in seats if each.what == "input"]:
            module = attrgetter(seat.module)(model) if seat.module else model
            stack.callback(module.register_forward_pre_hook(reads(seat), with_kwargs=True).remove)
        if any(seat.what != "input" for seat in seats):
            stack.enter_context(cache_watch(model, caches))
        yield
