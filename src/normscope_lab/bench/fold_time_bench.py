"""What `normscope fold` takes: load, fold, certify, write, in new processes; imports and torch.export apart.

With the Python of an environment that has transformer-lens, the same folders are loaded and folded there too, with the
settings that it recommends (its defaults), in turn with normscope, so that a noisy machine disturbs both alike. It
certifies nothing and writes nothing. All processes have one thread.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from normscope.data import demo_model, name_of
from normscope.errors import InputError
from normscope.models.load import is_gguf, load_model
from normscope.models.transformers_library import quiet
from normscope_lab.bench.timing import this_machine
from normscope_lab.results.fold_times import FoldRun, FoldTimes

IMPORTS = """
import sys
import normscope.cli
import normscope.rewrite.fold
from normscope.models.transformers_library import config_class, model_class
config_class(sys.argv[1])
model_class([sys.argv[2]])
import torch.export._trace
"""
FOLD = """
import sys, time
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
from normscope.cli import main
sys.argv = ["normscope", "fold", sys.argv[1], "--out", sys.argv[2], "--json"]
try:
    main()
finally:
    print(f"torch.export {spent}", file=sys.stderr)
"""
PEER_IMPORTS = """
import torch
from transformer_lens.model_bridge import TransformerBridge
"""
PEER = f"""
import sys
{PEER_IMPORTS}
bridge = TransformerBridge.boot_transformers(sys.argv[1], device="cpu", dtype=torch.float32)
bridge.enable_compatibility_mode()
"""


def run(
    models: list[Path], peer: Path | None, rounds: int, bar: Callable[[Iterable[Any], str], Iterable[Any]]
) -> FoldTimes:
    """Every model some times; a .gguf file is first written as the folder that both can load."""
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        for number, model in enumerate(models or [demo_model()]):
            folder = _written(model, Path(scratch) / f"model-{number}") if is_gguf(model) else model
            rows.append(_measured(name_of(model), folder, peer, bar(range(rounds), f"folding {name_of(model)}")))
    return FoldTimes(this_machine(), None if peer is None else _version(peer), tuple(rows))


def _written(file: Path, folder: Path) -> Path:
    loaded: Any = load_model(file)
    with quiet():
        loaded.save_pretrained(folder)
    return folder


def _measured(name: str, folder: Path, peer: Path | None, rounds: Iterable[int]) -> FoldRun:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    kind = [str(config["model_type"]), str(config["architectures"][0])]
    times: dict[str, list[float]] = {}
    norms = 0

    def add(what: str, python: str | Path, code: str, *arguments: str) -> tuple[str, str]:
        seconds, output, errors = _process(python, code, *arguments)
        times.setdefault(what, []).append(seconds)
        return output, errors

    for _ in rounds:
        with tempfile.TemporaryDirectory() as scratch:
            output, errors = add("fold", sys.executable, FOLD, str(folder), str(Path(scratch) / "folded"))
        times.setdefault("export", []).append(float(errors.split()[-1]))
        norms = len(json.loads(output)["norms"])
        if peer is not None:
            add("peer", peer, PEER, str(folder))
        add("imports", sys.executable, IMPORTS, *kind)
        if peer is not None:
            add("peer imports", peer, PEER_IMPORTS)
    middle = {what: statistics.median(found) for what, found in times.items()}
    ratios = [one / other for one, other in zip(times["fold"], times.get("peer", []), strict=False)]
    return FoldRun(
        model=name,
        norms=norms,
        rounds=len(times["fold"]),
        cpu_seconds=middle["fold"],
        import_seconds=middle["imports"],
        export_seconds=middle["export"],
        peer_seconds=middle.get("peer"),
        peer_import_seconds=middle.get("peer imports"),
        ratio=statistics.median(ratios) if ratios else None,
    )


def _process(python: str | Path, code: str, *arguments: str) -> tuple[float, str, str]:
    """The CPU time of a new process, user and system, and what it printed."""
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
    return usage.ru_utime + usage.ru_stime, printed[0], printed[1]


def _version(peer: Path) -> str:
    code = "from importlib.metadata import version; print(version('transformer-lens'))"
    return f"transformer-lens {_process(peer, code)[1].strip()}"
