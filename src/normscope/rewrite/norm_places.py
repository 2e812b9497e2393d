"""Positions of a model's norms in the traced graph, and what they compute there while the graph runs.

A module is recognised from its outputs when it runs alone. Inside the model it may be called with other arguments, or
hooks may change its inputs and outputs. So while the call is computed in float64, the output of every norm is compared
with that of the recognised norm for the same input; and the outputs of norms before and after folding,

    g∘z + b  =  t∘((g∘z + b − s)/t) + s        t, s: what its readers have taken over

are compared by their product with one random vector, so that the certificate covers norms that no output depends on.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.fx import Node

from normscope.models.graph import Call, ModelGraph
from normscope.models.graph_operations import is_float
from normscope.norm import Norm
from normscope.results.inventory import FoundNorm

NEAR = 1e-2  # of the largest output: more than rounding, or an error of an estimated eps, explains
SEED = 0


@dataclass(frozen=True, eq=False)
class NormCall:
    """One call of a norm."""

    norm: str
    value: Node  # what it normalizes
    output: Node
    nodes: Call


def path_of(found: FoundNorm) -> str:
    """The name of a norm in the model that was traced."""
    return found.name if found.path is None else found.path


def place(graph: ModelGraph, found: FoundNorm) -> tuple[NormCall, ...] | str:
    """The calls of a norm, or why they cannot be determined."""
    if found.norm is None:
        return f"it is not a known norm: {found.problem}"
    if found.axis != -1:
        return f"it normalizes axis {found.axis}, not the last"
    name, placed = path_of(found), list[NormCall]()
    for call in graph.calls_of(name):
        entering, leaving = graph.entering(name, call), graph.leaving(call)
        if len(entering) != 1:
            return f"it receives {len(entering)} values ({', '.join(node.name for node in entering)}), not one"
        if len(leaving) != 1:
            return f"it returns {len(leaving)} values, not one"
        for node in (*entering, *leaving):
            if not is_float(node) or node.meta["val"].shape[-1:] != (found.norm.size,):
                return f"{node.name} does not have its {found.norm.size} channels in the last axis"
        placed.append(NormCall(name, entering[0], leaving[0], call))
    return tuple(placed) or "the traced call does not run it"


class Watch:
    """The norms of a graph while it is computed: called with every node and its value, in order.

    In the original it checks that they compute what was recognised; for a rewritten model `restored` gives what a norm
    gave in the original.
    """

    def __init__(
        self,
        graph: ModelGraph,
        norms: Iterable[FoundNorm],
        restored: Callable[[str, Tensor], Tensor] | None = None,
    ) -> None:
        self.mistaken: dict[str, str] = {}  # norms that compute something else inside the model, with a description
        self._checks, self._restored = restored is None, restored
        self._norms: dict[str, Norm] = {}
        self._outputs: dict[str, list[Tensor]] = {}
        self._by_output: dict[Node, NormCall] = {}
        self._inputs: dict[Node, Tensor] = {}
        self._waiting: dict[Node, int] = {}  # by input: how many norms have yet to read it
        for found in norms:
            placed = place(graph, found)
            if isinstance(placed, tuple) and found.norm is not None:
                self._norms[path_of(found)] = found.norm
                for call in placed:
                    self._by_output[call.output] = call
                    self._waiting[call.value] = self._waiting.get(call.value, 0) + self._checks

    def __call__(self, node: Node, value: Tensor) -> None:
        call = self._by_output.get(node)
        if call is not None:
            self._outputs.setdefault(call.norm, []).append(self._times_a_vector(call.norm, value.double()))
            if call.value in self._inputs:
                self._compare(call.norm, self._inputs[call.value], value)
                self._waiting[call.value] -= 1
                if not self._waiting[call.value]:
                    del self._inputs[call.value]
        if self._waiting.get(node):
            self._inputs[node] = value.double()

    def outputs(self) -> list[Tensor]:
        """The outputs of all norms, as in the original, each times one vector."""
        return [output for outputs in self._outputs.values() for output in outputs]

    def _times_a_vector(self, name: str, output: Tensor) -> Tensor:
        random = torch.Generator().manual_seed(SEED)
        vector = torch.randn(output.shape[-1], generator=random, dtype=torch.float64)
        return (output if self._restored is None else self._restored(name, output)) @ vector

    def _compare(self, name: str, given: Tensor, made: Tensor) -> None:
        if not bool(given.isfinite().all()):
            return
        expected = torch.from_numpy(self._norms[name](given.numpy()))
        apart, size = (float(values.abs().max()) if made.numel() else 0.0 for values in (made - expected, expected))
        if not apart <= NEAR * size:
            self.mistaken[name] = "inside the model it computes something else than alone"
