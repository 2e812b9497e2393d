"""What all runners of the ranges part share: three models behind a LayerNorm, cases in a file, bounds as JSON.

    layer      LayerNorm → Linear
    relu       LayerNorm → Linear → ReLU → Linear: what a pre-norm MLP adds to the stream
    gelu       the same with the exact GELU
    attention  LayerNorm → queries, keys, values → softmax → Linear: what attention adds to the stream

Runs in the environment of any peer: it needs torch, not normscope. A case has a model and a set of its inputs, the ball
|a − x|₂ ≤ r or the box |a − x|_∞ ≤ r. A runner calls `main` with a function that gives, for one case, bounds of all
outputs by each of its methods.
"""

import json
import math
import platform
import sys
import time
from importlib.metadata import distribution, version

import torch
from torch import nn


class Attention(nn.Module):
    """Attention over all tokens, written out: every step is one that a verifier knows."""

    def __init__(self, channels, heads):
        super().__init__()
        self.heads, self.norm = heads, nn.LayerNorm(channels)
        self.query, self.key, self.value, self.out = (nn.Linear(channels, channels) for _ in range(4))

    def forward(self, x):
        tokens, channels = x.shape[1:]
        read, each = self.norm(x), channels // self.heads
        query, key, value = (
            layer(read).reshape(-1, tokens, self.heads, each).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        pattern = torch.softmax(query @ key.transpose(-1, -2) / math.sqrt(each), -1)
        return self.out((pattern @ value).transpose(1, 2).reshape(-1, tokens, channels))


def model_of(case, gelu=nn.GELU):
    """The model of a case, in float64; `gelu` may be the peer's own class."""
    model = untrained(case["kind"], case["sizes"], gelu).double().eval().requires_grad_(False)
    model.load_state_dict(case["state"])
    return model


def untrained(kind, sizes, gelu=nn.GELU):
    """A model of this kind, with parameters as torch sets them."""
    channels, outputs, hidden = sizes
    if kind == "attention":
        return Attention(channels, heads=hidden)
    if kind == "layer":
        return nn.Sequential(nn.LayerNorm(channels), nn.Linear(channels, outputs))
    step = {"relu": nn.ReLU, "gelu": gelu}[kind]()
    return nn.Sequential(nn.LayerNorm(channels), nn.Linear(channels, hidden), step, nn.Linear(hidden, outputs))


def main(bounds, packages):
    """Bounds of the cases in the named file; one JSON object on the last line."""
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    rows = [bounds(case) for case in torch.load(sys.argv[1], weights_only=True)]
    about = {"python": platform.python_version(), "commit": commit_of(packages[-1])}
    versions = {package: version(package) for package in ("torch", *packages)}
    print("\n" + json.dumps(about | {"versions": versions, "rows": rows}))


def commit_of(package):
    """The commit that pip installed a package from, if it was installed from a repository."""
    origin = json.loads(distribution(package).read_text("direct_url.json") or "{}")
    return origin.get("vcs_info", {}).get("commit_id")


def measured(method):
    """Lows and highs that a function gives, with the CPU time that it took; an exception is kept with its message."""
    begin = time.process_time()
    try:
        lows, highs = method()
    except Exception as error:  # whatever a peer raises: the reader is told
        words = str(error).strip().splitlines() or [""]
        place = error.__traceback__
        while place.tb_next:
            place = place.tb_next
        code = place.tb_frame.f_code
        where = f"{code.co_filename.rpartition('/')[2]}, {code.co_name}"
        return {"stopped": f"{type(error).__name__}: {words[-1]}".removesuffix(": "), "place": where}
    seconds = time.process_time() - begin
    return {"lows": torch.as_tensor(lows).flatten().tolist(), "highs": torch.as_tensor(highs).flatten().tolist(),
            "cpu_seconds": seconds}  # fmt: skip
