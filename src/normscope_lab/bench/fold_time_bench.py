"""What `normscope fold` takes: load, fold, certify, write, in new processes; imports and torch.export apart.

With the Python of an environment that has transformer-lens, the same folders are loaded and folded there too, with the
settings that it recommends (its defaults), in turn with normscope, so that a noisy machine disturbs both alike. It
certifies nothing and writes nothing. All processes have one thread. A first round, in which bytecode is compiled and
files come into memory, is not counted.
"""

import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from normscope.data import demo_model, name_of
from normscope.models.load import is_gguf, load_model, load_tokenizer
from normscope.models.transformers_library import quiet
from normscope_lab.bench.new_processes import IMPORTS, Ended, run_code, run_command
from normscope_lab.bench.timing import this_machine
from normscope_lab.results.fold_times import FoldRun, FoldTimes

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
            folder = written(model, Path(scratch) / f"model-{number}") if is_gguf(model) else model
            name = name_of(demo_model()) if model.resolve() == demo_model() else model.name
            rows.append(_measured(name, folder, peer, bar(range(1 + rounds), f"folding {model.name}")))
    return FoldTimes(this_machine(), None if peer is None else _version(peer), tuple(rows))


def written(file: Path, folder: Path) -> Path:
    loaded: Any = load_model(file)
    with quiet():
        loaded.save_pretrained(folder)
        load_tokenizer(file).save_pretrained(folder)
    return folder


def _measured(name: str, folder: Path, peer: Path | None, rounds: Iterable[int]) -> FoldRun:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    kind = [str(config["model_type"]), str(config["architectures"][0])]
    times: dict[str, list[float]] = {}
    norms = 0

    def add(what: str, ended: Ended) -> Ended:
        times.setdefault(what, []).append(ended.cpu_seconds)
        return ended

    for number in rounds:
        if number == 1:
            times.clear()  # the first round only warmed up
        with tempfile.TemporaryDirectory() as scratch:
            ended = add("fold", run_command("fold", str(folder), "--out", str(Path(scratch) / "folded"), "--json"))
        times.setdefault("export", []).append(ended.export_seconds)
        norms = len(json.loads(ended.output)["norms"])
        if peer is not None:
            add("peer", run_code(peer, PEER, str(folder)))
        add("imports", run_code(sys.executable, IMPORTS, *kind))
        if peer is not None:
            add("peer imports", run_code(peer, PEER_IMPORTS))
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


def _version(peer: Path) -> str:
    code = "from importlib.metadata import version; print(version('transformer-lens'))"
    return f"transformer-lens {run_code(peer, code).output.strip()}"
