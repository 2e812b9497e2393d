"""All studies of one model, each once and on one subject, the cheap ones first, within a time budget.

A part that fails with one of our errors, or for which no time is left, does not end the survey: it is listed with the
reason and the command that computes it.
"""

import math
import re
import shlex
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from normscope.checks import first_line, quoted
from normscope.data import demo_model
from normscope.errors import InputError, NormscopeError
from normscope.models.batches import Inputs
from normscope.models.checkpoint import open_checkpoint
from normscope.models.subject import Model, Subject, Text
from normscope.progress import Progress, silent
from normscope.results.layer_ranges import TYPES
from normscope.results.result import Result
from normscope.rewrite.fold import fold
from normscope.studies.inspect import inspect
from normscope.studies.keys import keys
from normscope.studies.layer_watch import TIGHTENED
from normscope.studies.ranges import RangeSearch
from normscope.studies.spikes import spikes_among
from normscope.studies.vocab import vocab

# The kinds of results, cheap ones first, and the command that computes each.
COMMANDS = {
    "inspection": "inspect",
    "folding": "fold",
    "layer_ranges": "ranges",
    "spike_list": "spikes",
    "key_selection": "keys",
    "token_verdicts": "vocab",
}
LIMIT = "float16"  # what ranges are compared with
MOST_FOLDED = 20_000_000  # parameters of a model that is folded; of a larger one it is decided what can be folded
MUCH_TIME = 20  # times that of a walk without tight bounds: what must be left of a budget to walk again for them
VOCABULARY_SECONDS = 60.0  # for verdicts on tokens, where no budget is given: the rest stays open


@dataclass(frozen=True)
class Missing:
    """A part that was not computed."""

    kind: str  # of its result
    reason: str
    command: str | None  # that computes it; None where no command would


@dataclass(frozen=True)
class Survey:
    """The results of all studies, by their kind, and what was not computed."""

    model: str
    path: str | None  # of the model; None for a module
    text: str | None  # description of the text that the model was run on
    results: Mapping[str, Result]
    missing: tuple[Missing, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)  # wall-clock time, by kind
    run_option: str | None = None  # of a command that runs the model on the same; None if it was not run

    def with_names(self, words: str) -> str:
        """Words in which commands name this model and its text, where they are known, so that they can be pasted.

        >>> found = Survey("m", "my model", None, {}, run_option="--text a.txt")
        >>> found.with_names("normscope keys MODEL --text FILE --rivals causal")
        "normscope keys 'my model' --text a.txt --rivals causal"
        """
        if self.path is not None and not _is_weights_alone(Path(self.path)):
            named = named_on_the_command_line(Path(self.path))
            words = re.sub(r" MODEL\b", lambda _: named, words)
        return words if self.run_option is None else words.replace("--text FILE", self.run_option)


def survey(
    model: Model,
    *,
    text: Text | None = None,
    inputs: Inputs | None = None,
    seconds: float | None = None,
    parts: Collection[str] | None = None,
    device: str = "cpu",
    dtype: str | None = None,
    progress: Progress = silent,
) -> Survey:
    """Run all studies of a model once.

    Parameters
    ----------
    model
        A folder in Hugging Face format, a .gguf file, a file of weights, or a torch module.
    text, inputs
        Text or inputs to run the model on. Without them, keys are left out, and the others tell what weights tell.
    seconds
        Stop after this many seconds; parts that are not complete by then are listed as missing. Of the ranges, only
        those that decide whether a tensor can pass the limit are tightened, unless there is much time. None: no limit,
        but verdicts on tokens stop after a minute, and the rest of the tokens stays open.
    parts
        The kinds of results to compute (`COMMANDS` has them); None: all.
    device, dtype
        Device and floating-point type to run the model in.
    progress
        Called with the items of each part and a description; see `normscope.progress`.

    Returns
    -------
    Survey
        Results by kind, and what is missing, with the reason and the command that computes it.

    >>> from torch import nn
    >>> found = survey(nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3)), parts=["inspection", "key_selection"])
    >>> list(found.results), found.missing[0].kind
    (['inspection'], 'key_selection')
    """
    if seconds is not None and not seconds >= 0:
        raise InputError(f"seconds must be a number, 0 or more, got {seconds!r}")
    for part in parts or ():
        if part not in COMMANDS:
            raise InputError(f"parts must be among {', '.join(COMMANDS)}, got {quoted(part)}")
    if inputs is not None and not isinstance(inputs, Mapping | Tensor | tuple | list):
        inputs = list(inputs)  # every study reads them
    subject = Subject.of(model, text=text, inputs=inputs, device=device, dtype=dtype)
    _require_usable(subject)
    return _Run(subject, seconds, progress).survey([kind for kind in COMMANDS if parts is None or kind in parts])


def _require_usable(subject: Subject) -> None:
    """Refuse a model that can't be read, or a text or inputs that it can't be run on, before any part fails by it."""
    if subject.path is not None:
        with open_checkpoint(subject.path):
            pass
    if subject.runs:
        _ = subject.example


class _OutOfTimeError(Exception):
    """No time is left."""


class _Run:
    """One survey: the clock, and what several parts share."""

    def __init__(self, subject: Subject, seconds: float | None, progress: Progress) -> None:
        self._subject, self._seconds, self._progress = subject, seconds, progress
        self._started = time.monotonic()
        self._walk: tuple[RangeSearch, Any, Any] | None = None

    def survey(self, kinds: list[str]) -> Survey:
        ask: dict[str, Callable[[], Result]] = {
            "inspection": lambda: inspect(self._subject, progress=self._watched),
            "folding": self._folding,
            "layer_ranges": self._ranges,
            "spike_list": lambda: spikes_among(*self._walked()),
            "key_selection": lambda: keys(self._subject, keep=False, progress=self._watched),
            "token_verdicts": self._tokens,
        }
        results: dict[str, Result] = {}
        missing: list[Missing] = []
        spent: dict[str, float] = {}
        for kind in kinds:
            begun = time.monotonic()
            try:
                if kind == "key_selection" and not self._subject.runs:
                    missing.append(Missing(kind, "it needs a text to run the model on", self._command(kind)))
                    continue
                if self._left() <= 0:
                    raise _OutOfTimeError
                results[kind] = ask[kind]()
            except _OutOfTimeError:
                missing.append(Missing(kind, f"the {self._seconds:g} seconds were over", self._command(kind)))
            except NormscopeError as error:
                missing.append(Missing(kind, first_line(error), None))  # its command would say the same
            spent[kind] = round(time.monotonic() - begun, 3)
        subject = self._subject
        path = None if subject.path is None else str(subject.path)
        option = subject.run_option if subject.runs else None
        return Survey(subject.name, path, subject.text, results, tuple(missing), spent, option)

    def _left(self) -> float:
        return math.inf if self._seconds is None else self._started + self._seconds - time.monotonic()

    def _tokens(self) -> Result:
        seconds = VOCABULARY_SECONDS if self._seconds is None else max(0.0, self._left())
        subject = self._subject if self._runs("token_verdicts") else self._subject.without_text()
        return vocab(subject, seconds=seconds, progress=self._progress)

    def _folding(self) -> Result:
        """The certified fold of a small model; of a large one, what can be folded."""
        small = (self._subject.inventory.parameters or math.inf) <= MOST_FOLDED
        return fold(self._subject.without_text(), plan=not small, progress=self._watched)

    def _watched(self, things: Iterable[Any], what: str) -> Iterable[Any]:
        """The progress of a part, which ends when no time is left."""
        return _Watched(self._progress(things, what), self._left)

    def _walked(self) -> tuple[RangeSearch, Any, Any]:
        """One walk over all tensors, for ranges and spikes; in a budget without tight bounds, the slow part."""
        if self._walk is None:
            begun = time.monotonic()
            search, rows = self._rows(TIGHTENED if self._seconds is None else 0)
            if self._seconds is not None and self._left() > MUCH_TIME * (time.monotonic() - begun):
                search, rows = self._rows(TIGHTENED)
            self._walk = search, rows, search.observe(rows, self._watched) if self._subject.runs else {}
        return self._walk

    def _rows(self, tight: int) -> tuple[RangeSearch, Any]:
        search = RangeSearch(self._subject, LIMIT, TYPES[LIMIT], tight)
        return search, search.rows(self._watched)

    def _ranges(self) -> Result:
        search, rows, seen = self._walked()
        return search.as_result(rows, seen)

    def _runs(self, kind: str) -> bool:
        """Whether a part runs the model: keys always do; the token table of a file is read from its tensors."""
        path = self._subject.path
        if kind == "token_verdicts" and path is not None and path.is_file():
            return False
        return self._subject.runs or kind == "key_selection"

    def _command(self, kind: str) -> str:
        """What computes a part, for the same model."""
        name, path = COMMANDS[kind], self._subject.path
        if path is None:
            return f"normscope.{name}(model, inputs=…)"
        runs = f" {self._subject.run_option}" if self._runs(kind) else ""
        return f"normscope {name}{named_on_the_command_line(path)}{runs}"


def named_on_the_command_line(path: Path) -> str:
    """A model as a command takes it, after a blank; a file of weights can't be run, so its folder is meant.

    >>> named_on_the_command_line(Path("my model")), named_on_the_command_line(demo_model())
    (" 'my model'", '')
    """
    if path == demo_model():
        return ""
    return " FOLDER" if _is_weights_alone(path) else f" {shlex.quote(str(path))}"


def _is_weights_alone(path: Path) -> bool:
    return path.is_file() and path.suffix.lower() != ".gguf"


class _Watched:
    """Items that are handed on as long as there is time; it knows its length if they do."""

    def __init__(self, things: Iterable[Any], left: Callable[[], float]) -> None:
        self._things, self._left = things, left

    def __len__(self) -> int:
        return len(self._things)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        for thing in self._things:
            if self._left() <= 0:
                raise _OutOfTimeError
            yield thing
