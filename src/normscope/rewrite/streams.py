"""Residual streams on the traced graph: what writes to them, what reads them, and what each does to the mean.

    writers ──▶ sums, moves, joins of tokens, factors that are the same for all channels ──▶ readers

A stream is followed from the input of a norm in both directions until nothing new turns up. All its values have their
channels in one axis, in order, so that if every writer has mean zero over the channels, so has every value. Anything
not known to preserve that, or to ignore the mean, is an obstacle, described with the module and the node.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.fx import Node

from normscope.models.graph import ModelGraph
from normscope.models.graph_operations import COPIES, after_move, handed_in, handed_on, in_order, is_float, kind_of
from normscope.models.multiplications import Multiplication
from normscope.results.inventory import FoundNorm
from normscope.rewrite.channels import (
    axes_of,
    axis_after,
    counts,
    hands_on,
    is_mutable,
    move_of,
    numbered,
    rows_from,
    scaling,
    terms_of,
)
from normscope.rewrite.norm_places import NormCall, path_of, place

FUNCTIONS = {"layer_norm", "rms_norm", "group_norm", "batch_norm", "instance_norm"}
ZEROS = {"zeros", "zeros_like", "new_zeros"}
CONVOLUTIONS = {"conv1d": 1, "conv2d": 2, "conv3d": 3}  # and their number of spatial axes
CONVOLUTION_ARGUMENTS = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")


@dataclass(frozen=True)
class Writer:
    """The start of a stream: a stored tensor with the channels of the stream along one axis, and a bias."""

    nodes: tuple[Node, ...]  # the operations that use the tensor and the bias
    module: str
    tensor: str
    axis: int
    bias: str | None = None
    looks_up: bool = False  # a table whose rows are looked up


@dataclass(frozen=True, eq=False)
class Stream:
    """Values with their channels in one axis, linked by operations that keep a mean of zero."""

    size: int
    nodes: frozenset[Node]
    writers: tuple[Writer, ...]
    norm_writers: tuple[NormCall, ...]  # norms whose output is added to it
    readers: tuple[NormCall, ...]  # norms that subtract its mean
    obstacles: tuple[str, ...]  # why its mean cannot be removed

    @property
    def handing_on(self) -> frozenset[Node]:
        """The operations that pass its values on, or add them up: not those that write it."""
        return self.nodes.difference(*(writer.nodes for writer in self.writers))


@dataclass(frozen=True)
class Reading:
    """A linear layer that reads the output of a norm, channel by channel."""

    node: Node
    by: Multiplication
    axis: int  # of the stored weights, along the channels
    factor: float  # factor between the output and the layer; NaN if unknown


class Streams:
    """The norms of a traced model, their calls, and the streams that they read."""

    def __init__(self, graph: ModelGraph, norms: Iterable[FoundNorm], mistaken: Mapping[str, str]) -> None:
        self.graph = graph
        self.calls: dict[str, tuple[NormCall, ...]] = {}
        self.problems: dict[str, str] = {}  # why the calls of a norm are not understood
        self._blind: set[str] = set()
        self._norms: list[str] = []
        for found in norms:
            name = path_of(found)
            self._norms.append(name)
            placed = mistaken.get(name, place(graph, found))
            if isinstance(placed, str):
                self.problems[name] = placed
                continue
            self.calls[name] = placed
            if found.norm is not None and found.norm.projects and found.norm.groups == 1:
                self._blind.add(name)
        calls = [call for placed in self.calls.values() for call in placed]
        self.by_output = {call.output: call for call in calls}
        self.inside = {node: call for call in calls for node in call.nodes}
        self.totals = {product.total: product for product in graph.multiplications.values()}
        self._streams: dict[Node, Stream] = {}  # by a value that a norm reads
        for call in calls:
            if call.norm in self._blind and call.value not in self._streams:
                stream = Followed(self, call.value).stream()
                self._streams |= dict.fromkeys((call.value, *(reader.value for reader in stream.readers)), stream)

    @property
    def all(self) -> tuple[Stream, ...]:
        """Every stream whose mean a norm subtracts."""
        return tuple(dict.fromkeys(self._streams.values()))

    def read_by(self, norm: str) -> tuple[Stream, ...]:
        """The streams that a norm reads, one for each of its calls; none if it does not subtract a mean."""
        return tuple(self._streams[call.value] for call in self.calls.get(norm, ()) if norm in self._blind)

    @property
    def blind_nodes(self) -> frozenset[Node]:
        """The operations of norms that do not depend on the mean of their input."""
        return frozenset(node for node, call in self.inside.items() if self.is_blind(call))

    def is_blind(self, call: NormCall) -> bool:
        """Whether a norm does not depend on the mean of its input."""
        return call.norm in self._blind

    def without_a_module(self) -> tuple[Node, ...]:
        """Norms that are one torch operation in the graph, outside all modules known as norms."""
        known = {node for name in self._norms for call in self.graph.calls_of(name) for node in call}
        return tuple(node for node in self.graph.nodes if kind_of(node) in FUNCTIONS and node not in known)

    def readings(self, value: Node) -> tuple[list[Reading], list[Node]]:
        """The linear layers that read a value with its channels in order, and every other use of it.

        Followed through moves, choices of tokens, and factors that are the same for all channels.
        """
        size = value.meta["val"].shape[-1]
        pending: list[tuple[Node, Any, float]] = [(value, numbered(value, -1), 1.0)]
        linear: list[Reading] = []
        others: dict[Node, None] = {}
        while pending:
            source, channels, factor = pending.pop(0)
            for user in source.users:
                if not counts(user, source):
                    continue
                if (reading := self._reading(user, source, channels, factor, size)) is not None:
                    linear.append(reading)
                elif hands_on(user, source) and (moved := after_move(user, channels)) is not None:
                    pending.append((user, moved, factor))
                elif (
                    (by := scaling(user, source, -1)) is not None and not is_mutable(user) and in_order(channels, size)
                ):
                    pending.append((user, numbered(user, -1), by * factor))
                elif rows_from(user) is source and in_order(channels, size):
                    pending.append((user, numbered(user, -1), factor))
                else:
                    others[user] = None
        return linear, list(others)

    def _reading(self, user: Node, source: Node, channels: Tensor, factor: float, size: int) -> Reading | None:
        """The use of a value in a product that sums over all its channels in order."""
        product = self.graph.multiplications.get(user)
        if product is None or product.value is not source or product.inputs is None:
            return None
        ordered = in_order(channels.movedim(product.inputs.value, -1), size)
        return Reading(user, product, product.inputs.weight, factor) if ordered else None

    def words(self, node: Node) -> str:
        """A description of an operation: what it does, in which module, and its name in the graph."""
        if node.op == "output":
            return "the output of the model"
        if node.op == "placeholder":
            name = self.graph.stored_name(node)
            return f"the input {node.name}" if name is None else f"the tensor {name}"
        what = kind_of(node) or str(getattr(node.target, "__name__", node.target))
        return f"{what} in {self.graph.module_of(node) or 'the model'} ({node.name})"


class Followed:
    """One stream, followed from one of its values, up to norms; those that read it must not depend on its mean.

    Three methods say this, and others can be given: which values are followed to their users, what a norm does to the
    stream, and what else reads it.
    """

    depends = "depends on its mean"  # what stands against a reader that is not known

    def __init__(self, streams: Streams, start: Node) -> None:
        self._all = streams
        self._graph = streams.graph
        self._size: int = start.meta["val"].shape[-1]
        self._axes: dict[Node, int] = {}
        self._writers: list[Writer] = []
        self._norm_writers: list[NormCall] = []
        self._readers: list[NormCall] = []
        self._obstacles: list[str] = []
        self._pending: list[tuple[Node, int]] = [(start, -1)]
        while self._pending:
            node, axis = self._pending.pop(0)
            if node not in self._axes:
                self._axes[node] = axis
                self._backward(node, axis)
                if self._is_followed(node):
                    self._forward(node, axis)
            elif self._axes[node] != axis:
                self._obstacles.append(f"{streams.words(node)} has its channels in two axes at once")

    def stream(self) -> Stream:
        return Stream(
            self._size,
            frozenset(self._axes).union(*(writer.nodes for writer in self._writers)),
            tuple(self._writers),
            tuple(self._norm_writers),
            tuple(self._readers),
            tuple(dict.fromkeys(self._obstacles)),
        )

    def _is_followed(self, node: Node) -> bool:
        return not self._is_of_a_norm(node)

    def _write_norm(self, call: NormCall, axis: int) -> None:
        """A norm writes to the stream."""
        self._norm_writers.append(call)

    def _read_norm(self, call: NormCall, axis: int) -> None:
        """A norm reads the stream."""
        if axis == -1 and self._all.is_blind(call):
            self._readers += [call] if call not in self._readers else []
        else:
            self._obstacles.append(f"{call.norm} reads the same stream and does not subtract its mean")

    def _read_layer(self, user: Node, node: Node, axis: int) -> bool:
        """Whether an operation is a known reader of a value of the stream, which is then noted."""
        return False

    def _is_of_a_norm(self, node: Node) -> bool:
        """Whether a value is the output of a norm, possibly moved: it is unchanged for all its readers."""
        value: Node | None = node
        while value is not None and value not in self._all.by_output:
            value = handed_on(value)
        return value is not None

    def _backward(self, node: Node, axis: int) -> None:
        """Follow a value of the stream to its sources."""
        if node in self._graph.overwritten and (node.op == "placeholder" or self._is_of_a_norm(node)):
            self._obstacles.append(f"{self._words(node)} is changed in place")
        if node in self._all.by_output:
            self._write_norm(self._all.by_output[node], axis)
        elif (writer := self._writer(node, axis)) is not None:
            self._writers.append(writer)
        elif kind_of(node) in ZEROS:
            return
        elif (terms := terms_of(node, axis)) is not None:
            for term in terms:
                self._join(node, term, axis)
        elif (move := move_of(node)) is not None:
            source, moved = move
            axes = [candidate for candidate in axes_of(source, self._size) if moved(source, candidate) == axis]
            if axes:
                self._pending.append((source, axes[0]))
            else:
                self._obstacles.append(f"{self._words(node)} takes the channels of {source.name} apart")
        else:
            self._obstacles.append(
                f"{self._words(node)} writes to its stream and is not a linear map with stored weights"
            )

    def _writer(self, node: Node, axis: int) -> Writer | None:
        if (name := self._graph.stored_name(node)) is not None:
            return Writer((node,), name.rpartition(".")[0], name, axis)
        if (product := self._all.totals.get(node)) is not None:
            along = next((axes.weight for axes in product.outputs if axes.value == axis), None)
            if along is not None:
                return Writer(product.nodes, product.module, product.weight, along, product.bias)
        module, kind = self._graph.module_of(node), kind_of(node)
        if kind == "embedding" and axis == -1 and (table := self._stored(node.args[0])) is not None:
            return Writer((node,), module, table, 1, looks_up=True)
        if kind == "index" and axis == -1 and (table := self._indexed_table(node)) is not None:
            return Writer((node,), module, table, 1, looks_up=True)
        if kind in CONVOLUTIONS and axis == -1 - CONVOLUTIONS[kind] and not node.kwargs:
            given: dict[str, Any] = dict(zip(CONVOLUTION_ARGUMENTS, node.args, strict=False))
            kernel, shift = self._stored(given["weight"]), self._stored(given.get("bias"))
            understood = (given.get("bias") is None) == (shift is None) and given.get("groups", 1) == 1
            if kernel is not None and understood:
                return Writer((node,), module, kernel, 0, shift)
        return None

    def _indexed_table(self, node: Node) -> str | None:
        """The stored matrix whose rows an index selects."""
        table, indices = node.args
        rows = isinstance(indices, (list, tuple)) and len(indices) == 1
        matrix = isinstance(table, Node) and table.meta["val"].ndim == 2
        return self._stored(table) if rows and matrix else None

    def _stored(self, value: Any) -> str | None:
        """The stored tensor behind a value, possibly cast."""
        while isinstance(value, Node) and kind_of(value) in COPIES:
            value = handed_on(value)
        return self._graph.stored_name(value) if isinstance(value, Node) else None

    def _join(self, node: Node, term: Any, axis: int) -> None:
        """Follow a term of a sum or a part of a join, which must have all channels in the same axis."""
        if isinstance(term, Node) and is_float(term) and axis in axes_of(term, self._size):
            self._pending.append((term, axis))
        else:
            what = self._words(term) if isinstance(term, Node) else str(term)
            self._obstacles.append(f"{self._words(node)} adds {what} to all channels of its stream")

    def _forward(self, node: Node, axis: int) -> None:
        """Follow a value of the stream to its other users."""
        for user in node.users:
            if not counts(user, node):
                continue
            call = self._all.inside.get(user)
            if call is not None and node in call.nodes and handed_in(node, call.nodes):
                continue  # inside a norm, on its own input: a cast that changes nothing may be used outside too
            if call is not None and call.value is node:
                self._read_norm(call, axis)
                if hands_on(user, node):  # a cast that changes nothing, which others outside the norm may use
                    self._pending.append((user, axis))
                continue
            if self._read_layer(user, node, axis):
                continue
            for following, its_axis in self._followers(node, user, axis):
                if its_axis is None:
                    self._obstacles.append(f"{self._words(following)} reads the same stream and {self.depends}")
                else:
                    self._pending.append((following, its_axis))

    def _followers(self, node: Node, user: Node, axis: int) -> Iterator[tuple[Node, int | None]]:
        """The outputs of a user of a value of the stream, and their channel axis, if they have one."""
        if user in self._all.totals and user not in self._graph.multiplications:
            yield user, None  # a product and its bias are one writer: nothing else may be added here
        elif node in (terms_of(user, axis) or ()):
            yield user, axis
        elif not hands_on(user, node):
            yield user, None
        elif isinstance(user.meta["val"], Tensor):
            yield user, axis_after(user, node, axis, self._size)
        else:  # several parts, taken out one by one
            for part in user.users:
                move = move_of(part)
                yield part, None if move is None else move[1](node, axis)

    def _words(self, node: Node) -> str:
        return self._all.words(node)
