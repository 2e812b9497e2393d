"""Choosing a setting on some seeds, and judging it on others.

    choosing    every value of a setting, with seeds 0, 1, …, scored on data that are not tested
    judging     what was chosen, with fresh seeds, on the test data

If there is only one value, nothing is chosen.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from normscope_lab.engine.experiment import CHOOSING, Cell, Settings, file_name
from normscope_lab.engine.tidy_rows import Row, rows_where


def stage_cells(
    stage: str, settings: Settings, seeds: Sequence[int], variants: Sequence[Mapping[str, Any]]
) -> list[Cell]:
    """One cell for each seed and variant of a stage; a variant is values that take the place of settings."""
    return [
        Cell(
            file_name(stage, *(f"{name} {value}" for name, value in variant.items()), f"seed {seed}"),
            seed,
            {**settings, **variant, "stage": stage},
        )
        for seed in seeds
        for variant in variants
    ]


def chosen(
    rows: Sequence[Row], values: Sequence[Any], name: str, score: str, *, least: bool = False, **where: Any
) -> Any:
    """The value of the setting `name` whose mean score over the choosing seeds is best; without rows, the first.

    A value with which a seed diverged is worse than all others.

    >>> rows = [{"stage": "choosing", "rate": rate, "loss": loss} for rate, loss in ((1, 0.5), (2, 0.3), (3, None))]
    >>> chosen(rows, [1, 2, 3], "rate", "loss", least=True)
    2
    """
    if len(values) == 1 or not rows:
        return values[0]

    def mean(value: Any) -> float:
        found = [row[score] for row in rows_where(rows, stage=CHOOSING, **{name: value}, **where) if score in row]
        if not found or any(each is None for each in found):
            return np.inf
        average = float(np.mean([float(each) for each in found]))  # type: ignore[arg-type]
        return average if least else -average

    return min(values, key=mean)


def choosing_seeds(settings: Settings) -> Sequence[int]:
    return range(settings["choosing_seeds"])


def other_seeds(settings: Settings) -> str:
    """
    >>> other_seeds({"choosing_seeds": 3}), other_seeds({"choosing_seeds": 1})
    ('3 other seeds', '1 other seed')
    """
    count = settings["choosing_seeds"]
    return f"{count} other seed{'s' * (count != 1)}"
