"""Norms along training: axes, dead direction and nearness to the surface against steps.

Riechers 2024 describes norms as they are; the checkpoints that `tools/train_bundled.py --checkpoints` keeps show how
the demo model came to be what it is.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from normscope.errors import InputError
from normscope_lab.engine.cell_state import CellState
from normscope_lab.engine.experiment import Cell, Experiment, Settings
from normscope_lab.engine.tidy_rows import Row, rows_where
from normscope_lab.results.reproduction import Finding
from normscope_lab.training.norm_quantiles import NEAR, norm_rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = re.compile(r"step-(\d+)")


class NormTraining(Experiment):
    what = "semi-axes, dead direction and nearness to the surface of a model's norms against training steps"
    source = "Riechers 2024, along training"
    data = "a folder of checkpoints step-N, as tools/train_bundled.py --checkpoints writes them"
    seeds: ClassVar = {"quick": 1, "paper": 1}
    paper: ClassVar = {}

    def files(self, data: Path) -> list[Path]:
        return [path / "model.safetensors" for path in checkpoints(data).values()]

    def settings(self, preset: str, data: Path | None) -> Settings:
        found = super().settings(preset, data)
        return {**found, "steps": list(checkpoints(data))} if data else found

    def cells(self, settings: Settings, seeds: Sequence[int]) -> list[Cell]:
        if len(seeds) != 1:
            raise InputError(f"nothing here is drawn at random: --seeds must be 1, got {len(seeds)}")
        return [Cell(f"step-{step}", 0, {**settings, "step": step}) for step in settings["steps"]]

    def run(self, cell: Cell, state: CellState) -> list[Row]:
        step = cell.settings["step"]
        found = norm_rows(checkpoints(cell.data or Path())[step])
        return [{"seed": cell.seed, "step": step, **row} for row in found]

    def findings(self, settings: Settings, rows: Sequence[Row]) -> list[Finding]:
        parts = {step: rows_where(rows, step=step) for step in settings["steps"]}
        near, spread, turned = (
            {step: each(part) for step, part in parts.items()} for each in (_mean_near, _most_stretched, _most_turned)
        )
        first, last = settings["steps"][0], settings["steps"][-1]
        steps = f"from step {first:,} to step {last:,}"
        longest, furthest = max(spread, key=spread.__getitem__), min(turned, key=turned.__getitem__)
        least = min(_number(row, "near") for row in rows)
        differences = "the checkpoints of one model, here of the demo model, and the sample text; the paper trains none"
        power = "measured: one training"
        return [
            Finding(
                "typical inputs land near the surface all along training",
                "near; training is not in the paper",
                f"{near[first]:.1%} to {near[last]:.1%} of outputs at {NEAR:g} of the way or further, {steps}; least, "
                f"of any norm at any of {len(settings['steps'])} checkpoints, {least:.1%}",
                least > 0.5,
                f"more than half of the outputs of every norm at every checkpoint at {NEAR:g} or further",
                differences,
                power,
            ),
            Finding(
                "the ellipsoid begins as a sphere and is stretched at the end of training",
                "not in the paper",
                f"longest over shortest semi-axis, largest of all norms, {spread[first]:.3g} to {spread[last]:.3g}, "
                f"{steps}; {spread[longest]:.3g} at step {longest:,}, the most of any checkpoint",
                spread[last] > spread[first],
                "a larger ratio at the last checkpoint than at the first",
                differences,
                power,
            ),
            Finding(
                "the dead direction begins along (1, …, 1) and is turned away at the end",
                "it is along 1/gain; training is not in the paper",
                f"cosine of the angle to (1, …, 1), least of all norms, {turned[first]:.4f} to {turned[last]:.4f}, "
                f"{steps}; {turned[furthest]:.4f} at step {furthest:,}, the least of any checkpoint",
                turned[last] < turned[first],
                "a smaller cosine at the last checkpoint than at the first",
                differences,
                power,
            ),
        ]

    def pictures(self, settings: Settings, rows: Sequence[Row]) -> "dict[str, Figure]":
        from matplotlib.figure import Figure

        figure = Figure(figsize=(12, 4), dpi=150, layout="constrained")
        near, axes, dead = figure.subplots(1, 3)
        for name in dict.fromkeys(str(row["norm"]) for row in rows):
            chosen = rows_where(rows, norm=name)
            steps = [_number(row, "step") for row in chosen]
            near.plot(steps, [_number(row, "ratio_median") for row in chosen], linewidth=1, label=name)
            stretched = [_number(row, "longest_axis") / _number(row, "shortest_axis") for row in chosen]
            axes.plot(steps, stretched, linewidth=1)
            dead.plot(steps, [_number(row, "dead_along_ones") for row in chosen], linewidth=1)
        near.axhline(NEAR / (1 - NEAR**2) ** 0.5, color="gray", linestyle="--")
        near.set(yscale="log", ylabel="median of |Πx|/√(N·eps)", title=f"dashed: {NEAR:g} of the way to the surface")
        axes.set(yscale="log", ylabel="longest over shortest semi-axis")
        dead.set(ylabel="cosine of dead direction and (1, …, 1)")
        for ax in (near, axes, dead):
            ax.set_xlabel("steps")
            ax.grid(alpha=0.3)
        figure.legend(*near.get_legend_handles_labels(), fontsize=7, ncols=5, loc="outside lower center")
        return {"norm-training": figure}


def checkpoints(folder: Path) -> dict[int, Path]:
    """The checkpoints of a folder by their steps, in ascending order."""
    found = {int(match[1]): path for path in folder.glob("step-*") if (match := NAME.fullmatch(path.name))}
    if not found:
        raise FileNotFoundError(f"{folder} must have folders step-N, and has none")
    return dict(sorted(found.items()))


def _mean_near(rows: Sequence[Row]) -> float:
    return float(np.mean([_number(row, "near") for row in rows]))


def _most_stretched(rows: Sequence[Row]) -> float:
    return max(_number(row, "longest_axis") / _number(row, "shortest_axis") for row in rows)


def _most_turned(rows: Sequence[Row]) -> float:
    return min(_number(row, "dead_along_ones") for row in rows)


def _number(row: Row, name: str) -> float:
    """A value of a row; one that is not there, or was not finite, counts as 0."""
    value = row.get(name)
    return 0.0 if value is None else float(value)
