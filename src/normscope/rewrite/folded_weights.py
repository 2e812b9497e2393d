"""The stored tensors of a folded model, computed in float64 from those of the original.

    writer of a stream     W ← ΠW over its outputs
    reader of a norm       W ← W·diag(t),  c ← c + f·W·s        f: factor between norm and reader
    the norm itself        g ← g/t,  b ← (b − s)/t

Tensors are computed on demand and not kept, so that no second model in float64 has to fit into memory.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from normscope.certificates.check_fold import Promise
from normscope.checks import Floats
from normscope.rewrite.stored_tensors import StoredTensors


class FoldedWeights:
    """The tensors of a model after a fold, by any of their names.

    The fold may be of a copy that has separate tensors where the model shares one: then `names` are those of the copy.
    """

    def __init__(self, original: StoredTensors, promise: Promise, names: StoredTensors) -> None:
        self._original, self._names = original, names
        self._centred, taken = promise.centred, promise.taken
        self._gains = {each.gain_tensor: each for each in taken if each.gain_tensor is not None}
        self._biases = {each.bias_tensor: each for each in taken if each.bias_tensor is not None}
        self._readers = {reader.weight: (each, reader) for each in taken for reader in each.readers}
        self._reader_biases = {
            reader.bias: (each, reader) for each in taken for reader in each.readers if reader.bias is not None
        }

    def __getitem__(self, name: str) -> Tensor:
        """The values of a tensor, in float64 on the CPU."""
        first = self._names.first_name(name)
        values = self._original.in_float64(first)
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
            weight = self._original.in_float64(reader.weight)
            shift = torch.tensordot(torch.tensor(taken.bias), weight, dims=([0], [reader.axis]))
            values = values + reader.factor * shift.view_as(values)
        if first in self._centred:
            values = centred(values, self._centred[first])
        return values

    def changed(self) -> Iterator[tuple[str, ...]]:
        """All names of each tensor that may have new values, its first name first."""
        parts = (self._centred, self._gains, self._biases, self._readers, self._reader_biases)
        touched = set().union(*parts)
        yield from (self._names.names(name) for name in self._names.first_names if name in touched)


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


def store(weights: FoldedWeights, tensors: StoredTensors) -> tuple[str, ...]:
    """Put folded tensors into a copy of the model, each in its own dtype; return the names of those that changed."""
    changed: list[str] = []
    with torch.no_grad():
        for names in weights.changed():
            values = weights[names[0]]
            for name in names:  # a copy may hold separate tensors where the model shares one
                target = tensors[name]
                if not torch.equal(stored := values.to(target.dtype).to(target.device), target):
                    changed.append(names[0])
                    target.copy_(stored)
    return tuple(dict.fromkeys(changed))


class Stored:
    """The folded weights as `identities` look them up, each compared on the way with what the model holds."""

    def __init__(self, weights: FoldedWeights, tensors: StoredTensors) -> None:
        self._weights, self._tensors = weights, tensors
        self._changed = {name: names for names in weights.changed() for name in names}
        self._held: dict[str, bool] = {}  # by the first name of a tensor: whether the model holds it as computed

    def __call__(self, name: str) -> Floats:
        values = self._weights[name]
        names = self._changed.get(name, (name,))
        self._held[names[0]] = all(
            torch.equal(self._tensors[each].cpu(), values.to(self._tensors[each].dtype)) for each in names
        )
        computed: Floats = values.numpy()
        return computed

    def as_computed(self) -> Iterator[tuple[str, bool]]:
        """For every tensor that may have new values, in words: whether the model holds them under all its names."""
        for names in self._weights.changed():
            if names[0] not in self._held:
                self(names[0])
            yield f"{names[0]} is stored as it was computed", self._held[names[0]]
