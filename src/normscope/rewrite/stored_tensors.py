"""The stored tensors of a model: their names, what uses them in the traced call, and tables that a head shares.

One tensor may have several names, and a change under one name shows under all. A tensor that two operations use can be
changed only for both: a table that one module looks up and another multiplies with stays unchanged, unless the
head gets a copy of its own.
"""

import math
from collections.abc import Collection, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.fx import Node
from torch.utils import _pytree as pytree

from normscope.models.graph import ModelGraph
from normscope.models.graph_operations import handed_on, kind_of, looks_at_values
from normscope.models.weights import Weights
from normscope.results.folding import Tie

BLOCK = 2**24  # numbers of a tensor that are looked at in float64 at a time


class StoredTensors:
    """Parameters and buffers of a model by any of their names.

    >>> model = nn.Sequential(nn.Embedding(5, 2), nn.Linear(2, 5, bias=False))
    >>> model[1].weight = model[0].weight
    >>> tensors = StoredTensors(model)
    >>> tensors.first_name("1.weight"), tensors.names("0.weight")
    ('0.weight', ('0.weight', '1.weight'))
    """

    def __init__(self, model: nn.Module, weights: Weights | None = None) -> None:
        self._tensors = dict(_named_tensors(model))
        self._weights = weights  # values of a model that has none itself
        self._saved = set(model.state_dict(keep_vars=True))
        self._first: dict[str, str] = {}
        seen: dict[object, str] = {}
        for name, tensor in self._tensors.items():
            memory = (tensor.device, tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype)
            if tensor.is_meta:  # no memory: equal only if it is the same object
                memory = (tensor.device, id(tensor), tuple(tensor.shape), tensor.stride(), tensor.dtype)
            self._first[name] = seen.setdefault(memory if tensor.numel() else name, name)
        stored = {name: self._tensors[name] for name in seen.values() if not self._tensors[name].is_meta}
        self._overlapping = dict(_overlaps(stored))

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

    def equal(self, other: "StoredTensors", known: Collection[str] = ()) -> bool:
        """Whether two models hold equal tensors of equal types under the same names, created ones included.

        The values of `known` were compared before.
        """
        pairs = [(self[name], other[name], name in known) for name in self.first_names if name in other]
        return self._first == other._first and all(
            (one.dtype, one.device) == (two.dtype, two.device) and (same or equal_values(one, two))
            for one, two, same in pairs
        )

    def values(self, name: str) -> Tensor:
        """The values on the CPU, in the data type in which they are stored."""
        return (self._tensors[name] if self._weights is None else self._weights(name)).detach().cpu()

    def in_float64(self, name: str) -> Tensor:
        """The values on the CPU; integers stay integers."""
        values = self.values(name)
        return values.double() if values.is_floating_point() else values

    def dtype(self, name: str) -> torch.dtype:
        """The data type in which the values are stored."""
        return self._tensors[name].dtype if self._weights is None else self._weights.dtype(name)

    def blocks(self, name: str) -> Iterator[Tensor]:
        """The values on the CPU, some rows at a time, so that no large tensor is held in float64 as a whole."""
        shape = self._tensors[name].shape
        step = max(1, BLOCK // max(1, shape[1:].numel())) if shape else 1
        if self._weights is None or not shape or shape.numel() <= BLOCK:
            values = self.in_float64(name)
            yield from (values[at : at + step] for at in range(0, len(values), step)) if shape else [values]
            return
        for start in range(0, shape[0], step):
            yield self._weights.rows(name, slice(start, start + step)).detach().cpu().double()

    def size(self, name: str) -> float:
        """The largest |value| of a tensor; NaN if it holds one, or no values."""
        parts = [self._tensors[name].detach()] if self._weights is None else self.blocks(name)
        ends = [torch.stack(part.aminmax()).double().abs().max().cpu() for part in parts if part.numel()]
        return float(torch.stack(ends).max()) if ends else math.nan

    def can_change(self, name: str) -> tuple[bool, str]:
        """Whether a tensor can be stored with other values, and if not, why: "its name, which …"."""
        first, dtype = self._first[name], self.dtype(name)
        if not self._saved.intersection(self.names(name)):
            return False, f"{name}, which is not stored in checkpoints but created with the model"
        if first in self._overlapping:
            return False, f"{name}, which shares memory with another tensor, {self._overlapping[first]}"
        if not dtype.is_floating_point:
            return False, f"{name}, which holds {str(dtype).removeprefix('torch.')}"
        if torch.finfo(dtype).bits < 16:
            return False, f"{name}, which is quantized to {str(dtype).removeprefix('torch.')}"
        return True, ""


class Uses:
    """The stored tensors of a model, with the operations that use each, possibly moved or cast."""

    def __init__(self, tensors: StoredTensors, graph: ModelGraph) -> None:
        self.tensors, self.graph = tensors, graph
        self._by_tensor: dict[str, dict[Node, int]] = {}  # each with how often it takes the tensor
        for node in graph.nodes:
            name = graph.stored_name(node)
            if name is not None:
                users = self._by_tensor.setdefault(self.tensors.first_name(name), {})
                for user, times in _users(node).items():
                    users[user] = users.get(user, 0) + times

    def of(self, name: str) -> tuple[Node, ...]:
        return tuple(self._by_tensor.get(self.tensors.first_name(name), ()))

    def idle(self) -> tuple[str, ...]:
        """Parts unused by the traced call: the outermost modules with all their parameters, or single parameters."""
        names = [name for name in self.tensors.first_names if isinstance(self.tensors[name], nn.Parameter)]
        used = {part for name in names if self.of(name) for other in self.tensors.names(name) for part in _parts(other)}
        idle = [next(part for part in _parts(name) if part not in used) for name in names if not self.of(name)]
        return tuple(dict.fromkeys(idle))

    def can_change(self, name: str, allowed: Collection[Node]) -> tuple[bool, str]:
        """Whether a tensor can get new values if only the given operations may depend on it; if not, why.

        The reason begins with the name of the tensor: "weight, which …".
        """
        ok, reason = self.tensors.can_change(name)
        if not ok:
            return False, reason
        for node, times in self._by_tensor.get(self.tensors.first_name(name), {}).items():
            if node not in allowed or times > 1:
                where = self.graph.module_of(node) or "the model"
                return False, f"{name}, which {where} uses {'too' if node not in allowed else 'twice'} ({node.name})"
        holders = {other.rpartition(".")[0] for other in self.tensors.names(name)}
        idle = sorted(holder for holder in holders if not self.graph.calls_of(holder))
        if len(holders) > 1 and idle:
            return False, f"{name}, which {idle[0]} holds too, and the traced call does not run that"
        return True, ""


def equal_values(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors of one dtype have the same shape and values; NaN equals nothing.

    numpy compares in half the time that torch does, types that it knows.

    >>> equal_values(torch.tensor([0.0]), torch.tensor([-0.0])), equal_values(*2 * [torch.tensor([math.nan])])
    (True, False)
    """
    pair = (one.detach(), other.detach())
    known = one.dtype == other.dtype and one.dtype in (torch.float32, torch.float64)
    if known and all(each.device.type == "cpu" for each in pair):
        return np.array_equal(pair[0].numpy(), pair[1].numpy())
    return torch.equal(*pair)


def ties(uses: Uses) -> tuple[Tie, ...]:
    """Every tie of a table to a head that holds it under a name of its own."""
    found: dict[str, Tie] = {}
    for product in uses.graph.products.values():
        weight = product.reader.weight_name
        head = uses.tensors.name_in(product.reader.name, weight)
        looked_up = [node for node in uses.of(weight) if kind_of(node) in ("embedding", "index")]
        if not looked_up or head.rpartition(".")[0] != product.reader.name:
            continue
        table = uses.tensors.name_in(uses.graph.module_of(looked_up[0]), weight)
        if table != head:
            size = uses.tensors[weight].numel() * uses.tensors.dtype(weight).itemsize
            found[head] = Tie(table, head, size)
    return tuple(found.values())


def give_copies(model: nn.Module, tied: tuple[Tie, ...]) -> None:
    """Give every head a copy of its table, and set the configuration so that it is still a copy once loaded."""
    for tie in tied:
        path, _, name = tie.head.rpartition(".")
        shared = model.get_parameter(tie.head)
        own = nn.Parameter(shared.detach().clone(), requires_grad=shared.requires_grad)
        setattr(model.get_submodule(path), name, own)
    config: Any = getattr(model, "config", None)
    if tied and config is not None:
        config.tie_word_embeddings = False
        if hasattr(config, "get_text_config"):
            config.get_text_config().tie_word_embeddings = False


def _named_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from model.named_parameters(remove_duplicate=False)
    yield from model.named_buffers(remove_duplicate=False)


def _overlaps(tensors: dict[str, Tensor]) -> Iterator[tuple[str, str]]:
    """Pairs of different tensors that overlap in memory, in both orders."""
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


def _parts(name: str) -> list[str]:
    """The modules that a tensor is in, the outermost first, and the tensor."""
    words = name.split(".")
    return [".".join(words[: count + 1]) for count in range(len(words))]


def _users(stored: Node) -> dict[Node, int]:
    pending, users = [stored], dict[Node, int]()
    while pending:
        value = pending.pop(0)
        for user in value.users:
            if handed_on(user) is value:
                pending.append(user)
            elif user.op == "output" or looks_at_values(user):
                given = pytree.tree_leaves((user.args, user.kwargs))
                users[user] = users.get(user, 0) + sum(argument is value for argument in given)
    return users
