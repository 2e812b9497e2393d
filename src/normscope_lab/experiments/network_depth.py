"""How deep networks of LayerNorms are that memorise m samples, and how many points a given depth shatters.

Ni et al. 2024: m samples with any labels take O(m) LayerNorms of width 3 (two classes: m − 2, by projection merge), and
networks of depth L shatter L + 2 points. Creases take far fewer layers, and shatter 2^L + 1 points for small L.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from normscope.capacity.labellings import shatter
from normscope.capacity.memorizing import memorize
from normscope.errors import InputError
from normscope_lab.engine.cell_state import CellState
from normscope_lab.engine.experiment import Cell, Experiment, Settings
from normscope_lab.engine.tidy_rows import Row, column, curves
from normscope_lab.engine.verdicts import EXACT
from normscope_lab.results.reproduction import Finding

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class NetworkDepth(Experiment):
    what = "depth of networks by merging and by search against the number of samples; points shattered against L + 2"
    source = "Ni et al. 2024, sections 3 and 4"
    seeds: ClassVar = {"quick": 3, "paper": 5}

    paper: ClassVar = {
        "merge": [10, 30, 100, 300, 1000],
        "search": [10, 30, 100, 300, 1000, 3000],
        "depths": [1, 2, 3],
    }
    quick: ClassVar = {"merge": [10, 30, 100, 300], "search": [10, 30, 100, 300]}

    def cells(self, settings: Settings, seeds: Sequence[int]) -> list[Cell]:
        fewest = min(settings["merge"] + settings["search"])
        if fewest < 3:
            raise InputError(f"merge and search must be 3 samples or more, got {fewest}")
        shattered = [Cell(f"shatter-{depth}", 0, {"depth": depth}) for depth in settings["depths"]]
        memorised = [
            Cell(f"{method}-{count}-seed-{seed}", seed, {"method": method, "samples": count})
            for method in ("merge", "search")
            for count in settings[method]
            for seed in seeds
        ]
        return memorised + shattered

    def run(self, cell: Cell, state: CellState) -> list[Row]:
        if "depth" in cell.settings:
            found = shatter(cell.settings["depth"])
            row: Row = {
                "seed": 0,
                "kind": "shatter",
                "depth": found.depth,
                "points": len(found.points),
                "labellings": found.labellings,
                "certified": found.certified,
            }
            return [row]
        count, method = cell.settings["samples"], cell.settings["method"]
        rng = np.random.default_rng([cell.seed, count])
        samples, labels = rng.random((count, 1)), np.append([0, 1], rng.integers(0, 2, count - 2))
        net = memorize(samples, labels, method=method, seed=cell.seed)
        return [
            {
                "seed": cell.seed,
                "kind": method,
                "found_by": net.method,
                "samples": count,
                "depth": net.depth,
                "certified": net.certified,
                "float_right": net.float_right,
            }
        ]

    def findings(self, settings: Settings, rows: Sequence[Row]) -> list[Finding]:
        memorised = [row for row in rows if row["kind"] in ("merge", "search")]
        certified = all(row["certified"] == row["samples"] for row in memorised)
        merged = [row for row in memorised if row["kind"] == "merge"]
        within = all(int(row["depth"] or 0) <= int(row["samples"] or 0) - 2 for row in merged)
        largest = max(settings["search"])
        depths = column(rows, "depth", kind="search", samples=largest)
        shattered = {int(row["depth"] or 0): row for row in rows if row["kind"] == "shatter"}
        complete = all(row["certified"] == row["labellings"] for row in shattered.values())
        points = {depth: int(row["points"] or 0) for depth, row in shattered.items()}
        random = "uniform samples on a line with random labels"
        return [
            Finding(
                "projection merge classifies m samples of two classes in m − 2 LayerNorms of width 3, or fewer",
                "O(m) for any samples",
                f"at most m − 2 in {len(merged)} networks, m up to {max(settings['merge'])}"
                if within
                else "more than m − 2 in some",
                within and certified,
                "every network certified in exact arithmetic",
                random,
                EXACT,
            ),
            Finding(
                "creases do it in far fewer",
                "not in the paper",
                f"m = {largest}: {', '.join(f'{depth:g}' for depth in depths)}",
                certified and max(depths) < (largest - 2) / 4,
                "less than a quarter of m − 2 at the largest m, every network certified in exact arithmetic",
                random,
                EXACT,
            ),
            Finding(
                "networks of depth L shatter L + 2 points",
                ", ".join(f"{depth + 2} (L = {depth})" for depth in points),
                ", ".join(f"{count} (L = {depth})" for depth, count in points.items()),
                complete and all(count >= depth + 2 for depth, count in points.items()),
                "a certified network of that depth for every labelling",
                power=EXACT,
            ),
        ]

    def pictures(self, settings: Settings, rows: Sequence[Row]) -> "dict[str, Figure]":
        from matplotlib.figure import Figure

        figure = Figure(figsize=(11, 4.2), dpi=150, layout="constrained")
        depth, points = figure.subplots(1, 2)
        for method in ("merge", "search"):
            places, means, _ = curves(rows, "samples", "depth", kind=method)
            depth.plot(places, means, "o-", label=f"{method}, mean over seeds")
        counts = np.array(sorted({*settings["merge"], *settings["search"]}), float)
        depth.plot(counts, counts - 2, color="gray", linestyle="--", label="m − 2")
        least = [math.log2(max(2.0, count / 2 - 1)) for count in counts]
        depth.plot(
            counts, least, color="gray", linestyle=":", label="log₂(r − 1) for r = m/2 runs: none can do with fewer"
        )
        depth.set(
            title="two classes, random labels", xlabel="samples m", ylabel="LayerNorms", xscale="log", yscale="log"
        )
        shown = [row for row in rows if row["kind"] == "shatter"]
        where = [int(row["depth"] or 0) for row in shown]
        points.plot(where, [int(row["points"] or 0) for row in shown], "o-", linewidth=3, label="shattered, certified")
        points.plot(where, [each + 2 for each in where], color="gray", linestyle="--", label="the paper: L + 2")
        points.plot(
            where, [2**each + 1 for each in where], color="black", linestyle=":", label="at most on a line: 2^L + 1"
        )
        points.set(title="every labelling realised", xlabel="LayerNorms L", ylabel="points", xticks=where)
        for ax in (depth, points):
            ax.grid(alpha=0.3)
            ax.legend(fontsize=8)
        figure.suptitle("Networks of LayerNorms of width 3")
        return {"network-depth": figure}
