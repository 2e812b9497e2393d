"""H of LayerNorm in groups against that of LayerNorm, by the number of groups.

Ni et al. 2024: H(LN-G)/H(LN) ≥ 1 for g ≤ d/3, and ≥ d/8 at g = d/4. At every single input it is at least
g(d − 2g)/(d − 2), with equality where all groups have the same variance.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from normscope.capacity.second_derivative import nonlinearity
from normscope.errors import InputError
from normscope.norm import Norm
from normscope_lab.engine.cell_state import CellState
from normscope_lab.engine.experiment import Cell, Experiment, Settings, cells_of
from normscope_lab.engine.tidy_rows import Row
from normscope_lab.results.reproduction import Finding

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROUNDING = 1e-9  # relative
INPUTS = {"Gaussian": 0, "heavy-tailed": 1}  # Student's t with 3 degrees of freedom: variances of groups differ more


class GroupBending(Experiment):
    what = "H of LayerNorm in g groups over H of LayerNorm, against g, with the bound"
    source = "Ni et al. 2024, section 5"
    seeds: ClassVar = {"quick": 3, "paper": 10}

    paper: ClassVar = {"channels": [48, 192, 768], "inputs": 10_000}
    unpublished: ClassVar = (*paper, "seeds")
    quick: ClassVar = {"inputs": 200}

    def cells(self, settings: Settings, seeds: Sequence[int]) -> list[Cell]:
        odd = [channels for channels in settings["channels"] if channels % 4 or channels < 12]
        if odd:
            raise InputError(f"channels must be multiples of 4, 12 or more, got {odd[0]}")
        return cells_of(settings, seeds, channels=settings["channels"])

    def run(self, cell: Cell, state: CellState) -> list[Row]:
        channels, count = cell.settings["channels"], cell.settings["inputs"]
        rows: list[Row] = []
        for kind, place in INPUTS.items():
            rng = np.random.default_rng([cell.seed, channels, place])
            x = rng.standard_normal((count, channels)) if place == 0 else rng.standard_t(3, (count, channels))
            whole = nonlinearity(Norm(gain=np.ones(channels), eps=0.0), x)
            for groups in (g for g in range(1, channels // 2) if channels % g == 0):
                ratio = nonlinearity(Norm(gain=np.ones(channels), eps=0.0, groups=groups), x) / whole
                rows.append(
                    {
                        "seed": cell.seed,
                        "inputs": kind,
                        "channels": channels,
                        "groups": groups,
                        "least": float(ratio.min()),
                        "median": float(np.median(ratio)),
                        "bound": groups * (channels - 2 * groups) / (channels - 2),
                    }
                )
        return rows

    def findings(self, settings: Settings, rows: Sequence[Row]) -> list[Finding]:
        rows = [row for row in rows if _whole(row, "groups") > 1]  # one group is LayerNorm itself
        few = [_least(row) for row in rows if 3 * _whole(row, "groups") <= _whole(row, "channels")]
        quarter = {
            channels: min(_least(row) for row in rows if row["channels"] == channels and row["groups"] == channels // 4)
            for channels in settings["channels"]
        }
        above = [_least(row) / float(row["bound"] or 1) for row in rows]
        checked = f"at each of {settings['inputs']:,} inputs of each kind, seed and d, to {ROUNDING:g}"
        differences, power = self.differences(settings, rows), "exact: proved, and checked at these inputs"
        return [
            Finding(
                "groups never bend less, up to g = d/3",
                "H(LN-G)/H(LN) ≥ 1",
                f"least ratio {min(few):.4g}",
                min(few) >= 1 - ROUNDING,
                f"no smaller ratio {checked}",
                differences,
                power,
            ),
            Finding(
                "at g = d/4 they bend d/8 times as much, or more",
                "≥ d/8",
                "least ratio " + ", ".join(f"{least:.4g} (d/8 = {d / 8:g})" for d, least in quarter.items()),
                all(least >= d / 8 * (1 - ROUNDING) for d, least in quarter.items()),
                f"no smaller ratio {checked}",
                differences,
                power,
            ),
            Finding(
                "at every input the ratio is g(d − 2g)/(d − 2) or more",
                "not stated; it implies the two above",
                f"least ratio over the bound {min(above):.6g}",
                min(above) >= 1 - ROUNDING,
                f"no smaller ratio {checked}",
                differences,
                power,
            ),
        ]

    def pictures(self, settings: Settings, rows: Sequence[Row]) -> "dict[str, Figure]":
        from matplotlib.figure import Figure

        figure = Figure(figsize=(12, 4), dpi=150, layout="constrained")
        places = figure.subplots(1, len(settings["channels"]), squeeze=False)[0]
        for ax, channels in zip(places, settings["channels"], strict=True):
            for kind in INPUTS:
                shown = [row for row in rows if row["channels"] == channels and row["inputs"] == kind]
                groups = sorted({_whole(row, "groups") for row in shown})
                medians = [np.median([_number(row, "median") for row in shown if row["groups"] == g]) for g in groups]
                ax.plot(groups, medians, "o-", markersize=3, label=f"median over {kind} inputs")
            smooth = np.linspace(1, channels / 2 - 1, 300)
            bound = smooth * (channels - 2 * smooth) / (channels - 2)
            ax.plot(smooth, bound, color="gray", linestyle="--", label="bound g(d − 2g)/(d − 2)")
            ax.axvline(channels / 3, color="gray", linewidth=0.7, linestyle=":", label="g = d/3")
            ax.set(title=f"d = {channels}", xlabel="groups g", ylabel="H(LN-G)/H(LN)", xscale="log", yscale="log")
            ax.grid(alpha=0.3)
        figure.axes[0].legend(fontsize=8)
        figure.suptitle("How much more LayerNorm bends in groups")
        return {"hessian": figure}


def _least(row: Row) -> float:
    return _number(row, "least")


def _number(row: Row, name: str) -> float:
    return float(row[name] or 0)


def _whole(row: Row, name: str) -> int:
    return int(row[name] or 0)
