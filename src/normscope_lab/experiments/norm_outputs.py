"""The outputs of trained norms in their ellipsoids, and the map of a LayerNorm step by step.

Riechers 2024: outputs lie in a hyperplane and inside an ellipsoid whose principal axes follow from the gains; typical
inputs land near its surface. Here: every norm of the demo model, at every token of the sample text.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from normscope.checks import Floats
from normscope.data import demo_model, sample_text
from normscope.errors import InputError
from normscope.models.capture import capture
from normscope.models.find import find
from normscope.models.load import load_model, text_batches
from normscope.norm import Norm
from normscope_lab.engine.cell_state import CellState
from normscope_lab.engine.experiment import Cell, Experiment, Settings
from normscope_lab.engine.tidy_rows import Row, few_ticks
from normscope_lab.results.reproduction import Finding

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROUNDING = 1e-9
NEAR = 0.99  # of the way from the centre to the surface
SHOWN = Norm(gain=[0.6, 1.0, 1.6], bias=[0.3, 0.0, 0.2], eps=1e-2)  # the norm that is drawn step by step
STEPS = ("inputs", "projected", "scaled", "gain and bias")


class NormOutputs(Experiment):
    what = "outputs of trained norms in their ellipsoids, near the surface; axes; the map step by step"
    source = "Riechers 2024"
    seeds: ClassVar = {"quick": 1, "paper": 1}

    paper: ClassVar = {}

    def cells(self, settings: Settings, seeds: Sequence[int]) -> list[Cell]:
        if len(seeds) != 1:
            raise InputError(f"nothing here is drawn at random: --seeds must be 1, got {len(seeds)}")
        return [Cell("bundled", 0, settings)]

    def run(self, cell: Cell, state: CellState) -> list[Row]:
        import torch

        path = demo_model()
        model = load_model(path, dtype="float64")
        norms = {name: found.norm for name, found in find(model).items() if found.norm is not None}
        with capture(model) as captured, torch.no_grad():
            for batch in text_batches(path, sample_text()):
                model(**batch)
        rows: list[Row] = []
        for name, norm in norms.items():
            outputs = np.asarray(captured.norms[name].output).reshape(-1, norm.size)
            rows += _rows(name, norm, outputs)
        return rows

    def findings(self, settings: Settings, rows: Sequence[Row]) -> list[Finding]:
        radius = [_number(row, "radius") for row in rows]
        off = [_number(row, "off_plane") for row in rows]
        near = float(np.mean([value >= NEAR for value in radius]))
        where = f"{len(rows):,} outputs of {len({row['norm'] for row in rows})} norms"
        return [
            Finding(
                "outputs lie inside the ellipsoid",
                "proved",
                f"largest radius {max(radius):.6f} (1 is the surface), {where}",
                max(radius) <= 1 + ROUNDING,
                f"no radius above 1, to {ROUNDING:g}",
            ),
            Finding(
                "and in a hyperplane",
                "proved",
                f"largest share of an output across it {max(off):.2g}",
                max(off) <= ROUNDING,
                f"no larger share than {ROUNDING:g}",
            ),
            Finding(
                "typical inputs land near the surface",
                "near",
                f"{near:.1%} of outputs at {NEAR:g} of the way or further; median {np.median(radius):.6f}",
                near > 0.5,
                f"more than half of them at {NEAR:g} or further",
                "the demo model and sample text; the paper names none",
            ),
        ]

    def pictures(self, settings: Settings, rows: Sequence[Row]) -> "dict[str, Figure]":
        from matplotlib.figure import Figure

        radii = Figure(figsize=(7, 4), dpi=150, layout="constrained")
        ax = radii.subplots()
        names = list(dict.fromkeys(str(row["norm"]) for row in rows))
        ax.boxplot([[_number(row, "radius") for row in rows if row["norm"] == name] for name in names], whis=(0, 100))
        ax.axhline(1.0, color="gray", linestyle="--", linewidth=0.8)
        ax.set(title="Outputs of trained norms: how far out in their ellipsoids", ylabel="radius, 1 is the surface")
        ax.set_xlabel("boxes: quartiles; whiskers: least and largest")
        ax.set_xticks(range(1, len(names) + 1), names, rotation=30, ha="right", fontsize=7)
        return {"norm-outputs": radii, "norm-outputs-steps": _steps_picture()}


def _number(row: Row, name: str) -> float:
    """A value of a row; one that was not finite is beyond every limit."""
    value = row[name]
    return float("inf") if value is None else float(value)


def _rows(name: str, norm: Norm, outputs: Floats) -> list[Row]:
    ellipsoid = norm.ellipsoid
    radius = ellipsoid.radius(outputs)
    dead, away = ellipsoid.dead_direction, outputs - ellipsoid.center
    off = np.zeros(len(away)) if dead is None else np.abs(away @ dead) / np.linalg.norm(away, axis=1)
    return [
        {"seed": 0, "norm": name, "token": token, "radius": float(each), "off_plane": float(share)}
        for token, (each, share) in enumerate(zip(radius, off, strict=True))
    ]


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
        few_ticks(ax)
        ax.set_aspect("equal")
        ax.view_init(elev=25, azim=15)  # not along the plane, which would show as a line
    figure.suptitle(
        f"A LayerNorm with eps = {SHOWN.eps:g} step by step; colour: x₁ of the input; "
        "in red the axes of the ellipse that its outputs fill"
    )
    return figure
