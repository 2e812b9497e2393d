"""`normscope bench fold-time`: what folding a model takes."""

from dataclasses import dataclass
from typing import Annotated

from normscope.results.describe import Column, Table
from normscope.results.result import Result
from normscope_lab.bench.timing import Machine, duration


@dataclass(frozen=True)
class FoldRun:
    """`normscope fold MODEL --out FOLDER` in new processes; medians of CPU times. None without a peer."""

    model: Annotated[str, Column("model", "The model.")]
    norms: Annotated[int, Column("norms", "Norms that were decided on.", brief=False)]
    rounds: Annotated[int, Column("rounds", "How often everything ran.", brief=False)]
    cpu_seconds: Annotated[float, Column("fold", "Load, fold, certify, write; the whole process.", duration)]
    import_seconds: Annotated[float, Column("imports", "Of this: importing torch and transformers.", duration)]
    export_seconds: Annotated[float, Column("torch.export", "Of this: tracing one call.", duration)]
    peer_seconds: Annotated[float | None, Column("peer", "Load and fold; the whole process.", duration)]
    peer_import_seconds: Annotated[float | None, Column("its imports", "Of this: importing.", duration)]
    ratio: Annotated[
        float | None, Column("ratio", "CPU time of normscope over that of the peer, median over rounds.", ".2f")
    ]

    @property
    def rest_seconds(self) -> Annotated[float, Column("the rest", "Without imports and torch.export.", duration)]:
        return self.cpu_seconds - self.import_seconds - self.export_seconds


@dataclass(frozen=True, repr=False)
class FoldTimes(Result, kind="fold_times"):
    """CPU times of folding, beside a peer where one was given."""

    machine: Machine
    peer: str | None  # its name and version
    runs: Annotated[tuple[FoldRun, ...], Table("normscope fold in new processes, one thread, CPU time")]

    def __repr__(self) -> str:
        return f"FoldTimes({', '.join(f'{run.model}: {run.cpu_seconds:.1f} s' for run in self.runs)})"
