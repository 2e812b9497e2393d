"""Draw the gains that ship with the package: python tools/make_gains.py"""

from pathlib import Path

import numpy as np

CHANNELS = 768
HERE = Path(__file__).parent


def rounded_to_bfloat16(values: np.ndarray) -> np.ndarray:
    """To the nearest number with 8 significant bits, as checkpoints store gains."""
    mantissa, exponent = np.frexp(values)
    return np.ldexp(np.round(mantissa * 256) / 256, exponent)


def main() -> None:
    rng = np.random.default_rng(20260)
    near_one = 1 + 0.1 * rng.standard_normal(CHANNELS)
    spread = np.exp(0.7 * rng.standard_normal(CHANNELS)) * np.where(rng.random(CHANNELS) < 0.04, -1, 1)
    dead = near_one.copy()
    dead[rng.choice(CHANNELS, 5, replace=False)] = 0
    gains = {
        "four_channels": np.array([2.0, 1.4, 0.8, -0.5]),
        "near_one": near_one,
        "bfloat16": rounded_to_bfloat16(near_one),
        "spread": spread,
        "five_dead": dead,
        "rms": 0.4 * spread,
        "eight_groups": spread,
        "no_scale": near_one,
    }
    np.savez_compressed(HERE.parent / "src/normscope/data/gains.npz", **gains)


if __name__ == "__main__":
    main()
