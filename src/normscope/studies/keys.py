"""Which keys of a text no query can select: asked of every layer or head of a model, every answer with a certificate.

    at input    the vectors that go into the norm before a layer's attention
    at output   those that come out of it
    at heads    the keys of each head exactly as attention multiplies them

The first two are the comparison of [1]: distinct outputs of a norm lie on the surface of its ellipsoid, so all of them
can be selected, and its inputs need not be. A head maps them to fewer channels, where that can be lost again.

A key competes with all keys of its sequence, as in [1]; a text longer than the model's context is run in pieces, and
each piece is a sequence.

[1] Brody et al., On the Expressivity Role of LayerNorm in Transformers' Attention, ACL Findings 2023.
"""

from collections.abc import Iterable, Iterator, Mapping, Sized
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from normscope.checks import Floats, as_count, as_floats
from normscope.data import demo_model
from normscope.errors import InputError
from normscope.geometry import Ellipsoid
from normscope.models.batches import Inputs, batches_for
from normscope.models.capture import capture
from normscope.models.find import find
from normscope.models.heads import Heads
from normscope.models.load import load_model, run_in_pieces, text_batches
from normscope.models.query_maps import HeadMaps, NoMapError, norms_before_keys
from normscope.models.token_texts import token_texts
from normscope.progress import Progress
from normscope.results.inventory import FoundNorm
from normscope.results.rows import NotCovered
from normscope.separation.selectable import Selectable
from normscope.studies.equal_attention import EqualAttentionGatherer, EqualQuery
from normscope.studies.key_results import AT, Keys, LostKey, Place
from normscope.studies.key_verdicts import Ints, Question, Verdict, verdicts
from normscope.studies.reachable_queries import HeadRun, ReachableQueries


def keys(
    model: nn.Module | str | Path | None = None,
    text: str | None = None,
    *,
    lines: bool = False,
    inputs: Inputs | None = None,
    batches: Iterable[Mapping[str, Tensor]] | None = None,
    at: str = "heads",
    max_keys: int | None = None,
    causal: bool = False,
    reachable: bool = False,
    keep: bool = False,
    device: str = "cpu",
    dtype: str = "float32",
    progress: Progress = lambda things, _: things,
) -> Keys:
    """Which keys of a text no query can select, in every layer (at "input" or "output" of its norm) or in all "heads".

    The text is for a folder with a tokenizer, or for the model that ships with the package; with `lines` each of its
    lines is a sequence of its own. In its place any model takes inputs: one batch of keyword arguments, or several; a
    live module also takes `batches`. Padding is left out.

    - max_keys: only the first so many keys of each sequence compete.
    - causal: each key against those up to its own position, where it meets the fewest rivals.
    - reachable: only by queries that the head can make at the last position, which sees all keys.
    - keep: hold on to the answers with their certificates, in `places[i].answers`.

    >>> keys(text="To be, or not to be, that is the question.", at="output")
    Keys(the bundled model, at output: 0 of 60 unselectable in 4 places)
    """
    _require_sense(at, causal, reachable, keep)
    most = None if max_keys is None else as_count(max_keys, "max_keys", least=1)
    live, name, pieces, folder = _opened(model, text, lines, inputs, batches, device, dtype)
    study = _Study(live, at, most, causal, reachable, keep)
    total = f" of {len(pieces)}" if isinstance(pieces, Sized) else ""
    for number, batch in enumerate(pieces, start=1):
        study.add(batch, progress, f"piece {number}{total}")
    return study.result(name, folder, None if text is None else f"{len(text)} characters")


def _require_sense(at: str, causal: bool, reachable: bool, keep: bool) -> None:
    if at not in AT:
        raise InputError(f"at must be one of {', '.join(AT)}, got {at!r}")
    if reachable and at != "heads":
        raise InputError(f"reachable queries are those of heads: they need at = heads, got {at!r}")
    if reachable and causal:
        raise InputError(
            "causal and reachable can't be asked together: one is about each key's own position, "
            "the other about the queries of the last one"
        )
    if causal and keep:
        raise InputError(
            "certificates can't be kept with causal: they are checked, but each key has rivals of its own, "
            "and a file of certificates is about one set of keys"
        )


def _opened(
    model: nn.Module | str | Path | None,
    text: str | None,
    lines: bool,
    inputs: Inputs | None,
    batches: Iterable[Mapping[str, Tensor]] | None,
    device: str,
    dtype: str,
) -> tuple[nn.Module, str, Iterable[Mapping[str, Tensor]], Path | None]:
    """The model as it runs, its name, what it runs on, and the folder of its tokenizer."""
    if inputs is not None and (text is not None or batches is not None):
        raise InputError("inputs can't be given together with a text or batches: the model runs on one of them")
    pieces: Iterable[Mapping[str, Tensor]]
    if isinstance(model, nn.Module):
        if text is not None or (batches is None and inputs is None):
            raise InputError("a live module needs batches of inputs; for a text give a folder with a tokenizer")
        pieces = batches or () if inputs is None else batches_for(model, inputs)
        return model, type(model).__name__, pieces, None
    if batches is not None or (text is None and inputs is None):
        raise InputError(
            "a folder needs a text or inputs, and so does the bundled model; batches are for a live module"
        )
    path = demo_model() if model is None else Path(model)
    pieces = () if text is None else text_batches(path, text.splitlines() if lines else text)
    live = load_model(path, device=device, dtype=dtype)
    name = "the bundled model" if model is None else str(model)
    return live, name, pieces if inputs is None else batches_for(live, inputs), path


class _Study:
    """Takes batches one after the other; counts are all that is kept of them, unless answers are asked for."""

    def __init__(
        self,
        model: nn.Module,
        at: str,
        max_keys: int | None,
        causal: bool,
        reachable: bool,
        keep: bool,
    ) -> None:
        self._model, self._at, self._max_keys = model, at, max_keys
        self._causal, self._reachable, self._keep = causal, reachable, keep
        self._norms: dict[str, FoundNorm] = {}
        self._before: dict[str, str | NoMapError] | None = None
        self._queries: ReachableQueries | None = None
        self._tallies: dict[tuple[str, int | None], _Tally] = {}
        self._equal: dict[tuple[str, int], EqualAttentionGatherer] = {}
        self._not_covered: dict[str, str] = {}
        self._sequences = 0
        self._verified = True

    def add(self, batch: Mapping[str, Tensor], progress: Progress, what: str) -> None:
        """Run the model on a batch, and ask about the keys of all places."""
        if not self._sequences:
            self._norms = dict(_plain_norms(self._model, batch))
        with capture(self._model, norms=self._norms, heads=True) as captured:
            for _ in run_in_pieces(self._model, [batch]):
                pass
        ask = self._about_heads if self._at == "heads" else self._about_norms
        questions = list(ask(batch, captured))
        for question, verdict in zip(questions, verdicts(questions, self._causal, progress, what), strict=True):
            self._verified &= verdict.holds
            for tally in question.places:
                tally.add(question, verdict, self._keep)
        self._sequences += _size(batch)

    def result(self, name: str, folder: Path | None, text: str | None) -> Keys:
        missed = tuple(NotCovered(layer, reason) for layer, reason in self._not_covered.items())
        if not self._tallies:
            raise InputError(f"no layer of {name} can be asked: {missed[0].reason if missed else 'nothing was run'}")
        lost = sorted({token for tally in self._tallies.values() for token in tally.lost_tokens()})
        texts = {} if folder is None else dict(zip(lost, token_texts(folder, lost), strict=True))
        return Keys(
            model=name,
            text=text,
            at=self._at,
            causal=self._causal,
            reachable=self._reachable,
            max_keys=self._max_keys,
            sequences=self._sequences,
            verified=self._verified,
            places=tuple(tally.result(texts) for tally in self._tallies.values()),
            not_covered=missed,
            equal_attention=tuple(gatherer.result() for gatherer in self._equal.values()),
        )

    def _about_norms(self, batch: Mapping[str, Tensor], captured: capture) -> Iterator[Question]:
        """Keys at the input or output of the norm before each layer; a norm that several layers read is asked once."""
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
            tallies = [self._tally(layer=layer, head=None, key_head=None, norm=norm) for layer in layers]
            for row, positions in _sequences(heads):
                yield self._question(tallies, batch, row, positions, vectors[row])

    def _about_heads(self, batch: Mapping[str, Tensor], captured: capture) -> Iterator[Question]:
        """Keys of every head; heads that share them are asked once, unless their own queries matter."""
        if self._queries is None:
            self._queries = ReachableQueries(HeadMaps(self._model, self._norms, batch), self._norms)
        outputs = {norm: recorded.output for norm, recorded in captured.norms.items() if recorded.output is not None}
        for run in (run for layer, heads in _seen(captured).items() for run in _head_runs(layer, heads, outputs)):
            self._gather_equal(run, self._queries)
            if run.head != run.sharing[0] and not self._reachable:
                continue
            try:
                ellipsoid = self._queries.ellipsoid(run) if self._reachable else None
            except NoMapError as reason:
                self._not_covered.setdefault(run.layer, str(reason))
                continue
            same = (run.head,) if self._reachable else run.sharing
            tallies = [self._tally(layer=run.layer, head=head, key_head=run.key_head, norm=None) for head in same]
            yield self._question(tallies, batch, run.row, run.positions, run.key, ellipsoid)

    def _gather_equal(self, run: HeadRun, queries: ReachableQueries) -> None:
        gatherer = self._equal.setdefault((run.layer, run.head), EqualAttentionGatherer(run.layer, run.head))
        equal: EqualQuery | str
        try:
            equal = queries.equal(run)
        except NoMapError as reason:
            equal = str(reason)
        gatherer.add(run.key[run.positions[: self._max_keys]], run.queries, equal)

    def _tally(self, **where: Any) -> "_Tally":
        return self._tallies.setdefault((where["layer"], where["head"]), _Tally(**where, at=self._at))

    def _question(
        self,
        tallies: "list[_Tally]",
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
        return Question(tallies, self._sequences + row_of_batch, asked, tokens, vectors[asked], queries)


def _plain_norms(model: nn.Module, batch: Mapping[str, Tensor]) -> Iterator[tuple[str, FoundNorm]]:
    """Modules of a model that are norms and are called with their input alone."""
    inventory = find(model)
    if inventory.graph is None:
        inventory = find(model, inputs=batch)
    for name, found in inventory.items():
        if found.norm is not None and found.gate is None and not found.function:
            yield name, found


class _Tally:
    """Counts of one place."""

    def __init__(self, **where: Any) -> None:
        self._where = where
        self._counts: dict[str, Any] = dict.fromkeys(("keys", "unselectable", "twins", "degenerate", "open"), 0)
        self._lost: list[tuple[int, int, int | None]] = []  # sequence, position, token
        self._answers: list[Selectable] = []

    def add(self, question: Question, verdict: Verdict, keep: bool) -> None:
        self._counts["keys"] += len(verdict.lost)
        self._counts["unselectable"] += int(verdict.lost.sum())
        self._counts["twins"] += int(verdict.twin.sum())
        self._counts["degenerate"] += int(verdict.degenerate.sum())
        self._counts["open"] += int(verdict.open.sum())
        for position in question.positions[verdict.lost].tolist():
            token = None if question.tokens is None else question.tokens[position]
            self._lost.append((question.sequence, position, token))
        if keep:
            self._answers.append(verdict.answer)

    def lost_tokens(self) -> set[int]:
        return {token for _, _, token in self._lost if token is not None}

    def result(self, texts: Mapping[int, str | None]) -> Place:
        share = self._counts["unselectable"] / self._counts["keys"]
        lost = tuple(
            LostKey(sequence, position, None if token is None else texts.get(token))
            for sequence, position, token in self._lost
        )
        return Place(**self._where, **self._counts, share=share, lost=lost, answers=tuple(self._answers))


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
