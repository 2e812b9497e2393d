"""Sets of keys and what becomes of them: solved in parallel, every certificate checked."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normscope.certificates.key_certificates import Weights
from normscope.checks import Floats
from normscope.geometry import Ellipsoid
from normscope.progress import Progress
from normscope.separation.selectable import Selectable, selectable

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Question:
    """The keys of one sequence at one place, or at several that share them."""

    places: Sequence[Any]  # where the verdict is to be counted
    sequence: int
    positions: Ints  # of the keys in their sequence
    tokens: list[int] | None  # of the whole sequence
    keys: Floats  # (n, d)
    queries: Ellipsoid | None = None  # None: any query


@dataclass(frozen=True, eq=False)
class Verdict:
    """What is known of each key: masks (n,)."""

    answer: Selectable  # against all keys
    lost: Bools  # shown to be unselectable
    twin: Bools  # of these, equal to another key
    degenerate: Bools
    open: Bools
    holds: bool  # whether every certificate does


def verdicts(questions: Sequence[Question], causal: bool, progress: Progress, what: str) -> list[Verdict]:
    """In parallel: the solver is compiled code that other threads need not wait for, with one BLAS thread for each."""
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1), ThreadPoolExecutor(_processors()) as pool:
        futures = [pool.submit(verdict, question, causal) for question in questions]
        try:
            return [future.result() for future in progress(futures, what)]
        finally:
            pool.shutdown(cancel_futures=True)


def verdict(question: Question, causal: bool = False) -> Verdict:
    """One question; with `causal`, each key is asked among those up to its own position.

    >>> line = Question([], 0, np.arange(3), None, np.array([[0.0], [1.0], [2.0]]))
    >>> verdict(line).lost, verdict(line, causal=True).lost  # when 1 came, there was no 2
    (array([False,  True, False]), array([False, False, False]))
    """
    answer = selectable(question.keys, queries=question.queries)
    found = answer.certificates
    lost, twin = np.zeros(answer.mask.shape, bool), np.zeros(answer.mask.shape, bool)
    lost[found.weight_keys] = True
    single = np.diff(found.starts) == 1
    keys, others = found.weight_keys[single], found.indices[found.starts[:-1][single]]
    twin[keys] = (answer.keys[keys] == answer.keys[others]).all(axis=1)
    whole = Verdict(answer, lost, twin, answer.degenerate, answer.open, answer.check())
    return _among_earlier_keys(whole) if causal else whole


def _among_earlier_keys(whole: Verdict) -> Verdict:
    """A query that wins against all wins against fewer, and weights of earlier keys are weights among fewer.

    Only keys that lose against later ones are asked again, and against rivals that are not themselves weighted means
    of earlier ones: who beats those beats these.
    """
    answer, holds = whole.answer, whole.holds
    lost, twin, degenerate, undecided = (mask.copy() for mask in (whole.lost, whole.twin, whole.degenerate, whole.open))
    rival = np.ones(len(lost), bool)
    for key in np.flatnonzero(~answer.mask).tolist():
        certificate = answer.certificates[key]
        if not (isinstance(certificate, Weights) and certificate.indices.max() < key):
            rivals = answer.keys[:key][rival[:key]]
            among = selectable(np.append(rivals, answer.keys[[key]], axis=0))
            holds = holds and among.check()
            lost[key] = isinstance(among.certificates[-1], Weights)
            twin[key] = (rivals == answer.keys[key]).all(axis=1).any()
            degenerate[key], undecided[key] = among.degenerate[-1], among.open[-1]
        rival[key] = not lost[key] or degenerate[key]
    return replace(whole, lost=lost, twin=twin, degenerate=degenerate, open=undecided, holds=holds)


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
