"""The files of a rewritten model and of its original, for `normscope.certificates.check_fold_files`.

Both folders are opened anew. Tensors are read one at a time, those that should be equal some rows at a time; a run of
both models in float64 reads each when it is used.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from normscope.certificates.check_fold import Scaling
from normscope.certificates.check_fold_files import Claims, Part, Run
from normscope.checks import Floats, quoted
from normscope.data import demo_model, name_of
from normscope.errors import InputError
from normscope.files import npz_arrays
from normscope.models.batches import Inputs, as_batches, first_batch
from normscope.models.float64_run import difference, evaluate
from normscope.models.graph import trace
from normscope.models.load import open_weights
from normscope.models.subject import Subject, Text
from normscope.models.weights import Weights
from normscope.progress import Progress
from normscope.results.folding import Folding
from normscope.rewrite.rounding import rounding_difference
from normscope.rewrite.stored_tensors import BLOCK, StoredTensors

MATRICES = "rotation.npz"
OF_A_FILE = {"dtype", "transformers_version", "_name_or_path", "architectures"}  # settings that say how it was written
TIES = "tie_word_embeddings"


def reread(
    result: Folding,
    against: Any = None,
    folder: Path | None = None,
    text: Text | None = None,
    inputs: Inputs | None = None,
) -> "FoldedFiles":
    """The files of a folding and of the model that it was made from, for `verify`."""
    if folder is None or result.claims is None:
        raise InputError("only a folder that `normscope fold` wrote without --rms can be checked against its original")
    original = against
    if original is None:
        original = demo_model() if result.model == name_of(demo_model()) else Path(result.model)
        if not original.exists():
            raise InputError(
                f"the original, {result.model}, is not there: give its path (normscope verify FOLDER MODEL)"
            )
    if not isinstance(original, str | Path):
        raise InputError(f"the original must be a path, got {type(original).__name__}")
    return FoldedFiles(Path(original), folder, result.dtype, result.claims, bool(result.untied), text, inputs)


class FoldedFiles:
    """Tensors before and after by the names of the rewritten model, read when they are asked for."""

    def __init__(
        self,
        original: Path,
        folder: Path,
        dtype: str,
        claims: Claims,
        untied: bool = False,
        text: Text | None = None,
        inputs: Inputs | None = None,
    ) -> None:
        self._models, self._weights = zip(
            *(open_weights(path, dtype=dtype) for path in (original, folder)), strict=True
        )
        self._before: Weights = self._weights[0]
        self._after: Weights = self._weights[1]
        self._kept = [("", torch.empty(0)), ("", torch.empty(0))]
        self._claims, self._dtype, self._text, self._inputs = claims, dtype, text, inputs
        self._path, self.original = original, name_of(original)
        self.model: nn.Module = self._models[1]  # on the meta device
        tensors, saved = StoredTensors(self.model, self._after), self.model.state_dict(keep_vars=True)
        self.names = tuple(name for name in tensors.first_names if name in saved)
        missing = next((name for name in self.names if name not in self._before), None)
        if missing is not None:
            raise InputError(f"{original} is another model: it has no tensor {quoted(missing)}")
        ignored = OF_A_FILE | {TIES} if untied else OF_A_FILE
        before, after = (dict(_settings(model, ignored)) for model in self._models)
        self.settings: tuple[Mapping[str, Any], Mapping[str, Any]] = before, after
        self.matrices: Sequence[Floats] = ()
        if (folder / MATRICES).is_file():
            held = npz_arrays((folder / MATRICES).read_bytes(), str(folder / MATRICES))
            self.matrices = [held[name] for name in (f"arr_{place}" for place in range(len(held))) if name in held]

    def shape(self, name: str) -> tuple[int, ...]:
        return self._after.shape(name)

    def before(self, name: str, part: Part = ()) -> Floats:
        return self._part(0, name, part)

    def after(self, name: str, part: Part = ()) -> Floats:
        return self._part(1, name, part)

    def _part(self, which: int, name: str, part: Part) -> Floats:
        """A part of a tensor in float64; the last tensors that were asked for are kept, as they are stored."""
        if not part:
            values: Floats = self._weights[which](name).double().numpy()
            return values
        if self._kept[which][0] != name:
            self._kept[which] = "", torch.empty(0)  # before the next one is read
            self._kept[which] = name, self._weights[which](name)
        values = self._kept[which][1][part].double().numpy()
        return values

    def dtype(self, name: str) -> str:
        return str(self._after.dtype(name)).removeprefix("torch.")

    def same(self, name: str) -> bool:
        """Whether a tensor has the same bits in both; the original's are converted as on loading."""
        shape = self._after.shape(name)
        if shape != self._before.shape(name):
            return False
        step = max(1, BLOCK // max(1, torch.Size(shape[1:]).numel())) if shape else 1
        if not shape or shape[0] <= step:
            return _same_bits(self._before(name), self._after(name))
        parts = (slice(start, start + step) for start in range(0, shape[0], step))
        return all(_same_bits(self._before.rows(name, part), self._after.rows(name, part)) for part in parts)

    def run(self, progress: Progress) -> Run | None:
        """Run both on the first batch of the text or of the inputs, in float64; None if neither was given."""
        if self._text is None and self._inputs is None:
            return None
        if self._inputs is None:
            example = Subject(self._path, text=self._text).example
        else:
            example = first_batch(self._models[0], next(as_batches(self._inputs)))
        assert example is not None
        on_meta = pytree.tree_map(lambda value: value.to("meta") if isinstance(value, Tensor) else value, dict(example))
        graphs = [trace(model, on_meta) for model in self._models]
        outputs = [
            evaluate(graph.program, weights, example=example)
            for graph, weights in progress(list(zip(graphs, self._weights, strict=True)), "running both models")
        ]
        claims, tensors = self._claims, StoredTensors(self._models[0], self._before)
        changed = list(dict.fromkeys(tensors.first_name(name) for name in self.names if name in claims.changed()))
        scaling = Scaling(claims.exponents, frozenset(claims.gains_less_one), {})
        rounding = rounding_difference(graphs[0].program, tensors, changed, scaling, outputs[0], progress, example)
        shapes = (f"{name} {'×'.join(map(str, value.shape))}" for name, value in example.items() if value.ndim)
        return Run(", ".join(shapes), difference(outputs[1], outputs[0]), rounding)


def _same_bits(one: Tensor, other: Tensor) -> bool:
    return one.dtype == other.dtype and torch.equal(
        one.contiguous().reshape(-1).view(torch.uint8), other.contiguous().reshape(-1).view(torch.uint8)
    )


def _settings(model: nn.Module, ignored: set[str]) -> Iterator[tuple[str, Any]]:
    """The settings of a model of transformers, by their path in its configuration."""
    config: Any = model.config
    pending: list[tuple[str, Any]] = [("config", config.to_dict())]
    while pending:
        name, value = pending.pop()
        if isinstance(value, dict):
            pending += [(f"{name}.{key}", each) for key, each in value.items()]
        elif name.rpartition(".")[2] not in ignored:
            yield name, value
