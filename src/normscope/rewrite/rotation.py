"""Which streams of a model can be turned by an orthogonal matrix, and which stored tensors turn with them.

    writers    x ← xQ: tables EQ, layers QᵀW and bQ
    norms      N(xQ) = N(x)Q if the gain is constant and Q1 = 1 where a mean is subtracted; their biases bQ
    readers    WQ

A stream is followed through norms here, so that everything with one Q is one stream: the residual stream, and what all
norms on it give to their readers. Anything else that acts on single channels blocks it, and is named.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from torch import nn
from torch.fx import Node

from normscope.certificates.check_fold import Turning
from normscope.checks import Floats
from normscope.errors import InputError
from normscope.models.graph_operations import kind_of
from normscope.norm import Norm
from normscope.results.folding import KEPT_STREAM, ROTATED, StreamVerdict
from normscope.results.inventory import FoundNorm
from normscope.rewrite.folded_weights import NewWeights
from normscope.rewrite.norm_places import NormCall, path_of
from normscope.rewrite.norm_tensors import NormTensors
from normscope.rewrite.orthogonal import rotation
from normscope.rewrite.stored_tensors import Uses
from normscope.rewrite.streams import Followed, Streams

Place = tuple[str, int]  # a stored tensor by its first name, and its axis along the channels


@dataclass(frozen=True)
class Rotations:
    """The plan of a rotation."""

    turning: Turning
    verdicts: tuple[StreamVerdict, ...]


class Space(Followed):
    """A stream, followed through norms: all values that turn with one matrix."""

    depends = "needs its single channels"

    def __init__(self, streams: Streams, start: Node) -> None:
        self.norms: dict[NormCall, None] = {}
        self.read: list[tuple[str, str, int, tuple[Node, ...]]] = []  # module, tensor, axis, operations
        super().__init__(streams, start)
        self.size, self.obstacles = self._size, tuple(dict.fromkeys(self._obstacles))
        self.written = tuple(self._writers)
        self.nodes = frozenset(self._axes)

    @property
    def adds_up(self) -> bool:
        """Whether it is a residual stream: a sum of values that depend on the input."""
        constants = self._graph.constants
        terms = [node.args[:2] for node in self.nodes if kind_of(node) == "add"]
        return any(all(term in self.nodes and term not in constants for term in pair) for pair in terms)

    def _is_followed(self, node: Node) -> bool:
        return True

    def _write_norm(self, call: NormCall, axis: int) -> None:
        self._through(call, call.value, axis)

    def _read_norm(self, call: NormCall, axis: int) -> None:
        self._through(call, call.output, axis)

    def _through(self, call: NormCall, beyond: Node, axis: int) -> None:
        self.norms[call] = None
        if axis == -1:
            self._pending.append((beyond, -1))
        else:
            self._obstacles.append(f"{call.norm} normalizes another axis than that of its channels")

    def _read_layer(self, user: Node, node: Node, axis: int) -> bool:
        product = self._graph.multiplications.get(user)
        if product is None or product.value is not node or product.inputs is None or product.inputs.value != axis:
            return False
        self.read.append((product.module, product.weight, product.inputs.weight, product.nodes))
        return True


def plan_rotation(
    model: nn.Module,
    uses: Uses,
    streams: Streams,
    norms: Iterable[FoundNorm],
    weights: NewWeights,
    kind: str,
    seed: int,
) -> Rotations:
    """Decide which streams are turned, for a model with these weights, whose gains are folded where they can be."""
    known = {
        path: NormTensors.of(model, uses, path).norm(found.norm, weights)
        for found in norms
        if (path := path_of(found)) in streams.calls and found.norm is not None
    }
    tensors = {path: NormTensors.of(model, uses, path) for path in known}
    matrices: dict[str, Floats] = {}
    keep_ones: set[str] = set()
    turned: dict[str, dict[int, str]] = {}
    outputs: dict[str, str] = {}
    done: list[StreamVerdict] = []
    kept: list[tuple[bool, StreamVerdict]] = []
    unfit: list[tuple[bool, str]] = []  # why the matrix of a file is none for a stream that could be turned
    for number, space in enumerate(_spaces(streams)):
        name = _named(space, streams)
        projects = any(known[call.norm].projects for call in space.norms)
        places = _places(space, uses, tensors)
        reason = _objection(space, known, places, uses, turned)
        made = reason or rotation(kind, space.size, (seed, number), keeps_ones=projects)
        if isinstance(made, str):
            unfit += [] if reason else [(space.adds_up, made)]
            kept.append((space.adds_up, StreamVerdict(name, KEPT_STREAM, made)))
            continue
        matrices[name] = made.matrix
        if projects:
            keep_ones.add(name)
        for tensor, axis in places:
            turned.setdefault(tensor, {})[axis] = name
        outputs |= {call.norm: name for call in space.norms}
        done.append(StreamVerdict(name, ROTATED, f"{made.words}; {len(places)} tensors"))
    none = not done and not any(adds_up for adds_up, _ in kept)
    if not done and (wrong := next((words for adds_up, words in unfit if adds_up or none), None)):
        raise InputError(f"rotate turns no stream: {wrong}")
    told = [verdict for adds_up, verdict in kept if adds_up or none]
    every = {tensor: tuple(sorted(axes.items())) for tensor, axes in turned.items()}
    return Rotations(Turning(matrices, frozenset(keep_ones), every, outputs), (*done, *told))


def _spaces(streams: Streams) -> list[Space]:
    """Every stream that a norm reads, each once."""
    spaces: list[Space] = []
    seen: set[Node] = set()
    for calls in streams.calls.values():
        for call in calls:
            if call.value not in seen:
                spaces.append(Space(streams, call.value))
                seen |= spaces[-1].nodes
    return spaces


def _named(space: Space, streams: Streams) -> str:
    order = {node: place for place, node in enumerate(streams.graph.nodes)}
    readers = sorted(space.norms, key=lambda call: order[call.value])
    paths = list(dict.fromkeys(call.norm for call in readers))
    return f"read by {paths[0]}" + (f" and {len(paths) - 1} more norms" if len(paths) > 1 else "")


def _places(space: Space, uses: Uses, tensors: Mapping[str, NormTensors]) -> dict[Place, tuple[str, set[Node]]]:
    """Every stored tensor that has the stream along an axis, with the module and the operations that use it there."""
    places: dict[Place, tuple[str, set[Node]]] = {}

    def note(module: str, tensor: str, axis: int, nodes: Iterable[Node]) -> None:
        first = uses.tensors.first_name(tensor)
        place = (first, axis % uses.tensors[first].ndim)
        places.setdefault(place, (module, set()))[1].update(nodes)

    for module, tensor, axis, nodes in space.read:
        note(module, tensor, axis, nodes)
    for writer in space.written:
        begins = any(node.op == "placeholder" for node in writer.nodes)  # then all its users are followed
        note(writer.module, writer.tensor, writer.axis, space.nodes if begins else writer.nodes)
        if writer.bias is not None:
            note(writer.module, writer.bias, -1, writer.nodes)
    for call in space.norms:
        bias = tensors[call.norm].bias
        if bias is not None:
            note(call.norm, bias, -1, call.nodes)
    return places


def _objection(
    space: Space,
    norms: Mapping[str, Norm],
    places: Mapping[Place, tuple[str, set[Node]]],
    uses: Uses,
    turned: Mapping[str, Mapping[int, str]],
) -> str:
    """Why a stream can't be turned; empty if it can."""
    if space.obstacles:
        return space.obstacles[0]
    for call in space.norms:
        norm = norms[call.norm]
        if norm.groups != 1:
            return f"{call.norm} normalizes {norm.groups} groups of its channels"
        if not np.array_equal(norm.gain, np.full(norm.size, norm.gain[0])):
            return f"the gain of {call.norm} is not constant and can't be folded"
    for (tensor, axis), (module, nodes) in places.items():
        ok, reason = uses.can_change(uses.tensors.name_in(module, tensor), nodes)
        if not ok:
            return f"{module or 'the model'} holds {reason}"
        if axis in turned.get(tensor, {}):
            return f"{tensor} belongs to two streams along one axis"
    return ""
