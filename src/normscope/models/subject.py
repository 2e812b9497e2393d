"""The subject of a study: a model, given as a path or a module, with the text or inputs to run it on.

Every study begins with a Subject, so all of them take the same arguments and refuse the same mistakes. Each part
(the module with its weights, the norms, the graph, the batches) is computed once, when first needed.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from normscope.data import name_of, sample_text
from normscope.errors import InputError
from normscope.files import files_with_times
from normscope.models.batches import Batch, Inputs, as_batches, batches_for, first_batch
from normscope.models.corpus import Corpus
from normscope.models.find import find, find_stored, find_traced
from normscope.models.held_types import held_otherwise, input_ranges
from normscope.models.load import (
    TextBatches,
    load_model,
    load_tokenizer,
    named,
    open_weights,
    require_device,
    require_dtype,
    text_batches,
)
from normscope.models.second_trace import TwoSizes
from normscope.models.weights import Weights
from normscope.results.inventory import Inventory

LONGEST_NAME = 1024  # characters of a text that could be the name of a file
Text = str | Path | Sequence[str] | Corpus  # a text; a file, folder or pattern; several texts, each its own sequence


class Subject:
    """A model and the text or inputs to run it on.

    >>> subject = Subject(nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4)), inputs={"input": [[1.0, 2.0, 3.0]]})
    >>> subject.name, list(subject.inventory), len(list(subject.batches()))
    ('Sequential', ['1'], 1)
    """

    def __init__(
        self,
        model: nn.Module | str | Path,
        *,
        text: Text | None = None,
        inputs: Inputs | None = None,
        device: str = "cpu",
        dtype: str | None = None,
    ) -> None:
        if not isinstance(model, nn.Module | str | Path):
            raise InputError(
                f"model must be a path or a torch module, got {type(model).__name__}: "
                "normscope.demo_model() is the path of a small one"
            )
        if text is not None and inputs is not None:
            raise InputError("text and inputs cannot be combined: the model runs on one of them")
        if isinstance(text, str) and _names_a_file(text):
            raise InputError(f"text must be the text itself, and {text!r} is the name of a file: give Path({text!r})")
        if text is not None and isinstance(model, nn.Module):
            raise InputError("text needs a folder with a tokenizer; for a module give inputs")
        if dtype is not None:
            require_dtype(dtype)
        if device != "cpu":
            require_device(device)
        self._model, self._inputs = model, inputs
        self._text = Corpus(text) if isinstance(text, Path) else text
        self._device, self._dtype = device, dtype
        self.path = None if isinstance(model, nn.Module) else Path(model)
        self.name = type(model).__name__ if self.path is None else name_of(self.path)
        if isinstance(self._text, Corpus):
            _ = self._size  # a name that is wrong is told before the model is loaded

    @classmethod
    def of(
        cls,
        model: "Model",
        *,
        text: Text | None = None,
        inputs: Inputs | None = None,
        device: str = "cpu",
        dtype: str | None = None,
    ) -> "Subject":
        """The subject of a study. One that several studies share is passed as the model, and has its own text."""
        if not isinstance(model, Subject):
            return cls(model, text=text, inputs=inputs, device=device, dtype=dtype)
        if text is not None or inputs is not None:
            raise InputError("text and inputs must be given when the subject is made, not when it is shared")
        return model

    @property
    def runs(self) -> bool:
        """Whether there is something to run the model on."""
        return self._text is not None or self._inputs is not None

    @property
    def dtype(self) -> str | None:
        """The type to load a path in; None: float32, or that of the module."""
        return self._dtype

    def require_runs(self, what: str) -> None:
        """Raise InputError if there is no text and no inputs."""
        if not self.runs:
            raise InputError(f"{what} needs a text or inputs to run the model on: give text= or inputs=")

    @property
    def text(self) -> str | None:
        """A description of the text that the model was run on; None without a text."""
        if self._text is None:
            return None
        texts, characters = self._size
        return f"{f'{texts:,} texts of ' if texts > 1 else ''}{characters:,} characters"

    @cached_property
    def _size(self) -> tuple[int, int]:
        """The number of texts, and of characters in them."""
        if isinstance(self._text, Corpus):
            return self._text.size()
        texts = [self._text] if isinstance(self._text, str) else self._text or []
        return len(texts), sum(map(len, texts))

    @property
    def about(self) -> dict[str, Any]:
        """What a run of the model depends on, as plain values: files with their sizes and times of change."""
        if self.path is None or self._inputs is not None:
            raise InputError("parts need the path of a model and a text: a module and inputs have no name to resume by")
        text: Any = self._text
        if isinstance(text, Corpus):
            text = [text.column, text.lines, [facts for path in text.files() for facts in files_with_times(path)]]
        elif text is not None and not isinstance(text, str):
            text = list(text)
        return {"model": files_with_times(self.path), "text": text, "device": self._device, "dtype": self._dtype}

    @property
    def run_option(self) -> str:
        """The option of a command that runs the model on the same; FILE where no name is known.

        >>> Subject("folder", text=sample_text()).run_option, Subject("folder", text="To be").run_option
        ('--text sample', '--text FILE')
        """
        if self._inputs is not None:
            return "--inputs FILE"
        if isinstance(self._text, Corpus):
            return self._text.option()
        return "--text sample" if self._text == sample_text() else "--text FILE"

    @cached_property
    def words(self) -> str | Sequence[str]:
        """The text itself, or several, all in memory."""
        if self._text is None:
            raise InputError("no text was given")
        if not isinstance(self._text, Corpus):
            return self._text
        return ["".join(text.pieces()) for text in self._text.texts()]

    @cached_property
    def module(self) -> nn.Module:
        """The model with its weights, in evaluation mode if it was loaded here."""
        if isinstance(self._model, nn.Module):
            return self._model
        return load_model(Path(self._model), device=self._device, dtype=self._dtype or "float32")

    @cached_property
    def inventory(self) -> Inventory:
        """The norms, from one traced call with the given inputs, or with generated ones."""
        if self._inputs is None:
            return find(self._model)
        return find(self._model, inputs=self._first_given if self.path is not None else self._example)

    @property
    def traced(self) -> Inventory:
        """The norms with the graph of one call; an error if it can't be traced. The model of a path is not loaded."""
        return self.sketch[0]

    @property
    def weights(self) -> Weights:
        """The tensors by the names that the graph uses, each read when it is asked for."""
        return self.sketch[1]

    @cached_property
    def sketch(self) -> tuple[Inventory, Weights]:
        """The norms with the graph of one call, and the weights: all that a study of weights needs, at any size.

        The module in the inventory of a path has no values: they are in the weights.
        """
        if isinstance(self._model, nn.Module):
            return find_traced(self._model, self.example), Weights.of_module(self._model)
        path = Path(self._model)
        model, weights = open_weights(path, dtype=self._dtype or "float32")
        with named(path):
            given = self.example if self._inputs is None else first_batch(model, self._first_given)
            inventory = find_stored(path, model, weights, given)
        return inventory, weights

    @property
    def decoder(self) -> Callable[[int], str] | None:
        """The text of a token; None without a text."""
        if self._text is None or self.path is None:
            return None
        tokenizer = load_tokenizer(self.path)
        return lambda token: str(tokenizer.decode([token]))

    def without_text(self) -> "Subject":
        """The same model without the text; itself where there is none."""
        return self if self._text is None else self._plain

    @cached_property
    def _plain(self) -> "Subject":
        return Subject(self._model, device=self._device, dtype=self._dtype)

    def held_otherwise(self, dtype: str) -> frozenset[str]:
        """The nodes of the graph that are not held in a half type when the model is: norms and softmax run in float32.

        Where that can't be found out, all are taken to be held in it.
        """
        return held_otherwise(self.traced.module, self.traced.graph, dtype)

    @cached_property
    def sizes(self) -> TwoSizes:
        """The traced call, compared with one of inputs of another size."""
        assert self.traced.graph is not None
        return TwoSizes(self.traced.module, self.traced.graph)

    @property
    def input_ranges(self) -> dict[str, tuple[float, float]]:
        """Ranges of floating-point inputs that the processor in the folder guarantees."""
        return {} if self.path is None else input_ranges(self.path)

    def batches(self) -> Iterable[Mapping[str, Tensor]]:
        """The batches to run the model on; none without a text and inputs. An iterator of them serves only once."""
        if self._text is not None:
            return self._text_batches
        if isinstance(self._inputs, Mapping | Tensor | tuple | list):
            return batches_for(self.module, self._inputs)
        return () if self._example is None else self._given

    @property
    def example(self) -> Mapping[str, Tensor] | None:
        """The batch to trace the model with: the first of the inputs or of the text; None if there is neither."""
        return next(iter(self.batches())) if self._text is not None else self._example

    @cached_property
    def _text_batches(self) -> TextBatches:
        assert self.path is not None
        assert self._text is not None
        return text_batches(self.path, self._text)

    @cached_property
    def _example(self) -> dict[str, Tensor] | None:
        if self._inputs is None:
            return None
        first = first_batch(self.module, self._first_given)
        self._given: Iterable[dict[str, Any]] = chain([first], (first_batch(self.module, each) for each in self._rest))
        return first

    @cached_property
    def _first_given(self) -> Batch:
        """The first of the inputs, as it was given; the others wait in `_rest`."""
        assert self._inputs is not None
        self._rest = as_batches(self._inputs)
        return next(self._rest)


Model = nn.Module | str | Path | Subject  # what a study takes as its model


def _names_a_file(text: str) -> bool:
    """Whether a text is the name of a file that exists: then the file is meant."""
    try:
        return len(text) < LONGEST_NAME and Path(text).is_file()
    except (OSError, ValueError):  # no name that a file could have
        return False
