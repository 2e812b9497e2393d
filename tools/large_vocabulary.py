"""Write a checkpoint with an unembedding of 256,000 × 4,096 in bfloat16 (2.1 GB), to try `normscope vocab` on.

    python tools/large_vocabulary.py /tmp/large.safetensors [--tokens 256000] [--channels 4096]

Rows are random: lengths vary by a log-normal factor, channels by another; 64 directions and an offset are shared.
The norm before it is an RMSNorm with gains around 1. The file is written block by block and is always the same.
"""

import argparse
import json
import struct
from pathlib import Path

import numpy as np

BLOCK, SHARED, SEED = 4096, 64, 0


def main() -> None:
    parser = argparse.ArgumentParser(description="Write a checkpoint with a large unembedding.")
    parser.add_argument("path", type=Path)
    parser.add_argument("--tokens", type=int, default=256_000)
    parser.add_argument("--channels", type=int, default=4096)
    given = parser.parse_args()
    if given.path.exists():
        parser.error(f"{given.path} exists: choose another name")
    write(given.path, given.tokens, given.channels)


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
