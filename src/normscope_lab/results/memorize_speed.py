"""`normscope bench memorize`: how deep networks are that memorise random labels, and what they take."""

import statistics
from dataclasses import dataclass
from typing import Annotated

from normscope.results.describe import Column, Table
from normscope.results.result import Result
from normscope_lab.bench.timing import Machine, duration


@dataclass(frozen=True)
class MemorizeRun:
    """One task with one seed."""

    samples: Annotated[int, Column("samples", "Samples with random labels.")]
    classes: Annotated[int, Column("classes", "Different labels.")]
    method: Annotated[str, Column("method", "How the network is built: by search, or by the published merging.")]
    dtype: Annotated[str, Column("data type", "Floating-point type of the network.")]
    seed: Annotated[int, Column("seed", "Random seed of samples and labels.")]
    found_by: Annotated[str, Column("found by", "merge where the search failed.", brief=False)]
    depth: Annotated[int, Column("LayerNorms", "LayerNorms of the network.")]
    runs: Annotated[int, Column("runs", "Runs of equal labels along the line.", brief=False)]
    certified: Annotated[int, Column("certified", "Samples that exact arithmetic shows to be right.")]
    float_right: Annotated[int, Column("right in floats", "Samples that the module gets right.", brief=False)]
    seconds: Annotated[float, Column("time", "CPU time, certificate included.", duration)]
    attempts: Annotated[int, Column("attempts", "Networks that were tried.", brief=False)]


@dataclass(frozen=True)
class MemorizeTask:
    """All runs of one task."""

    samples: Annotated[int, Column("samples", "Samples with random labels.")]
    classes: Annotated[int, Column("classes", "Different labels.")]
    method: Annotated[str, Column("method", "How the network is built: by search, or by the published merging.")]
    dtype: Annotated[str, Column("data type", "Floating-point type of the network.")]
    paper_bound: Annotated[int, Column("published depth", "Samples − classes, the depth that the paper proves.")]
    seeds: Annotated[int, Column("seeds", "Runs, each with other samples and labels.", brief=False)]
    median_depth: Annotated[float, Column("median depth", "LayerNorms of the network, median over seeds.", "g")]
    median_seconds: Annotated[float, Column("time", "CPU time, certificate included, median over seeds.", duration)]
    all_certified: Annotated[bool, Column("all certified", "Whether exact arithmetic shows every sample to be right.")]
    least_float_right: Annotated[
        int, Column("least right in floats", "Samples that the module gets right, fewest over seeds.", brief=False)
    ]


@dataclass(frozen=True, repr=False)
class MemorizeSpeed(Result, kind="memorize_speed"):
    """Depths and times of networks of LayerNorms of width 3 that memorise random labels."""

    machine: Machine
    runs: Annotated[tuple[MemorizeRun, ...], Table("Every run", brief=False)]

    @property
    def tasks(
        self,
    ) -> Annotated[tuple[MemorizeTask, ...], Table("Random labels, memorised by LayerNorms of width 3; one thread")]:
        found: dict[tuple[int, int, str, str], list[MemorizeRun]] = {}
        for run in self.runs:
            found.setdefault((run.samples, run.classes, run.method, run.dtype), []).append(run)
        return tuple(
            MemorizeTask(
                samples,
                classes,
                method,
                dtype,
                paper_bound=samples - classes,
                seeds=len(runs),
                median_depth=float(statistics.median(run.depth for run in runs)),
                median_seconds=statistics.median(run.seconds for run in runs),
                all_certified=all(run.certified == run.samples for run in runs),
                least_float_right=min(run.float_right for run in runs),
            )
            for (samples, classes, method, dtype), runs in found.items()
        )

    @property
    def holds(self) -> bool:
        return all(task.all_certified for task in self.tasks)

    def __repr__(self) -> str:
        certified = "certified" if self.holds else "NOT all certified"
        return f"MemorizeSpeed({len(self.tasks)} tasks, {len(self.runs)} networks, {certified})"
