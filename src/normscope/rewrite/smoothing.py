"""What a mapping of a recipe does to a model: its factors, applied to stored tensors in float64, and the outputs after.

    smooth       w ← w/s,  b ← b/s        of the source: a norm, or the last outputs of a linear layer
                 W ← W·diag(s)            of every reader
    fuse         W ← W·diag(w),  w ← 1    of a norm and its readers; its bias stays
    rotate       W ← QᵀW,  b ← Qᵀb        of every layer that writes to a stream;  E ← EQ of a table
                 W ← WQ                   of every layer that reads its norms
    centre       E ← E − mean             of the rows of a table

That is all that llm-compressor 0.14 does, with s from calibration; here s is random and positive. Gains of the classes
in CONVERTED are stored as 1 + w and converted before and after; those of other classes are divided as stored.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.export import ExportedProgram

from normscope.models.float64_run import difference, evaluate
from normscope.rewrite.quantizer_modules import MappingError, ModuleSet, Part, QuantizerModule
from normscope.rewrite.recipe_file import AWQ, SPINQUANT, RecipeMapping
from normscope.rewrite.stored_tensors import StoredTensors

CONVERTED = {
    "GemmaRMSNorm", "Gemma2RMSNorm", "Gemma3RMSNorm", "Qwen3NextRMSNorm", "Qwen3_5RMSNorm", "Qwen3_5MoeRMSNorm",
    "MuseGlimmerTextCenteredRMSNorm",
}  # fmt: skip
SEED = 0
Change = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Smoothed:
    """A set of modules to which a mapping applies: what it divides, and the layers whose columns it multiplies."""

    source: QuantizerModule
    readers: tuple[QuantizerModule, ...]


def applied_to(mapping: RecipeMapping, sets: Iterable[ModuleSet]) -> list[Smoothed]:
    """The sets with their source told from their readers; MappingError where llm-compressor would stop."""
    found: list[Smoothed] = []
    for each in sets:
        sources = each[mapping.source]
        if len(sources) != 1:
            names = ", ".join(module.name for module in sources[:3])
            raise MappingError(f"{mapping.source} matches {len(sources)} modules of one set: {names}, …")
        readers = tuple(module for pattern in mapping.readers for module in each[pattern])
        found.append(Smoothed(sources[0], readers))
    return found


def is_skipped(mapping: RecipeMapping, smoothed: Smoothed, tensors: StoredTensors) -> bool:
    """Whether AWQ leaves a set out: values and the layer after attention, where their sizes differ."""
    source, shape = smoothed.source, _shape(smoothed.source, tensors)
    times = {"v_proj": 1, "qkv_proj": 3}.get(source.name.rpartition(".")[2])
    if mapping.modifier != AWQ or times is None or len(shape) != 2 or "Linear" not in source.classes:
        return False
    return any(
        reader.name.endswith(".o_proj")
        and "Linear" in reader.classes
        and shape[0] != times * _shape(reader, tensors)[1]
        for reader in smoothed.readers
    )


class Changed:
    """The stored tensors of a model after mappings were applied, by any of their names."""

    def __init__(self, tensors: StoredTensors) -> None:
        self._tensors = tensors
        self._changes: dict[str, list[tuple[Part, Change]]] = {}
        self._random = torch.Generator().manual_seed(SEED)

    def __getitem__(self, name: str) -> Tensor:
        values = self._tensors.in_float64(name)
        changes = self._changes.get(self._tensors.first_name(name), ())
        values = values.clone() if changes else values
        for part, change in changes:
            view = part.of(values)
            view.copy_(change(view))
        return values

    def apply(self, mapping: RecipeMapping, smoothed: Smoothed) -> None:
        """Apply a mapping to one of its sets; MappingError, and nothing applied, where llm-compressor would stop."""
        if mapping.modifier == SPINQUANT:
            self._fuse(smoothed)
            return
        source, readers = smoothed.source, smoothed.readers
        size = self._inputs(readers)
        weight = self._required(source)
        shape = _shape(source, self._tensors)
        outputs = size if mapping.modifier == AWQ and len(shape) == 2 and shape[0] >= size else shape[0]
        if outputs != size:
            raise MappingError(f"{source.name} has {shape[0]} outputs, and {readers[0].name} {size} inputs")
        if source.bias is not None and self._numbers(source.bias) != size:
            raise MappingError(f"the bias of {source.name} has {self._numbers(source.bias)} entries, not {size}")
        scales = torch.exp(2 * torch.rand(size, generator=self._random, dtype=torch.float64) - 1) ** 2
        for reader in readers:
            self._change(self._required(reader), lambda values: values * scales)
        if len(shape) == 1:
            self._change(weight, _stored_gain(source, lambda gain: gain / scales))
        else:
            self._change(weight, lambda values: torch.cat([values[:-size], values[-size:] / scales[:, None]]))
        if source.bias is not None:
            self._change(source.bias, lambda values: values / scales)

    def _fuse(self, smoothed: Smoothed) -> None:
        source = smoothed.source
        weight, size = self._required(source), self._inputs(smoothed.readers)
        if _shape(source, self._tensors) != (size,):
            raise MappingError(f"the gain of {source.name} is not a vector of {size} entries")
        gain = _as_seen(source, weight.of(self._tensors.in_float64(weight.tensor)))
        for reader in smoothed.readers:
            self._change(self._required(reader), lambda values: values * gain)
        self._change(weight, _stored_gain(source, torch.ones_like))

    def rotate(
        self, writers: Iterable[QuantizerModule], readers: Iterable[QuantizerModule], *, orthogonal: bool
    ) -> None:
        """Rotate what some modules write, and what others read, by one random matrix and its inverse."""
        writers, readers = tuple(writers), tuple(readers)
        size = self._inputs(readers)
        matrix = torch.randn(size, size, generator=self._random, dtype=torch.float64)
        matrix = torch.linalg.qr(matrix)[0] if orthogonal else matrix
        inverse = matrix.T if orthogonal else torch.linalg.inv(matrix)
        for module in (*writers, *readers):
            if module.classes[0] not in ("Linear", "Embedding"):
                raise MappingError(f"{module.name} is a {module.classes[0]}, which llm-compressor can't rotate")
        for writer in writers:
            table, shape = writer.classes[0] == "Embedding", _shape(writer, self._tensors)
            if shape[1 if table else 0] != size:
                raise MappingError(f"{writer.name} does not have {size} outputs")
            self._change(self._required(writer), (lambda w: w @ matrix) if table else (lambda w: matrix.T @ w))
            if writer.bias is not None:
                self._change(writer.bias, lambda bias: matrix.T @ bias)
        for reader in readers:
            self._change(self._required(reader), lambda values: values @ inverse.T)

    def centre(self, table: QuantizerModule) -> None:
        """Subtract the mean of every row of a table."""
        self._change(self._required(table), lambda values: values - values.mean(dim=-1, keepdim=True))

    def _inputs(self, readers: Sequence[QuantizerModule]) -> int:
        """The number of inputs that all readers have: as llm-compressor counts, the columns of the stored matrix."""
        sizes: dict[int, str] = {}
        for reader in readers:
            shape = tuple(self._required(reader).of(self._tensors[self._required(reader).tensor]).shape)
            if len(shape) != 2:
                raise MappingError(f"the weight of {reader.name} is not a matrix: its shape is {shape}")
            sizes.setdefault(shape[1], reader.name)
        if len(sizes) > 1:
            listed = ", ".join(f"{name} {size}" for size, name in sizes.items())
            raise MappingError(f"its readers have different numbers of columns: {listed}")
        if not sizes:
            raise MappingError("no layer matches its readers")
        return next(iter(sizes))

    def _numbers(self, part: Part) -> int:
        return part.of(self._tensors[part.tensor]).numel()

    def _required(self, module: QuantizerModule) -> Part:
        if module.weight is None:
            raise MappingError(f"{module.name} has no weight")
        return module.weight

    def _change(self, part: Part, change: Change) -> None:
        self._changes.setdefault(self._tensors.first_name(part.tensor), []).append((part, change))


def change_of_outputs(program: ExportedProgram, changed: Changed, reference: list[Tensor]) -> float | None:
    """How far the outputs of a model move, in float64, relative to the largest; None if that is not finite."""
    apart = difference(evaluate(program, changed.__getitem__), reference)
    return apart if math.isfinite(apart) else None


def is_converted(module: QuantizerModule) -> bool:
    """Whether llm-compressor knows that the gain of a norm is stored as 1 + w; it goes by the name of its class."""
    return bool(module.classes) and module.classes[0] in CONVERTED


def _as_seen(norm: QuantizerModule, stored: Tensor) -> Tensor:
    return stored + 1 if is_converted(norm) else stored


def _stored_gain(norm: QuantizerModule, change: Change) -> Change:
    """A change of a gain as a change of what is stored."""
    return lambda stored: change(_as_seen(norm, stored)) - (1 if is_converted(norm) else 0)


def _shape(module: QuantizerModule, tensors: StoredTensors) -> tuple[int, ...]:
    return () if module.weight is None else tuple(module.weight.of(tensors[module.weight.tensor]).shape)
