"""What ships with the package: a set of gains that shows each corner of the geometry.

The gains are drawn, not trained; `tools/make_gains.py` drew them, from a fixed seed.
"""

from importlib.resources import as_file, files

import numpy as np

from normscope.norm import Norm

# The flags of each norm in gains.npz.
_FLAGS: dict[str, dict[str, bool | int]] = {
    "four_channels": {},
    "near_one": {},
    "bfloat16": {},
    "spread": {},
    "five_dead": {},
    "rms": {"project": False},
    "eight_groups": {"groups": 8},
    "no_scale": {"scale": False},
}


def bundled_norms() -> dict[str, Norm]:
    """Name → norm: one of 4 channels, to look at, and the others of 768."""
    with as_file(files(__package__) / "gains.npz") as path, np.load(path, allow_pickle=False) as gains:
        return {name: Norm(gain=gains[name], **flags) for name, flags in _FLAGS.items()}  # type: ignore[arg-type]
