"""Tidy rows: how to choose among them, and how to draw them."""

from collections.abc import Mapping, Sequence
from typing import Any

Row = dict[str, str | int | float | None]
BANDS = "means over seeds, in bands of one standard deviation"


def rows_where(rows: Sequence[Row], **where: Any) -> list[Row]:
    """The rows that agree with all of it.

    >>> rows_where([{"seed": 0, "kind": "a"}, {"seed": 0, "kind": "b"}, {"seed": 1}], seed=0, kind="b")
    [{'seed': 0, 'kind': 'b'}]
    """
    return [row for row in rows if all(row.get(name) == value for name, value in where.items())]


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
    """At most this many ticks along each axis of a drawing in space, where more would overlap."""
    from matplotlib.ticker import MaxNLocator

    for axis in (ax.xaxis, ax.yaxis, ax.zaxis):
        axis.set_major_locator(MaxNLocator(most))


def _seed(row: Mapping[str, Any]) -> int:
    return int(row["seed"])
