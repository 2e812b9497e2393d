"""The inputs of a model's attention, and how many of them no query can select."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from torch import Tensor, nn

from normscope.checks import Floats
from normscope.errors import InputError
from normscope.separation.selectable import selectable
from normscope_lab.engine.tidy_rows import rows_where


def seen_by(modules: Iterable[nn.Module], run: Callable[[], Any]) -> list[tuple[Floats, Floats]]:
    """The input and output of each module while `run` runs the model once."""
    seen: list[tuple[Floats, Floats]] = []

    def note(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        seen.append((as_array(inputs[0]), as_array(output)))

    hooks = [module.register_forward_hook(note) for module in modules]
    try:
        run()
    finally:
        for hook in hooks:
            hook.remove()
    return seen


def unselectable(sets: Sequence[Floats]) -> dict[str, int]:
    """Over sets of keys (..., n, d): how many keys there are, and how many no query prefers; every verdict checked.

    A network that diverged has none.
    """
    if not all(np.isfinite(keys).all() for keys in sets):
        sets = []
    answers = [selectable(keys) for keys in sets]
    return {
        "keys": sum(answer.mask.size for answer in answers),
        "unselectable": sum(int((~answer.mask & ~answer.near_ties).sum()) for answer in answers),
        "degenerate": sum(int(answer.near_ties.sum()) for answer in answers),
        "certificates_hold": int(all(answer.holds for answer in answers)),
    }


def gaussian_like(sets: Sequence[Floats], dimensions: int, seed: int) -> list[Floats]:
    """As many sets of as many Gaussian keys: what chance alone makes of their number and dimension."""
    draw = np.random.default_rng([seed, dimensions])
    return [draw.standard_normal((*keys.shape[:-1], dimensions)) for keys in sets]


def in_plane(keys: Floats) -> Floats:
    """Keys that projection made orthogonal to (1, …, 1), in d − 1 coordinates of the plane in which they lie.

    A query selects one of them in these coordinates if and only if one does in all d. Rounding takes keys off the
    plane, and in d channels that little would count as a direction in which they differ.

    >>> in_plane(np.array([[1.0, -1.0], [-3.0, 3.0]])).round(6)
    array([[ 1.414214],
           [-4.242641]])
    """
    from scipy.linalg import helmert

    return np.asarray(keys @ helmert(keys.shape[-1]).T)


def near_ties(rows: Sequence[Any], **where: Any) -> str:
    """How many keys, if any, are within rounding of a tie: they do not count as unselectable."""
    chosen: list[Any] = rows_where(rows, **where)
    keys, near = (sum(row[name] for row in chosen) for name in ("keys", "degenerate"))
    return f"; {near:,} of {keys:,} keys too near to a tie to count" if near else ""


def as_array(x: Tensor) -> Floats:
    return np.asarray(x.detach().cpu().double().numpy())


def shares(rows: Sequence[Any], layers: int, **where: Any) -> list[float]:
    """For each layer, the share of keys of all seeds that no query selects."""
    found = []
    for layer in range(1, layers + 1):
        chosen: list[Any] = rows_where(rows, **where, layer=layer)
        keys = sum(row["keys"] for row in chosen)
        if not keys:
            raise InputError(f"layer {layer} has no keys to judge, as all networks diverged: try a lower learning_rate")
        found.append(sum(row["unselectable"] for row in chosen) / keys)
    return found


def share_of(rows: Sequence[Any], **where: Any) -> float:
    """The share of keys, of all seeds and layers together, that no query selects; nan if there are none."""
    chosen: list[Any] = rows_where(rows, **where)
    keys = sum(row["keys"] for row in chosen)
    return sum(row["unselectable"] for row in chosen) / keys if keys else np.nan


def shares_by_seed(rows: Sequence[Any], **where: Any) -> list[float]:
    """The share of keys that no query selects, all layers together, in the order of seeds."""
    chosen: list[Any] = rows_where(rows, **where)
    return [share_of(chosen, seed=seed) for seed in sorted({row["seed"] for row in chosen})]


def in_percent(values: Sequence[float]) -> str:
    """Shares as the papers' tables have them.

    >>> in_percent([0.51, 0.322, 0.0])
    '51.0%, 32.2%, 0'
    """
    return ", ".join(f"{100 * value:.1f}%" if value else "0" for value in values)
