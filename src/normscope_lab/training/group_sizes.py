"""How many channels a group of LN-G has: the sizes that are tried, and the one that is judged against LN."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from normscope_lab.engine.choosing import other_seeds
from normscope_lab.engine.experiment import CHOOSING, JUDGING, Settings
from normscope_lab.engine.tidy_rows import BANDS, Row, column, draw_curve, rows_where

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LN, LNG = "LN", "LN-G"
Variant = dict[str, Any]  # of the settings: its name, and the channels of a group, 0 for all


def size_variants(settings: Settings) -> list[Variant]:
    """LN and LN-G of every size; none if there is nothing to choose."""
    sizes = settings["group_channels"]
    return [] if len(sizes) == 1 else [{"variant": LN, "channels": 0}, *(_grouped(size) for size in sizes)]


def judged_sizes(size: int) -> list[Variant]:
    """LN, and LN-G of the size that was chosen."""
    return [{"variant": LN, "channels": 0}, _grouped(size)]


def best_size(rows: Sequence[Row]) -> int:
    """The size that was judged."""
    return int(rows_where(rows, stage=JUDGING, variant=LNG)[0]["channels"] or 0)


def at_end(rows: Sequence[Row], settings: Settings) -> list[Row]:
    """The rows of the last epoch: the state of training that is chosen and judged by."""
    return [row for row in rows if row.get("epoch", settings["epochs"]) == settings["epochs"]]


def of_size(size: int) -> str:
    """
    >>> of_size(8)
    'LN-G of 8 channels a group'
    """
    return f"{LNG} of {size} channels a group"


def sizes_tried(settings: Settings) -> str:
    """
    >>> sizes_tried({"group_channels": [8, 16], "choosing_seeds": 3})
    'groups of 8, 16 channels, chosen with 3 other seeds (the paper: not known here)'
    """
    sizes = settings["group_channels"]
    how = f", chosen with {other_seeds(settings)}" if len(sizes) > 1 else ""
    return f"groups of {', '.join(map(str, sizes))} channels{how} (the paper: not known here)"


def choice_shown(rows: Sequence[Row], score: str, form: str) -> str:
    """The mean score of every size on the choosing seeds, in words; empty if nothing was chosen.

    >>> rows = [{"stage": "choosing", "seed": 0, "channels": size, "loss": size / 8} for size in (0, 8)]
    >>> choice_shown(rows, "loss", ".2f")
    '; on validation data, choosing: LN 0.00, 8 channels 1.00'
    """
    means = {
        int(size or 0): float(np.mean(column(rows, score, stage=CHOOSING, channels=size)))
        for size in dict.fromkeys(row["channels"] for row in rows_where(rows, stage=CHOOSING))
    }
    shown = ", ".join(f"{f'{size} channels' if size else LN} {mean:{form}}" for size, mean in means.items())
    return f"; on validation data, choosing: {shown}" if shown else ""


def drawn_sizes(
    rows: Sequence[Row], settings: Settings, loss: str, choice: tuple[str, str], judged: tuple[str, str]
) -> "Figure":
    """Training losses; the score that sizes were chosen by, if they were; the score that was judged, with means.

    A score is the name of a column, and its label; a point for each seed.
    """
    from matplotlib.figure import Figure

    judging, tried = rows_where(rows, stage=JUDGING), [variant["channels"] for variant in size_variants(settings)]
    last = at_end(rows, settings)
    figure = Figure(figsize=(12, 3.8) if tried else (8, 3.8), dpi=150, layout="constrained")
    losses, *choosing, scores = figure.subplots(1, 3 if tried else 2)
    for number, (variant, label) in enumerate(((LN, LN), (LNG, of_size(best_size(rows))))):
        draw_curve(losses, judging, "epoch", "loss", label, variant=variant)
        values = column(last, judged[0], stage=JUDGING, variant=variant)
        scores.plot([number] * len(values), values, "o", alpha=0.7)
        scores.plot([number - 0.15, number + 0.15], [np.mean(values)] * 2, color="black")
    losses.set(xlabel="epochs", ylabel=loss)
    losses.set_title(BANDS, fontsize=9)
    losses.legend()
    scores.set(ylabel=f"{judged[1]}, one point a seed", xlim=(-0.5, 1.5))
    scores.set_xticks(range(2), [LN, of_size(best_size(rows)).replace(" of ", "\nof ")])
    for ax in choosing:
        for number, channels in enumerate(tried):
            values = column(last, choice[0], stage=CHOOSING, channels=channels)
            ax.plot([number] * len(values), values, "o", alpha=0.7)
        ax.set(ylabel=choice[1], xlabel="channels a group")
        ax.set_xticks(range(len(tried)), [str(each or LN) for each in tried])
    for ax in figure.axes:
        ax.grid(alpha=0.3)
    return figure


def _grouped(size: int) -> Variant:
    return {"variant": LNG, "channels": size}
