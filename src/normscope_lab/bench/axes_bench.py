"""The secular solver against dense eigendecomposition: all semi-axis lengths, all axes, growth with N, first call.

The dense way to the same result is eigvalsh or eigh of G² − ggᵀ/N. Gains are 1 + 0.1·normal: all distinct, which is the
hardest case for us, and rounded to bfloat16 as checkpoints store them, which leaves a few hundred distinct values.
"""

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from normscope.checks import Floats
from normscope.norm import Norm
from normscope.progress import Progress, silent
from normscope_lab.bench.timing import interleaved, one_thread, this_machine
from normscope_lab.results.axes_speed import AxesSpeed, Comparison, FirstCall, GrowthPoint

SIZES = (768, 4096, 8192)
GROWTH_SIZES = (256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
SEED = 0


def run(sizes: Sequence[int] = SIZES, progress: Progress = silent) -> AxesSpeed:
    """Measure at the given sizes."""
    tasks: list[Callable[[], Any]] = [_first_call]
    tasks += [partial(_growth, size) for size in GROWTH_SIZES]
    tasks += [partial(_compare, size, quantity) for quantity in ("lengths", "axes") for size in sizes]
    with one_thread():
        results = [task() for task in progress(tasks, "bench axes")]
    return AxesSpeed(
        machine=this_machine(),
        comparisons=tuple(result for result in results if isinstance(result, Comparison)),
        growth=tuple(result for result in results if isinstance(result, GrowthPoint)),
        first_call=tuple(result for result in results if isinstance(result, FirstCall)),
    )


def _gains(size: int) -> Floats:
    return 1 + 0.1 * np.random.default_rng(SEED).standard_normal(size)


def _compare(size: int, quantity: str) -> Comparison:
    gain = _gains(size)
    matrix = torch.from_numpy(np.diag(gain**2) - np.outer(gain, gain) / size)
    dense = {"lengths": torch.linalg.eigvalsh, "axes": torch.linalg.eigh}[quantity]
    ours = {"lengths": _lengths, "axes": _lengths_and_axes}[quantity]
    ours(gain)  # compiled or loaded from the cache before the clock starts
    rounds = max(1, min(5, round((4096 / size) ** 2)))
    seconds = interleaved({"dense": lambda: dense(matrix), "ours": lambda: ours(gain)}, rounds, {"ours": 5})
    return Comparison(
        size=size,
        quantity=quantity,
        dense=f"torch.linalg.{dense.__name__.removeprefix('linalg_')}",
        rounds=rounds,
        dense_seconds=seconds["dense"],
        normscope_seconds=seconds["ours"],
        ratio=seconds["dense"] / seconds["ours"],
    )


def _growth(size: int) -> GrowthPoint:
    distinct = _gains(size)
    rounded = torch.from_numpy(distinct).bfloat16().double().numpy()
    _lengths(distinct)
    seconds = interleaved({"distinct": lambda: _lengths(distinct), "rounded": lambda: _lengths(rounded)}, 9, {})
    return GrowthPoint(size, distinct_seconds=seconds["distinct"], bfloat16_seconds=seconds["rounded"])


def _lengths(gain: Floats) -> Floats:
    return Norm(gain=gain).ellipsoid.lengths


def _lengths_and_axes(gain: Floats) -> tuple[Floats, Floats]:
    ellipsoid = Norm(gain=gain).ellipsoid
    return ellipsoid.lengths, ellipsoid.axes()


def _first_call() -> FirstCall:
    use = "import normscope; e = normscope.Norm(gain=[1, 2, 3]).ellipsoid; e.lengths; e.axes()"
    with tempfile.TemporaryDirectory() as cache:
        compiling = _process_seconds(use, cache)
        cached = statistics.median(_process_seconds(use, cache) for _ in range(3))
    imports = statistics.median(_process_seconds("import numba, numpy", None) for _ in range(3))
    return FirstCall(compiling_seconds=compiling, cached_seconds=cached, import_seconds=imports)


def _process_seconds(code: str, cache: str | None) -> float:
    """CPU seconds of a new Python process that runs some code, with numba's cache in a given folder."""
    environment = os.environ | ({"NUMBA_CACHE_DIR": cache} if cache else {})
    report = f"{code}\nimport time; print(time.process_time())"
    done = subprocess.run([sys.executable, "-c", report], env=environment, capture_output=True, text=True, check=True)
    return float(done.stdout)
