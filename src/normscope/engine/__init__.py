"""Independent pieces of work side by side: in processes of this machine, on a Ray cluster, or as SLURM jobs.

    with open_engine("local", workers=2) as engine:
        for result in engine.run(function, pieces): ...

A piece depends on its arguments alone and is done on one thread, so all engines give the same bytes. Results come in
the order of the pieces. A piece whose worker dies is done again; one that fails three times is a `FailedPiece`.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from normscope.checks import as_count, quoted
from normscope.engine.local_processes import LocalProcesses
from normscope.engine.pieces import PATIENCE, Engine, FailedPiece, failed, is_worker, processors, warn_of
from normscope.errors import InputError

__all__ = ["ENGINES", "PATIENCE", "Engine", "FailedPiece", "failed", "open_engine", "or_local", "warn_of"]
LOCAL, RAY, SLURM = ENGINES = ("local", "ray", "slurm")


@contextmanager
def open_engine(name: str = LOCAL, workers: int | None = None) -> Iterator[Engine]:
    """An engine, to be used inside `with`.

    Parameters
    ----------
    name
        "local": processes of this machine; "ray": the cluster that RAY_ADDRESS names, or one that is started on this
        machine; "slurm": jobs, whose partition, account and time limit are read from SBATCH_PARTITION, SBATCH_ACCOUNT
        and SBATCH_TIMELIMIT.
    workers
        Pieces that are done at the same time. None: one per core of this machine or of the Ray cluster; 8 SLURM jobs.
        With "local" and 1, all is done in this process.

    >>> with open_engine(workers=1) as engine:
    ...     list(engine.run(abs, [-2, 3]))
    [2, 3]
    """
    if name not in ENGINES:
        raise InputError(f"engine must be one of {', '.join(ENGINES)}, got {quoted(name)}")
    count = None if workers is None else as_count(workers, "workers", least=1)
    engine = _made(name, count)
    try:
        yield engine
    finally:
        engine.close()


def _made(name: str, workers: int | None) -> Engine:
    if name == RAY:
        from normscope.engine.ray_cluster import RayCluster

        return RayCluster(workers)
    if name == SLURM:
        from normscope.engine.slurm_jobs import SlurmJobs

        return SlurmJobs(workers)
    return LocalProcesses(workers or (1 if is_worker() else processors()))


@contextmanager
def or_local(engine: Engine | None, workers: int | None = None) -> Iterator[Engine]:
    """The engine that a function was given, or processes of this machine: one per core, none inside a worker."""
    if engine is not None:
        yield engine
        return
    with open_engine(workers=workers) as local:
        yield local
