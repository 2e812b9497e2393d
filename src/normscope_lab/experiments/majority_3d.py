"""Majority in three dimensions: keys and queries drawn, with and without the projection of LayerNorm.

Brody et al. 2023, figures 1a and 1b: with LayerNorm all keys lie on one circle around (1, 1, 1), and queries turn
towards that line, its normal; without projection there is no such structure. As in `majority`, the published sides
differ in the length of keys too.
"""

from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from normscope.errors import InputError
from normscope_lab.engine.cell_state import CellState
from normscope_lab.engine.experiment import Cell, Experiment, Settings
from normscope_lab.engine.statistics import paired_difference
from normscope_lab.engine.tidy_rows import Row, column, few_ticks
from normscope_lab.engine.verdicts import EXACT, Compared, decided
from normscope_lab.results.reproduction import Finding
from normscope_lab.training.majority_task import PUBLISHED, trained

if TYPE_CHECKING:
    from matplotlib.figure import Figure

AXES = ("x", "y", "z")
TITLE = "Majority in three dimensions, first seed: keys and queries, the longest of each of length 1"
FLAT = 1e-5  # of the keys' length: how far float32 leaves them from their circle
NO_UPLOADS = {"displaylogo": False, "showSendToCloud": False, "plotlyServerURL": ""}  # plotly would offer them


class MajorityInSpace(Experiment):
    what = "keys and queries of majority in three dimensions, as published: with and without projection, at two lengths"
    source = "Brody et al. 2023, fig. 1a, 1b"
    seeds: ClassVar = {"quick": 5, "paper": 10}
    variants = PUBLISHED
    paper: ClassVar = {
        "samples": 6000,
        "length": 30,
        "classes": 10,
        "lead": 6,
        "width": 3,
        "batch": 6000,
        "learning_rate": 1e-3,
        "steps": 10_000,
        "decay_steps": 10_000,
        "epoch": 100,
        "every": 10,
    }
    quick: ClassVar = {"batch": 256, "learning_rate": 1e-2, "steps": 2000, "decay_steps": 2000}

    def cells(self, settings: Settings, seeds: Sequence[int]) -> list[Cell]:
        if settings["width"] != len(AXES):
            raise InputError(f"width must be {len(AXES)}, as it is drawn in space, got {settings['width']}")
        return super().cells(settings, seeds)

    def run(self, cell: Cell, state: CellState) -> list[Row]:
        rows, model = trained(cell.settings, cell.seed, state)
        where: Row = {"variant": cell.settings["variant"], "seed": cell.seed}
        for kind, vectors in (("key", model.keys()), ("query", model.queries())):
            for number, vector in enumerate(vectors.tolist()):
                rows.append({**where, "kind": kind, "class": number, **dict(zip(AXES, vector, strict=True))})
        return rows

    def findings(self, settings: Settings, rows: Sequence[Row]) -> list[Finding]:
        differences = self.differences(settings, rows)
        seeds = sorted({int(row["seed"] or 0) for row in rows})
        off = [[_off_circle(_vectors(rows, variant, seed, "key")) for seed in seeds] for variant in PUBLISHED]
        last = settings["steps"] // settings["epoch"] * settings["epoch"]
        angles = [column(rows, "angle", variant=variant, step=last) for variant in PUBLISHED]
        apart = paired_difference(angles[1], angles[0])
        return [
            Finding(
                "with LayerNorm the keys lie on one circle around (1, 1, 1)",
                "on one circle; without projection, no such structure",
                f"off it by at most {max(off[0]):.1g} of their length with, by at least {min(off[1]):.2g} without",
                max(off[0]) < FLAT < min(off[1]),
                f"less than {FLAT:g} with projection, more without, for every seed",
                differences,
                EXACT,
            ),
            *decided(
                [
                    Compared(
                        "as published (projection and length √d against neither): queries end nearer to (1, 1, 1) with "
                        "projection",
                        "queries on the normal of the circle; without projection, no such structure",
                        f"mean angle {np.mean(angles[0]):.1f}° with, {np.mean(angles[1]):.1f}° without; "
                        f"apart by {apart}",
                        apart,
                        unit="°",
                    )
                ],
                differences,
            ),
        ]

    def pictures(self, settings: Settings, rows: Sequence[Row]) -> "dict[str, Figure]":
        from matplotlib.figure import Figure

        figure = Figure(figsize=(10, 4.8), dpi=150, layout="constrained")
        for number, variant in enumerate(PUBLISHED, start=1):
            ax = figure.add_subplot(1, 2, number, projection="3d")
            keys, queries = _drawn(rows, variant)
            ax.scatter(*keys.T, color="#4c72b0", label="keys")
            for query in queries:
                ax.plot(*np.stack([np.zeros(3), query]).T, color="#c44e52", linewidth=1)
            ax.scatter(*queries.T, color="#c44e52", marker="^", label="queries")
            ax.plot(*(np.array([[-1, 1]] * 3) * 0.6), color="gray", linestyle="--", linewidth=1, label="(1, 1, 1)")
            ax.set(title=variant, aspect="equal", xlabel="x₁", ylabel="x₂", zlabel="x₃")
            few_ticks(ax)
        figure.axes[0].legend()
        figure.suptitle(TITLE)
        return {"majority-3d": figure}

    def pages(self, settings: Settings, rows: Sequence[Row]) -> dict[str, str]:
        if find_spec("plotly") is None:  # of the extra "lab"; the picture is there without it
            return {}
        import plotly.graph_objects as go
        from plotly.subplots import make_subplots

        figure = make_subplots(1, 2, specs=[[{"type": "scene"}] * 2], subplot_titles=PUBLISHED)
        for number, variant in enumerate(PUBLISHED, start=1):
            keys, queries = _drawn(rows, variant)
            lines = np.stack([np.zeros_like(queries), queries, np.full_like(queries, np.nan)], axis=1).reshape(-1, 3)
            for name, points, look in (
                ("keys", keys, {"mode": "markers", "marker": {"color": "#4c72b0", "size": 5}}),
                ("queries", lines, {"mode": "lines+markers", "marker": {"size": 3}, "line": {"color": "#c44e52"}}),
                ("(1, 1, 1)", np.array([[-0.6] * 3, [0.6] * 3]), {"mode": "lines", "line": {"color": "gray"}}),
            ):
                x, y, z = points.T
                trace = go.Scatter3d(x=x, y=y, z=z, name=name, showlegend=number == 1, **look)
                figure.add_trace(trace, row=1, col=number)
        figure.update_scenes(aspectmode="data", xaxis_title="x₁", yaxis_title="x₂", zaxis_title="x₃")
        figure.update_layout(title=TITLE)
        page: str = figure.to_html(include_plotlyjs=True, full_html=True, config=NO_UPLOADS)
        return {"majority-3d": page}


def _drawn(rows: Sequence[Row], variant: str) -> tuple[Any, Any]:
    """Keys and queries of the first seed, each side with a largest length of 1."""
    seed = min(int(row["seed"] or 0) for row in rows)
    both = (_vectors(rows, variant, seed, kind) for kind in ("key", "query"))
    keys, queries = (vectors / np.linalg.norm(vectors, axis=1).max() for vectors in both)
    return keys, queries


def _vectors(rows: Sequence[Row], variant: str, seed: int, kind: str) -> Any:
    """(classes, 3)"""
    return np.stack([column(rows, axis, variant=variant, seed=seed, kind=kind) for axis in AXES], axis=1)


def _off_circle(keys: Any) -> float:
    """How far keys are at most from the plane through 0 normal to (1, 1, 1), and from equal length, in their length."""
    lengths = np.linalg.norm(keys, axis=1)
    away = np.abs(keys.sum(axis=1)) / np.sqrt(3)
    return float(max(away.max(), np.ptp(lengths)) / lengths.mean())
