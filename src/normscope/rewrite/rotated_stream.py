"""Whether one rotation can go through the residual stream of a model, and which modules it goes into.

    Q: every layer and table that writes to the stream        Qᵀ: every layer that reads a norm of the stream

It needs a stream of sums that nothing reads but norms, norms that don't subtract a mean, have a gain of 1 or one that
their readers take over, and are read by linear layers alone. LayerNorm would need a matrix that keeps the mean, which
Hadamard matrices don't.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch.fx import Node

from normscope.models.graph import ModelGraph
from normscope.models.graph_operations import handed_on, kind_of
from normscope.results.inventory import FoundNorm
from normscope.rewrite.channels import counts, move_of, terms_of
from normscope.rewrite.streams import Streams


@dataclass(frozen=True)
class RotatedStream:
    """The tensors that write to a stream, and the norms that read it."""

    writers: tuple[str, ...]
    norms: tuple[str, ...]


def rotated_stream(streams: Streams, norms: Mapping[str, FoundNorm], fused: Sequence[str]) -> RotatedStream | str:
    """The stream that the last of the fused norms reads, or why it can't be rotated."""
    start = next((call.value for name in reversed(fused) for call in streams.calls[name]), None)
    if start is None:
        return "no norm is read by linear layers alone"
    followed = _followed(streams, start)
    if isinstance(followed, str):
        return followed
    for name in followed.norms:
        found = norms[name].norm
        if found is None or found.projects:
            return f"{name} subtracts the mean of the stream, which a Hadamard matrix does not keep"
        if name not in fused:
            return f"{name} reads the stream, and its gain can't be fused"
    return followed


def _followed(streams: Streams, start: Node) -> RotatedStream | str:
    """The stream that a value belongs to, followed in both directions, or what else writes or reads it."""
    inside = {node: call for calls in streams.calls.values() for call in calls for node in call.nodes}
    totals = {product.total: product.weight for product in streams.graph.multiplications.values()}
    pending, seen = [start], set[Node]()
    writers, read = dict[str, None](), dict[str, None]()
    while pending:
        node = pending.pop()
        if node in seen:
            continue
        seen.add(node)
        tensor, sources = totals.get(node) or _table(streams.graph, node), _sources(node)
        if tensor is None and sources is None:
            return f"{streams.words(node)} writes to the stream, and is not a linear layer"
        if tensor is not None:
            writers[tensor] = None
        else:
            pending += sources or []
        for user in (user for user in node.users if counts(user, node)):
            call, moved = inside.get(user), handed_on(user) is node
            if call is not None:
                read[call.norm] = None
            if moved or (call is None and node in (terms_of(user, -1) or ())):
                pending.append(user)  # a cast in a norm that changes nothing may be used outside it too
            elif call is None:
                return f"{streams.words(user)} reads the stream, and is not a norm"
    return RotatedStream(tuple(writers), tuple(read))


def _sources(node: Node) -> list[Node] | None:
    """The values that a node adds up or passes on; None if it computes something else."""
    terms = terms_of(node, -1)
    if terms is not None:
        return terms if all(isinstance(term, Node) for term in terms) else None
    source = handed_on(node)
    return None if source is None or move_of(node) is None else [source]


def _table(graph: ModelGraph, node: Node) -> str | None:
    """The table whose rows a node looks up."""
    table = node.args[0] if kind_of(node) == "embedding" else None
    return graph.stored_name(table) if isinstance(table, Node) else None
