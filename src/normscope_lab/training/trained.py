"""Experiments that train: variants of one network, each with every seed, so that differences are paired."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from normscope.errors import InputError
from normscope_lab.engine.experiment import Cell, Experiment, Row, Settings, rows_where
from normscope_lab.loaders.data_files import fingerprints

BANDS = "means over seeds, in bands of one standard deviation"


class Trained(Experiment):
    """One cell for each variant and seed; settings are the published ones, and what `quick` changes of them."""

    variants: ClassVar[tuple[str, ...]]
    paper: ClassVar[Settings]
    quick: ClassVar[Settings]
    standing_in: ClassVar[tuple[str, ...]] = ()  # settings of `paper` that the paper does not state

    def files(self, data: Path) -> list[Path]:
        """The files of the data that are read."""
        return []

    def settings(self, preset: str, data: Path | None) -> Settings:
        chosen = {**self.paper, **(self.quick if preset == "quick" else {})}
        return {**chosen, "data": fingerprints(self.files(data))} if self.data and data else chosen

    def cells(self, settings: Settings, seeds: Sequence[int]) -> list[Cell]:
        require_fitting(settings)
        return [
            Cell(file_name(variant, f"seed {seed}"), seed, {**settings, "variant": variant})
            for seed in seeds
            for variant in self.variants
        ]

    def differences(self, settings: Settings, rows: Sequence[Row], *others: str) -> str:
        """All that is not as the paper has it: settings, the number of seeds, and what is said in words."""
        count, published = len({row["seed"] for row in rows}), self.seeds["paper"]
        seeds = [] if count == published else [f"{count} seeds (the paper: {published})"]
        lost = sorted({f"{row['variant']}, seed {row['seed']}" for row in rows if row.get("loss", 0) is None})
        diverged = [f"diverged: {' and '.join(lost)}"] if lost else []
        return "; ".join([*diverged, *others, *seeds, *changes(settings, self.paper, self.standing_in)])


def require_fitting(settings: Settings) -> None:
    """Refuse steps that do not make whole epochs, heads or groups that do not share the channels equally."""
    for whole, part in (("steps", "epoch"), ("epoch", "every"), ("width", "heads"), ("width", "groups")):
        parts = settings.get(part, [])
        for size in parts if isinstance(parts, list) else [parts]:
            if whole in settings and settings[whole] % size:
                raise InputError(f"{whole} must be a multiple of {part}, got {settings[whole]} and {size}")


def in_groups(settings: Settings) -> str:
    """How LN-G was set up, where the paper's own number of groups is not known.

    >>> in_groups({"width": 96, "groups": 24})
    'LN-G with 24 groups of 4 channels (the paper: a number not known here)'
    """
    groups, size = settings["groups"], settings["width"] // settings["groups"]
    return f"LN-G with {groups} groups of {size} channels (the paper: a number not known here)"


def file_name(*parts: str) -> str:
    """Words as the name of a file.

    >>> file_name("LN-Net, g = 4", "seed 0")
    'LN-Net-g-4-seed-0'
    """
    return "-".join(re.findall(r"[\w-]+", " ".join(parts)))


def changes(settings: Settings, published: Settings, standing_in: Sequence[str] = ()) -> list[str]:
    """What differs from published settings, in words, and from those that stand in for what was not published.

    >>> changes({"batch": 512, "epochs": 9, "width": 8}, {"batch": 6000, "epochs": 50, "width": 8}, ["epochs"])
    ['batch 512 (the paper: 6,000)', 'epochs 9 (preset paper: 50)']
    """
    return [
        f"{name.replace('_', ' ')} {_shown(settings[name])} "
        f"({'preset paper' if name in standing_in else 'the paper'}: {_shown(value)})"
        for name, value in published.items()
        if settings[name] != value
    ]


def column(rows: Sequence[Row], name: str, **where: Any) -> list[float]:
    """The values of one column in the rows that agree with `where`, in the order of seeds; nan if a seed diverged.

    >>> rows = [{"seed": 1, "kind": "a", "loss": 0.5}, {"seed": 0, "kind": "a", "loss": None}, {"seed": 0, "kind": "b"}]
    >>> column(rows, "loss", kind="a")
    [nan, 0.5]
    """
    chosen = [row for row in rows_where(rows, **where) if name in row]
    return [float("nan" if row[name] is None else row[name]) for row in sorted(chosen, key=_seed)]  # type: ignore[arg-type]


def curves(rows: Sequence[Row], at: str, name: str, **where: Any) -> tuple[list[float], list[float], list[float]]:
    """Places in ascending order with the mean over seeds there, and its standard deviation.

    >>> rows = [{"seed": seed, "step": step, "loss": step + seed} for seed in (0, 2) for step in (10, 20)]
    >>> curves(rows, "step", "loss")
    ([10.0, 20.0], [11.0, 21.0], [1.0, 1.0])
    """
    import numpy as np

    at_place: dict[float, list[float]] = {}
    for row in rows_where(rows, **where):
        if row.get(name) is not None:
            at_place.setdefault(float(row[at]), []).append(float(row[name]))  # type: ignore[arg-type]
    places = sorted(at_place)
    return (
        places,
        [float(np.mean(at_place[place])) for place in places],
        [float(np.std(at_place[place])) for place in places],
    )


def draw_curve(ax: Any, rows: Sequence[Row], at: str, name: str, label: str, **where: Any) -> None:
    """A line of means over seeds, in a band of one standard deviation."""
    places, means, spread = curves(rows, at, name, **where)
    (line,) = ax.plot(places, means, linewidth=1.4, label=label)
    low, high = ([mean + side * each for mean, each in zip(means, spread, strict=True)] for side in (-1, 1))
    ax.fill_between(places, low, high, color=line.get_color(), alpha=0.2, linewidth=0)


def few_ticks(ax: Any, most: int = 4) -> None:
    """No more ticks along each axis of a drawing in space, where many overlap."""
    from matplotlib.ticker import MaxNLocator

    for axis in (ax.xaxis, ax.yaxis, ax.zaxis):
        axis.set_major_locator(MaxNLocator(most))


def _seed(row: Mapping[str, Any]) -> int:
    return int(row["seed"])


def _shown(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(_shown(each) for each in value)
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
