"""The stored tensors of a folded model, computed in float64 from those of the original.

    writer of a stream     W ← ΠW over its outputs
    reader of a norm       W ← W·diag(t),  c ← c + f·W·s        f: factor between norm and reader
    the norm itself        g ← g/t,  b ← (b − s)/t
    in a turned stream     W ← WQ along the axis of the channels
    at another scale       W ← 2^k·W,  or 2^k·(1 + w) − 1 for a gain that is stored as 1 + w

Tensors are computed on demand and not kept, so that no second model in float64 has to fit into memory.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator

import torch
from torch import Tensor

from normscope.certificates.check_fold import Promise, Scaling, Turning
from normscope.checks import Floats
from normscope.rewrite.stored_tensors import StoredTensors, equal_values

BLOCK = 2**17  # numbers of a matrix that are new at a time: they stay in the cache


class NewWeights(ABC):
    """The tensors of a rewritten model, by any of their names. Rewrites follow one another: `before` is the last."""

    def __init__(self, names: StoredTensors) -> None:
        self.names = names

    @abstractmethod
    def __getitem__(self, name: str) -> Tensor:
        """The values of a tensor, in float64 on the CPU."""

    def rounded(self, name: str, dtype: torch.dtype) -> Tensor:
        """The values in the dtype in which they are stored."""
        return self[name].to(dtype)

    def unrounded(self, name: str) -> Tensor:
        """The same on the CPU, but as they are stored where they can't be new."""
        return self[name] if self.names.first_name(name) in self.touched else self.names.values(name)

    @property
    @abstractmethod
    def touched(self) -> frozenset[str]:
        """The first names of tensors that may have new values."""

    @abstractmethod
    def restored(self, norm: str, output: Tensor) -> Tensor:
        """What a norm gave before the rewrite, from what it gives now."""

    def changed(self) -> Iterator[tuple[str, ...]]:
        """All names of each tensor that may have new values, its first name first."""
        touched = self.touched
        yield from (self.names.names(name) for name in self.names.first_names if name in touched)


class FoldedWeights(NewWeights):
    """The tensors of a model after a fold.

    The fold may be of a copy that has separate tensors where the model shares one: then `names` are those of the copy.
    """

    def __init__(self, original: StoredTensors, promise: Promise, names: StoredTensors) -> None:
        super().__init__(names)
        self._original = original
        self._centred, taken = promise.centred, promise.taken
        self._gains = {each.gain_tensor: each for each in taken if each.gain_tensor is not None}
        self._biases = {each.bias_tensor: each for each in taken if each.bias_tensor is not None}
        self._taken = {each.norm: each for each in taken}
        self._readers = {reader.weight: (each, reader) for each in taken for reader in each.readers}
        self._reader_biases = {
            reader.bias: (each, reader) for each in taken for reader in each.readers if reader.bias is not None
        }

    def __getitem__(self, name: str) -> Tensor:
        return self.rounded(name, torch.float64)

    def rounded(self, name: str, dtype: torch.dtype) -> Tensor:
        """The values, if they are real numbers, in a dtype; matrices are computed in parts."""
        first = self.names.first_name(name)
        old = self._original.values(first)
        if not old.is_floating_point():
            return old
        fixed = {self._centred.get(first), self._readers[first][1].axis if first in self._readers else None}
        axis = next((axis for axis in range(old.ndim) if axis not in fixed), None)
        if axis is None or first in {*self._gains, *self._biases, *self._reader_biases}:
            return self._new(first, old.double()).to(dtype)
        new = torch.empty_like(old, dtype=dtype)
        step = max(1, BLOCK * old.shape[axis] // max(1, old.numel()))
        for block, target in zip(torch.split(old, step, axis), torch.split(new, step, axis), strict=True):
            target.copy_(self._new(first, block.double()))
        return new

    def _new(self, first: str, values: Tensor) -> Tensor:
        """New values from old ones, or of a part along an axis that nothing moves along."""
        if first in self._gains:
            taken = self._gains[first]
            one = 1.0 if taken.adds_one else 0.0
            values = (values + one) / torch.tensor(taken.gain).view_as(values) - one
        if first in self._biases:
            taken = self._biases[first]
            gain, bias = (torch.tensor(part).view_as(values) for part in (taken.gain, taken.bias))
            values = (values - bias) / gain
        if first in self._readers:
            taken, reader = self._readers[first]
            values = values * along(torch.tensor(taken.gain), reader.axis, values.ndim)
        if first in self._reader_biases:
            taken, reader = self._reader_biases[first]
            weight, bias = self._original.values(reader.weight).movedim(reader.axis, -1), torch.tensor(taken.bias)
            parts = torch.split(weight, max(1, BLOCK * len(weight) // max(1, weight.numel())))
            shift = torch.cat([part.double() @ bias for part in parts])
            values = values + reader.factor * shift.reshape(values.shape)
        if first in self._centred:
            values = centred(values, self._centred[first])
        return values

    @property
    def touched(self) -> frozenset[str]:
        parts = (self._centred, self._gains, self._biases, self._readers, self._reader_biases)
        return frozenset[str]().union(*parts)

    def restored(self, norm: str, output: Tensor) -> Tensor:
        taken = self._taken.get(norm)
        return output if taken is None else torch.tensor(taken.gain) * output + torch.tensor(taken.bias)


class TurnedWeights(NewWeights):
    """The tensors of a model after streams were turned by orthogonal matrices."""

    def __init__(self, before: NewWeights, turning: Turning) -> None:
        super().__init__(before.names)
        self._before, self._turning = before, turning
        self._matrices = {stream: torch.from_numpy(matrix) for stream, matrix in turning.matrices.items()}

    def __getitem__(self, name: str) -> Tensor:
        values = self._before[name]
        for axis, stream in self._turning.axes.get(self.names.first_name(name), ()):
            values = (values.movedim(axis, -1) @ self._matrices[stream]).movedim(-1, axis)
        return values.contiguous()

    @property
    def touched(self) -> frozenset[str]:
        return self._before.touched | self._turning.axes.keys()

    def restored(self, norm: str, output: Tensor) -> Tensor:
        stream = self._turning.outputs.get(norm)
        return self._before.restored(norm, output if stream is None else output @ self._matrices[stream].T)


class ScaledWeights(NewWeights):
    """The tensors of a model after powers of two were put into some."""

    def __init__(self, before: NewWeights, scaling: Scaling) -> None:
        super().__init__(before.names)
        self._before, self._scaling = before, scaling

    def __getitem__(self, name: str) -> Tensor:
        first = self.names.first_name(name)
        values, exponent = self._before[name], self._scaling.exponents.get(first)
        if exponent is None:
            return values
        one = 1.0 if first in self._scaling.gains_less_one else 0.0
        return (values + one) * 2.0**exponent - one

    @property
    def touched(self) -> frozenset[str]:
        return self._before.touched | self._scaling.exponents.keys()

    def restored(self, norm: str, output: Tensor) -> Tensor:
        return self._before.restored(norm, output * 2.0 ** -self._scaling.outputs.get(norm, 0))


def centred(values: Tensor, axis: int) -> Tensor:
    """Values minus their mean along an axis.

    >>> centred(torch.tensor([[1.0, 5.0], [3.0, 3.0]]), 0)
    tensor([[-1.,  1.],
            [ 1., -1.]])
    """
    return values - values.mean(dim=axis, keepdim=True)


def along(vector: Tensor, axis: int, axes: int) -> Tensor:
    """A vector shaped so that it multiplies one axis of a tensor with that number of axes."""
    return vector.view([-1 if number == axis else 1 for number in range(axes)])


def store(weights: NewWeights, tensors: StoredTensors) -> tuple[str, ...]:
    """Put folded tensors into a copy of the model, each in its own dtype; return the names of those that changed."""
    changed: list[str] = []
    with torch.no_grad():
        for names in weights.changed():
            values = weights.rounded(names[0], tensors.dtype(names[0]))
            for name in names:  # a copy may hold separate tensors where the model shares one
                target = tensors[name]
                if not equal_values(stored := values.to(target.device), target):
                    changed.append(names[0])
                    target.data = stored if len(names) == 1 else stored.clone()  # the copy may share the old memory
    return tuple(dict.fromkeys(changed))


class HeldWeights:
    """The rewritten weights as `identities` look them up, each compared on the way with what the model holds."""

    def __init__(self, weights: NewWeights, tensors: StoredTensors) -> None:
        self._weights, self._tensors = weights, tensors
        self._changed = {name: names for names in weights.changed() for name in names}
        self._held: dict[str, bool] = {}  # by the first name of a tensor: whether the model holds it as computed

    def __call__(self, name: str) -> Floats:
        values = self._weights[name]
        names = self._changed.get(name, (name,))
        self._held[names[0]] = all(_is_rounded(self._tensors[each].cpu(), values) for each in names)
        computed: Floats = values.numpy()
        return computed

    def as_computed(self) -> Iterator[tuple[str, bool]]:
        """For every tensor that may have new values, in words: whether the model holds them under all its names."""
        for names in self._weights.changed():
            if names[0] not in self._held:
                self(names[0])
            yield f"{names[0]} is stored as it was computed", self._held[names[0]]


def _is_rounded(stored: Tensor, values: Tensor) -> bool:
    """Whether a tensor holds values rounded to its dtype, none of them too large for it."""
    rounded = values.to(stored.dtype)
    finite = bool(rounded.sum(dtype=torch.float64).isfinite())  # quick; not so if some value is not, or the sum is not
    return (finite or torch.equal(rounded.isfinite(), values.isfinite())) and equal_values(stored, rounded)
