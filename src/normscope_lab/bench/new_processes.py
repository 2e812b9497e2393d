"""CPU time of new processes, on one thread: a command of normscope, with its imports and torch.export apart."""

import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from normscope.errors import InputError

TORCH = "import torch"
IMPORTS = """
import sys
from normscope.cli.app import collect_rarely
collect_rarely()
import normscope.rewrite.fold
from normscope.models.transformers_library import config_class, model_class
config_class(sys.argv[1])
model_class([sys.argv[2]])
import torch.export._trace
"""
COMMAND = """
import sys, time
from normscope.cli.app import collect_rarely, main
collect_rarely()
import torch
export, spent = torch.export.export, 0.0
def timed(*arguments, **options):
    global spent
    import torch.export._trace
    start = time.process_time()
    try:
        return export(*arguments, **options)
    finally:
        spent += time.process_time() - start
torch.export.export = timed
sys.argv[0] = "normscope"
try:
    main()
finally:
    print(f"torch.export {spent}", file=sys.stderr)
"""


@dataclass(frozen=True)
class Ended:
    """A process that has ended: user and system time, the most memory that it held, and what it printed."""

    cpu_seconds: float
    peak_megabytes: float
    output: str
    errors: str

    @property
    def export_seconds(self) -> float:
        """Of `COMMAND`: the time in torch.export."""
        return float(self.errors.rpartition("torch.export ")[2])


def peak_bytes() -> int:
    """The most memory that this process held; where Linux tells it, without what its parent held before it began."""
    try:
        with open("/proc/self/status", encoding="utf-8") as status:
            return 1024 * int(next(line.split()[1] for line in status if line.startswith("VmHWM")))
    except OSError:
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def run_command(*arguments: str) -> Ended:
    """Run a command of normscope."""
    return run_code(sys.executable, COMMAND, *arguments)


def run_code(python: str | Path, code: str, *arguments: str) -> Ended:
    """Run code in a new process on one thread, without a network; InputError if it fails."""
    settings = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "HF_HUB_OFFLINE"), "1")
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        command = [str(python), "-c", code, *arguments]
        process = subprocess.Popen(command, stdout=output, stderr=errors, env=os.environ | settings)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        printed = []
        for file in (output, errors):
            file.seek(0)
            printed.append(file.read().decode(errors="replace"))
    if process.returncode:
        last = (printed[1].strip().splitlines() or ["no message"])[-1]
        raise InputError(f"{python} ended with exit code {process.returncode}: {last}")
    return Ended(usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, *printed)
