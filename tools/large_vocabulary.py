"""Write a checkpoint with an unembedding of 256,000 × 4,096 in bfloat16 (2.1 GB), to try `normscope vocab` on.

    python tools/large_vocabulary.py large.safetensors [--tokens 256000] [--channels 4096]
    python tools/large_vocabulary.py large.safetensors --ask 170 > docs/results/vocab-large.json

With --ask, the file is written if it does not exist, and `normscope.vocab` is asked for so many seconds, in a new
process without others beside it: what it settled, its CPU time and the most memory that it held are printed as JSON.

Rows are random: lengths vary by a log-normal factor, channels by another; 64 directions and an offset are shared.
The norm before it is an RMSNorm with gains around 1. The file is written block by block and is always the same.
"""

import argparse
import json
import os
import struct
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np

BLOCK, SHARED, SEED = 4096, 64, 0
ASKED = """
import json, sys
from dataclasses import asdict
import normscope as ns
from normscope.engine import open_engine
from normscope_lab.bench.new_processes import peak_bytes
with open_engine(workers=1) as engine:
    found = ns.vocab(sys.argv[1], seconds=float(sys.argv[2]), engine=engine)
print(json.dumps({"counts": [asdict(row) for row in found.counts], "phases": found.seconds,
                  "peak_megabytes": peak_bytes() / 1e6}))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description="Write a checkpoint with a large unembedding.")
    parser.add_argument("path", type=Path)
    parser.add_argument("--tokens", type=int, default=256_000)
    parser.add_argument("--channels", type=int, default=4096)
    parser.add_argument("--ask", type=float, metavar="SECONDS")
    given = parser.parse_args()
    if given.path.exists() and given.ask is None:
        parser.error(f"{given.path} exists: choose another name")
    if not given.path.exists():
        write(given.path, given.tokens, given.channels)
    if given.ask is not None:
        about = {"tokens": given.tokens, "channels": given.channels}
        print(json.dumps(about | asked(given.path, given.ask), indent=2))


def asked(path: Path, seconds: float) -> dict[str, object]:
    """What a new process settles in so many seconds."""
    from normscope_lab.bench.new_processes import run_code
    from normscope_lab.bench.timing import this_machine

    load = os.getloadavg()[0]
    ended = run_code(sys.executable, ASKED, str(path), str(seconds))
    about = {"machine": asdict(this_machine()), "load": load, "limit": seconds, "cpu_seconds": ended.cpu_seconds}
    return about | json.loads(ended.output)


def write(path: Path, tokens: int, channels: int) -> None:
    """Write the file; it gets its name when it is complete."""
    rng = np.random.default_rng(SEED)
    ends = tokens * channels * 2, (tokens + 1) * channels * 2
    header = {
        "lm_head.weight": {"dtype": "BF16", "shape": [tokens, channels], "data_offsets": [0, ends[0]]},
        "model.norm.weight": {"dtype": "BF16", "shape": [channels], "data_offsets": list(ends)},
    }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    spread = np.exp(0.3 * rng.standard_normal(channels, dtype=np.float32))
    shared = rng.standard_normal((SHARED, channels), dtype=np.float32) / 8
    offset = 0.5 * rng.standard_normal(channels, dtype=np.float32)
    part = path.with_name(f".{path.name}.part")
    with part.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for start in range(0, tokens, BLOCK):
            count = min(BLOCK, tokens - start)
            rows = rng.standard_normal((count, channels), dtype=np.float32) * spread
            rows += rng.standard_normal((count, SHARED), dtype=np.float32) @ shared
            rows *= 0.02 * np.exp(0.3 * rng.standard_normal((count, 1), dtype=np.float32))
            file.write(_bfloat16(rows + 0.02 * offset))
        file.write(_bfloat16(1 + 0.1 * rng.standard_normal(channels, dtype=np.float32)))
    part.rename(path)


def _bfloat16(values: np.ndarray) -> bytes:
    """The upper half of each float32, rounded half up."""
    bits = np.ascontiguousarray(values).view(np.uint32) + np.uint32(0x8000)
    return (bits >> 16).astype("<u2").tobytes()


if __name__ == "__main__":
    main()
