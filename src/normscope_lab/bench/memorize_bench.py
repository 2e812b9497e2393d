"""How deep networks are that memorise random labels, and what finding and certifying them takes, on one thread.

Samples are uniform on [0, 1], labels are drawn at random: nothing can be learned about them, only remembered. The depth
that Ni et al. prove is samples − classes.
"""

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from normscope.capacity.memorizing import memorize
from normscope_lab.bench.timing import Machine, one_thread, this_machine

SCHEMA_VERSION = 1
SIZES, SEEDS = (100, 300, 1000, 3000), 5
Progress = Callable[[Iterable[Any], str], Iterable[Any]]


@dataclass(frozen=True)
class Task:
    """Samples to be memorised, and by what."""

    samples: int
    classes: int = 2
    method: str = "search"
    dtype: str = "float64"


OTHER_TASKS = (Task(100, dtype="float32"), Task(200, classes=10), Task(1000, method="merge"))


@dataclass(frozen=True)
class Memorising:
    """One task with one seed, done."""

    samples: int
    classes: int
    method: str
    dtype: str
    seed: int
    found_by: str  # "merge" where the search failed
    depth: int
    runs: int  # of equal labels along the line
    certified: int  # samples that exact arithmetic shows to be right
    float_right: int  # samples that are right in the module's own type
    seconds: float  # CPU time, certificate included
    attempts: int


@dataclass(frozen=True)
class MemorizeBenchmark:
    """The whole run; `to_dict` is what `normscope bench memorize --json` prints."""

    machine: Machine
    runs: tuple[Memorising, ...]

    def tasks(self) -> dict[Task, list[Memorising]]:
        """The runs of each task."""
        found: dict[Task, list[Memorising]] = {}
        for run in self.runs:
            found.setdefault(Task(run.samples, run.classes, run.method, run.dtype), []).append(run)
        return found

    def to_dict(self) -> dict[str, Any]:
        medians = [
            {
                **asdict(task),
                "paper_bound": task.samples - task.classes,
                "seeds": len(runs),
                "median_depth": statistics.median(run.depth for run in runs),
                "median_seconds": statistics.median(run.seconds for run in runs),
                "all_certified": all(run.certified == run.samples for run in runs),
                "least_float_right": min(run.float_right for run in runs),
            }
            for task, runs in self.tasks().items()
        ]
        return {
            "schema_version": SCHEMA_VERSION,
            "machine": asdict(self.machine),
            "tasks": medians,
            "runs": [asdict(run) for run in self.runs],
        }


def run(
    sizes: Sequence[int] = SIZES,
    others: Sequence[Task] = OTHER_TASKS,
    seeds: int = SEEDS,
    progress: Progress = lambda things, what: things,
) -> MemorizeBenchmark:
    """Every task with every seed, after a small one that compiles or loads the code."""
    tasks = [*(Task(size) for size in sizes), *others]
    with one_thread():
        _memorise(Task(20), 0)
        steps = progress([(task, seed) for task in tasks for seed in range(seeds)], "memorising")
        return MemorizeBenchmark(this_machine(), tuple(_memorise(task, seed) for task, seed in steps))


def _memorise(task: Task, seed: int) -> Memorising:
    rng = np.random.default_rng([seed, task.samples, task.classes])
    samples, labels = rng.random((task.samples, 1)), rng.integers(0, task.classes, task.samples)
    found = memorize(samples, labels, method=task.method, dtype=task.dtype, seed=seed)
    return Memorising(
        **asdict(task),
        seed=seed,
        found_by=found.method,
        depth=found.depth,
        runs=found.runs,
        certified=found.certified,
        float_right=found.float_right,
        seconds=found.seconds or 0.0,
        attempts=found.attempts or 0,
    )
