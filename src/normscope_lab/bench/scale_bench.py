"""What engines bring: keys of many heads and the published grid with 1 and 2 workers, empty pieces, peak memory.

Beside the engines stands what processes reach that share nothing and send nothing: no engine can do more. Workers are
started, and have the code compiled, before the clock starts. Results of every engine are compared with those of one
process, byte for byte.
"""

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from normscope.data import sample_text
from normscope.engine import ENGINES, Engine, FailedPiece, failed, open_engine
from normscope.progress import Progress, silent
from normscope.separation.selectable import selectable
from normscope.studies.key_verdicts import Question, Solved, solve
from normscope_lab.bench import unit_costs
from normscope_lab.bench.key_sets import KINDS
from normscope_lab.bench.timing import this_machine
from normscope_lab.results.scale_speed import EngineRun, MemoryUse, PieceCost, ScaleSpeed

LIBRARIES = {"ray": "ray", "slurm": "submitit"}
APART = "apart"
Work = tuple[Callable[..., Any], Sequence[Any]]
TEXT = """
import sys
from pathlib import Path
import normscope as ns
from normscope.engine import open_engine
text = Path(sys.argv[1])
if sys.argv[2] == "keys":
    with open_engine(workers=1) as engine:
        ns.keys(ns.demo_model(), text=text, keep=False, engine=engine)
else:
    ns.inspect(ns.demo_model(), text=text)
from normscope_lab.bench.new_processes import peak_bytes
print(peak_bytes())
"""
INSPECT = """
import sys
from normscope.studies.inspect import inspect
inspect(sys.argv[1])
from normscope_lab.bench.new_processes import peak_bytes
print(peak_bytes())
"""


@dataclass(frozen=True)
class Plan:
    """What is measured."""

    heads: tuple[int, int, int]  # how many, keys, channels
    grid: tuple[range, range, int]  # keys, channels, runs per cell
    empty: int  # pieces that do nothing
    corpus: dict[str, tuple[int, ...]]  # characters
    model: tuple[int, ...]  # rows of a matrix with 1024 columns beside one norm
    units: unit_costs.Sizes


FULL = Plan(
    heads=(144, 1024, 64),
    grid=(range(3, 61), range(3, 16), 100),
    empty=500,
    corpus={"inspect --text": (10**5, 10**6), "keys --text": (10**4, 10**5)},
    model=(2**13, 2**17, 2**19),
    units=unit_costs.FULL,
)
QUICK = Plan(
    heads=(4, 64, 8),
    grid=(range(3, 5), range(3, 5), 4),
    empty=10,
    corpus={"inspect --text": (2 * 10**3, 4 * 10**3)},
    model=(16, 32),
    units=unit_costs.QUICK,
)


def run(plan: Plan = FULL, engines: Sequence[str] | None = None, progress: Progress = silent) -> ScaleSpeed:
    """Measure all of a plan, on the engines that are installed or on those that are named."""
    load = os.getloadavg()[0]
    chosen = engines or [name for name in ENGINES if name not in LIBRARIES or find_spec(LIBRARIES[name])]
    runs: list[EngineRun] = []
    costs: list[PieceCost] = []
    works = tuple(_pieces(plan))
    wanted: dict[str, bytes] = {}

    def add(row: EngineRun) -> None:
        one = next((run.seconds for run in runs if (run.engine, run.work) == (row.engine, row.work)), row.seconds)
        runs.append(replace(row, speedup=one / row.seconds))

    for name, workers in progress([(name, workers) for name in (*chosen, APART) for workers in (1, 2)], "bench scale"):
        if name == APART:
            for work in works:
                add(_apart(plan, work, workers, wanted))
            continue
        begun = time.monotonic()
        with open_engine(name, workers) as engine:
            list(engine.run(abs, range(workers)))
            costs.append(_empty(engine, time.monotonic() - begun, plan.empty))
            for work in works:
                add(_timed(engine, plan, work, wanted))
    units = unit_costs.measured(plan.units, progress)
    estimates = unit_costs.estimated(units)
    return ScaleSpeed(this_machine(), load, tuple(runs), tuple(costs), tuple(_memory(plan)), units, estimates)


def _pieces(plan: Plan) -> dict[str, Callable[[], Work]]:
    """The work that is measured, by its name."""
    count, keys, channels = plan.heads
    counts, widths, runs = plan.grid
    cells = [(*cell, runs) for cell in product(counts, widths)]
    return {
        f"{count:,} heads": lambda: (solved_head, _heads(count, keys, channels)),
        f"{4 * count:,} heads": lambda: (solved_head, _heads(4 * count, keys, channels)),
        f"grid, {len(cells):,} cells": lambda: (solved_cell, cells),
    }


def _heads(count: int, keys: int, channels: int) -> list[Question]:
    rng = np.random.default_rng(0)
    sets = [KINDS["anisotropic"](keys, channels, rng).astype(np.float64) for _ in range(count)]
    return [Question((0,), number, np.arange(keys), None, each) for number, each in enumerate(sets)]


def solved_head(question: Question) -> Solved:
    return solve(question)


def solved_cell(cell: tuple[int, int, int]) -> bytes:
    """Which keys are selectable in all sets of one cell."""
    count, channels, runs = cell
    rng = np.random.default_rng(cell)
    return selectable(rng.normal(size=(runs, count, channels))).mask.tobytes()


def _timed(engine: Engine, plan: Plan, work: str, wanted: dict[str, bytes]) -> EngineRun:
    """All pieces of a work on an engine, and a few of them before, so that every worker has loaded compiled code."""
    function, pieces = _pieces(plan)[work]()
    list(engine.run(function, pieces[: 2 * engine.workers]))
    begun = time.monotonic()
    list(engine.run(function, pieces[:1]))
    one = time.monotonic() - begun
    sent, received, begun = engine.sent, engine.received, time.monotonic()
    results = list(engine.run(function, pieces))
    seconds = time.monotonic() - begun
    if lost := [result for result in results if isinstance(result, FailedPiece)]:
        raise failed(lost, len(results), f"pieces of {work}")
    same = _same(work, map(_content, results), wanted)
    sent, received = engine.sent - sent, engine.received - received
    return EngineRun(work, engine.name, engine.workers, len(pieces), one, seconds, 1.0, sent, received, same)


def _apart(plan: Plan, work: str, workers: int, wanted: dict[str, bytes]) -> EngineRun:
    """Processes that make and do their own share of the pieces: what the machine allows without any messages."""
    with open_engine("local", 2) as engine:
        shares = list(engine.run(share, range(workers), given=(plan, work, workers)))
    if lost := [each for each in shares if isinstance(each, FailedPiece)]:
        raise failed(lost, workers, f"shares of {work}")
    count = sum(len(contents) for _, _, contents in shares)
    contents = (shares[number % workers][2][number // workers] for number in range(count))
    seconds = max(end for _, end, _ in shares) - min(begun for begun, _, _ in shares)
    return EngineRun(work, APART, workers, count, None, seconds, 1.0, 0, 0, _same(work, contents, wanted))


def share(number: int, plan: Plan, work: str, workers: int) -> tuple[float, float, list[bytes]]:
    """Every so many-th piece of a work: when it was begun and ended by the clock that all processes share; results."""
    function, pieces = _pieces(plan)[work]()
    mine = pieces[number::workers]
    for piece in mine[:2]:
        function(piece)
    begun = time.monotonic()
    results = [function(piece) for piece in mine]
    return begun, time.monotonic(), list(map(_content, results))


def _same(work: str, contents: Iterable[bytes], wanted: dict[str, bytes]) -> bool:
    """Whether the results are those of the first engine."""
    return wanted.setdefault(work, found := b"".join(contents)) == found


def _content(result: Any) -> bytes:
    """SHA-256 of a result."""
    if not isinstance(result, Solved):
        return hashlib.sha256(result).digest()
    arrays = (result.never_selected, *(result.arrays[name] for name in ("queries", "query_keys", "near_ties")))
    return hashlib.sha256(b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)).digest()


def _empty(engine: Engine, start: float, pieces: int) -> PieceCost:
    begun = time.monotonic()
    count = pieces if engine.bundles is None else min(pieces, 20)
    list(engine.run(abs, range(count)))
    return PieceCost(engine.name, engine.workers, start, (time.monotonic() - begun) / count)


def _memory(plan: Plan) -> list[MemoryUse]:
    found = []
    with TemporaryDirectory() as folder:
        row = json.dumps({"text": sample_text()[:960]}) + "\n"
        for asked, characters in [(asked, each) for asked, lengths in plan.corpus.items() for each in lengths]:
            path = Path(folder) / f"{characters}.jsonl"
            path.write_text(row * (characters // len(row)), encoding="utf-8")
            found.append(MemoryUse(asked, path.stat().st_size, _peak(TEXT, path, asked.split()[0])))
        for rows in plan.model:
            path = Path(folder) / f"{rows}.safetensors"
            _write_model(path, rows)
            found.append(MemoryUse("inspect", path.stat().st_size, _peak(INSPECT, path)))
    return found


def _write_model(path: Path, rows: int) -> None:
    """A norm and a matrix of zeros, which takes no space on the disk."""
    shapes = {"ln.weight": [1024], "ln.bias": [1024], "matrix": [rows, 1024]}
    header, at = {}, 0
    for name, shape in shapes.items():
        size = 4 * int(np.prod(shape))
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.write(np.ones(1024, np.float32).tobytes())
        file.truncate(8 + len(text) + at)


def _peak(program: str, path: Path, *more: str) -> int:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-P", "-c", program, str(path), *more],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stdout.split()[-1])
