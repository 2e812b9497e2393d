"""Verdicts on sets of keys: solved side by side, every certificate checked."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from normscope.certificates.check_keys import checked, first_fault, never_selected
from normscope.certificates.key_certificates import Bools, Certificates, Ints, Weights, equal_keys, joined
from normscope.certificates.key_margins import margins
from normscope.checks import Floats
from normscope.engine import PATIENCE, Engine, FailedPiece
from normscope.geometry import Ellipsoid
from normscope.progress import Progress, sized
from normscope.results.key_selection import KeySet
from normscope.results.selection import CertifiedKeys
from normscope.separation.selectable import selectable


@dataclass(frozen=True, eq=False)
class Question:
    """The keys of one sequence at one place, or at several that share them."""

    places: tuple[int, ...]  # where the verdict counts
    sequence: int
    positions: Ints  # of the keys in their sequence
    tokens: list[int] | None  # of the whole sequence
    keys: Floats  # (n, d)
    queries: Ellipsoid | None = None  # None: any query


@dataclass(frozen=True, eq=False)
class Verdict:
    """The verdict on each key, as masks (n,)."""

    answer: KeySet
    never_selected: Bools
    duplicate: Bools  # of these, equal to another key
    holds: bool  # whether every certificate does


@dataclass(frozen=True, eq=False)
class Solved:
    """A verdict as a worker sends it: without the keys, which whoever asks has. They would be half of it."""

    arrays: dict[str, Any]  # of the `KeySet`
    never_selected: Bools
    duplicate: Bools
    holds: bool

    def about(self, question: Question) -> Verdict:
        """The verdict on the question that was solved."""
        return Verdict(_answer(question, self.arrays), self.never_selected, self.duplicate, self.holds)


def verdicts(
    questions: Sequence[Question], causal: bool, engine: Engine, progress: Progress
) -> list[Verdict | FailedPiece]:
    """Solve all questions, side by side."""
    found = engine.run(solve, questions, given=(causal,), named=_named, patience=PATIENCE)
    solved = progress(sized(found, len(questions)), "keys, sets")
    return [
        each.about(question) if isinstance(each, Solved) else each
        for question, each in zip(questions, solved, strict=True)
    ]


def _named(question: Question) -> str:
    return f"sequence {question.sequence}"


def verdict(question: Question, causal: bool = False) -> Verdict:
    """Solve one question; with `causal`, each key competes with those up to its own position.

    >>> line = Question((0,), 0, np.arange(3), None, np.array([[0.0], [1.0], [2.0]]))
    >>> verdict(line).never_selected, verdict(line, causal=True).never_selected  # when 1 came, there was no 2
    (array([False,  True, False]), array([False, False, False]))
    """
    return solve(question, causal).about(question)


def solve(question: Question, causal: bool = False) -> Solved:
    """What `verdict` is made of."""
    found: CertifiedKeys = selectable(question.keys, queries=question.queries)
    arrays = _among_earlier_keys(found) if causal else _arrays(found)
    answer = _answer(question, arrays)
    never = never_selected(answer.certificates)
    right = checked(answer.keys, None, answer.certificates, earlier=causal)
    holds = first_fault(right, answer.near_ties, answer.certificates) is None
    return Solved(arrays, never, never & equal_keys(answer.keys, causal), holds)


def _answer(question: Question, arrays: Mapping[str, Any]) -> KeySet:
    return KeySet(
        keys=question.keys, places=question.places, sequence=question.sequence, positions=question.positions, **arrays
    )


def _arrays(found: CertifiedKeys) -> dict[str, Any]:
    """All fields but the keys."""
    return {name: getattr(found, name) for name in CertifiedKeys.__dataclass_fields__ if name != "keys"}


def _among_earlier_keys(found: CertifiedKeys) -> dict[str, Any]:
    """Certificates of each key among those before it.

    A query that wins against all wins against fewer, and weights of earlier keys stay valid among fewer. Only keys
    that lose against later ones are solved again, and against rivals that are not themselves weighted means of earlier
    ones: a query that beats those beats these.
    """
    keys, shape, near_ties = found.keys, found.mask.shape, found.near_ties.copy()
    wins = found.query_keys
    parts = [Certificates.of_queries(shape, wins, found.queries, np.zeros(len(wins)))]
    rival = np.ones(len(keys), bool)
    for key in np.flatnonzero(~found.mask).tolist():
        certificate, rivals = found.certificates[key], np.arange(len(keys))
        if not (isinstance(certificate, Weights) and certificate.indices.max() < key):
            rivals = np.flatnonzero(rival[:key])
            among = selectable(keys[[*rivals, key]])
            certificate, near_ties[key] = among.certificates[-1], among.near_ties[-1]
        row = np.array([key])
        if isinstance(certificate, Weights):
            starts, indices = np.array([0, len(certificate.weights)]), rivals[certificate.indices]
            residual = np.array([certificate.residual])
            parts.append(Certificates.of_weights(shape, row, starts, indices, certificate.weights, residual))
        elif certificate is not None:
            parts.append(Certificates.of_queries(shape, row, certificate.query[None], np.zeros(1)))
        rival[key] = not isinstance(certificate, Weights) or near_ties[key]
    together = joined(parts, shape, keys.shape[1])
    least = margins(keys, together.query_keys, together.queries, earlier=True).least
    changed = {name: value for name, value in vars(together).items() if name not in ("shape", "reach")}
    return _arrays(found) | changed | {"near_ties": near_ties, "margins": least}
