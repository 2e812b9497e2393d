"""`normscope bench inspect`: what inspecting a large checkpoint takes."""

from dataclasses import dataclass
from typing import Annotated

from normscope.results.describe import Column, Table
from normscope.results.result import Result
from normscope_lab.bench.timing import Machine, duration


@dataclass(frozen=True)
class InspectRun:
    """One run of `normscope inspect --json` in a new process."""

    parameters: Annotated[int, Column("parameters", "Parameters of the checkpoint.", ",")]
    norms: Annotated[int, Column("norms", "Norms that were found in it.")]
    cpu_seconds: Annotated[float, Column("CPU time", "Of the whole process, imports included.", duration)]
    torch_seconds: Annotated[float, Column("import torch", "A process that imports torch alone.", duration)]
    import_seconds: Annotated[
        float, Column("all imports", "A process that imports torch, transformers and normscope.", duration)
    ]
    export_seconds: Annotated[float, Column("torch.export", "Of the CPU time: tracing one call.", duration)]
    peak_megabytes: Annotated[float, Column("peak memory (MB)", "Most memory that the process held.", ".0f")]

    @property
    def rest_seconds(self) -> Annotated[float, Column("the rest", "Without imports and torch.export.", duration)]:
        return self.cpu_seconds - self.import_seconds - self.export_seconds


@dataclass(frozen=True, repr=False)
class InspectSpeed(Result, kind="inspect_speed", schema_version=2):
    """Time and memory of inspecting a checkpoint of 70B shape without loading it."""

    machine: Machine
    runs: Annotated[tuple[InspectRun, ...], Table("normscope inspect on a checkpoint of 70B shape, in a new process")]

    def __repr__(self) -> str:
        return f"InspectSpeed({', '.join(f'{run.norms} norms in {run.cpu_seconds:.1f} s' for run in self.runs)})"
