"""Which keys can win: ours, certificates and their check included, against linear programs and the published procedure.

All run in turn on the same keys, on one thread, by CPU time. The other two take a linear program for every key, or for
every key that reflections leave open. Of those programs a random few are timed, and their mean stands for the rest;
reflections are timed on all keys of a set. Each result says on how many keys it was timed.
"""

import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any, TypeVar

import numpy as np

from normscope.results.selection import Selection
from normscope.separation.selectable import selectable
from normscope_lab.bench.key_alternatives import Alternative, HighsAsked, PublishedAsked, added, cpu_seconds
from normscope_lab.bench.key_sets import KINDS, Keys
from normscope_lab.bench.published_procedure import LARGEST
from normscope_lab.bench.requirements import require_solvers
from normscope_lab.bench.timing import Machine, one_thread, this_machine

SCHEMA_VERSION = 1
SEED = 0
CALLS = 3  # of ours per round
GRID_STEP = 4  # one cell of so many is given to the other two as well

Result = TypeVar("Result")


@dataclass(frozen=True)
class Plan:
    """What is measured. The heads are anisotropic and heavy-tailed; sets must have one of each in their shape."""

    sets: tuple[tuple[str, int, int], ...]  # kind, keys, channels
    heads: tuple[int, int, int, int]  # anisotropic, heavy-tailed, keys, channels
    grid: tuple[range, range, int]  # keys, channels, runs per cell
    programs: int  # timed per set of up to 1024 keys, fewer of larger sets
    rounds: int  # in which the three take turns


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
)
QUICK = Plan(
    sets=(("Gaussian", 64, 3), ("anisotropic", 64, 8), ("heavy-tailed", 64, 8), ("anisotropic", 128, 8)),
    heads=(2, 1, 64, 8),
    grid=(range(3, 5), range(3, 6), 4),
    programs=4,
    rounds=2,
)


@dataclass(frozen=True)
class SetTiming:
    """CPU seconds for one set of keys."""

    kind: str
    keys: int
    channels: int
    selectable: int
    degenerate: int
    certificates_hold: bool
    normscope_seconds: float
    published: Alternative | None  # None where the set exceeds the licence that comes with gurobipy
    highs: Alternative


@dataclass(frozen=True)
class JobTiming:
    """CPU seconds for many sets."""

    sets: int
    keys: int  # of all sets
    selectable: int
    degenerate: int
    certificates_hold: bool
    normscope_seconds: float
    published: Alternative
    highs: Alternative


@dataclass(frozen=True)
class KeysBenchmark:
    """The whole run; `to_dict` is what `normscope bench keys --json` prints."""

    machine: Machine
    scipy: str
    gurobipy: str
    sets: tuple[SetTiming, ...]
    heads: JobTiming
    grid: JobTiming

    def to_dict(self) -> dict[str, Any]:
        return {"schema_version": SCHEMA_VERSION, **asdict(self)}


def run(plan: Plan = FULL) -> KeysBenchmark:
    """Measure all of a plan, with a progress bar on a terminal's standard error."""
    from rich.console import Console
    from rich.progress import Progress

    require_solvers("scipy", "gurobipy")
    bar = Progress(console=Console(stderr=True), transient=True, auto_refresh=False)  # no thread that takes CPU time
    with one_thread(), _one_blas_thread(), bar:
        _time_set("Gaussian", 16, 2, QUICK)  # every library is loaded before the clock starts
        task = bar.add_task("bench keys", total=len(plan.sets) + 2)

        def done(result: Result) -> Result:
            bar.update(task, advance=1, refresh=True)
            return result

        sets = tuple(done(_time_set(*entry, plan)) for entry in plan.sets)
        heads = done(_time_heads(plan, sets))
        grid = done(_time_grid(plan))
    return KeysBenchmark(this_machine(), version("scipy"), version("gurobipy"), sets, heads, grid)


@contextmanager
def _one_blas_thread() -> Iterator[None]:
    import scipy.optimize  # noqa: F401  its BLAS is to be there when the limit is set
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1):
        yield


def _time_set(kind: str, count: int, channels: int, plan: Plan) -> SetTiming:
    rng = np.random.default_rng([SEED, count, channels])
    keys = KINDS[kind](count, channels, rng)
    result, holds = _ours(keys)  # compiled, or loaded from the cache, before the clock starts
    published = PublishedAsked(keys, result.mask, result.near_ties) if count <= LARGEST else None
    highs = HighsAsked(keys, result.mask, result.near_ties)
    rounds = max(1, min(plan.rounds, 4096 // count))
    timed = max(1, min(plan.programs, 1024 * plan.programs // count) // rounds)
    ours: list[float] = []
    for part in np.array_split(rng.permutation(count), rounds):
        ours += [cpu_seconds(_ours, keys)[1] for _ in range(CALLS)]
        if published is not None:
            published.ask(part.tolist(), timed)
        highs.ask(part.tolist(), timed)
    seconds = statistics.median(ours)
    return SetTiming(
        kind=kind,
        keys=count,
        channels=channels,
        selectable=int(result.mask.sum()),
        degenerate=int(result.near_ties.sum()),
        certificates_hold=holds,
        normscope_seconds=seconds,
        published=None if published is None else published.total(seconds),
        highs=highs.total(seconds),
    )


def _time_heads(plan: Plan, sets: tuple[SetTiming, ...]) -> JobTiming:
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
    return JobTiming(
        sets=len(keys),
        keys=result.mask.size,
        selectable=int(result.mask.sum()),
        degenerate=int(result.near_ties.sum()),
        certificates_hold=holds,
        normscope_seconds=seconds,
        published=added([(row.published, heads) for row, heads in alike if row.published is not None], seconds),
        highs=added([(row.highs, heads) for row, heads in alike], seconds),
    )


def _time_grid(plan: Plan) -> JobTiming:
    """Every cell of the grid in one call; the other two on one set of one cell in GRID_STEP."""
    sizes, widths, runs = plan.grid
    rng = np.random.default_rng(SEED)
    cells = [
        KINDS["Gaussian"](runs * count, channels, rng).reshape(runs, count, channels)
        for count in sizes
        for channels in widths
    ]
    _ours(cells[0])  # compiled before the clock starts
    seconds, winners, degenerate, hold = 0.0, 0, 0, True
    published: list[Alternative] = []
    highs: list[Alternative] = []
    for number, keys in enumerate(cells):
        (result, holds), taken = cpu_seconds(_ours, keys)
        seconds += taken
        winners += int(result.mask.sum())
        degenerate += int(result.near_ties.sum())
        hold &= holds
        if number % GRID_STEP == 0:
            for asked, totals in ((PublishedAsked, published), (HighsAsked, highs)):
                one = asked(keys[0], result.mask[0], result.near_ties[0])
                one.ask(list(range(keys.shape[1])), keys.shape[1])
                totals.append(one.total(seconds))
    weight = runs * len(cells) / len(published)
    return JobTiming(
        sets=runs * len(cells),
        keys=sum(keys[..., 0].size for keys in cells),
        selectable=winners,
        degenerate=degenerate,
        certificates_hold=hold,
        normscope_seconds=seconds,
        published=added([(total, weight) for total in published], seconds),
        highs=added([(total, weight) for total in highs], seconds),
    )


def _ours(keys: Keys) -> tuple[Selection, bool]:
    result = selectable(keys)
    return result, result.holds
