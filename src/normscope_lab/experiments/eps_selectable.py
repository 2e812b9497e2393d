"""Outputs of a LayerNorm that no query selects, against the size of its inputs over √eps.

Brody et al. 2023: after LayerNorm all keys have the same length, so that distinct ones are all selectable. That is so
if eps is 0. With eps the outputs lie inside the sphere, and small inputs are only scaled:

    |y|/√d = s/√(s² + 1),    s = |Πx|/√(d·eps)

Inputs are Gaussian, and r is the deviation of their entries over √eps: s² has the mean (1 − 1/d)r².
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from normscope.norm import Norm
from normscope_lab.engine.cell_state import CellState
from normscope_lab.engine.experiment import Cell, Experiment, Settings, cells_of
from normscope_lab.engine.tidy_rows import Row, rows_where
from normscope_lab.engine.verdicts import EXACT
from normscope_lab.results.reproduction import Finding
from normscope_lab.training.key_inputs import gaussian_like, in_percent, in_plane, share_of, unselectable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EPS = 1e-5
TOLERANCE = 5.0  # points between shares that count as alike
WITH, ZERO, CHANCE = "with eps", "eps = 0", "Gaussian keys"


class EpsSelectable(Experiment):
    what = "unselectable outputs of a LayerNorm against the size of its inputs over √eps"
    source = "Brody et al. 2023, section 3.2, with eps"
    seeds: ClassVar = {"quick": 1, "paper": 1}
    paper: ClassVar = {
        "ratios": [0.01, 0.03, 0.1, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0, 7.0, 10.0, 20.0, 50.0, 100.0, 1000.0],
        "counts": [64, 256, 1024],
        "width": 8,
        "sets": 200,
    }
    unpublished: ClassVar = tuple(paper)
    quick: ClassVar = {"sets": 20}

    def cells(self, settings: Settings, seeds: Sequence[int]) -> list[Cell]:
        return cells_of(settings, seeds, counts=settings["counts"])

    def run(self, cell: Cell, state: CellState) -> list[Row]:
        count, width, sets = cell.settings["counts"], cell.settings["width"], cell.settings["sets"]
        norm, exact = (Norm(gain=np.ones(width), eps=eps) for eps in (EPS, 0.0))
        rows: list[Row] = []
        for place, ratio in enumerate(cell.settings["ratios"]):
            draw = np.random.default_rng([cell.seed, count, place])
            inputs = draw.standard_normal((sets, count, width)) * ratio * EPS**0.5
            for variant, outputs in ((WITH, norm(inputs)), (ZERO, exact(inputs))):
                rows.append(
                    {
                        "seed": cell.seed,
                        "variant": variant,
                        "count": count,
                        "ratio": float(ratio),
                        "radius": float(np.sqrt((outputs**2).mean(axis=-1)).mean()),
                        **unselectable([in_plane(outputs)]),
                    }
                )
            state.tell((place + 1) / len(cell.settings["ratios"]))
        chance = unselectable(gaussian_like([np.empty((sets, count, width))], width - 1, cell.seed))
        return [*rows, {"seed": cell.seed, "variant": CHANCE, "count": count, **chance}]

    def findings(self, settings: Settings, rows: Sequence[Row]) -> list[Finding]:
        certified = all(row["certificates_hold"] for row in rows)
        zero = sum(int(row["unselectable"] or 0) for row in rows_where(rows, variant=ZERO))
        shares = {
            count: [share_of(rows, variant=WITH, count=count, ratio=ratio) for ratio in settings["ratios"]]
            for count in settings["counts"]
        }
        chance = {count: share_of(rows, variant=CHANCE, count=count) for count in settings["counts"]}
        beyond = {count: _none_from(settings["ratios"], shares[count]) for count in settings["counts"]}
        shown = "; ".join(
            f"{count:,} keys: {in_percent(shares[count])}, none from r = {beyond[count]:g} on" for count in shares
        )
        sets = f"{settings['sets']} sets of each size"
        rule = "every verdict certified and the certificates checked"
        return [
            Finding(
                "with eps = 0, distinct outputs are all selectable",
                "proved",
                f"{zero} unselectable, inputs of every size, {sets}",
                zero == 0 and certified,
                f"none, {rule}",
                power=EXACT,
            ),
            Finding(
                "with eps, some outputs of small inputs are not, and all of large ones are",
                "not in the paper",
                "entries of the inputs deviate by r√eps, "
                f"r = {', '.join(f'{ratio:g}' for ratio in settings['ratios'])}: {shown}; {sets}",
                all(each[0] > 0 and each[-1] == 0 for each in shares.values()) and certified,
                f"some at the least r and none at the largest, for every number of keys; {rule}",
                power=EXACT,
            ),
            Finding(
                f"the least inputs give as many as Gaussian keys do, to {TOLERANCE:g} points",
                "not in the paper",
                "; ".join(
                    f"{count:,} keys: {100 * shares[count][0]:.1f}%, Gaussian {100 * chance[count]:.1f}%"
                    for count in shares
                ),
                all(100 * abs(shares[count][0] - chance[count]) < TOLERANCE for count in shares) and certified,
                f"less than {TOLERANCE:g} points apart for every number of keys",
                power="standard error of a share, were its keys independent: at most "
                f"{50 / (settings['sets'] * min(settings['counts'])) ** 0.5:.2f} points",
            ),
        ]

    def pictures(self, settings: Settings, rows: Sequence[Row]) -> "dict[str, Figure]":
        from matplotlib.figure import Figure

        figure = Figure(figsize=(8, 4.2), dpi=150, layout="constrained")
        ax = figure.subplots()
        for count in settings["counts"]:
            shares = [100 * share_of(rows, variant=WITH, count=count, ratio=ratio) for ratio in settings["ratios"]]
            (line,) = ax.plot(settings["ratios"], shares, "o-", markersize=3, label=f"{count:,} outputs")
            chance = 100 * share_of(rows, variant=CHANCE, count=count)
            ax.axhline(chance, color=line.get_color(), linestyle=":", linewidth=1)
        ax.set(xscale="log", xlabel="deviation of the inputs' entries over √eps", ylabel="unselectable outputs (%)")
        ax.grid(alpha=0.3)
        ax.legend()
        ax.set_title("dotted: as many Gaussian keys", fontsize=9)
        figure.suptitle(f"Outputs of a LayerNorm of width {settings['width']} that no query selects")
        return {"eps-selectable": figure}


def _none_from(ratios: Sequence[float], shares: Sequence[float]) -> float:
    """The least ratio from which on no share is above 0; infinite if the last is.

    >>> _none_from([1, 2, 3], [0.5, 0.0, 0.0]), _none_from([1, 2], [0.5, 0.1])
    (2, inf)
    """
    found = np.inf
    for ratio, share in zip(reversed(ratios), reversed(shares), strict=True):
        if share > 0:
            break
        found = ratio
    return found
