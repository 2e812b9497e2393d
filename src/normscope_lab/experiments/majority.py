"""Majority with and without the projection of LayerNorm: how fast it is learned, and where queries point.

Brody et al. 2023, figures 2 and 3: with projection a training loss of 0.2 at about 5,000 steps and queries that turn
towards (1, …, 1); without it three times as many steps, and queries that turn away.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from normscope_lab.engine.cell_state import CellState
from normscope_lab.engine.experiment import Cell, Experiment, Settings
from normscope_lab.engine.statistics import paired_difference
from normscope_lab.engine.tidy_rows import BANDS, Row, column, draw_curve
from normscope_lab.results.reproduction import Finding
from normscope_lab.training.majority_task import DIFFERENT, VARIANTS, trained

if TYPE_CHECKING:
    from matplotlib.figure import Figure

REACHED = 0.2  # the training loss whose steps the paper counts


class MajorityLearned(Experiment):
    what = "loss, accuracy and angle of queries while majority is learned, with and without projection"
    source = "Brody et al. 2023, fig. 2, 3"
    seeds: ClassVar = {"quick": 6, "paper": 10}
    variants = VARIANTS
    paper: ClassVar = {
        "samples": 100_000,
        "length": 50,
        "classes": 20,
        "lead": 6,
        "width": 8,
        "batch": 6000,
        "learning_rate": 1e-3,
        "steps": 17_000,
        "decay_steps": 140_000,
        "epoch": 100,
        "every": 10,
    }
    quick: ClassVar = {"batch": 256, "learning_rate": 1e-2, "steps": 2000, "decay_steps": 16_000}

    def run(self, cell: Cell, state: CellState) -> list[Row]:
        rows, _ = trained(cell.settings, cell.seed, state)
        return rows

    def findings(self, settings: Settings, rows: Sequence[Row]) -> list[Finding]:
        differences = self.differences(settings, rows, DIFFERENT)
        steps, epoch = settings["steps"], settings["epoch"]
        needed = [_steps_needed(rows, variant, steps) for variant in VARIANTS]
        slower = paired_difference(needed[1], needed[0])
        (with_it, half), (without, more) = (_middle(values, steps) for values in needed)
        when = _epoch_at(with_it, settings)
        ratio = "" if half else f" ({'at least ' * more}{without / with_it:.1f} times)"
        medians = [f"{'at least ' * short}{middle:,.0f}" for middle, short in ((with_it, half), (without, more))]
        accuracy = [column(rows, "test_accuracy", variant=variant, step=when) for variant in VARIANTS]
        better = paired_difference(*accuracy)
        angles = {
            (variant, step): column(rows, "angle", variant=variant, step=step)
            for variant in VARIANTS
            for step in (epoch, steps)
        }
        apart = paired_difference(angles[VARIANTS[1], steps], angles[VARIANTS[0], steps])
        turned = [
            " to ".join(f"{np.mean(angles[variant, step]):.1f}°" for step in (epoch, steps)) for variant in VARIANTS
        ]
        missed = [sum(each > steps for each in values) for values in needed]
        counts = f"; not reached at the end by {missed[0]} seeds with and {missed[1]} without" * any(missed)
        interval = "95% interval of the paired difference over seeds"
        return [
            Finding(
                f"with projection a training loss of {REACHED} takes fewer steps",
                "about 5,000 steps, and 3 times as many without",
                f"median {medians[0]} steps with, {medians[1]} without{ratio}; more by {slower}{counts}",
                slower.above(),
                f"{interval} above 0; runs that did not reach it count as one step after the last",
                differences,
            ),
            Finding(
                f"when the loss is {REACHED} with projection, its test accuracy is higher",
                "about 0.93 with, 0.85 without, at 5,000 steps",
                f"{np.mean(accuracy[0]):.3f} with, {np.mean(accuracy[1]):.3f} without at {when:,} steps; by {better}"
                + "; but half of the seeds with projection did not reach that loss" * half,
                None if half else better.above(),
                f"{interval} above 0",
                differences,
            ),
            Finding(
                "queries end nearer to (1, …, 1) with projection",
                "mean angle falls to about 10° with, rises to about 82° without",
                f"from {turned[0]} with, from {turned[1]} without, at {epoch:,} and {steps:,} steps; apart by {apart}",
                apart.above(),
                f"{interval} above 0",
                differences,
            ),
        ]

    def pictures(self, settings: Settings, rows: Sequence[Row]) -> "dict[str, Figure]":
        from matplotlib.figure import Figure

        figure = Figure(figsize=(12, 3.8), dpi=150, layout="constrained")
        shown = {"loss": "training loss", "test_accuracy": "test accuracy", "angle": "mean angle to (1, …, 1) (°)"}
        for ax, (name, label) in zip(figure.subplots(1, 3), shown.items(), strict=True):
            for variant in VARIANTS:
                draw_curve(ax, rows, "step", name, variant, variant=variant)
            ax.set(xlabel="steps", ylabel=label)
            ax.grid(alpha=0.3)
        figure.axes[0].set_yscale("log")
        figure.axes[0].axhline(REACHED, color="gray", linewidth=0.8, linestyle="--", label=f"a loss of {REACHED}")
        for ax in figure.axes:
            ax.legend(fontsize=8)
        figure.suptitle(f"Majority with and without projection: {BANDS}")
        return {"majority": figure}


def _steps_needed(rows: Sequence[Row], variant: str, steps: int) -> list[float]:
    """For each seed, the first step at which the loss is there; one more than there were if it never is.

    nan if it diverged before.
    """
    needed: dict[int, float] = {}
    for row in sorted((row for row in rows if row["variant"] == variant), key=lambda row: float(row["step"] or 0)):
        seed, loss = int(row["seed"] or 0), row.get("loss")
        if needed.get(seed, steps + 1.0) > steps:
            reached = loss is not None and float(loss) <= REACHED
            needed[seed] = np.nan if loss is None else float(row["step"] or 0) if reached else steps + 1.0
    return [needed[seed] for seed in sorted(needed)]


def _middle(needed: Sequence[float], steps: int) -> tuple[float, bool]:
    """The median, and whether it is only known to be no less, as half of the seeds or more did not get there.

    A seed that diverged counts as one that did not.
    """
    ordered = np.sort(np.nan_to_num(needed, nan=steps + 1.0))
    low, high = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    return (float(low), True) if high > steps else (float((low + high) / 2), False)


def _epoch_at(step: float, settings: Settings) -> int:
    """The end of the epoch that a step is in: accuracy is measured there."""
    epochs = settings["steps"] // settings["epoch"]
    return int(min(epochs, max(1, -(-step // settings["epoch"])))) * int(settings["epoch"])
