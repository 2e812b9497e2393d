"""The model that ranges are about, read again: its tensors, its norms, and how they are connected.

One call is traced, as for any study; no bound is computed. What a layer writes for an input of a norm comes from the
operations of that call between both, in float64.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Node

from normscope.checks import Floats, first_line, quoted
from normscope.data import demo_model, name_of
from normscope.errors import InputError
from normscope.models.find import find_alone
from normscope.models.float64_run import run_between
from normscope.models.graph import ModelGraph
from normscope.models.subject import Subject
from normscope.models.weights import Weights
from normscope.norm import Norm
from normscope.results.inventory import FoundNorm, Inventory
from normscope.results.layer_ranges import LayerRanges

LARGEST = 2**27  # numbers of a matrix that is used in float64: 1 GB
KEPT = 2**28  # bytes of tensors that are kept: several certificates read the same


def reread(result: LayerRanges, against: nn.Module | str | Path | Subject | None = None) -> "RangeTensors":
    """The model that ranges are about, for `normscope.certificates.check_ranges.check`.

    Parameters
    ----------
    result
        A result of `normscope.ranges`, new or loaded from a file.
    against
        The model, or a Subject with the inputs to trace it with. None: it is read from its recorded path.

    Returns
    -------
    RangeTensors
        Its tensors and norms by name, and the facts that the result states about it.
    """
    if against is None:
        if result.path is None:
            raise InputError("these ranges are of a module in memory: pass the model to check them against (against=)")
        path = demo_model() if result.model == name_of(demo_model()) else Path(result.path)
        return RangeTensors(Subject(path, dtype=result.dtype), {"model": name_of(path)})
    subject = against if isinstance(against, Subject) else Subject(against, dtype=result.dtype)
    return RangeTensors(subject, {"model": subject.name} if subject.path is None and result.path is None else {})


class RangeTensors:
    """A model read again; see `normscope.certificates.range_formulas.ModelRead`."""

    def __init__(self, subject: Subject, says: Mapping[str, Any]) -> None:
        self.says = says
        self._read: dict[str, Tensor] = {}
        self.unchecked: str | None = None
        self._inventory: Inventory
        self._weights: Weights
        try:
            self._inventory, self._weights = subject.sketch
        except ValueError as error:
            if subject.path is not None:
                raise
            # a module of which no example inputs are known can't be traced
            self.unchecked = first_line(error)
            self._inventory, self._weights = find_alone(subject.module), Weights.of_module(subject.module)

    def tensor(self, name: str) -> Tensor:
        """A stored tensor; the last ones read are kept."""
        found = self._read.pop(name, None)
        if found is None:
            found = self._weights(name).detach()
            while self._read and found.nbytes + sum(each.nbytes for each in self._read.values()) > KEPT:
                self._read.pop(next(iter(self._read)))
        self._read[name] = found
        return found

    def norm(self, name: str) -> Norm:
        """A norm by its name."""
        found = self._norms.get(name)
        if found is None:
            raise InputError(f"the model has no norm called {quoted(name)}")
        norm, obstacle = found.norm, found.obstacle if self.unchecked is None else found.problem
        if norm is None or obstacle is not None or not norm.scales:
            raise InputError(f"{quoted(name)} is not known to keep its outputs within bounds: {obstacle or norm}")
        return norm

    def layers(self) -> Mapping[str, Sequence[tuple[str, bool, str | None]]]:
        """The linear layers of the traced call."""
        return self._layers

    def outputs(self, norm: str, layer: str, weight: str, x: Floats) -> list[Floats] | None:
        """What a layer writes if a norm reads x at every token, for each call of the layer that reads the norm.

        A token may have another output than the next. None where the operations between both can't be run.
        """
        graph, found = self._graph, self._norms[norm]
        if graph is None or found.path is None or self._weights(weight).numel() > LARGEST:
            return None
        made: list[Floats] = []
        for call in graph.calls_of(found.path):
            given = self._given(found, graph.entering(found.path, call), x)
            for product in graph.products.values():
                if (product.reader.label, product.reader.weight_name) != (layer, weight):
                    continue
                if self._norm_outputs_behind(product.value).isdisjoint(graph.leaving(call)):
                    continue
                try:
                    made += _rows(run_between(graph, given, product.total, self.tensor))
                except (InputError, RuntimeError):
                    return None
        return made

    def _given(self, found: FoundNorm, entering: Sequence[Node], x: Floats) -> dict[Node, Tensor]:
        """Values of what a norm reads: x, and a gate that is the same for all channels, which the norm does not see."""
        order = list(entering)
        if found.gate is not None and found.gate.used_first:
            order.reverse()
        given = {}
        for place, value in enumerate(order):
            shape = value.meta["val"].shape
            if place:
                given[value] = torch.ones(shape, dtype=torch.float64)
            else:
                axis = found.axis % len(shape)
                view = [len(x) if at == axis else 1 for at in range(len(shape))]
                given[value] = torch.from_numpy(x.copy()).reshape(view).expand(shape)
        return given

    def _norm_outputs_behind(self, value: Node) -> set[Node]:
        """The outputs of norms that a value depends on, up to the next ones."""
        pending, seen, found = [value], set[Node](), set[Node]()
        while pending:
            node = pending.pop()
            if node in self._norm_outputs:
                found.add(node)
            elif node not in seen:
                seen.add(node)
                pending += node.all_input_nodes
        return found

    @cached_property
    def _norm_outputs(self) -> set[Node]:
        graph = self._graph
        assert graph is not None
        calls = [
            call for found in self._norms.values() if found.path is not None for call in graph.calls_of(found.path)
        ]
        return {node for call in calls for node in graph.leaving(call)}

    @cached_property
    def _norms(self) -> dict[str, FoundNorm]:
        return {found.name: found for found in self._inventory.values()}

    @property
    def _graph(self) -> ModelGraph | None:
        graph: ModelGraph | None = self._inventory.graph
        return graph

    @cached_property
    def _layers(self) -> dict[str, list[tuple[str, bool, str | None]]]:
        found: dict[str, list[tuple[str, bool, str | None]]] = {}
        for product in self._graph.products.values() if self._graph is not None else ():
            reader = product.reader
            found.setdefault(reader.label, []).append((reader.weight_name, reader.transposed, reader.bias_name))
        return found


def _rows(output: Tensor) -> list[Floats]:
    """The outputs that differ from token to token."""
    rows = output.reshape(-1, output.shape[-1])
    apart = (rows - rows[:1]).abs().amax(dim=1) > 1e-9 * rows.abs().amax()
    return [row.numpy() for row in (rows if apart.any() else rows[:1])]
