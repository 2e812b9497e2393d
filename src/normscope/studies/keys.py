"""Which keys of a text no query can select: for every layer or head of a model, every verdict with a certificate.

    at input    the vectors that go into the norm before a layer's attention
    at output   those that come out of it
    at heads    the keys of each head exactly as attention multiplies them

The first two are the comparison of [1]: distinct outputs of a norm lie on the surface of its ellipsoid, so all of them
can be selected, and its inputs need not be. A head maps them to fewer channels, where that can be lost again.

A key competes with all keys of its sequence, as in [1]; a text longer than the model's context is run in pieces, and
each piece is a sequence.

[1] Brody et al., On the Expressivity Role of LayerNorm in Transformers' Attention, ACL Findings 2023.
"""

from collections.abc import Iterator, Mapping, Sized
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, get_args

import numpy as np
from torch import Tensor, nn

from normscope.certificates.key_certificates import Ints
from normscope.checks import Floats, as_count, as_floats, quoted
from normscope.engine import Engine, FailedPiece, or_local
from normscope.errors import InputError
from normscope.geometry import Ellipsoid
from normscope.models.batches import Inputs
from normscope.models.capture import capture
from normscope.models.find import find
from normscope.models.heads import Heads
from normscope.models.load import run_in_pieces
from normscope.models.query_maps import HeadMaps, NoMapError, norms_before_keys
from normscope.models.subject import Model, Subject, Text
from normscope.models.token_texts import token_texts
from normscope.progress import Progress, silent
from normscope.results.inventory import FoundNorm
from normscope.results.key_selection import At, KeyAt, KeySelection, KeySet, Place, Queries, Rivals
from normscope.results.rows import NotCovered
from normscope.studies.equal_attention import EqualAttentionGatherer, EqualQuery
from normscope.studies.key_verdicts import Question, Verdict, verdicts
from normscope.studies.reachable_queries import HeadRun, ReachableQueries

IN_CONTEXT = 20  # keys of a place that are shown with the text around them
BEFORE, AFTER = 12, 6  # tokens of it


def keys(
    model: Model,
    *,
    text: Text | None = None,
    inputs: Inputs | None = None,
    at: At = "heads",
    queries: Queries = "any",
    rivals: Rivals = "all",
    max_keys: int | None = None,
    keep: bool = True,
    device: str = "cpu",
    dtype: str | None = None,
    engine: Engine | None = None,
    parts: str | PathLike[str] | None = None,
    progress: Progress = silent,
) -> KeySelection:
    """Which keys of a text no query can select, in every layer or head of a model.

    Parameters
    ----------
    model
        A folder in Hugging Face format, a .gguf file, or a torch module.
    text, inputs
        Text or inputs to run the model on. Padding is left out.
    at
        "heads": the keys of each head, as attention multiplies them; "input" or "output": the vectors that go into, or
        come out of, the norm before a layer's attention.
    queries
        "any", or "reachable": only those that the head can produce at the last position, which sees all keys.
    rivals
        "all": a key competes with all keys of its sequence; "causal": with those up to its own position, where it meets
        the fewest.
    max_keys
        Only the first N keys of each sequence compete.
    keep
        Keep keys and certificates in `sets`, so that the result can be saved and verified. False saves memory: about
        16 bytes for each channel of each key.
    device, dtype
        Device and floating-point type to load and run a folder in.
    engine
        Where sets of keys are solved: see `normscope.engine`. None: in as many processes as this one has cores, where
        that is worth it.
    parts
        A file for the sets of keys that are solved: after an interruption the same call does not solve them again.
        Remove it when the result is saved.
    progress
        Called with the batches, or with the sets of keys of a single one, and a description; see `normscope.progress`.

    Returns
    -------
    KeySelection
        Certified counts for every layer or head, and how close heads come to equal attention.

    >>> from normscope import demo_model
    >>> keys(demo_model(), text="To be, or not to be, that is the question.", at="output")
    KeySelection(the demo model, at output: 0 of 60 keys never selected in 4 places)
    """
    _require_choices(at=(at, At), queries=(queries, Queries), rivals=(rivals, Rivals))
    if queries == "reachable" and at != "heads":
        raise InputError(f"reachable queries are defined for heads only: they need at = heads, got {at!r}")
    if queries == "reachable" and rivals == "causal":
        raise InputError(
            "reachable queries and causal rivals cannot be combined: one uses the queries of the last position, "
            "the other those of each key's own"
        )
    most = None if max_keys is None else as_count(max_keys, "max_keys", least=1)
    subject = Subject.of(model, text=text, inputs=inputs, device=device, dtype=dtype)
    subject.require_runs("keys")
    study: _Study | None = None
    batches = subject.batches()
    one = isinstance(batches, Sized) and len(batches) == 1  # then the bar is that of its sets
    with or_local(engine) as where, where.keeping(None if parts is None else Path(parts)):
        for batch in (silent if one else progress)(batches, "keys, batches"):
            study = study or _Study(subject.module, at, queries, rivals, most, keep)
            study.add(batch, where, progress if one else silent)
    assert study is not None
    return study.result(subject)


def _require_choices(**given: tuple[Any, Any]) -> None:
    for name, (value, kind) in given.items():
        if value not in get_args(kind):
            raise InputError(f"{name} must be one of {', '.join(get_args(kind))}, got {quoted(value)}")


class _Study:
    """Takes batches one after the other; keeps counts, and certificates if requested."""

    def __init__(
        self, model: nn.Module, at: At, queries: Queries, rivals: Rivals, max_keys: int | None, keep: bool
    ) -> None:
        self._model, self._at, self._asked, self._rivals = model, at, queries, rivals
        self._max_keys, self._keep = max_keys, keep
        self._norms: dict[str, FoundNorm] = {}
        self._before: dict[str, str | NoMapError] | None = None
        self._queries: ReachableQueries | None = None
        self._tallies: dict[tuple[str, int | None], _Tally] = {}
        self._equal: dict[tuple[str, int], EqualAttentionGatherer] = {}
        self._not_covered: dict[str, str] = {}
        self._sets: list[KeySet] = []
        self._sequences = 0
        self._holds = True

    def add(self, batch: Mapping[str, Tensor], engine: Engine, progress: Progress) -> None:
        """Run the model on a batch, and solve for the keys of all places."""
        if not self._sequences:
            self._norms = dict(_plain_norms(self._model, batch))
        with capture(self._model, norms=self._norms, heads=True) as captured:
            for _ in run_in_pieces(self._model, [batch]):
                pass
        ask = self._about_heads if self._at == "heads" else self._about_norms
        questions, tallies = list(ask(batch, captured)), list(self._tallies.values())
        found = verdicts(questions, self._rivals == "causal", engine, progress)
        for question, verdict in zip(questions, found, strict=True):
            for place in question.places:
                if isinstance(verdict, FailedPiece):
                    self._not_covered.setdefault(*tallies[place].failed(verdict))
                else:
                    tallies[place].add(question, verdict)
            if isinstance(verdict, Verdict):
                self._holds &= verdict.holds
                self._sets += [verdict.answer] if self._keep else []
        self._sequences += _size(batch)

    def result(self, subject: Subject) -> KeySelection:
        missed = tuple(NotCovered(layer, reason) for layer, reason in self._not_covered.items())
        if not self._tallies:
            raise InputError(f"no layer of {subject.name} is covered: {missed[0].reason if missed else 'none ran'}")
        tokens = sorted({token for tally in self._tallies.values() for token in tally.tokens()})
        texts = {} if subject.path is None else dict(zip(tokens, token_texts(subject.path, tokens), strict=True))
        return KeySelection(
            model=subject.name,
            text=subject.text,
            at=self._at,
            queries=self._asked,
            rivals=self._rivals,
            max_keys=self._max_keys,
            sequences=self._sequences,
            places=tuple(tally.result(texts) for tally in self._tallies.values()),
            equal_attention=tuple(gatherer.result() for gatherer in self._equal.values()),
            not_covered=missed,
            sets=tuple(self._sets),
            holds=self._holds,
        )

    def _about_norms(self, batch: Mapping[str, Tensor], captured: capture) -> Iterator[Question]:
        """Keys at the input or output of the norm before each layer; a norm that several layers read is solved once."""
        if self._before is None:
            self._before = norms_before_keys(self._model, self._norms, batch)
        readers: dict[str, list[str]] = {}
        seen = _seen(captured)
        for layer in seen:
            norm = self._before.get(layer, NoMapError("it did not run on two tokens"))
            if isinstance(norm, str):
                readers.setdefault(norm, []).append(layer)
            else:
                self._not_covered.setdefault(layer, str(norm))
        for norm, layers in readers.items():
            heads, recorded = seen[layers[0]], captured.norms[norm]
            states = recorded.input if self._at == "input" else recorded.output
            if states is None or states.shape[:-1] != (heads.key.shape[0], heads.key.shape[2]):
                for layer in layers:
                    self._not_covered.setdefault(layer, f"{norm} does not have one vector per key")
                continue
            vectors = as_floats(states, f"the {self._at} of {norm}")
            places = tuple(self._place(layer=layer, head=None, key_head=None, norm=norm) for layer in layers)
            for row, positions in _sequences(heads):
                yield self._question(places, batch, row, positions, vectors[row])

    def _about_heads(self, batch: Mapping[str, Tensor], captured: capture) -> Iterator[Question]:
        """Keys of every head; heads that share them are solved once, unless their own queries matter."""
        if self._queries is None:
            self._queries = ReachableQueries(HeadMaps(self._model, self._norms, batch), self._norms)
        outputs = {norm: recorded.output for norm, recorded in captured.norms.items() if recorded.output is not None}
        for run in (run for layer, heads in _seen(captured).items() for run in _head_runs(layer, heads, outputs)):
            self._gather_equal(run, self._queries)
            if run.head != run.sharing[0] and self._asked != "reachable":
                continue
            try:
                ellipsoid = self._queries.ellipsoid(run) if (self._asked == "reachable") else None
            except NoMapError as reason:
                self._not_covered.setdefault(run.layer, str(reason))
                continue
            same = (run.head,) if (self._asked == "reachable") else run.sharing
            places = tuple(self._place(layer=run.layer, head=head, key_head=run.key_head, norm=None) for head in same)
            yield self._question(places, batch, run.row, run.positions, run.key, ellipsoid)

    def _gather_equal(self, run: HeadRun, queries: ReachableQueries) -> None:
        gatherer = self._equal.setdefault((run.layer, run.head), EqualAttentionGatherer(run.layer, run.head))
        equal: EqualQuery | str
        try:
            equal = queries.equal(run)
        except NoMapError as reason:
            equal = str(reason)
        gatherer.add(run.key[run.positions[: self._max_keys]], run.queries, equal)

    def _place(self, **where: Any) -> int:
        """The number of a place."""
        tally = self._tallies.setdefault((where["layer"], where["head"]), _Tally(len(self._tallies), **where))
        return tally.number

    def _question(
        self,
        places: tuple[int, ...],
        batch: Mapping[str, Tensor],
        row: int,
        positions: Ints,
        vectors: Floats,
        queries: Ellipsoid | None = None,
    ) -> Question:
        row_of_batch = row % _size(batch)  # a layer that runs more than once shows each sequence as often
        ids = batch.get("input_ids")
        tokens = ids[row_of_batch].tolist() if ids is not None and ids.shape[1:] == (len(vectors),) else None
        asked = positions[: self._max_keys]
        return Question(places, self._sequences + row_of_batch, asked, tokens, vectors[asked], queries)


def _plain_norms(model: nn.Module, batch: Mapping[str, Tensor]) -> Iterator[tuple[str, FoundNorm]]:
    """Modules of a model that are norms and are called with their input alone."""
    inventory = find(model)
    if inventory.graph is None:
        inventory = find(model, inputs=batch)
    for name, found in inventory.items():
        if found.norm is not None and found.gate is None and not found.function:
            yield name, found


@dataclass(frozen=True)
class _Lost:
    """A key that is never selected, with the tokens around it."""

    sequence: int
    position: int
    at: int  # its place among these tokens
    around: list[int]  # empty where tokens are not known; the token alone where its context is not kept

    def named(self, texts: Mapping[int, str | None]) -> KeyAt:
        words = [texts.get(token) for token in self.around]
        if not words:
            return KeyAt(self.sequence, self.position, None)
        known = len(words) > 1 and None not in words
        before, after = (
            "".join(map(str, part)) if known else None for part in (words[: self.at], words[self.at + 1 :])
        )
        return KeyAt(self.sequence, self.position, words[self.at], before, after)


class _Tally:
    """Counts of one place."""

    def __init__(self, number: int, **where: Any) -> None:
        self.number, self.layer, self._where = number, where["layer"], where
        self._counts: dict[str, Any] = dict.fromkeys(("keys", "never_selected", "duplicates", "near_ties", "open"), 0)
        self._never: list[_Lost] = []

    def add(self, question: Question, verdict: Verdict) -> None:
        answer, never = verdict.answer, verdict.never_selected
        self._counts["keys"] += len(never)
        self._counts["never_selected"] += int(never.sum())
        self._counts["duplicates"] += int(verdict.duplicate.sum())
        self._counts["near_ties"] += int(answer.near_ties.sum())
        self._counts["open"] += int(answer.open.sum())
        for position in question.positions[never].tolist():
            first = max(0, position - BEFORE) if len(self._never) < IN_CONTEXT else position
            last = position + AFTER if len(self._never) < IN_CONTEXT else position
            around = (question.tokens or [])[first : last + 1]
            self._never.append(_Lost(question.sequence, position, position - first, around))

    def failed(self, piece: FailedPiece) -> tuple[str, str]:
        """The layer, and what failed in it."""
        head = "" if self._where["head"] is None else f"head {self._where['head']} "
        return self.layer, f"{head}failed at {piece.name}: {piece.reason}"

    def tokens(self) -> set[int]:
        return {token for lost in self._never for token in lost.around}

    def result(self, texts: Mapping[int, str | None]) -> Place:
        never = tuple(lost.named(texts) for lost in self._never)
        return Place(**self._where, **self._counts, never_selected_keys=never)


def _seen(captured: capture) -> dict[str, Heads]:
    try:
        return captured.heads
    except RuntimeError as error:
        raise InputError(str(error)) from None


def _head_runs(layer: str, heads: Heads, outputs: Mapping[str, Tensor]) -> Iterator[HeadRun]:
    queries, states = as_floats(heads.query, f"the queries of {layer}"), as_floats(heads.key, f"the keys of {layer}")
    groups = heads.groups
    for row, positions in _sequences(heads):
        for head, key_head in enumerate(groups):
            sharing = tuple(other for other, group in enumerate(groups) if group == key_head)
            yield HeadRun(
                layer, head, key_head, sharing, row, outputs, queries[row, head], states[row, head], positions
            )


def _sequences(heads: Heads) -> Iterator[tuple[int, Ints]]:
    """Every sequence of a layer with the positions of its keys, padding left out."""
    rows, _, length, _ = heads.key.shape
    mask = None if heads.mask is None else heads.mask.cpu().numpy()
    for row in range(rows):
        positions = np.arange(length) if mask is None else np.flatnonzero(mask[row])
        if len(positions):
            yield row, positions


def _size(batch: Mapping[str, Tensor]) -> int:
    return int(next(iter(batch.values())).shape[0])
