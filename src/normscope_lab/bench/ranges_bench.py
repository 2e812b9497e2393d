"""Ranges of every tensor: CPU time and peak memory of new processes, and how near the bounds are to what is reached.

The large checkpoint is that of `normscope bench inspect`: a Llama of 70B shape whose matrices are holes in files.
Its bounds are by intervals (`--tight 0`); what they cost does not depend on the values. Tightness is measured on the
models that are given: bounds over what the model's own operations reached, for the largest outputs of every layer and
for outputs drawn at random, beside interval arithmetic of the same steps.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from normscope.bounds.neurons import intervals
from normscope.certificates.neuron_certificates import Neurons
from normscope.certificates.range_formulas import direction_of, output_of
from normscope.checks import Floats
from normscope.data import demo_model, name_of
from normscope.engine import FailedPiece
from normscope.errors import InputError
from normscope.models.subject import Subject
from normscope.results.layer_ranges import TensorRange
from normscope.studies.layer_watch import TightSide
from normscope.studies.ranges import RangeSearch
from normscope.tensors.products import Outputs
from normscope_lab.bench.inspect_bench import make_checkpoint
from normscope_lab.bench.timing import this_machine
from normscope_lab.results.ranges_speed import RangesRun, RangesSpeed, Tightness

RANDOM = 2  # outputs of each layer that are drawn at random
LARGE = "70B shape"


def run(models: list[Path], large: bool, bar: Callable[[Iterable[Any], str], Iterable[Any]]) -> RangesSpeed:
    """Every model in a new process, then their tightness; `large` adds the checkpoint of 70B shape."""
    given = models or [demo_model()]
    runs = [_timed(name_of(model), model, ()) for model in bar(given, "models")]
    if large:
        with tempfile.TemporaryDirectory() as folder:
            make_checkpoint(Path(folder))
            runs.append(_timed(LARGE, Path(folder), ("--tight", "0")))
    tightness = [row for model in bar(given, "tightness") for row in _tightness(model)]
    return RangesSpeed(this_machine(), tuple(runs), tuple(tightness))


def _timed(name: str, model: Path, options: tuple[str, ...]) -> RangesRun:
    command = [sys.executable, "-m", "normscope", "ranges", str(model), *options, "--workers", "1", "--json"]
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    with tempfile.NamedTemporaryFile() as output:
        process = subprocess.Popen(command, stdout=output, env=os.environ | threads)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise InputError(f"normscope ranges {model} ended with exit code {process.returncode}")
        result = json.loads(Path(output.name).read_text(encoding="utf-8"))
    return RangesRun(
        model=name,
        options=" ".join(options),
        tensors=len(result["layers"]) + len(result["tensors"]),
        cpu_seconds=usage.ru_utime + usage.ru_stime,
        peak_megabytes=usage.ru_maxrss / 1024,
    )


class _Measured(RangeSearch):
    """A search that notes the ratio of every tight bound, and of intervals for the same output."""

    def __init__(self, subject: Subject, channels: list[tuple[str, int]]) -> None:
        super().__init__(subject, "float32", np.inf, channels=channels)
        self.drawn = set(channels)
        self.ratios: dict[str, list[tuple[float, float, float]]] = {}

    def _tight_sides(
        self, label: str, outputs: Outputs, neurons: Neurons, sides: Collection[tuple[int, int]]
    ) -> Iterator[TightSide | FailedPiece]:
        for each in sides:
            start = time.process_time()
            [side] = super()._tight_sides(label, outputs, neurons, [each])
            self._spent = time.process_time() - start
            yield side

    def _keep(self, label: str, outputs: Outputs, neurons: Neurons, channel: int, sign: int, side: TightSide) -> Floats:
        u = super()._keep(label, outputs, neurons, channel, sign, side)
        assert outputs.ball is not None
        row, shift = sign * outputs.weights(channel), sign * float(outputs.layer.shift[channel])
        x = self._input(outputs.ball, u)
        reached = output_of(neurons, row, direction_of(self.calls[outputs.ball.source].norm, x)).value + shift
        bound = sign * float(outputs.high[channel] if sign > 0 else outputs.low[channel])
        by_intervals = float(intervals(neurons, row[None])[1][0]) + shift
        gate = "plain" if neurons.b is None else "gated"
        which = "drawn at random" if (label, channel) in self.drawn else "largest of each layer"
        if reached > 0:
            kind = f"{gate} MLP, {which}"
            self.ratios.setdefault(kind, []).append((bound / reached, by_intervals / reached, self._spent))
        return u


def _tightness(model: Path) -> list[Tightness]:
    rng = np.random.default_rng(0)
    subject = Subject(model)
    plain = RangeSearch(subject, "float32", np.inf, 0)
    layers = [row for row in plain.rows().values() if row.what == "output"]
    drawn = [(row.layer, int(at)) for row in layers for at in rng.integers(0, row.channels, RANDOM)]
    measured = _Measured(subject, drawn)
    found = list(measured.rows().values())
    name = name_of(model)
    made = [
        _summary(name, "layer behind a norm", [row for row in found if row.grade == "exact" and row.what == "output"]),
        _summary(name, "one head", [row for row in found if row.what == "heads"]),
        _summary(name, "out-projection, one token", [row for row in found if row.grade == "heads"]),
    ]
    for kind, ratios in sorted(measured.ratios.items()):
        bounds, by_intervals, seconds = (np.array(each) for each in zip(*ratios, strict=True))
        median = float(np.median(by_intervals))
        made.append(
            Tightness(
                name,
                kind,
                len(ratios),
                float(np.median(bounds)),
                float(bounds.max()),
                median,
                float(np.median(seconds)),
            )
        )
    return [row for row in made if row is not None]


def _summary(model: str, kind: str, rows: list[TensorRange]) -> Tightness | None:
    ratios = [row.ratio for row in rows if row.ratio is not None]
    if not ratios:
        return None
    return Tightness(model, kind, len(ratios), float(np.median(ratios)), float(max(ratios)), None, None)
