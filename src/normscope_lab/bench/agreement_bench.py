"""Whether our verdicts agree with linear programs, key by key, over many kinds of sets, sizes and dimensions.

Sets are numbered, and the number determines the keys of a set, so that a disagreement can be examined again. Near ties
are counted and not compared: there a program's rounding decides.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from normscope.progress import Progress, silent
from normscope.separation.selectable import selectable
from normscope_lab.bench.key_sets import KINDS, Keys
from normscope_lab.bench.linear_programs import PREFERS, preference
from normscope_lab.bench.requirements import require_solvers
from normscope_lab.results.keys_agreement import Disagreement, KeysAgreement, KindAgreement

CHANNELS = (2, 3, 4, 5, 6, 8, 12, 24)
FEWEST, MOST = 4, 120  # keys of a set
BATCHES = ((), (3,))  # a set alone, and three that are solved in one call


def run(keys: int, progress: Progress = silent) -> KeysAgreement:
    """Compare at least this many keys.

    >>> run(200).holds
    True
    """
    require_solvers("scipy")
    return _summed_up(keys, list(progress(_judged_sets(keys), "bench keys-agreement")))


def _judged_sets(keys: int) -> "Iterator[_Judged]":
    drawn = compared = number = 0
    while compared < keys and drawn < 2 * keys:  # not forever, should all be near ties
        judged = _judge(number)
        yield judged
        number, drawn, compared = number + 1, drawn + judged.mask.size, compared + int(judged.compared.sum())


def key_set(number: int) -> tuple[str, Keys, NDArray[np.float32] | None]:
    """The kind, keys (n, d) or (3, n, d) and bias of a numbered set.

    >>> kind, keys, bias = key_set(7)
    >>> kind, keys.shape, bias is None
    ('equal norm', (3, 85, 8), False)
    """
    rng = np.random.default_rng([number])
    kinds = list(KINDS)
    kind = kinds[number % (2 * len(kinds)) // 2]
    batch = BATCHES[int(rng.integers(len(BATCHES)))]
    count = round(FEWEST * (MOST / FEWEST) ** rng.random())
    channels = int(rng.choice(CHANNELS))
    drawn = np.stack([KINDS[kind](count, channels, rng) for _ in range(int(np.prod(batch, dtype=int)))])
    bias = rng.standard_normal((*batch, count)).astype(np.float32) if number % 2 else None
    return kind, drawn.reshape(*batch, count, channels), bias


@dataclass(frozen=True, eq=False)
class _Judged:
    number: int
    kind: str
    bias: bool
    mask: NDArray[np.bool_]
    near_ties: NDArray[np.bool_]
    preferences: NDArray[np.float64]  # NaN where no program was run or it found none
    certificates_hold: bool

    @property
    def compared(self) -> NDArray[np.bool_]:
        return ~self.near_ties & ~np.isnan(self.preferences)

    @property
    def differs(self) -> NDArray[np.bool_]:
        return np.asarray(self.compared & (self.mask != (self.preferences > PREFERS)))


def _judge(number: int) -> _Judged:
    kind, keys, bias = key_set(number)
    result = selectable(keys, bias=bias)
    preferences = np.full(result.mask.shape, np.nan)
    for *batch, key in np.argwhere(~result.degenerate).tolist():
        found = preference(keys[*batch], key, None if bias is None else bias[*batch])
        preferences[*batch, key] = np.nan if found is None else found
    return _Judged(number, kind, bias is not None, result.mask, result.degenerate, preferences, result.check())


def _summed_up(asked: int, judged: list[_Judged]) -> KeysAgreement:
    kinds = []
    for kind, bias in sorted({(one.kind, one.bias) for one in judged}):
        some = [one for one in judged if (one.kind, one.bias) == (kind, bias)]
        kinds.append(
            KindAgreement(
                kind=kind,
                bias=bias,
                sets=sum(one.mask[..., 0].size for one in some),
                keys=sum(one.mask.size for one in some),
                selectable=sum(int(one.mask.sum()) for one in some),
                near_ties=sum(int(one.near_ties.sum()) for one in some),
                unanswered=sum(int((~one.near_ties & np.isnan(one.preferences)).sum()) for one in some),
                disagreements=sum(int(one.differs.sum()) for one in some),
            )
        )
    return KeysAgreement(
        asked=asked,
        keys=sum(one.mask.size for one in judged),
        compared=sum(int(one.compared.sum()) for one in judged),
        certificates_hold=all(one.certificates_hold for one in judged),
        kinds=tuple(kinds),
        disagreements=tuple(
            Disagreement(
                one.number, tuple(int(i) for i in place), bool(one.mask[*place]), float(one.preferences[*place])
            )
            for one in judged
            for place in np.argwhere(one.differs)
        ),
    )
