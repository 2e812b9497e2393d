"""The stored tensors of a model: one memory may have many names, and what changes under one changes under all."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn


class StoredTensors:
    """Parameters and buffers of a model by any of their names.

    >>> model = nn.Sequential(nn.Embedding(5, 2), nn.Linear(2, 5, bias=False))
    >>> model[1].weight = model[0].weight
    >>> tensors = StoredTensors(model)
    >>> tensors.first_name("1.weight"), tensors.names("0.weight")
    ('0.weight', ('0.weight', '1.weight'))
    """

    def __init__(self, model: nn.Module) -> None:
        self._tensors = dict(_named_tensors(model))
        self._saved = set(model.state_dict(keep_vars=True))
        self._first: dict[str, str] = {}
        seen: dict[object, str] = {}
        for name, tensor in self._tensors.items():
            memory = (tensor.device, tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype)
            self._first[name] = seen.setdefault(memory if tensor.numel() else name, name)
        self._overlapping = dict(_overlaps({name: self._tensors[name] for name in seen.values()}))

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[name]

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    @property
    def first_names(self) -> tuple[str, ...]:
        """One name for each tensor, in the order of the model."""
        return tuple(dict.fromkeys(self._first.values()))

    def first_name(self, name: str) -> str:
        """The one name that stands for all names of the same tensor."""
        return self._first[name]

    def names(self, name: str) -> tuple[str, ...]:
        """All names of a tensor."""
        first = self._first[name]
        return tuple(other for other, its_first in self._first.items() if its_first == first)

    def name_in(self, module: str, name: str) -> str:
        """The name by which a module holds a tensor; the given one if it does not hold it."""
        return next((other for other in self.names(name) if other.rpartition(".")[0] == module), name)

    def in_float64(self, name: str) -> Tensor:
        """The values on the CPU; whole numbers stay what they are."""
        values = self._tensors[name].detach().cpu()
        return values.double() if values.is_floating_point() else values

    def can_change(self, name: str) -> tuple[bool, str]:
        """Whether a tensor can be stored with other values, and if not, why: "its name, which …"."""
        first, tensor = self._first[name], self._tensors[name]
        if not self._saved.intersection(self.names(name)):
            return False, f"{name}, which is no part of a checkpoint but made anew with the model"
        if first in self._overlapping:
            return False, f"{name}, which shares memory with another tensor, {self._overlapping[first]}"
        if not tensor.is_floating_point():
            return False, f"{name}, which holds {str(tensor.dtype).removeprefix('torch.')}"
        if torch.finfo(tensor.dtype).bits < 16:
            return False, f"{name}, which is quantized to {str(tensor.dtype).removeprefix('torch.')}"
        return True, ""


def _named_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from model.named_parameters(remove_duplicate=False)
    yield from model.named_buffers(remove_duplicate=False)


def _overlaps(tensors: dict[str, Tensor]) -> Iterator[tuple[str, str]]:
    """Both ways, the tensors that lie in the same bytes without being the same."""
    last, end = "", 0
    for name, tensor in sorted(tensors.items(), key=lambda item: item[1].data_ptr()):
        if not tensor.numel():
            continue
        if tensor.data_ptr() < end:
            yield from ((name, last), (last, name))
        steps = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
        reach = tensor.data_ptr() + (steps + 1) * tensor.element_size()
        if reach > end:
            last, end = name, reach
