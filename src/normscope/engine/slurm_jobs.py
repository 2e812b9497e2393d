"""SLURM jobs, through submitit. Where there is no SLURM, submitit's own local jobs: for tests, and to try it out.

Every start of a job takes seconds, so pieces are sent in a few bundles for each worker. SLURM reads partition, account,
time limit and the like from its own variables: SBATCH_PARTITION, SBATCH_ACCOUNT, SBATCH_TIMELIMIT, SBATCH_MEM_PER_NODE.
"""

import shutil
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, ClassVar

from normscope.engine.packing import Parts
from normscope.engine.pieces import Engine, LostError, answered
from normscope.engine.shared_values import SharedValue, as_sent
from normscope.errors import InputError

WORKERS = 8
MINUTES = 60  # of a job, where SBATCH_TIMELIMIT does not say otherwise
BETWEEN_LOOKS = 0.1  # seconds


class SlurmJobs(Engine):
    """A bundle is a job. Its files are in a new folder here, which compute nodes must see, until the engine closes."""

    name: ClassVar[str] = "slurm"
    bundles: ClassVar[int | None] = 2
    ahead: ClassVar[int] = 1  # a job that was submitted may run at once

    def __init__(self, workers: int | None) -> None:
        try:
            import submitit
        except ImportError:
            raise InputError("--engine slurm needs submitit: pip install 'normscope[slurm]'") from None
        super().__init__(workers or WORKERS)
        self._lost = submitit.core.utils.UncompletedJobError
        self._folder = Path(mkdtemp(prefix=".normscope-slurm-", dir=Path.cwd()))
        cluster = None if shutil.which("sbatch") else "local"
        self._executor = submitit.AutoExecutor(self._folder / "jobs", cluster=cluster)
        self._executor.update_parameters(name="normscope", timeout_min=MINUTES, cpus_per_task=1)
        self._shared = 0

    @contextmanager
    def shared(self, value: Any) -> Iterator[SharedValue]:
        self._shared += 1
        kept = SharedValue(value, self._folder / f"value-{self._shared}")
        try:
            yield kept
        finally:
            kept.remove()

    def start(self, message: Parts, given: tuple[Any, ...]) -> Any:
        return self._executor.submit(answered, message, as_sent(given))

    def finished(self, handles: Collection[Any], seconds: float) -> list[Any]:
        end = time.monotonic() + seconds
        while not (done := [job for job in handles if job.done()]) and time.monotonic() < end:
            time.sleep(BETWEEN_LOOKS)
        return done

    def outcome(self, handle: Any) -> Parts:
        try:
            answer: Parts = handle.result()
        except self._lost as error:
            raise LostError(f"job {handle.job_id}, {handle.state}") from error
        shutil.rmtree(self._folder / "jobs" / handle.job_id, ignore_errors=True)
        return answer

    def cancel(self, handles: Collection[Any]) -> None:
        for job in handles:
            job.cancel(check=False)

    def close(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
