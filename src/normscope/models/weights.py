"""The tensors of a model by their names in it, read one at a time: from a live module, a folder, or a .gguf file.

    stored     under this or an older name, possibly merged, split or transposed when a model is loaded
    tied       to another tensor, which is stored
    created    by the code of the model: buffers that no checkpoint holds

Values are what a loaded model would hold. Only the shapes of a checkpoint are read until a tensor is asked for, and
nothing that was read is kept.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from normscope.checks import first_line, quoted
from normscope.errors import CheckpointError, InputError
from normscope.models import transformers_library as library
from normscope.models.checkpoint import Checkpoint
from normscope.models.gguf_model import GgufConversion, gguf_conversions
from normscope.models.transformers_library import Conversion

PLAIN = ("float64", "float32", "bfloat16", "float16")


@dataclass(frozen=True)
class _Part:
    """One of the tensors that a conversion makes."""

    conversion: Conversion | GgufConversion
    name: str


class Weights:
    """Parameters and buffers by name: `weights(name)`, or some rows of one: `weights.rows(name, slice(0, 10))`.

    >>> model = nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3))
    >>> weights = Weights.of_module(model)
    >>> weights.shape("0.weight"), torch.equal(weights.rows("0.weight", slice(1, 3)), model[0].weight[1:])
    ((3, 2), True)
    >>> weights("1.bias")
    tensor([0., 0., 0.])
    """

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], dtypes: Mapping[str, torch.dtype], read: "_Read") -> None:
        self._shapes, self._dtypes, self._read = shapes, dtypes, read

    @classmethod
    def of_module(cls, module: nn.Module) -> "Weights":
        """The tensors of a live module, as they are."""
        tensors = {**_named_tensors(module)}
        return cls(
            {name: tuple(tensor.shape) for name, tensor in tensors.items()},
            {name: tensor.dtype for name, tensor in tensors.items()},
            lambda name, rows: _live(name, tensors[name], rows),
        )

    @classmethod
    def of_checkpoint(cls, checkpoint: Checkpoint, model: nn.Module, *, dtype: str = "float32") -> "Weights":
        """The tensors of a model on the meta device, from its checkpoint, which must stay open.

        CheckpointError if some are missing or have another shape, as when the model is loaded.
        """
        tensors = _named_tensors(model)
        stored = _StoredTensors(checkpoint, model, tensors, getattr(torch, dtype))
        return cls(
            {name: tuple(tensor.shape) for name, tensor in tensors.items()},
            {name: stored.wanted(name) for name in tensors},
            stored,
        )

    def __call__(self, name: str) -> Tensor:
        """One tensor, read now."""
        self._require(name)
        return self._read(name, None)

    def rows(self, name: str, rows: slice) -> Tensor:
        """Some entries of the first axis of a tensor; others are not read, where the format allows that."""
        self._require(name)
        return self._read(name, rows)

    def shape(self, name: str) -> tuple[int, ...]:
        self._require(name)
        return self._shapes[name]

    def dtype(self, name: str) -> torch.dtype:
        self._require(name)
        return self._dtypes[name]

    def fill(self, model: nn.Module) -> None:
        """Give a model on the meta device its values.

        Buffers come first: those that no checkpoint stores are created by initializing the modules that hold them,
        which would overwrite parameters that have values (the table of Gemma holds its scale).
        """
        modules = dict(model.named_modules())
        for path, module in modules.items():
            for name, buffer in module._buffers.items():
                if buffer is not None:
                    module._buffers[name] = self(f"{path}.{name}" if path else name)
        made: dict[int, nn.Parameter] = {}
        for path, module in modules.items():
            for name, parameter in module._parameters.items():
                if parameter is not None:
                    full = f"{path}.{name}" if path else name
                    if id(parameter) not in made:
                        made[id(parameter)] = nn.Parameter(self(full), requires_grad=parameter.requires_grad)
                    module._parameters[name] = made[id(parameter)]

    @property
    def names(self) -> tuple[str, ...]:
        """Every name of a parameter or buffer; tied tensors have several."""
        return tuple(self._shapes)

    def __contains__(self, name: str) -> bool:
        return name in self._shapes

    def stored_names(self, name: str) -> tuple[str, ...]:
        """The tensors of the checkpoint that a tensor is made from; none for a module, and for what is created."""
        return self._read.sources(name) if isinstance(self._read, _StoredTensors) else ()

    def made_from(self, stored: str) -> tuple[str, ...]:
        """The tensors of the model that one of the checkpoint goes into; none if the model does not use it."""
        return self._read.targets.get(stored, ()) if isinstance(self._read, _StoredTensors) else ()

    @property
    def left_out(self) -> tuple[str, ...]:
        """The tensors of the checkpoint that the model does not use."""
        names = self._read._checkpoint.names if isinstance(self._read, _StoredTensors) else ()
        return tuple(name for name in names if not self.made_from(name))

    def as_stored(self, stored: str, values: Callable[[str], Tensor]) -> Tensor:
        """What a tensor of the checkpoint becomes if the tensors of the model have these values: split, if merged."""
        assert isinstance(self._read, _StoredTensors)
        return self._read.unmade(stored, values)

    def _require(self, name: str) -> None:
        if name not in self._shapes:
            raise InputError(f"no parameter or buffer of the model is called {quoted(name)}")


_Read = Callable[[str, slice | None], Tensor]


def _named_tensors(module: nn.Module) -> dict[str, Tensor]:
    return {
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers(remove_duplicate=False)),
    }


def _live(name: str, tensor: Tensor, rows: slice | None) -> Tensor:
    if tensor.is_meta:
        raise InputError(f"{name} has no values (it is on the meta device): load the weights first")
    return tensor.detach() if rows is None else tensor.detach()[rows]


class _StoredTensors:
    """Tensors of a model on the meta device, from a checkpoint."""

    def __init__(
        self, checkpoint: Checkpoint, model: nn.Module, tensors: Mapping[str, Tensor], dtype: torch.dtype
    ) -> None:
        self._checkpoint, self._model, self._tensors, self._dtype = checkpoint, model, tensors, dtype
        self._saved = model.state_dict(keep_vars=True)
        self._parts = dict(self._found())
        self._require_all()
        self._unmade: tuple[tuple[str, ...], dict[str, Tensor]] = ((), {})  # the last, as sources stand side by side

    def __call__(self, name: str, rows: slice | None) -> Tensor:
        if name in self._parts:
            return self._from_checkpoint(self._parts[name], rows)
        if name in self._created:
            buffer = self._created[name]
            return buffer.clone() if rows is None else buffer[rows].clone()
        raise CheckpointError(f"{self._checkpoint.path}: {name} is neither stored nor created by the model")

    def sources(self, name: str) -> tuple[str, ...]:
        return tuple(stored for _, stored in self._parts[name].conversion.sources) if name in self._parts else ()

    @cached_property
    def targets(self) -> dict[str, tuple[str, ...]]:
        """By tensor of the checkpoint: the tensors of the model that it goes into, without those tied to them."""
        found: dict[str, tuple[str, ...]] = {}
        for name, part in self._parts.items():
            if name == part.name:
                for _, stored in part.conversion.sources:
                    found[stored] = (*found.get(stored, ()), name)
        return found

    def unmade(self, stored: str, values: Callable[[str], Tensor]) -> Tensor:
        targets = self.targets[stored]
        conversion = self._parts[targets[0]].conversion
        if isinstance(conversion, Conversion) and conversion.converter is None:
            return values(targets[0])
        if self._unmade[0] != targets:
            try:
                self._unmade = targets, library.reverted(self._model, {name: values(name) for name in targets})
            except Exception as error:  # a conversion of transformers, which may raise anything
                raise CheckpointError(
                    f"{self._checkpoint.path}: {quoted(stored)} can't be made from {targets[0]}: {first_line(error)}"
                ) from error
        if stored not in self._unmade[1]:
            raise CheckpointError(
                f"{self._checkpoint.path}: {targets[0]} is written under other names than {quoted(stored)}"
            )
        return self._unmade[1][stored]

    def _from_checkpoint(self, part: _Part, rows: slice | None) -> Tensor:
        def read(name: str) -> Tensor:
            return self._source(name, part.name)

        if rows is not None and part.conversion.keeps_rows(self._tensors[part.name].shape[0]):
            return self._source(part.conversion.sources[0][1], part.name, rows)
        made = self._made(part.conversion, read)[part.name]
        self._require_same(part.name, made)
        return made if rows is None else made[rows]

    def _source(self, stored: str, name: str, rows: slice | None = None) -> Tensor:
        """A tensor of the checkpoint, for one of the model; quantized ones are refused if the format has no decoder."""
        tensor, wanted = self._checkpoint.stored(stored, rows), self.wanted(name)
        kind = str(tensor.dtype).removeprefix("torch.")
        if wanted.is_floating_point and kind not in PLAIN:
            raise CheckpointError(
                f"{self._checkpoint.path}: {quoted(stored)} is stored as {kind}: quantized tensors are not decoded here"
            )
        return tensor.to(wanted)

    def wanted(self, name: str) -> torch.dtype:
        """The dtype of a tensor: what is created keeps its own."""
        described = self._tensors[name]
        return self._dtype if described.is_floating_point() and name in self._saved else described.dtype

    @cached_property
    def _created(self) -> dict[str, Tensor]:
        return library.created_buffers(self._model)

    def _found(self) -> Iterator[tuple[str, _Part]]:
        """What the checkpoint holds: the names of the model, each with its conversion, first without values."""
        found: dict[str, _Part] = {}
        if self._is_gguf:
            for decoded in gguf_conversions(self._checkpoint, self._model):
                if decoded.target in self._saved:
                    found[decoded.target] = _Part(decoded, decoded.target)
        else:
            for conversion in library.conversions(self._model, self._checkpoint.names, self._saved):
                for name, made in self._made(conversion, self._without_values).items():
                    if name in self._saved:
                        found[name] = _Part(conversion, name)
                        self._require_same(name, made)
        for names in library.tied_names(self._model):
            stored = next((name for name in sorted(names) if name in found), None)
            found |= {name: found[stored] for name in names if stored is not None and name not in found}
        yield from found.items()

    def _without_values(self, name: str) -> Tensor:
        return torch.empty(self._checkpoint.shape(name), dtype=self._dtype, device="meta")

    def _made(self, conversion: Conversion | GgufConversion, read: Callable[[str], Tensor]) -> dict[str, Tensor]:
        try:
            return conversion.made(self._model, read)
        except CheckpointError:
            raise
        except Exception as error:  # a conversion of transformers, which may raise anything
            raise CheckpointError(
                f"{self._checkpoint.path}: {conversion.target} can't be made from "
                f"{quoted(conversion.sources[0][1])}: {first_line(error)}"
            ) from error

    def _require_same(self, name: str, made: Tensor) -> None:
        stored, described = tuple(made.shape), tuple(self._saved[name].shape)
        if stored != described:
            raise CheckpointError(
                f"{self._checkpoint.path}: tensors do not have the shape that {self._described}, for example "
                f"{name}: {stored} instead of {described}"
            )

    def _require_all(self) -> None:
        """Refuse a checkpoint without all tensors, as `load_model` does."""
        missing = sorted(
            name for name in self._saved if name not in self._parts and not library.may_be_missing(self._model, name)
        )
        if missing:
            others = [name for name in self._checkpoint.names if self._is_gguf and name not in self.targets]
            raise CheckpointError(
                f"{self._checkpoint.path}: tensors that {self._described} are missing, for example {missing[0]} "
                f"({len(missing)} in all)" + (f"; there is no place for {others[0]}" if others else "")
            )

    @property
    def _is_gguf(self) -> bool:
        return self._checkpoint.format == "gguf"

    @property
    def _described(self) -> str:
        """What names tensors and their shapes, and its verb."""
        return f"{type(self._model).__name__} has" if self._is_gguf else "config.json describes"
