"""Own directions over a table of GPT-2's shape, 50,257 × 768, in a new process with one thread: CPU time and memory.

The table is anisotropic as trained ones are: standard deviations fall like 1/√k along random axes, lengths of rows vary
by a log-normal factor, and all rows share an offset. The norm before it is a LayerNorm with gains around 1 and a bias.
"""

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any

import numpy as np

from normscope.certificates.token_table import Outputs, Table
from normscope.errors import InputError
from normscope_lab.bench.timing import this_machine
from normscope_lab.results.vocab_speed import TableSearch, VocabSpeed

TOKENS, CHANNELS, SEED = 50_257, 768, 0
BLOCK = 4096  # rows drawn at a time
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


def run(tokens: int = TOKENS, channels: int = CHANNELS) -> VocabSpeed:
    """Search and check in a new process."""
    code = f"from normscope_lab.bench.vocab_bench import measure; measure({tokens}, {channels})"
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | ONE_THREAD, stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        raise InputError(f"the measuring process ended with exit code {done.returncode}")
    return VocabSpeed(this_machine(), (TableSearch(**json.loads(done.stdout)),))


def measure(tokens: int, channels: int) -> None:
    """Print what a search and its check took in this process."""
    from normscope.certificates.check_tokens import first_fault
    from normscope.certificates.token_certificates import WINS
    from normscope.engine import open_engine
    from normscope.vocabulary.clock import Clock
    from normscope.vocabulary.findings import Findings
    from normscope.vocabulary.search import search

    table, few = table_like_gpt2(tokens, channels), table_like_gpt2(64, 8)
    search(few, Findings.none_yet(64, reachable=True), Clock())  # compiled before the clock starts, or loaded
    clock, findings, peaks = Clock(), Findings.none_yet(tokens, reachable=True), [0.0]

    def watch(things: Iterable[Any], what: str) -> Iterator[Any]:
        yield from things
        if "own directions" in what:
            peaks.append(_peak_megabytes())

    with open_engine(workers=1) as engine:
        search(table, findings, clock, watch, engine)
    assert findings.reachable is not None
    start = time.process_time()
    holds = first_fault(table, *findings.certificates()) is None
    checking = time.process_time() - start
    measured = TableSearch(
        tokens=tokens,
        channels=channels,
        own_direction_seconds=clock.seconds["own directions"],
        own_direction_wins=int(np.count_nonzero(findings.reachable.power)),
        own_direction_megabytes=max(peaks),
        rest_seconds=sum(clock.seconds.values()) - clock.seconds["own directions"],
        wins=int((findings.reachable.verdict == WINS).sum()),
        check_seconds=checking,
        check_holds=holds,
        peak_megabytes=_peak_megabytes(),
    )
    print(json.dumps(asdict(measured)))


def _peak_megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def table_like_gpt2(tokens: int, channels: int) -> Table:
    """A random table, always the same."""
    rng = np.random.default_rng(SEED)
    axes = np.linalg.qr(rng.standard_normal((channels, channels)))[0]
    spread = np.ascontiguousarray((axes / np.sqrt(1 + np.arange(channels))).T.astype(np.float32))
    rows = np.empty((tokens, channels), np.float32)
    for start in range(0, tokens, BLOCK):
        part = rows[start : start + BLOCK]
        lengths = np.exp(0.3 * rng.standard_normal((len(part), 1), dtype=np.float32))
        part[:] = lengths * (rng.standard_normal(part.shape, dtype=np.float32) @ spread)
    rows += 0.05 * rng.standard_normal(channels, dtype=np.float32)
    gain, bias = 1 + 0.1 * rng.standard_normal(channels), 0.1 * rng.standard_normal(channels)
    return Table(rows, None, Outputs(gain, bias, projects=True))
