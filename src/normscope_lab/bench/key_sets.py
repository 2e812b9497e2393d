"""Sets of keys (n, d) to measure and to test with, one function per kind; single precision, as attention's keys are.

gaussian      round: in few dimensions most keys are inside the hull, in many none is
anisotropic   like those of a trained head: a power-law spectrum, a common offset, a few outliers
interior      Gaussian, but one in twenty is a convex combination of d + 1 others
equal_norm    on a sphere: every key is selectable
heavy_tailed  Student's t with 2 degrees of freedom: a few keys so long that short ones hide behind them
lattice       small whole numbers: duplicates, keys on faces, ties everywhere
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Keys = NDArray[np.float32]
INTERIOR_SHARE = 0.05


def gaussian(count: int, channels: int, rng: np.random.Generator) -> Keys:
    return rng.standard_normal((count, channels)).astype(np.float32)


def anisotropic(count: int, channels: int, rng: np.random.Generator) -> Keys:
    rotation = np.linalg.qr(rng.standard_normal((channels, channels)))[0]
    keys = rng.standard_normal((count, channels)) / np.sqrt(1 + np.arange(channels))
    keys *= np.exp(0.25 * rng.standard_normal((count, 1)))
    keys[rng.choice(count, min(6, count), replace=False)] *= 8
    return np.asarray(keys @ rotation + 3 * rotation[0], np.float32)


def interior(count: int, channels: int, rng: np.random.Generator) -> Keys:
    """
    >>> from normscope import selectable
    >>> int((~selectable(interior(200, 30, np.random.default_rng(0))).mask).sum())
    10
    """
    keys = rng.standard_normal((count, channels))
    order = rng.permutation(count)
    inside, others = np.split(order, [round(INTERIOR_SHARE * count)])
    for key in inside:
        corners = rng.choice(others, min(channels + 1, len(others)), replace=False)
        keys[key] = rng.dirichlet(np.ones(len(corners))) @ keys[corners]
    return keys.astype(np.float32)


def equal_norm(count: int, channels: int, rng: np.random.Generator) -> Keys:
    """Keys of equal norm up to rounding, which their distances exceed by far unless they are very many."""
    keys = rng.standard_normal((count, channels))
    return np.asarray(keys / np.linalg.norm(keys, axis=1, keepdims=True), np.float32)


def heavy_tailed(count: int, channels: int, rng: np.random.Generator) -> Keys:
    keys = rng.standard_normal((count, channels))
    return np.asarray(keys / np.sqrt(rng.chisquare(2, (count, 1)) / 2), np.float32)


def lattice(count: int, channels: int, rng: np.random.Generator) -> Keys:
    return rng.integers(-3, 4, (count, channels)).astype(np.float32)


KINDS: dict[str, Callable[[int, int, np.random.Generator], Keys]] = {
    "Gaussian": gaussian,
    "anisotropic": anisotropic,
    "5% interior": interior,
    "equal norm": equal_norm,
    "heavy-tailed": heavy_tailed,
    "lattice": lattice,
}
