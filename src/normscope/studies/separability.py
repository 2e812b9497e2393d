"""How well classes of inputs come apart before and after every norm of a model: SSR and LSSR of what goes in and out.

LSSR is the least share of scatter within classes that any linear map reaches (see `scatter`). Linear layers can't lower
it; a norm can, and where it does, it has made the classes easier to tell apart for all linear readers behind it.

Each input is one sample: the mean of its vectors over its positions (tokens, patches, heads), so that a linear map of
the sample is the mean of what it makes of the vectors.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import tee
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from normscope.capacity.scatter import CoincidingSamplesError, Scatter, class_numbers, scatter
from normscope.checks import Floats
from normscope.data import demo_model
from normscope.errors import InputError
from normscope.models.capture import capture
from normscope.models.find import find
from normscope.models.labelled_texts import batches_of_texts
from normscope.models.load import load_model, run_in_pieces
from normscope.progress import Progress
from normscope.results.inventory import FoundNorm
from normscope.studies.inspect import as_rows

SCHEMA_VERSION = 1

Run = tuple[Mapping[str, Tensor], NDArray[np.intp]]  # a batch, and the number of the sample that each row belongs to


@dataclass(frozen=True)
class NormSeparability:
    """How the samples are scattered as a norm reads them and as it writes them; None where they all coincide."""

    name: str
    kind: str  # layernorm, rmsnorm, lng, projection
    size: int
    before: Scatter | None
    after: Scatter | None

    @property
    def trivial(self) -> bool:
        """Whether LSSR is 0 on one side whatever the labels are: the inputs are too few for their rank."""
        return any(side is not None and side.trivial for side in (self.before, self.after))

    @property
    def change(self) -> float | None:
        """LSSR after minus LSSR before, below 0 where the norm helps; None where one of them says nothing."""
        if self.before is None or self.after is None or self.trivial:
            return None
        return self.after.lssr - self.before.lssr


@dataclass(frozen=True)
class Separability:
    """How well the classes of labelled inputs come apart at every norm of a model, in the order of the model."""

    model: str
    samples: int
    classes: int
    norms: tuple[NormSeparability, ...]

    def to_dict(self) -> dict[str, Any]:
        """Exactly what `normscope separability --json` prints; schema: normscope/schemas/separability.json."""
        return {"schema_version": SCHEMA_VERSION, **asdict(self), "norms": [asdict(norm) for norm in self.norms]}

    def _repr_html_(self) -> str:
        """A table for notebooks."""
        from normscope.report.norm_columns import separability_html

        return separability_html(self)


def separability(
    model: nn.Module | str | Path | None,
    inputs: Iterable[Mapping[str, Tensor] | str],
    labels: Sequence[Any],
    *,
    device: str = "cpu",
    dtype: str = "float32",
    progress: Progress = lambda things, _: things,
) -> Separability:
    """SSR and LSSR of labelled inputs before and after every norm of a model that all of them pass.

    A live module takes batches of keyword inputs, with one label for each row of each batch. A folder with a tokenizer,
    or None for the model that ships with the package, takes texts. What an attention_mask marks as padding is left out.

    >>> import torch
    >>> model = nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3, elementwise_affine=False, eps=0))
    >>> model[0].weight.data = torch.tensor([[1.0, 1.0], [-1.0, -1.0], [0.0, 0.0]])
    >>> model[0].bias.data = torch.tensor([-1.0, 1.0, 1.0])
    >>> xor = torch.tensor([[0.0, 0.0], [1.0, 1.0], [0.0, 1.0], [1.0, 0.0]])
    >>> norm = separability(model, [{"input": xor}], [0, 0, 1, 1]).norms[0]
    >>> norm.before.lssr, round(norm.after.lssr, 9)
    (1.0, 0.0)

    Two vectors for every input and norm are held in memory, in float64.
    """
    place = demo_model() if model is None else model
    numbers, sizes = class_numbers(labels, len(labels))
    inventory = find(place)
    if isinstance(place, nn.Module):
        live, runs = place, _batches(inputs)
    else:
        live = load_model(Path(place), device=device, dtype=dtype)
        runs = _texts(Path(place), live, inputs)
    gathered = {
        found.path: _Samples(found, len(labels))
        for found in inventory.values()
        if found.norm is not None and found.path is not None and not found.function and found.gate is None
    }
    count = 0
    here, ahead = tee(progress(runs, "running the inputs"))
    with capture(live, norms=gathered) as captured:
        for (batch, owners), _ in zip(here, run_in_pieces(live, (batch for batch, _ in ahead)), strict=True):
            count = int(owners[-1]) + 1
            if count > len(labels):
                raise InputError(f"labels must be one per input, got {len(labels)} labels of {count} inputs or more")
            for path, samples in gathered.items():
                seen = captured.norms[path]
                if seen.input is not None and seen.output is not None:
                    samples.add(seen.input, seen.output, owners, batch.get("attention_mask"))
            captured.clear()
    if count < len(labels):
        raise InputError(f"labels must be one per input, got {len(labels)} labels of {count} inputs")
    ran = [samples for samples in gathered.values() if samples.vectors.all()]
    return Separability(
        model="the bundled model" if model is None else inventory.model,
        samples=count,
        classes=len(sizes),
        norms=tuple(_scattered(samples, numbers) for samples in progress(ran, "scatter")),
    )


class _Samples:
    """The means of the vectors that a norm reads and writes, for each of the inputs."""

    def __init__(self, found: FoundNorm, count: int) -> None:
        self.found = found
        self.vectors = np.zeros(count)
        self.precision: type[np.floating[Any]] = np.float64  # in which the model computes
        self._before, self._after = np.zeros((2, count, found.size))

    def add(self, given: Tensor, answer: Tensor, owners: NDArray[np.intp], mask: Tensor | None) -> None:
        """Vectors of some inputs, those of each along the first axis; with one input alone, all are its own."""
        if len(given) != len(owners) and len(owners) > 1:
            raise InputError(
                f"the input of {self.found.name} has {len(given)} rows for a batch of {len(owners)} inputs, which does "
                "not say which is whose: give batches of one input each"
            )
        before, after = (
            as_rows(tensor, self.found).reshape(len(owners), -1, self.found.size) for tensor in (given, answer)
        )
        self.precision = np.float64 if given.dtype.itemsize == 8 else np.float32
        kept = self._kept(mask, given, before.shape[1])
        if kept is None:
            self.vectors[owners] += before.shape[1]
            self._before[owners] += before.sum(axis=1)
            self._after[owners] += after.sum(axis=1)
        else:
            self.vectors[owners] += kept.sum(axis=1)
            self._before[owners] += np.einsum("bp,bpn->bn", kept, before)
            self._after[owners] += np.einsum("bp,bpn->bn", kept, after)

    def means(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Before and after, with no more digits than the model gave them."""
        before, after = (sums / self.vectors[:, None] for sums in (self._before, self._after))
        return before.astype(self.precision), after.astype(self.precision)

    def _kept(self, mask: Tensor | None, given: Tensor, positions: int) -> Floats | None:
        """1 for vectors that count, 0 for padding, (inputs, positions); None where all count."""
        if mask is None or bool(mask.bool().all()):
            return None
        if mask.shape != given.shape[:2]:
            raise InputError(
                f"the input of {self.found.name} has shape {tuple(given.shape)}, in which padding can't be told by an "
                f"attention_mask of shape {tuple(mask.shape)}: give batches without padding"
            )
        return np.repeat(mask.cpu().double().numpy(), positions // mask.shape[1], axis=1)


def _batches(inputs: Iterable[Any]) -> Iterator[Run]:
    start = 0
    for batch in inputs:
        if not isinstance(batch, Mapping):
            raise InputError(
                f"inputs of a live module must be batches of keyword inputs, got {type(batch).__name__}: "
                "texts need a folder with a tokenizer"
            )
        rows = len(next(iter(batch.values()), ()))
        if not rows:
            raise InputError(f"batches must have one input or more, got an empty one after {start} inputs")
        yield batch, np.arange(start, start + rows)
        start += rows


def _texts(path: Path, model: nn.Module, inputs: Iterable[Any]) -> Iterator[Run]:
    texts = [inputs] if isinstance(inputs, str) else list(inputs)
    for text in texts:
        if not isinstance(text, str):
            raise InputError(f"inputs must be texts, got {type(text).__name__}: batches need a live module")
    for number, batch in batches_of_texts(path, model, texts):
        yield batch, np.array([number])


def _scattered(samples: _Samples, labels: NDArray[np.intp]) -> NormSeparability:
    found = samples.found
    sides: list[Scatter | None] = []
    for side, means in zip(("input", "output"), samples.means(), strict=True):
        try:
            sides.append(scatter(means, labels))
        except CoincidingSamplesError:
            sides.append(None)
        except ValueError as error:
            raise InputError(f"the {side} of {found.name}: {error}") from None
    return NormSeparability(found.name, found.kind, found.size, *sides)
