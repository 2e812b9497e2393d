"""How deep networks are that memorise random labels, and what finding and certifying them takes, on one thread.

Samples are uniform on [0, 1], labels are drawn at random: nothing can be learned about them, only remembered. The depth
that Ni et al. prove is samples − classes.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from normscope.capacity.memorizing import memorize
from normscope.progress import Progress, silent
from normscope_lab.bench.timing import one_thread, this_machine
from normscope_lab.results.memorize_speed import MemorizeRun, MemorizeSpeed

SIZES, SEEDS = (100, 300, 1000, 3000), 5


@dataclass(frozen=True)
class Task:
    """Samples to be memorised, and by what."""

    samples: int
    classes: int = 2
    method: str = "search"
    dtype: str = "float64"


OTHER_TASKS = (Task(100, dtype="float32"), Task(200, classes=10), Task(1000, method="merge"))


def run(
    sizes: Sequence[int] = SIZES,
    others: Sequence[Task] = OTHER_TASKS,
    seeds: int = SEEDS,
    progress: Progress = silent,
) -> MemorizeSpeed:
    """Every task with every seed, after a small one that compiles or loads the code."""
    tasks = [*(Task(size) for size in sizes), *others]
    with one_thread():
        _memorise(Task(20), 0)
        steps = progress([(task, seed) for task in tasks for seed in range(seeds)], "bench memorize")
        return MemorizeSpeed(this_machine(), tuple(_memorise(task, seed) for task, seed in steps))


def _memorise(task: Task, seed: int) -> MemorizeRun:
    rng = np.random.default_rng([seed, task.samples, task.classes])
    samples, labels = rng.random((task.samples, 1)), rng.integers(0, task.classes, task.samples)
    found = memorize(samples, labels, method=task.method, dtype=task.dtype, seed=seed)
    return MemorizeRun(
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
