"""The plan of a fold: decided for every norm on the traced graph, with a reason in words.

    centring   W ← ΠW,  b ← Πb                                                     of everything that writes a stream
    affine     W·(g∘z + b) + c  =  (W·diag(t))·((g∘z + b − s)/t) + (W·s + c)        t, s: what readers take over

The mean of a stream may be removed where it is written if no reader of the stream depends on it, and if
only such streams use the weights that write it. Gains and biases: see `affine`. What cannot be proven is kept.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from torch import nn
from torch.fx import Node

from normscope.certificates.check_fold import Promise, Taken
from normscope.norm import Norm
from normscope.results.folding import AFTER_LOOKUP, FOLDED, KEPT, NOTHING, Decision, NormVerdict
from normscope.results.inventory import FoundNorm
from normscope.rewrite.affine import Readers
from normscope.rewrite.norm_places import NormCall, path_of
from normscope.rewrite.stored_tensors import Uses
from normscope.rewrite.streams import Stream, Streams, Writer

ROUNDING = 1e-15  # a mean of a bias that is smaller than this, relative to its largest value, is 0
NO_MODULE = Decision(KEPT, "it is a function call inside a larger module, not a module of its own")


@dataclass(frozen=True)
class LookUp:
    """A table that stays unchanged, in a stream whose other writers are centred."""

    module: str
    tensor: str
    can_be_wrapped: bool  # the module's whole output goes into the stream


@dataclass(frozen=True)
class Plan:
    """Decisions about every norm and the tensors of a model, not yet carried out."""

    verdicts: tuple[NormVerdict, ...]
    promise: Promise
    look_ups: tuple[LookUp, ...]


def decide(model: nn.Module, uses: Uses, norms: Iterable[FoundNorm], mistaken: Mapping[str, str]) -> Plan:
    """The plan for a traced model, given its tensors, its norms, and those that compute something else inside it."""
    by_path = {path_of(found): found for found in norms}
    streams = Streams(uses.graph, by_path.values(), mistaken)
    readers = Readers(model, streams, uses)
    known = {name: found.norm for name, found in by_path.items() if found.norm is not None}
    centring = _Centring(known, streams, uses, readers)
    verdicts: list[NormVerdict] = []
    taken: list[Taken] = []
    for name, found in by_path.items():
        if name in streams.problems:
            kept = Decision(KEPT, streams.problems[name])
            verdicts.append(NormVerdict(name, found.kind, kept, kept))
            continue
        affine, by_readers = readers.decide(name, known[name])
        taken += [] if by_readers is None else [by_readers]
        verdicts.append(NormVerdict(name, found.kind, centring.decision(name), affine))
    verdicts += [
        NormVerdict(streams.words(node), "unknown", NO_MODULE, NO_MODULE) for node in streams.without_a_module()
    ]
    promise = Promise(centring.tensors(), (*taken, *centring.moved.values()))
    return Plan(tuple(verdicts), promise, centring.look_ups())


def unchanged(plan: Plan, why: str) -> Plan:
    """The same norms, of which nothing is folded, with the reason."""
    kept = Decision(KEPT, why)
    verdicts = tuple(NormVerdict(verdict.norm, verdict.kind, kept, kept) for verdict in plan.verdicts)
    return Plan(verdicts, Promise({}, ()), ())


class _Centring:
    """Which streams can lose their mean. Streams are rejected until all writers of the rest can be centred."""

    def __init__(self, norms: Mapping[str, Norm], streams: Streams, uses: Uses, readers: Readers) -> None:
        self._norms, self._streams, self._uses, self._readers = norms, streams, uses, readers
        self.moved: dict[str, Taken] = {}  # by norm: the mean of its bias, if its readers take it over
        self._left: dict[Writer, str] = {}  # tables that can only be centred after the look-up
        self._refused = {stream: stream.obstacles[0] for stream in streams.all if stream.obstacles}
        while True:
            self.moved, self._left = {}, {}
            refused = {stream: reason for stream in self._kept if (reason := self._objection(stream))}
            if not refused:
                break
            self._refused |= refused

    def decision(self, name: str) -> Decision:
        norm = self._norms[name]
        if not norm.projects:
            return Decision(NOTHING, "it does not subtract a mean")
        if norm.groups != 1:
            return Decision(KEPT, f"it subtracts the mean of each of its {norm.groups} groups")
        streams = self._streams.read_by(name)
        for stream in streams:
            if stream in self._refused:
                return Decision(KEPT, self._refused[stream])
        writers = [writer for stream in streams for writer in stream.writers]
        for writer in writers:
            if writer in self._left:
                return Decision(AFTER_LOOKUP, self._left[writer])
        modules = {writer.module for writer in writers}
        return Decision(FOLDED, f"everything written to its stream is centred ({len(modules)} modules)")

    def tensors(self) -> dict[str, int]:
        """The tensors to centre, each with its axis."""
        centred: dict[str, int] = {}
        for writer in self._writers():
            if writer not in self._left:
                centred[self._uses.tensors.first_name(writer.tensor)] = self._axis(writer)
                if writer.bias is not None:
                    bias = self._uses.tensors.first_name(writer.bias)
                    centred[bias] = self._uses.tensors[bias].ndim - 1
        return centred

    def look_ups(self) -> tuple[LookUp, ...]:
        """The tables that stay unchanged in streams whose other writers are centred."""
        found = [
            LookUp(
                writer.module, self._uses.tensors.first_name(writer.tensor), self._makes_nothing_else(writer, stream)
            )
            for stream in self._kept
            for writer in stream.writers
            if writer in self._left
        ]
        return tuple(dict.fromkeys(found))

    def _makes_nothing_else(self, writer: Writer, stream: Stream) -> bool:
        """Whether the whole output of a module, in all its calls, goes into a stream."""
        graph = self._streams.graph
        calls = graph.calls_of(writer.module) if writer.module else []
        return bool(calls) and all(set(graph.leaving(call)) <= stream.nodes for call in calls)

    @property
    def _kept(self) -> list[Stream]:
        return [stream for stream in self._streams.all if stream not in self._refused]

    def _writers(self) -> list[Writer]:
        return [writer for stream in self._kept for writer in stream.writers]

    def _objection(self, stream: Stream) -> str:
        """Why a stream must keep its mean, given the streams that do not; empty if it need not."""
        for call in stream.norm_writers:
            ok, reason = self._writes_no_mean(call)
            if not ok:
                return reason
        for writer in stream.writers:
            ok, reason = self._can_centre(writer)
            if not ok and not writer.looks_up:
                return reason
            if not ok:
                self._left[writer] = reason
        return ""

    def _can_centre(self, writer: Writer) -> tuple[bool, str]:
        """Whether only centred streams use the tensors of a writer."""
        for name in (writer.tensor, writer.bias):
            if name is None:
                continue
            ok, reason = self._uses.can_change(self._uses.tensors.name_in(writer.module, name), self._writing(name))
            if not ok:
                return False, f"{writer.module or 'the model'} writes to its stream with {reason}"
        same = [other for other in self._writers() if self._first(other.tensor) == self._first(writer.tensor)]
        if len({self._axis(other) for other in same}) > 1:
            return False, f"{writer.tensor} writes to its stream, and to another along another axis"
        return True, ""

    def _writing(self, name: str) -> set[Node]:
        """The operations by which a tensor writes to centred streams."""
        nodes: set[Node] = set()
        for stream in self._kept:
            for writer in stream.writers:
                if self._first(name) in (self._first(writer.tensor), self._first(writer.bias)):
                    begins = any(node.op == "placeholder" for node in writer.nodes)  # then all its users are followed
                    nodes |= stream.nodes if begins else set(writer.nodes)
        return nodes

    def _first(self, name: str | None) -> str | None:
        return None if name is None else self._uses.tensors.first_name(name)

    def _axis(self, writer: Writer) -> int:
        return writer.axis % self._uses.tensors[writer.tensor].ndim

    def _writes_no_mean(self, call: NormCall) -> tuple[bool, str]:
        """Whether a norm writes vectors of mean zero, or does so once its readers take over the mean of its bias."""
        norm = self._norms[call.norm]
        if not norm.projects or norm.groups != 1:
            return False, f"{call.norm} writes to its stream and does not subtract the mean"
        if (norm.gain != norm.gain[0]).any():
            return False, f"{call.norm} writes to its stream, and its gain is not constant"
        mean = float(norm.bias.mean())
        if abs(mean) <= ROUNDING * float(abs(norm.bias).max()):
            return True, ""
        gain, bias = np.ones(norm.size), np.full(norm.size, mean)
        blind = self._streams.blind_nodes.union(*(stream.handing_on for stream in self._kept))
        taken, reason = self._readers.take(call.norm, gain, bias, blind)
        if taken is None:
            return False, f"the bias of {call.norm} writes a mean to its stream, and {reason}"
        self.moved[call.norm] = taken
        return True, ""
