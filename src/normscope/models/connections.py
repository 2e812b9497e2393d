"""Positions of norms in the residual paths of a model: modules that write their inputs and read their outputs."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from normscope.models.graph import ModelGraph
from normscope.results.inventory import Inventory

Placement = Literal["pre-norm", "post-norm", "both"]
QK_NAME = re.compile(r"(^|[._])(q|k|query|key)_?(layer)?_?norm\b|norm_[qk]\b", re.IGNORECASE)


@dataclass(frozen=True)
class Connections:
    """By the name of a norm; empty, with placement None, where there is no graph."""

    reads: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    read_by: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    placement: Placement | None = None
    qk_norm: bool = False


def connections_of(inventory: Inventory) -> Connections:
    """The connections of the norms of an inventory, if it has a graph."""
    by_name = any(QK_NAME.search(name) for name in inventory)
    graph = inventory.graph
    if graph is None or not inventory:
        return Connections(qk_norm=by_name)
    paths = {name: found.path for name, found in inventory.items() if found.path is not None}
    layers = {layer.name for layer in graph.linear_layers()}
    reads = {name: graph.reads(path) for name, path in paths.items()}
    of_heads = {name for name, path in paths.items() if _is_of_heads(graph, path, reads[name], layers)}
    others = {path: reads[name] for name, path in paths.items() if name not in of_heads}
    return Connections(
        reads=reads,
        read_by={name: graph.read_by(path) for name, path in paths.items()},
        placement=_placement(graph, others, layers | set(paths.values())),
        qk_norm=bool(of_heads) or by_name,
    )


def _is_of_heads(graph: ModelGraph, path: str, reads: Sequence[str], layers: set[str]) -> bool:
    """Whether a norm stands between a linear layer and attention, as on queries and keys, beside residual paths."""
    if len(reads) != 1 or reads[0] not in layers:
        return False
    return not graph.linear_readers(path) and not graph.is_added(path) and not graph.is_bypassed(path)


def _placement(graph: ModelGraph, paths: Mapping[str, Sequence[str]], computing: set[str]) -> Placement | None:
    """pre-norm: the stream goes around its norms; post-norm: through them. Norms at either end are ignored."""
    before = after = False
    for path, reads in paths.items():
        if graph.is_bypassed(path):
            before = True
        elif graph.is_added(path) and computing & set(reads):  # not right behind the embeddings
            after = True
    if before and after:
        return "both"
    return "pre-norm" if before else "post-norm" if after else None
