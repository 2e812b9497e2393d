"""How well classes of inputs separate before and after every norm of a model: SSR and LSSR of what goes in and out.

LSSR is the least share of scatter within classes that any linear map reaches (see `scatter`). Linear layers can't lower
it; a norm can, and where it does, it makes the classes easier to separate for all linear layers after it.

Each input is one sample: the mean of its vectors over its positions (tokens, patches, heads), so that a linear map of
the sample is the mean of what it makes of the vectors.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import tee
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from normscope.capacity.scatter_ratios import CoincidingSamplesError, Scatter, class_numbers, scatter
from normscope.checks import Floats
from normscope.errors import InputError
from normscope.models.batches import Inputs
from normscope.models.capture import capture
from normscope.models.labelled_texts import batches_of_texts
from normscope.models.load import run_in_pieces
from normscope.models.subject import Subject, Text
from normscope.progress import Progress, silent
from normscope.results.class_scatter import ClassScatter, NormScatter
from normscope.results.inventory import FoundNorm
from normscope.studies.inspect import as_rows

Run = tuple[Mapping[str, Tensor], NDArray[np.intp]]  # a batch, and the number of the sample that each row belongs to


def separability(
    model: nn.Module | str | Path,
    *,
    text: Text | None = None,
    inputs: Inputs | None = None,
    labels: Sequence[Any],
    device: str = "cpu",
    dtype: str | None = None,
    progress: Progress = silent,
) -> ClassScatter:
    """SSR and LSSR of labelled inputs before and after every norm of a model that all inputs pass through.

    Two vectors for every input and norm are held in memory, in float64.

    Parameters
    ----------
    model
        A folder in Hugging Face format, or a torch module.
    text
        Texts, each one input; needs a folder with a tokenizer. Long texts are run in pieces.
    inputs
        Batches; each row is one input. Padding according to an attention_mask is left out.
    labels
        One for each input; two classes or more.
    device, dtype
        Device and floating-point type to load and run a folder in.
    progress
        Called with the batches and a description; see `normscope.progress`.

    Returns
    -------
    ClassScatter
        A row for each norm.

    >>> import torch
    >>> model = nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3, elementwise_affine=False, eps=0))
    >>> model[0].weight.data = torch.tensor([[1.0, 1.0], [-1.0, -1.0], [0.0, 0.0]])
    >>> model[0].bias.data = torch.tensor([-1.0, 1.0, 1.0])
    >>> xor = torch.tensor([[0.0, 0.0], [1.0, 1.0], [0.0, 1.0], [1.0, 0.0]])
    >>> norm = separability(model, inputs=xor, labels=[0, 0, 1, 1]).norms[0]
    >>> norm.lssr_before, round(norm.lssr_after, 9)
    (1.0, 0.0)
    """
    subject = Subject(model, text=text, inputs=inputs, device=device, dtype=dtype)
    subject.require_runs("separability")
    numbers, sizes = class_numbers(labels, len(labels))
    live = subject.module
    gathered = {
        found.path: _Samples(found, len(labels))
        for found in subject.inventory.values()
        if found.norm is not None and found.path is not None and not found.function and found.gate is None
    }
    count = 0
    here, ahead = tee(progress(_runs(subject), "running the inputs"))
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
    return ClassScatter(
        model=subject.name,
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

    def add(self, given: Tensor, output: Tensor, owners: NDArray[np.intp], mask: Tensor | None) -> None:
        """Add vectors of some inputs, one input per entry of the first axis; with a single input, all are its own."""
        if len(given) != len(owners) and len(owners) > 1:
            raise InputError(
                f"the input of {self.found.name} has {len(given)} rows for a batch of {len(owners)} inputs, which does "
                "not say which is whose: give batches of one input each"
            )
        before, after = (
            as_rows(tensor, self.found).reshape(len(owners), -1, self.found.size) for tensor in (given, output)
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


def _runs(subject: Subject) -> Iterator[Run]:
    """The runs of the model: texts one by one, so that none is padded, or batches as given."""
    if subject.text is not None:
        texts = [subject.words] if isinstance(subject.words, str) else subject.words
        assert subject.path is not None
        for number, piece in batches_of_texts(subject.path, subject.module, texts):
            yield piece, np.array([number])
        return
    start = 0
    for batch in subject.batches():
        rows = len(next(iter(batch.values())))
        if not rows:
            raise InputError(f"batches must have one input or more, got an empty one after {start} inputs")
        yield batch, np.arange(start, start + rows)
        start += rows


def _scattered(samples: _Samples, labels: NDArray[np.intp]) -> NormScatter:
    found = samples.found
    sides: list[Scatter | None] = []
    for side, means in zip(("input", "output"), samples.means(), strict=True):
        try:
            sides.append(scatter(means, labels))
        except CoincidingSamplesError:
            sides.append(None)
        except ValueError as error:
            raise InputError(f"the {side} of {found.name}: {error}") from None
    before, after = sides
    return NormScatter(
        name=found.name,
        kind=found.kind,
        size=found.size,
        rank_before=None if before is None else before.rank,
        rank_after=None if after is None else after.rank,
        ssr_before=None if before is None else before.ssr,
        ssr_after=None if after is None else after.ssr,
        lssr_before=None if before is None or before.trivial else before.lssr,
        lssr_after=None if after is None or after.trivial else after.lssr,
        trivial=any(side is not None and side.trivial for side in sides),
    )
