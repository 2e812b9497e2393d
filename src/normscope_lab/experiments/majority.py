"""Majority, learned with and without the projection of LayerNorm, at two lengths of keys: loss, accuracy, angles.

Brody et al. 2023, figures 2 and 3: with projection the model learns faster, and its queries turn towards (1, …, 1). The
two norms that the paper compares differ in the length of their outputs too, √d and 1/√d. So three questions are asked:
the comparison as published, projection at each length, and length with and without projection.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from normscope_lab.engine.cell_state import CellState
from normscope_lab.engine.experiment import Cell, Experiment, Settings
from normscope_lab.engine.statistics import Interval, paired_difference
from normscope_lab.engine.tidy_rows import BANDS, Row, column, draw_curve
from normscope_lab.engine.verdicts import Compared, decided, planned
from normscope_lab.results.reproduction import Finding
from normscope_lab.training.majority_task import (
    LONG,
    PUBLISHED,
    SHORT,
    VARIANTS,
    WITH_LONG,
    WITH_SHORT,
    WITHOUT_LONG,
    WITHOUT_SHORT,
    trained,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

REACHED = 0.2  # the training loss whose steps the paper counts
TIMES = math.log(3)  # the published ratio of steps
MORE_ACCURATE = 0.08  # the published difference in accuracy
COMPARED_AT = 5000  # steps, of 17,000: where the paper compares accuracies
APART = 72.0  # degrees between the published angles
EXPECTED = 0.44  # deviation of the differences in log steps in earlier runs
NOT_PUBLISHED = "not in the paper"
AVERAGED = (
    "sequences drawn here; a loss is the mean since the row before (the paper's code: of an epoch, 14 steps), angles "
    "are those of test sequences, and training does not stop when all are right"
)
QUESTIONS = (  # claim, what the paper says, the variant said to be faster, the other
    (
        "as published (projection and length √d against neither)",
        "about 5,000 steps, and 3 times as many without",
        *PUBLISHED,
    ),
    (f"projection alone, keys of length {LONG}", NOT_PUBLISHED, WITH_LONG, WITHOUT_LONG),
    (f"projection alone, keys of length {SHORT}", NOT_PUBLISHED, WITH_SHORT, WITHOUT_SHORT),
    ("longer keys alone, with projection", NOT_PUBLISHED, WITH_LONG, WITH_SHORT),
    ("longer keys alone, without projection", NOT_PUBLISHED, WITHOUT_LONG, WITHOUT_SHORT),
)


class MajorityLearned(Experiment):
    what = "loss, accuracy and angle of queries while majority is learned: projection and length of keys taken apart"
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
        "every": 50,
    }
    unpublished: ClassVar = ("every",)
    quick: ClassVar = {"batch": 256, "learning_rate": 1e-2, "steps": 2000, "decay_steps": 16_000, "every": 10}

    def run(self, cell: Cell, state: CellState) -> list[Row]:
        rows, _ = trained(cell.settings, cell.seed, state)
        return rows

    def findings(self, settings: Settings, rows: Sequence[Row]) -> list[Finding]:
        steps, ran = settings["steps"], {row["variant"] for row in rows}
        needed = {variant: _steps_needed(rows, variant, steps) for variant in VARIANTS if variant in ran}
        asked = [question for question in QUESTIONS if {*question[2:]} <= ran]
        claims = [
            *(_faster(*question, needed, steps) for question in asked),
            self._accuracy(settings, rows),
            *(self._angle(settings, rows, *question) for question in asked if question in QUESTIONS[:3]),
        ]
        return decided(claims, self.differences(settings, rows, AVERAGED))

    def plan(self, settings: Settings, seeds: Sequence[int]) -> list[str]:
        return [
            planned("as published, fewer steps", TIMES, EXPECTED, len(seeds), " in log steps"),
            f"{len(QUESTIONS)} questions about steps, one about accuracy, three about angles, by Holm's correction",
        ]

    def _accuracy(self, settings: Settings, rows: Sequence[Row]) -> Compared:
        """At the step at which the paper compares, or after the same share of the training; projection alone beside."""
        when = _epoch_at(settings["steps"] * COMPARED_AT / self.paper["steps"], settings)
        accuracy = {
            variant: found
            for variant in VARIANTS
            if (found := column(rows, "test_accuracy", variant=variant, step=when))
        }
        means = [f"{np.mean(accuracy[variant]):.3f}" for variant in PUBLISHED]
        better = paired_difference(*(accuracy[variant] for variant in PUBLISHED))
        alone = "".join(
            f"; {question}: by {paired_difference(accuracy[one], accuracy[other])}"
            for question, _, one, other in QUESTIONS[1:3]
            if {one, other} <= accuracy.keys()
        )
        return Compared(
            f"as published: at {COMPARED_AT:,} of {self.paper['steps']:,} steps, the test accuracy is higher with "
            "projection",
            "about 0.93 with, 0.85 without",
            f"{means[0]} with, {means[1]} without at {when:,} of {settings['steps']:,} steps; by {better}{alone}",
            better,
            MORE_ACCURATE,
        )

    def _angle(
        self, settings: Settings, rows: Sequence[Row], question: str, paper: str, one: str, other: str
    ) -> Compared:
        ends = (settings["epoch"], settings["steps"])
        angles = {
            (variant, step): column(rows, "angle", variant=variant, step=step)
            for variant in (one, other)
            for step in ends
        }
        apart = paired_difference(angles[other, ends[1]], angles[one, ends[1]])
        turned = [" to ".join(f"{np.mean(angles[variant, step]):.1f}°" for step in ends) for variant in (one, other)]
        published = paper != NOT_PUBLISHED
        return Compared(
            f"{question}: queries end nearer to (1, …, 1) with projection",
            "mean angle falls to about 10° with, rises to about 82° without" if published else NOT_PUBLISHED,
            f"from {turned[0]} with, from {turned[1]} without, at {ends[0]:,} and {ends[1]:,} steps; apart by {apart}",
            apart,
            APART if published else None,
            "°",
        )

    def pictures(self, settings: Settings, rows: Sequence[Row]) -> "dict[str, Figure]":
        from matplotlib.figure import Figure

        figure = Figure(figsize=(12, 4.2), dpi=150, layout="constrained")
        shown = {"loss": "training loss", "test_accuracy": "test accuracy", "angle": "mean angle to (1, …, 1) (°)"}
        for ax, (name, label) in zip(figure.subplots(1, 3), shown.items(), strict=True):
            for variant in [each for each in VARIANTS if any(row["variant"] == each for row in rows)]:
                draw_curve(ax, rows, "step", name, variant, variant=variant)
            ax.set(xlabel="steps", ylabel=label)
            ax.grid(alpha=0.3)
        figure.axes[0].set_yscale("log")
        figure.axes[0].axhline(REACHED, color="gray", linewidth=0.8, linestyle="--", label=f"a loss of {REACHED}")
        figure.axes[0].legend(fontsize=7)
        figure.suptitle(f"Majority with and without projection, keys of two lengths: {BANDS}")
        return {"majority": figure}


def _faster(question: str, paper: str, one: str, other: str, needed: dict[str, list[float]], steps: int) -> Compared:
    """Whether one variant takes fewer steps than another, by the ratio of their steps."""
    ratio = paired_difference(*([math.log(each) for each in needed[variant]] for variant in (other, one)))
    medians = [
        f"{'at least ' * short}{middle:,.0f}"
        for middle, short in (_middle(needed[variant], steps) for variant in (one, other))
    ]
    missed = [sum(not each <= steps for each in needed[variant]) for variant in (one, other)]
    counts = f"; {missed[0]} and {missed[1]} seeds did not reach it and count as {steps + 1:,}" * any(missed)
    return Compared(
        f"{question}: a training loss of {REACHED} takes fewer steps",
        paper,
        f"median {medians[0]} steps, {medians[1]} in the other; {_times(ratio)}{counts}",
        ratio,
        TIMES if paper != NOT_PUBLISHED else None,
        " in log steps",
        "steps as logarithms; " + _signs(ratio, needed, one, other),
    )


def _signs(ratio: Interval, needed: dict[str, list[float]], one: str, other: str) -> str:
    """In how many seeds one variant was faster, and the chance of so many by a sign test."""
    from scipy.stats import binomtest

    pairs = list(zip(needed[one], needed[other], strict=True))
    faster, slower = sum(a < b for a, b in pairs), sum(a > b for a, b in pairs)
    chance = binomtest(faster, faster + slower).pvalue if faster + slower else 1.0
    return f"faster in {faster} and slower in {slower} of {ratio.count} seeds (sign test {chance:.2g})"


def _times(ratio: Interval) -> str:
    """An interval of log ratios as one of ratios.

    >>> _times(Interval(math.log(2), 0.0, math.log(4), 3)), _times(Interval(0.0, -math.inf, math.inf, 1))
    ('2 times as many [1, 4]', '1 times as many, of one seed')
    """
    if math.isnan(ratio.mean):
        return str(ratio)
    mean, low, high = (f"{math.exp(min(each, 700.0)):.3g}" for each in (ratio.mean, ratio.low, ratio.high))
    return f"{mean} times as many" + (", of one seed" if ratio.count < 2 else f" [{low}, {high}]")


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
