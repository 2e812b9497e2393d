"""docs/results/fold-before.json: what `normscope fold` took before its time was worked on, beside what it takes now.

    python tools/fold_before.py docs MODEL... [--before COMMIT] [--rounds 3]      # two minutes, idle machine

Both run on the same folders in turn, each in new processes on one thread; a first round is not counted. A `.gguf` file
is first written as a folder, which the code of then could read too.
"""

import argparse
import json
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import asdict
from io import BytesIO
from pathlib import Path

from normscope.data import demo_model
from normscope.models.load import is_gguf
from normscope_lab.bench.fold_time_bench import written
from normscope_lab.bench.new_processes import run_code
from normscope_lab.bench.timing import this_machine

ROOT = Path(__file__).parent.parent
FIRST = "e89d963"  # the last commit before
FOLD = """
import runpy, sys
source, folder, out = sys.argv[1:]
sys.path.insert(0, source)
sys.argv = ["normscope", "fold", folder, "--out", out]
try:
    runpy.run_module("normscope", run_name="__main__")
finally:
    import normscope
    assert normscope.__file__.startswith(source), normscope.__file__
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("docs", type=Path)
    parser.add_argument("models", nargs="*", type=Path, metavar="MODEL")
    parser.add_argument("--before", default=FIRST, metavar="COMMIT")
    parser.add_argument("--rounds", default=3, type=int)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        packed = subprocess.check_output(["git", "archive", options.before, "src"], cwd=ROOT)
        with tarfile.open(fileobj=BytesIO(packed)) as archive:
            archive.extractall(Path(scratch) / "before", filter="data")
        sources = {"before": Path(scratch) / "before" / "src", "now": ROOT / "src"}
        times = {}
        for number, model in enumerate([*options.models, None]):
            name, folder = ("the demo model", demo_model()) if model is None else (model.name, model)
            if is_gguf(folder):
                name, folder = f"{name}, as a folder", written(folder, Path(scratch) / f"model-{number}")
            times[name] = measured(sources, folder, options.rounds)
    found = {"before": options.before, "now": head(), "machine": asdict(this_machine()), "cpu_seconds": times}
    (options.docs / "results" / "fold-before.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def measured(sources: dict[str, Path], folder: Path, rounds: int) -> dict[str, list[float]]:
    """CPU seconds of every round but the first, with the code in each of the folders."""
    times: dict[str, list[float]] = {name: [] for name in sources}
    for _ in range(1 + rounds):
        for name, source in sources.items():
            with tempfile.TemporaryDirectory() as scratch:
                ended = run_code(sys.executable, FOLD, str(source), str(folder), str(Path(scratch) / "folded"))
            times[name].append(round(ended.cpu_seconds, 2))
    return {name: found[1:] for name, found in times.items()}


def head() -> str:
    found = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    return found.stdout.strip()


if __name__ == "__main__":
    main()
