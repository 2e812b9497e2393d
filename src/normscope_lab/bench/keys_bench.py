"""Which keys are selectable: our verdicts, certificates and check, against linear programs and the published procedure.

All run in turn on the same keys, on one thread, by CPU time. The other two take a linear program for every key, or for
every key that reflections leave open. Of those programs a random few are timed, and their mean stands for the rest;
reflections are timed on all keys of a set. Each result says on how many keys it was timed.
"""

import cProfile
import pstats
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np

from normscope.progress import Progress, silent
from normscope.results.selection import Selection
from normscope.separation.selectable import selectable
from normscope_lab.bench.key_alternatives import HighsTimed, PublishedTimed, added
from normscope_lab.bench.key_sets import KINDS, Keys
from normscope_lab.bench.published_procedure import LARGEST
from normscope_lab.bench.requirements import require_solvers
from normscope_lab.bench.timing import cpu_seconds, one_thread, this_machine
from normscope_lab.results.keys_speed import Alternative, KeysSpeed, KeysTiming, ProfilePart

SEED = 0
CALLS = 3  # of ours per round
PROFILED = 40  # calls
PARTS = {  # none calls another
    "margins, in the solver and in the checker": ("key_margins", "margins"),
    "nearest points of keys that do not win along themselves": ("nearest_point", "nearest_points_of_sets"),
    "own directions": ("own_directions", "own_directions"),
    "weights of keys inside": ("passes", "_weights"),
}
GRID_STEP = 4  # one cell of four is given to the other two as well
HEADS, GRID = "heads", "grid"


@dataclass(frozen=True)
class Plan:
    """What is measured. The heads are anisotropic and heavy-tailed; sets must have one of each in their shape."""

    sets: tuple[tuple[str, int, int], ...]  # kind, keys, channels
    heads: tuple[int, int, int, int]  # anisotropic, heavy-tailed, keys, channels
    grid: tuple[range, range, int]  # keys, channels, runs per cell
    programs: int  # timed per set of up to 1024 keys, fewer of larger sets
    rounds: int  # in which the three take turns
    profiled: tuple[int, int]  # keys, channels


FULL = Plan(
    sets=(
        *((kind, 1024, channels) for channels in (3, 8, 16) for kind in ("Gaussian", "anisotropic")),
        *(("5% interior", 1024, channels) for channels in (32, 64)),
        *((kind, 1024, 64) for kind in ("Gaussian", "anisotropic", "equal norm", "heavy-tailed")),
        *(("anisotropic", 1024, channels) for channels in (32, 128)),
        *(("anisotropic", keys, channels) for keys in (4096, 16384) for channels in (8, 64)),
    ),
    heads=(132, 12, 1024, 64),
    grid=(range(3, 61), range(3, 16), 100),
    programs=64,
    rounds=4,
    profiled=(1024, 16),
)
QUICK = Plan(
    sets=(("Gaussian", 64, 3), ("anisotropic", 64, 8), ("heavy-tailed", 64, 8), ("anisotropic", 128, 8)),
    heads=(2, 1, 64, 8),
    grid=(range(3, 5), range(3, 6), 4),
    programs=4,
    rounds=2,
    profiled=(64, 3),
)


def run(plan: Plan = FULL, progress: Progress = silent) -> KeysSpeed:
    """Measure all of a plan."""
    require_solvers("scipy", "gurobipy")
    with one_thread(), _one_blas_thread():
        _time_set("Gaussian", 16, 2, QUICK)  # every library is loaded before the clock starts
        timings = [_time_set(kind, count, width, plan) for kind, count, width in progress(plan.sets, "bench keys")]
        timings += [_time_heads(plan, timings), _time_grid(plan)]
        profile = tuple(_profile(*plan.profiled))
    return KeysSpeed(this_machine(), version("scipy"), version("gurobipy"), tuple(timings), profile)


def _profile(count: int, channels: int) -> list[ProfilePart]:
    """The parts of a call, with all that they call, by CPU time."""
    keys = KINDS["Gaussian"](count, channels, np.random.default_rng([SEED, count, channels]))
    profiler = cProfile.Profile(time.process_time)
    for _ in range(PROFILED):
        profiler.runcall(lambda: selectable(keys).holds)
    functions = pstats.Stats(profiler).stats  # type: ignore[attr-defined]
    total = sum(own for _, _, own, _, _ in functions.values()) / PROFILED
    spent = dict.fromkeys(PARTS, 0.0)
    for (file, _, name), (_, _, _, whole, _) in functions.items():
        for part, (place, function) in PARTS.items():
            if (Path(file).stem, name) == (place, function):
                spent[part] += whole / PROFILED
    spent["everything else, and the profiler"] = total - sum(spent.values())
    return [ProfilePart(part, seconds, seconds / total) for part, seconds in spent.items()]


@contextmanager
def _one_blas_thread() -> Iterator[None]:
    import scipy.optimize  # noqa: F401  its BLAS is to be there when the limit is set
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1):
        yield


def _time_set(kind: str, count: int, channels: int, plan: Plan) -> KeysTiming:
    rng = np.random.default_rng([SEED, count, channels])
    keys = KINDS[kind](count, channels, rng)
    result, holds = _ours(keys)  # compiled, or loaded from the cache, before the clock starts
    published = PublishedTimed(keys, result.mask, result.near_ties) if count <= LARGEST else None
    highs = HighsTimed(keys, result.mask, result.near_ties)
    rounds = max(1, min(plan.rounds, 4096 // count))
    timed = max(1, min(plan.programs, 1024 * plan.programs // count) // rounds)
    ours: list[float] = []
    for part in np.array_split(rng.permutation(count), rounds):
        ours += [cpu_seconds(_ours, keys)[1] for _ in range(CALLS)]
        if published is not None:
            published.try_keys(part.tolist(), timed)
        highs.try_keys(part.tolist(), timed)
    seconds = statistics.median(ours)
    return KeysTiming(
        kind=kind,
        sets=1,
        keys=count,
        channels=channels,
        selectable=int(result.mask.sum()),
        near_ties=int(result.near_ties.sum()),
        certificates_hold=holds,
        normscope_seconds=seconds,
        published=None if published is None else published.total(seconds),
        highs=highs.total(seconds),
    )


def _time_heads(plan: Plan, sets: Sequence[KeysTiming]) -> KeysTiming:
    """All heads of a model in one call; the other two from what they took for one set of each kind."""
    anisotropic, heavy_tailed, count, channels = plan.heads
    copies = {"anisotropic": anisotropic, "heavy-tailed": heavy_tailed}
    rng = np.random.default_rng([SEED, *plan.heads])
    keys = np.stack([KINDS[kind](count, channels, rng) for kind, heads in copies.items() for _ in range(heads)])
    _ours(keys[:2])  # compiled before the clock starts
    (result, holds), seconds = cpu_seconds(_ours, keys)
    alike = [
        (row, copies[row.kind]) for row in sets if row.kind in copies and (row.keys, row.channels) == (count, channels)
    ]
    return KeysTiming(
        kind=HEADS,
        sets=len(keys),
        keys=result.mask.size,
        channels=channels,
        selectable=int(result.mask.sum()),
        near_ties=int(result.near_ties.sum()),
        certificates_hold=holds,
        normscope_seconds=seconds,
        published=added([(row.published, heads) for row, heads in alike if row.published is not None], seconds),
        highs=added([(row.highs, heads) for row, heads in alike], seconds),
    )


def _time_grid(plan: Plan) -> KeysTiming:
    """Every cell of the grid in one call; the other two on one set of one cell in GRID_STEP."""
    sizes, widths, runs = plan.grid
    rng = np.random.default_rng(SEED)
    cells = [
        KINDS["Gaussian"](runs * count, channels, rng).reshape(runs, count, channels)
        for count in sizes
        for channels in widths
    ]
    _ours(cells[0])  # compiled before the clock starts
    seconds, winners, near_ties, hold = 0.0, 0, 0, True
    published: list[Alternative] = []
    highs: list[Alternative] = []
    for number, keys in enumerate(cells):
        (result, holds), taken = cpu_seconds(_ours, keys)
        seconds += taken
        winners += int(result.mask.sum())
        near_ties += int(result.near_ties.sum())
        hold &= holds
        if number % GRID_STEP == 0:
            for way, totals in ((PublishedTimed, published), (HighsTimed, highs)):
                one = way(keys[0], result.mask[0], result.near_ties[0])
                one.try_keys(list(range(keys.shape[1])), keys.shape[1])
                totals.append(one.total(seconds))
    weight = runs * len(cells) / len(published)
    return KeysTiming(
        kind=GRID,
        sets=runs * len(cells),
        keys=sum(keys[..., 0].size for keys in cells),
        channels=None,
        selectable=winners,
        near_ties=near_ties,
        certificates_hold=hold,
        normscope_seconds=seconds,
        published=added([(total, weight) for total in published], seconds),
        highs=added([(total, weight) for total in highs], seconds),
    )


def _ours(keys: Keys) -> tuple[Selection, bool]:
    result = selectable(keys)
    return result, result.holds
