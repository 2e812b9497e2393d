"""The tokens of a large table one after the other, until all are settled or time is up.

1. Duplicates are set apart.
2. Own directions, for reachable vectors and then for any: settles almost all, block by block.
3. The nearest point of the hull for the rest: a vector that prefers the token, or weights that rule all vectors out.
4. Where a token can win but no reachable vector is known: the vector it wins by, turned towards what can be reached;
   then the exact method over the ellipsoid, or the nearest point again where all heights are equal.

Steps 3 and 4 need the table in memory in double precision, several times: where that does not fit, tokens stay open.

Vectors and weights count only if the checker passes them, own directions if they lead by more than the bound of their
screen, or if the checker passes them. What is found is kept in `Findings`, from which a search can be resumed.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from normscope.certificates.check_tokens import verdict_of
from normscope.certificates.key_certificates import Ints
from normscope.certificates.token_certificates import NEVER, OPEN, POWERS, TIED, WINS, Frame
from normscope.certificates.token_scores import MANY, OwnDirectionCheck, prefers, prefers_reachable
from normscope.certificates.token_table import Outputs, Table
from normscope.checks import Floats
from normscope.progress import Progress, silent
from normscope.separation.duplicates import set_duplicates_apart
from normscope.separation.ellipsoid_queries import REACHABLE, UNREACHABLE, Rivals, reach
from normscope.separation.scores import tiles_of
from normscope.vocabulary.findings import Answers, Findings
from normscope.vocabulary.nearest_token import NearestPoints, Weighted, nearest_to
from normscope.vocabulary.token_directions import OwnDirections, channels_of, coordinate_map, frame_of, scale_of
from normscope.vocabulary.token_view import View

AT_ONCE = 256  # vectors that are checked together
FEW = 128  # tokens that are asked one by one sooner than in other coordinates
BETWEEN_SAVES = 30.0  # seconds
COPIES = 5  # of a table in double precision, that the exact methods need
INSIDE = 1 - 1e-12  # length of a u that is certainly in the unit ball


@dataclass(eq=False)
class Clock:
    """When to stop, when to save, and the CPU seconds of each phase."""

    deadline: float | None = None  # on time.monotonic
    keep: Callable[[], None] = lambda: None
    seconds: dict[str, float] = field(default_factory=dict)
    kept: float = field(default_factory=time.monotonic)

    def is_up(self) -> bool:
        """Whether time is up; called after every piece of work."""
        now = time.monotonic()
        if now - self.kept > BETWEEN_SAVES:
            self.keep()
            self.kept = time.monotonic()
        return self.deadline is not None and now >= self.deadline

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        start = time.process_time()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.process_time() - start


def search(table: Table, findings: Findings, clock: Clock, progress: Progress = silent) -> None:
    """Add to the findings what can be found before the clock is up.

    >>> table = Table(np.array([[0, 0], [4, 0], [0, 4], [1, 1], [0, 4]], np.float32))
    >>> findings = Findings.none_yet(len(table), reachable=False)
    >>> search(table, findings, Clock())
    >>> findings.any_vector.verdict  # wins, wins, tied with its duplicate, never, tied
    array([1, 1, 3, 2, 3], dtype=int8)
    """
    with clock.phase("duplicates"):
        names, twin_of = set_duplicates_apart(table.stored(), table.bias)
        for token, twin in twin_of.items():
            tied = table.bias is None or table.bias[token] == table.bias[twin]
            findings.any_vector.lose(token, np.array([twin]), np.ones(1), TIED if tied else NEVER)
        findings.share()
    any_vector, reachable = View(table, names, reachable=False), View(table, names, reachable=True)
    rivals = np.full(len(table), -1)
    for answers, view in ((findings.reachable, reachable), (findings.any_vector, any_vector)):
        if answers is not None:
            with clock.phase("own directions"):
                _own_directions(view, answers, rivals, clock, progress)
            findings.share()
    with clock.phase("nearest points"):
        _nearest_points(any_vector, findings.any_vector, rivals, clock, progress)
    findings.share()
    if findings.reachable is not None:
        with clock.phase("ellipsoid"):
            _turned_vectors(any_vector, findings.any_vector, findings.reachable, clock)
            if len(_unasked(reachable, findings.reachable)) and not clock.is_up():
                reachable = _without_duplicates(reachable, findings.reachable)
            ask = _nearest_points if reachable.heights is None else _over_ellipsoid
            ask(reachable, findings.reachable, rivals, clock, progress)
        findings.share()


def _own_directions(view: View, answers: Answers, rivals: Ints, clock: Clock, progress: Progress) -> None:
    """Ask the own direction of every open token in the coordinates of each power; remember who was in the way."""
    for power in POWERS:
        tokens = np.searchsorted(view.names, answers.open())
        enough = len(tokens) >= (FEW if answers.passed else 1)
        if power in answers.passed or not enough or clock.is_up():
            continue
        if answers.frame is None:
            answers.frame = frame_of(view, clock.deadline)
        own, near = OwnDirections(view, answers.frame, power), [np.zeros(0, np.int64)]
        for block in progress(own.blocks(tokens), f"tokens, own directions, {view.question}, power {power:g}"):
            asked = own.ask(block)
            near.append(view.names[block[asked.near]])
            rivals[view.names[block]] = view.names[asked.rivals]
            answers.win_along_themselves(view.names[block[asked.proven]], power)
            if clock.is_up():
                return
        check, unsure = OwnDirectionCheck(view.table, answers.frame, view.reachable), np.concatenate(near)
        for start in range(0, len(unsure), MANY):
            some = unsure[start : start + MANY]
            answers.win_along_themselves(some[check.wins(power, some)], power)
        answers.passed.append(power)


def _nearest_points(view: View, answers: Answers, rivals: Ints, clock: Clock, progress: Progress) -> None:
    queue = _unasked(view, answers)
    if not len(queue) or clock.is_up() or not _fits(view):
        return
    nearest = NearestPoints(view, answers.verdict[view.names] == WINS)
    first = _first_rivals(view, rivals, queue, nearest.squares)
    waiting: dict[int, Floats] = {}

    def take(token: int, found: Floats | Weighted | None) -> None:
        if isinstance(found, Weighted):
            answers.lose(token, found.indices, found.weights, found.verdict)
        elif found is not None:
            waiting[token] = found * (INSIDE / np.linalg.norm(found)) if view.reachable else found
        answers.asked[token] = token not in waiting

    def record() -> None:
        for token in _record_vectors(view, answers, waiting):
            take(token, nearest.ask_again(view.place(token)))
        answers.asked[_record_vectors(view, answers, waiting)] = True
        nearest.forget()

    for token, rival in progress(
        list(zip(queue.tolist(), first, strict=True)), f"tokens, nearest points, {view.question}"
    ):
        take(token, nearest.ask(view.place(token), rival))
        if len(waiting) == AT_ONCE:
            record()
        if clock.is_up():
            break
    record()


def _fits(view: View) -> bool:
    """Whether the exact methods fit into the memory of this machine."""
    if not hasattr(os, "sysconf"):  # Windows
        return True
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return COPIES * 8 * len(view) * view.table.channels <= memory


def _unasked(view: View, answers: Answers) -> Ints:
    return np.intersect1d(view.names, np.flatnonzero((answers.verdict == OPEN) & ~answers.asked))


def _first_rivals(view: View, rivals: Ints, queue: Ints, squares: Floats) -> Ints:
    """For each token of the queue a point to start from: the rival along its own direction, or else the farthest."""
    farthest = np.argsort(-squares)[:2]
    far = np.where(view.place(queue) == farthest[0], farthest[-1], farthest[0])
    known = np.isin(rivals[queue], view.names) & (rivals[queue] != queue)
    return np.asarray(np.where(known, view.place(rivals[queue]), far))


def _record_vectors(view: View, answers: Answers, waiting: dict[int, Floats]) -> list[int]:
    """Keep the vectors that provably prefer their tokens; return the tokens of the others, and empty `waiting`."""
    if not waiting:
        return []
    tokens, vectors = np.array(list(waiting)), np.array(list(waiting.values()))
    wins = (prefers_reachable if view.reachable else prefers)(view.table, tokens, vectors)
    for place in np.flatnonzero(wins):
        answers.win(int(tokens[place]), vectors[place])
    waiting.clear()
    return [int(token) for token in tokens[~wins]]


def _turned_vectors(view: View, any_vector: Answers, reachable: Answers, clock: Clock) -> None:
    """Try the vectors that prefer a token, turned towards the nearest that can be reached."""
    unknown = (reachable.verdict == OPEN) & (any_vector.verdict == WINS) & ~reachable.asked
    if not unknown.any() or clock.is_up():
        return
    vectors = {
        token: any_vector.queries[token] for token in np.flatnonzero(unknown).tolist() if token in any_vector.queries
    }
    for power in np.unique(any_vector.power[unknown & (any_vector.power != 0)]):
        assert any_vector.frame is not None
        tokens = np.flatnonzero(unknown & (any_vector.power == power))
        own = OwnDirections(view, any_vector.frame, float(power))
        vectors |= dict(zip(tokens.tolist(), own.queries(view.place(tokens)), strict=True))
    turned = {token: _towards(view.outputs, vector) for token, vector in vectors.items()}
    _record_vectors(View(view.table, view.names, reachable=True), reachable, turned)


def _towards(outputs: Outputs, direction: Floats) -> Floats:
    """The u, of length just below 1, whose output lies most nearly along a direction from the center."""
    live = outputs.gain != 0
    u = np.where(live, direction / np.where(live, outputs.reach, 1.0), 0.0)
    if outputs.projects:
        u -= u.mean()
    length = np.linalg.norm(u)
    return np.asarray(u * (INSIDE / (length if length > 0 else 1.0)))


def _without_duplicates(view: View, answers: Answers) -> View:
    """One of each kind of tokens that reachable vectors score alike, which their rows need not be."""
    best, twin_of = set_duplicates_apart((view.points(part) for part in view.parts()), view.heights)
    for place, twin in twin_of.items():
        if answers.verdict[view.names[place]] == OPEN:
            _record_near_duplicate(view, answers, place, twin)
    return View(view.table, view.names[best], reachable=True)


def _record_near_duplicate(view: View, answers: Answers, place: int, twin: int) -> None:
    """A token that equals another up to rounding never wins; it is tied unless it is provably lower."""
    _record_weights(view, answers, int(view.names[place]), view.names[[twin]], np.ones(1))


def _record_weights(view: View, answers: Answers, token: int, indices: Ints, weights: Floats) -> None:
    verdict = verdict_of(view.table, view.reachable, token, indices, weights)
    if verdict != OPEN:
        answers.lose(token, indices, weights, verdict)


def _over_ellipsoid(view: View, answers: Answers, rivals: Ints, clock: Clock, progress: Progress) -> None:
    queue = _unasked(view, answers)
    if not len(queue) or clock.is_up() or not _fits(view):
        return
    frame = answers.frame
    if frame is None or channels_of(frame) is not None:  # channels do not leave out the dead direction
        frame = frame_of(view)
    seen = _seen(view, frame)
    squares = np.einsum("ij,ij->i", seen.points, seen.points)
    first = _first_rivals(view, rivals, queue, squares)
    waiting: dict[int, Floats] = {}
    for token, rival in progress(list(zip(queue.tolist(), first, strict=True)), "tokens, vectors in the ellipsoid"):
        place = int(view.place(token))
        status, y, supports, weights = reach(seen, np.array([place]), np.array([rival]))
        if status[0] == REACHABLE:
            waiting[token] = INSIDE * (frame.axes @ y[0])
        elif status[0] == UNREACHABLE:
            used = supports[0] >= 0
            indices, shares = view.names[supports[0][used]], weights[0][used] / weights[0][used].sum()
            _record_weights(view, answers, token, indices, shares)
        else:
            _record_near_duplicate(view, answers, place, nearest_to(seen.points, squares, place))
        answers.asked[token] = token not in waiting
        if len(waiting) == AT_ONCE:
            answers.asked[_record_vectors(view, answers, waiting)] = True
        if clock.is_up():
            break
    answers.asked[_record_vectors(view, answers, waiting)] = True


def _seen(view: View, frame: Frame) -> Rivals:
    """Points as reachable vectors see them, turned to the axes of the frame, in units of its scale."""
    heights = np.zeros(len(view)) if view.heights is None else view.heights / scale_of(frame)
    points = np.empty((len(view), frame.axes.shape[1]))
    both = np.empty((len(view), frame.axes.shape[1] + 1), np.float32)
    turn = coordinate_map(frame, 0.0)
    for part in view.parts():
        points[part] = (view.points(part) - frame.center) @ turn
        both[part, :-1], both[part, -1] = points[part], heights[part]
    squares = np.einsum("ij,ij->i", points, points) + heights**2
    return Rivals(points, heights, tiles_of(both, len(both)), float(np.sqrt(squares.max())))
