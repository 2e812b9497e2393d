"""Which tensors of a graph are queries, keys, values, scores, head outputs, streams, and inputs of norms.

Told by operations alone: attention is a softmax, or torch's attention operation, between two products of values that
depend on the input; a stream is a sum of two such values that has the shape of a norm's input.
"""

from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.fx import Node

from normscope.models.graph import ModelGraph
from normscope.models.graph_operations import handed_on, is_float, kind_of, sizes_of
from normscope.results.layer_ranges import What

PRODUCTS = {"matmul", "bmm", "baddbmm", "einsum"}
BETWEEN = {"add", "sub", "mul", "div", "where", "masked_fill", "cat", "tanh", "clamp", "maximum"}


@dataclass(frozen=True)
class Role:
    """What a tensor is, and in which module."""

    layer: str
    what: What


def roles_of(graph: ModelGraph, norms: Iterable[str]) -> dict[Node, Role]:
    """The roles of nodes; linear layers and hidden values are not among them."""
    found = {value: Role(name, "norm input") for value, name in _norm_inputs(graph, norms)}
    shapes = {tuple(value.meta["val"].shape) for value in found}
    for node in graph.nodes:
        for place, role in _attention(graph, node):
            found.setdefault(place, role)
    for node in graph.nodes:
        if _is_sum(graph, node) and tuple(node.meta["val"].shape) in shapes:
            found.setdefault(node, Role(graph.module_of(node), "stream"))
    totals = {product.total for product in graph.products.values()}
    for term in writers_of(graph, norms):
        source = before_moves(term, totals)
        terms = [before_moves(each, totals) for each in source.all_input_nodes] if kind_of(source) == "add" else []
        looked_up = any(kind_of(each) == "embedding" for each in (source, *terms))
        after: Node | None = source
        while after is not None and after is not term:
            after = _only_user(after)
        alone = after is term and _only_user(term) is not None  # what a post-norm writes has other readers
        if source.op == "call_function" and source not in totals and alone and not looked_up:
            found.setdefault(source, Role(graph.module_of(source), "branch"))
    for node in graph.nodes[-1].all_input_nodes:
        if is_float(node) and node.op == "call_function":
            found[node] = Role(graph.module_of(node), "model output")
    return found


def writers_of(graph: ModelGraph, norms: Iterable[str]) -> Iterator[Node]:
    """The values that are added to a stream, before moves; among them what the stream held before."""
    shapes = {tuple(value.meta["val"].shape) for value, _ in _norm_inputs(graph, norms)}
    for node in graph.nodes:
        if _is_sum(graph, node) and tuple(node.meta["val"].shape) in shapes:
            yield from node.args[:2]  # type: ignore[misc]


def before_moves(node: Node, layers: Container[Node]) -> Node:
    """The layer, or the operation that computes, behind moves."""
    while node not in layers and (source := handed_on(node)) is not None:
        node = source
    return node


def _norm_inputs(graph: ModelGraph, norms: Iterable[str]) -> Iterator[tuple[Node, str]]:
    for name in norms:
        for call in graph.calls_of(name):
            for value in [each for each in graph.entering(name, call) if is_float(each)][:1]:
                yield value, name


def _attention(graph: ModelGraph, node: Node) -> Iterator[tuple[Node, Role]]:
    where = graph.module_of(node)
    if kind_of(node) == "scaled_dot_product_attention":
        names: tuple[What, ...] = ("queries", "keys", "values")
        given = [*node.args, *(node.kwargs.get(name) for name in ("query", "key", "value"))]
        tensors = [each for each in given if isinstance(each, Node)][:3]
        for each, what in zip(tensors, names, strict=False):
            yield each, Role(where, what)
        yield node, Role(where, "heads")
    if kind_of(node) not in ("softmax", "_softmax"):
        return
    product = _product_before(graph, node.args[0])
    if product is None:
        return
    yield node.args[0], Role(where, "scores")  # type: ignore[misc]
    queries, keys = _factors(product)
    yield queries, Role(where, "queries")
    yield keys, Role(where, "keys")
    after = _only_user(node)
    while after is not None and handed_on(after) is not None:
        after = _only_user(after)
    if after is not None and kind_of(after) in PRODUCTS and after not in graph.products:
        _, values = _factors(after)
        yield values, Role(where, "values")
        yield after, Role(where, "heads")


def _product_before(graph: ModelGraph, value: object) -> Node | None:
    """The product of two values that depend on the input, behind scales, masks and positions."""
    pending, seen = [value], set()
    while pending:
        node = pending.pop(0)
        if not isinstance(node, Node) or node in seen or node in graph.constants:
            continue
        seen.add(node)
        if kind_of(node) in PRODUCTS and node not in graph.products:
            return node
        if handed_on(node) is not None or kind_of(node) in BETWEEN:
            pending += node.all_input_nodes
    return None


def _factors(product: Node) -> tuple[Node, Node]:
    """The two factors of a product."""
    args: Any = product.args
    first, second = args[1] if kind_of(product) == "einsum" else args[kind_of(product) == "baddbmm" :][:2]
    return first, second


def _only_user(node: Node) -> Node | None:
    users = [user for user in node.users if user.meta.get("val") is not None]
    return users[0] if len(users) == 1 else None


def _is_sum(graph: ModelGraph, node: Node) -> bool:
    """A sum of two values that depend on the input, both of its shape."""
    if kind_of(node) != "add" or node in graph.constants or not is_float(node):
        return False
    terms = [each for each in node.args[:2] if isinstance(each, Node)]
    same = all(isinstance(each.meta.get("val"), Tensor) and sizes_of(each) == sizes_of(node) for each in terms)
    return len(terms) == 2 and same and not graph.constants & set(terms)
