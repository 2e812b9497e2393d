"""The files of a rewritten model and of its original, for `normscope.certificates.check_fold_files`.

Both folders are opened anew. Tensors are read one at a time, those that should be equal some rows at a time.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from normscope.checks import Floats, quoted
from normscope.data import demo_model, name_of
from normscope.errors import InputError
from normscope.files import npz_arrays
from normscope.models.load import open_weights
from normscope.results.folding import Folding
from normscope.rewrite.stored_tensors import BLOCK, StoredTensors

MATRICES = "rotation.npz"
OF_A_FILE = ("config.dtype", "config.transformers_version", "config._name_or_path", "config.architectures")
TIES = "tie_word_embeddings"


def reread(result: Folding, against: Any = None, label: str | None = None, folder: Path | None = None) -> "FoldedFiles":
    """The files of a folding and of the model that it was made from, for `verify`."""
    if label is not None:
        raise InputError(f"label is for files of samples, and a folding takes none, got {quoted(label)}")
    if folder is None or result.claims is None:
        raise InputError("only a folder that `normscope fold` wrote from a path, without --rms, can be checked")
    if against is None:
        if result.path is None:
            raise InputError("it was folded from a module in memory: give the folder of the original as well")
        against = demo_model() if result.model == name_of(demo_model()) else Path(result.path)
    if not isinstance(against, str | Path):
        raise InputError(f"the original must be a path, got {type(against).__name__}")
    return FoldedFiles(Path(against), folder, result.dtype, untied=bool(result.untied))


class FoldedFiles:
    """Tensors before and after by the names of the rewritten model, read when they are asked for."""

    def __init__(self, original: Path, folder: Path, dtype: str, *, untied: bool = False) -> None:
        before, self._before = open_weights(original, dtype=dtype)
        after, self._after = open_weights(folder, dtype=dtype)
        self.model = after  # on the meta device
        tensors = StoredTensors(after, self._after)
        saved = after.state_dict(keep_vars=True)
        self.names = tuple(name for name in tensors.first_names if name in saved)
        missing = next((name for name in self.names if name not in self._before), None)
        if missing is not None:
            raise InputError(f"{original} is another model: it has no tensor {quoted(missing)}")
        ignored = {*OF_A_FILE, *((f"config.{TIES}", f"config.text_config.{TIES}") if untied else ())}
        self.settings: tuple[Mapping[str, Any], Mapping[str, Any]] = (
            dict(_settings(before, ignored)),
            dict(_settings(after, ignored)),
        )
        self.matrices: Mapping[str, Floats] = {}
        if (folder / MATRICES).is_file():
            self.matrices = npz_arrays((folder / MATRICES).read_bytes(), str(folder / MATRICES))

    def before(self, name: str) -> Floats:
        values: Floats = self._before(name).double().numpy()
        return values

    def after(self, name: str) -> Floats:
        values: Floats = self._after(name).double().numpy()
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


def _same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
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
        elif name not in ignored:
            yield name, value
