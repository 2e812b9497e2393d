"""The tokens of a large table, block by block, until all are settled or time is up.

1. Duplicates are set apart.
2. Own directions, for reachable vectors and then for any: settles almost all.
3. The nearest point of the hull for the rest: a vector that prefers the token, or weights that rule all vectors out.
4. Where a token can win but no reachable vector is known: the vector it wins by, turned towards what can be reached;
   then the exact method over the ellipsoid, or the nearest point again where all heights are equal.

Blocks of tokens are pieces of an engine: what one finds depends on the table and on its tokens alone. Steps 3 and 4
need the table in memory in double precision, several times: where that does not fit, tokens stay open.

Vectors and weights count only if the checker passes them, own directions if they lead by more than the bound of their
screen, or if the checker passes them. What is found is kept in `Findings`, from which a search can be resumed.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from normscope.certificates.key_certificates import Ints
from normscope.certificates.token_certificates import NEVER, OPEN, POWERS, TIED, WINS
from normscope.certificates.token_scores import MANY, OwnDirectionCheck
from normscope.certificates.token_table import Outputs, Table
from normscope.checks import Floats
from normscope.engine import PATIENCE, Engine, FailedPiece, failed, or_local, warn_of
from normscope.progress import Progress, silent, sized
from normscope.separation.duplicates import set_duplicates_apart
from normscope.vocabulary.clock import Clock, TimeIsUp, WatchedRows
from normscope.vocabulary.ellipsoid_tokens import InEllipsoid, weighted_if_right
from normscope.vocabulary.findings import Answers, Findings
from normscope.vocabulary.nearest_token import WITHIN, Block, Found, NearestPoints, Weighted, drop_unproven
from normscope.vocabulary.token_directions import OwnDirections, channels_of, frame_of, seconds_for_axes
from normscope.vocabulary.token_view import View

AT_ONCE = 16  # tokens of a block that exact methods are asked about
FEW = 128  # tokens that are asked one by one sooner than in other coordinates
COPIES = 5  # of a table in double precision, that the exact methods need
SETTING_UP = 4.0  # times that of principal axes: what it takes before the exact methods can be asked


def search(
    table: Table, findings: Findings, clock: Clock, progress: Progress = silent, engine: Engine | None = None
) -> None:
    """Add to the findings what can be found before the clock is up, with blocks of tokens as pieces of an engine.

    >>> table = Table(np.array([[0, 0], [4, 0], [0, 4], [1, 1], [0, 4]], np.float32))
    >>> findings = Findings.none_yet(len(table), reachable=False)
    >>> search(table, findings, Clock())
    >>> findings.any_vector.verdict  # wins, wins, tied with its duplicate, never, tied
    array([1, 1, 3, 2, 3], dtype=int8)
    """
    with or_local(engine) as where:
        try:
            _Search(table, findings, clock, progress, where).run()
        except TimeIsUp:
            pass
        finally:
            findings.share()


class _Solver(Protocol):
    def ask(self, block: Any) -> Any: ...


@dataclass(frozen=True, eq=False)
class _Search:
    table: Table
    findings: Findings
    clock: Clock
    progress: Progress
    engine: Engine

    def run(self) -> None:
        """All steps; TimeIsUp where time is up."""
        findings, clock = self.findings, self.clock
        watched = replace(self.table, rows=WatchedRows(self.table.rows, clock))
        with clock.phase("duplicates"):
            names, twin_of = set_duplicates_apart(watched.stored(), watched.bias)
            for token, twin in twin_of.items():
                tied = watched.bias is None or watched.bias[token] == watched.bias[twin]
                findings.any_vector.lose(token, np.array([twin]), np.ones(1), TIED if tied else NEVER)
            findings.share()
        any_vector, reachable = View(watched, names, reachable=False), View(watched, names, reachable=True)
        rivals = np.full(len(watched), -1)
        for answers, view in ((findings.reachable, reachable), (findings.any_vector, any_vector)):
            if answers is not None:
                with clock.phase("own directions"):
                    self._own_directions(view, answers, rivals)
                findings.share()
        with clock.phase("nearest points"):
            self._nearest_points(any_vector, findings.any_vector, rivals)
        findings.share()
        if findings.reachable is not None:
            with clock.phase("ellipsoid"):
                self._turned_vectors(any_vector, findings.any_vector, findings.reachable)
                if len(_unasked(reachable, findings.reachable)):
                    reachable = self._without_duplicates(reachable, findings.reachable)
                ask = self._nearest_points if reachable.heights is None else self._over_ellipsoid
                ask(reachable, findings.reachable, rivals)

    def _asked(self, solver: _Solver, blocks: Sequence[Any], what: str) -> Iterator[tuple[Any, Any]]:
        """Blocks with what the solver found, in order; it is shared with workers once. Those that fail stay open."""
        lost: list[FailedPiece] = []
        # With a limit every block is sent by itself: a bundle that is not finished would be lost.
        pieces = blocks if self.clock.deadline is None else iter(blocks)
        with self.engine.shared(solver) as shared:
            results = self.engine.run(
                _ask, pieces, given=(shared,), named=_named, patience=PATIENCE, tick=self.clock.go_on
            )
            with closing(results):  # type: ignore[type-var]
                for block, found in zip(blocks, self.progress(sized(results, len(blocks)), what), strict=True):
                    if not isinstance(found, FailedPiece):
                        yield block, found
                        continue
                    lost.append(found)
                    if found.ours:
                        raise failed(lost, len(blocks), "blocks of tokens")
        warn_of(lost, len(blocks), "blocks of tokens", "their tokens stay open")

    def _own_directions(self, view: View, answers: Answers, rivals: Ints) -> None:
        """Ask the own direction of every open token in the coordinates of each power; remember who was in the way."""
        for power in POWERS:
            tokens = np.searchsorted(view.names, answers.open())
            enough = len(tokens) >= (FEW if answers.passed else 1)
            if power in answers.passed or not enough:
                continue
            self.clock.go_on()
            if answers.frame is None:
                answers.frame = frame_of(view, self.clock.deadline)
            own, near = OwnDirections(view, answers.frame, power), [np.zeros(0, np.int64)]
            what = f"tokens, own directions, {view.question}, power {power:g}"
            for block, asked in self._asked(own, own.blocks(tokens), what):
                near.append(view.names[block[asked.near]])
                rivals[view.names[block]] = view.names[asked.rivals]
                answers.win_along_themselves(view.names[block[asked.proven]], power)
            check, unsure = OwnDirectionCheck(view.table, answers.frame, view.reachable), np.concatenate(near)
            for start in range(0, len(unsure), MANY):
                some = unsure[start : start + MANY]
                answers.win_along_themselves(some[check.wins(power, some)], power)
            answers.passed.append(power)

    def _nearest_points(self, view: View, answers: Answers, rivals: Ints) -> None:
        if len(_unasked(view, answers)) and self._possible(view):
            solver = NearestPoints(self._unwatched(view), answers.verdict[view.names] == WINS)
            self._exactly(solver, solver.squares, view, answers, rivals, f"tokens, nearest points, {view.question}")

    def _over_ellipsoid(self, view: View, answers: Answers, rivals: Ints) -> None:
        if len(_unasked(view, answers)) and self._possible(view):
            frame = answers.frame
            if frame is None or channels_of(frame) is not None:  # channels do not leave out the dead direction
                frame = frame_of(view)
            solver = InEllipsoid(self._unwatched(view), frame, view)
            self._exactly(solver, solver.squares, view, answers, rivals, "tokens, vectors in the ellipsoid")

    def _exactly(self, solver: _Solver, squares: Floats, view: View, answers: Answers, rivals: Ints, what: str) -> None:
        """Ask an exact method about all tokens that are open."""
        queue = _unasked(view, answers)
        first = _first_rivals(view, rivals, queue, squares)
        parts = [slice(start, start + AT_ONCE) for start in range(0, len(queue), AT_ONCE)]
        blocks: list[Block] = [(queue[part], first[part]) for part in parts]
        for (tokens, _), found in self._asked(solver, blocks, what):
            _record(answers, tokens, found)
            answers.asked[tokens] = True

    def _possible(self, view: View) -> bool:
        """Whether the exact methods fit into the memory of this machine, and into the time that is left."""
        self.clock.go_on()
        if self.clock.deadline is not None and SETTING_UP * seconds_for_axes(view) > self.clock.left():
            return False
        if not hasattr(os, "sysconf"):  # Windows
            return True
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return COPIES * 8 * len(view) * view.table.channels <= memory

    def _unwatched(self, view: View) -> View:
        """The same view of rows that are in memory, for workers to share; what was asked about is told in any case."""
        return View(replace(self.table, rows=np.asarray(self.table.rows[:])), view.names, view.reachable)

    def _turned_vectors(self, view: View, any_vector: Answers, reachable: Answers) -> None:
        """Try the vectors that prefer a token, turned towards the nearest that can be reached."""
        unknown = (reachable.verdict == OPEN) & (any_vector.verdict == WINS) & ~reachable.asked
        if not unknown.any():
            return
        vectors = {
            token: any_vector.queries[token]
            for token in np.flatnonzero(unknown).tolist()
            if token in any_vector.queries
        }
        for power in np.unique(any_vector.power[unknown & (any_vector.power != 0)]):
            assert any_vector.frame is not None
            tokens = np.flatnonzero(unknown & (any_vector.power == power))
            own = OwnDirections(view, any_vector.frame, float(power))
            vectors |= dict(zip(tokens.tolist(), own.queries(view.place(tokens)), strict=True))
        turned: list[Found] = [_towards(view.outputs, vector) for vector in vectors.values()]
        tokens = np.array(list(vectors), np.int64)
        drop_unproven(View(view.table, view.names, reachable=True), tokens, turned)
        _record(reachable, tokens, turned)

    def _without_duplicates(self, view: View, answers: Answers) -> View:
        """One of each kind of tokens that reachable vectors score alike, which their rows need not be."""
        best, twin_of = set_duplicates_apart((view.points(part) for part in view.parts()), view.heights)
        for place, twin in twin_of.items():
            token = int(view.names[place])
            if answers.verdict[token] == OPEN:  # equal up to rounding: tied, or never if it is provably lower
                shown = weighted_if_right(view, token, view.names[[twin]], np.ones(1))
                _record(answers, np.array([token]), [shown])
        return View(view.table, view.names[best], reachable=True)


def _ask(block: Any, solver: _Solver) -> Any:
    return solver.ask(block)


def _named(block: Any) -> str:
    tokens = block[0] if isinstance(block, tuple) else block
    return f"{len(tokens)} tokens from {tokens[0]}"


def _record(answers: Answers, tokens: Ints, found: Sequence[Found]) -> None:
    for token, each in zip(tokens.tolist(), found, strict=True):
        if isinstance(each, Weighted):
            answers.lose(token, each.indices, each.weights, each.verdict)
        elif each is not None:
            answers.win(token, each)


def _unasked(view: View, answers: Answers) -> Ints:
    return np.intersect1d(view.names, np.flatnonzero((answers.verdict == OPEN) & ~answers.asked))


def _first_rivals(view: View, rivals: Ints, queue: Ints, squares: Floats) -> Ints:
    """For each token of the queue a point to start from: the rival along its own direction, or else the farthest."""
    farthest = np.argsort(-squares)[:2]
    far = np.where(view.place(queue) == farthest[0], farthest[-1], farthest[0])
    known = np.isin(rivals[queue], view.names) & (rivals[queue] != queue)
    return np.asarray(np.where(known, view.place(rivals[queue]), far))


def _towards(outputs: Outputs, direction: Floats) -> Floats:
    """The u, of length just below 1, whose output lies most nearly along a direction from the center."""
    live = outputs.gain != 0
    u = np.where(live, direction / np.where(live, outputs.reach, 1.0), 0.0)
    if outputs.projects:
        u -= u.mean()
    length = np.linalg.norm(u)
    return np.asarray(u * (WITHIN / (length if length > 0 else 1.0)))
