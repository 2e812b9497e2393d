"""The stored tensors of a folded model, computed in float64 from those of the original.

    writer of a stream     W ← ΠW over its outputs
    reader of a norm       W ← W·diag(t),  c ← c + f·W·s        f: factor between norm and reader
    the norm itself        g ← g/t,  b ← (b − s)/t

Nothing is kept: a tensor is computed when it is asked for, so that no second model in float64 has to fit into memory.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from normscope.rewrite.plan import Plan
from normscope.rewrite.stored_tensors import StoredTensors


class FoldedWeights:
    """The tensors of a model after a plan, by any of their names.

    The plan may be one for a copy in which tensors that the model shares are apart: then `names` are those of the copy.
    """

    def __init__(self, model: nn.Module, plan: Plan, names: StoredTensors | None = None) -> None:
        self._original = StoredTensors(model)
        self._names = self._original if names is None else names
        self._centred = plan.centred
        self._gains = {taken.gain_tensor: taken for taken in plan.taken if taken.gain_tensor is not None}
        self._biases = {taken.bias_tensor: taken for taken in plan.taken if taken.bias_tensor is not None}
        self._readers = {reader.weight: (taken, reader) for taken in plan.taken for reader in taken.readers}
        self._reader_biases = {
            reader.bias: (taken, reader) for taken in plan.taken for reader in taken.readers if reader.bias is not None
        }

    def __getitem__(self, name: str) -> Tensor:
        """The values of a tensor, in float64 on the CPU."""
        first = self._names.first_name(name)
        values = self._original.in_float64(first)
        if first in self._gains:
            taken = self._gains[first]
            one = 1.0 if taken.adds_one else 0.0
            values = (values + one) / taken.gain.view_as(values) - one
        if first in self._biases:
            taken = self._biases[first]
            values = (values - taken.bias.view_as(values)) / taken.gain.view_as(values)
        if first in self._readers:
            taken, reader = self._readers[first]
            values = values * along(taken.gain, reader.axis, values.ndim)
        if first in self._reader_biases:
            taken, reader = self._reader_biases[first]
            weight = self._original.in_float64(reader.weight)
            values = values + reader.factor * (taken.bias @ weight.movedim(reader.axis, 0))
        if first in self._centred:
            values = centred(values, self._centred[first])
        return values

    def changed(self) -> Iterator[tuple[str, ...]]:
        """All names of each tensor that may have other values, the first of them first."""
        parts = (self._centred, self._gains, self._biases, self._readers, self._reader_biases)
        touched = set().union(*parts)
        yield from (self._names.names(name) for name in self._names.first_names if name in touched)


def centred(values: Tensor, axis: int) -> Tensor:
    """Values of which the mean along an axis is subtracted.

    >>> centred(torch.tensor([[1.0, 5.0], [3.0, 3.0]]), 0)
    tensor([[-1.,  1.],
            [ 1., -1.]])
    """
    return values - values.mean(dim=axis, keepdim=True)


def along(vector: Tensor, axis: int, axes: int) -> Tensor:
    """A vector shaped so that it multiplies one axis of a tensor with so many axes."""
    return vector.view([-1 if number == axis else 1 for number in range(axes)])


def store(weights: FoldedWeights, model: nn.Module) -> tuple[str, ...]:
    """Put folded tensors into a copy of the model, each in its own dtype; the names of those with other values."""
    tensors = StoredTensors(model)
    changed: list[str] = []
    with torch.no_grad():
        for names in weights.changed():
            values = weights[names[0]]
            for name in names:  # a copy may have taken apart what shared memory
                target = tensors[name]
                if not torch.equal(stored := values.to(target.dtype).to(target.device), target):
                    changed.append(names[0])
                    target.copy_(stored)
    return tuple(dict.fromkeys(changed))


def stored_as_computed(weights: FoldedWeights, model: nn.Module) -> Iterator[tuple[str, bool]]:
    """For every tensor that may have other values, in words: whether the model holds them under all its names."""
    tensors = StoredTensors(model)
    for names in weights.changed():
        values = weights[names[0]]
        held = [torch.equal(tensors[name].cpu(), values.to(tensors[name].dtype)) for name in names]
        yield f"{names[0]} is stored as it was computed", all(held)
