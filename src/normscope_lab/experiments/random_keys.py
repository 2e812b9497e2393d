"""Random keys: how often n Gaussian keys in d dimensions include one that no query prefers, with and without LayerNorm.

Brody et al. 2023, figures 1c and 1d: n = 3..60, d = 3..15, 100 runs a cell. Distinct keys of equal length are all
selectable, so after LayerNorm the share is 0 everywhere.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from normscope.norm import Norm
from normscope.separation.selectable import selectable
from normscope_lab.engine.cell_state import CellState
from normscope_lab.engine.experiment import Cell, Experiment, Settings, cells_of
from normscope_lab.engine.tidy_rows import Row
from normscope_lab.engine.verdicts import EXACT
from normscope_lab.results.reproduction import Finding
from normscope_lab.training.key_inputs import in_plane

if TYPE_CHECKING:
    from matplotlib.figure import Figure

VARIANTS = ("without LayerNorm", "with LayerNorm")
CLAIMS: tuple[tuple[str, str, float, float, Callable[[int, int], bool]], ...] = (  # shares of runs, by (d, n)
    ("nine of ten runs or more have one: d = 3, n ≥ 10", "about 1", 0.9, 1.0, lambda d, n: d == 3 and n >= 10),
    ("nine of ten runs or more have none: d ≥ 12", "about 0", 0.0, 0.1, lambda d, n: d >= 12),
    ("most runs have none yet: d = 8, n ≤ 30", "rising from n ≈ 30 to 60", 0.0, 0.5, lambda d, n: d == 8 and n <= 30),
    ("most runs have one: d = 8, n ≥ 55", "rising from n ≈ 30 to 60", 0.5, 1.0, lambda d, n: d == 8 and n >= 55),
)


class RandomKeys(Experiment):
    what = "share of runs with an unselectable key among n random keys in d dimensions, with and without LayerNorm"
    source = "Brody et al. 2023, fig. 1c, 1d"
    seeds: ClassVar = {"quick": 1, "paper": 1}

    paper: ClassVar = {"keys": list(range(3, 61)), "channels": list(range(3, 16)), "runs": 100}
    quick: ClassVar = {"keys": list(range(3, 61, 3)), "channels": list(range(3, 16, 2)), "runs": 50}

    def cells(self, settings: Settings, seeds: Sequence[int]) -> list[Cell]:
        return cells_of(settings, seeds, channels=settings["channels"])

    def run(self, cell: Cell, state: CellState) -> list[Row]:
        channels, runs = cell.settings["channels"], cell.settings["runs"]
        norm = Norm(gain=np.ones(channels), eps=0.0)
        rows: list[Row] = []
        for place, count in enumerate(cell.settings["keys"]):
            keys = np.random.default_rng([cell.seed, channels, count]).normal(size=(runs, count, channels))
            for variant, given in zip(VARIANTS, (keys, in_plane(norm(keys))), strict=True):
                result = selectable(given)
                rows.append(
                    {
                        "seed": cell.seed,
                        "variant": variant,
                        "channels": channels,
                        "keys": count,
                        "runs": runs,
                        "runs_with_unselectable": int((~result.mask & ~result.near_ties).any(axis=1).sum()),
                        "degenerate_keys": int(result.near_ties.sum()),
                        "certificates_hold": int(result.holds),
                    }
                )
            state.tell((place + 1) / len(cell.settings["keys"]))
        return rows

    def findings(self, settings: Settings, rows: Sequence[Row]) -> list[Finding]:
        scale = self.differences(settings, rows)
        certified = all(row["certificates_hold"] for row in rows)
        normed = [share for variant, _, _, share in _shares(rows) if variant == VARIANTS[1]]
        plain = {
            (channels, count): share for variant, channels, count, share in _shares(rows) if variant == VARIANTS[0]
        }
        runs = settings["runs"] * len({row["seed"] for row in rows})  # of a cell
        near = [_near_ties(rows, variant) for variant in VARIANTS]
        found = [
            Finding(
                "with LayerNorm every key is selectable",
                "0 everywhere",
                f"largest share {max(normed):.3g}{near[1]}",
                max(normed) == 0 and certified,
                "no run with an unselectable key in any cell, every verdict certified",
                scale,
                EXACT,
            )
        ]
        for claim, paper, least, most, where in CLAIMS:
            shares = [share for (channels, count), share in plain.items() if where(channels, count)]
            if shares:
                found.append(
                    Finding(
                        f"without it, {claim}",
                        paper,
                        f"shares from {min(shares):.2f} to {max(shares):.2f}{near[0]}",
                        least <= min(shares) and max(shares) <= most and certified,
                        f"from {least:g} to {most:g} in all {len(shares)} cells, every verdict certified",
                        scale,
                        f"exact for these keys; standard error of a share up to {50 / runs**0.5:.0f} points",
                    )
                )
        return found

    def pictures(self, settings: Settings, rows: Sequence[Row]) -> "dict[str, Figure]":
        from matplotlib.figure import Figure

        figure = Figure(figsize=(11, 4.2), dpi=150, layout="constrained")
        for ax, variant in zip(figure.subplots(1, 2), VARIANTS, strict=True):
            shares = np.full((len(settings["channels"]), len(settings["keys"])), np.nan)
            for found, channels, count, share in _shares(rows):
                if found == variant:
                    shares[settings["channels"].index(channels), settings["keys"].index(count)] = share
            mesh = ax.pcolormesh(settings["keys"], settings["channels"], shares, vmin=0, vmax=1, cmap="viridis")
            ax.set(title=f"{variant}", xlabel="keys n", ylabel="channels d")
        figure.colorbar(mesh, ax=figure.axes, label="share of runs with an unselectable key")
        figure.suptitle(f"Unselectable keys among random ones, {settings['runs']} runs a cell")
        return {"random-keys": figure}


def _near_ties(rows: Sequence[Row], variant: str) -> str:
    """How many keys, if any, are within rounding of a tie."""
    count = sum(int(row["degenerate_keys"] or 0) for row in rows if row["variant"] == variant)
    return f"; {count:,} keys too near to a tie to count" if count else ""


def _shares(rows: Sequence[Row]) -> list[tuple[Any, Any, Any, float]]:
    """(variant, channels, keys, share of runs), the seeds together."""
    totals: dict[tuple[Any, Any, Any], list[int]] = {}
    for row in rows:
        total = totals.setdefault((row["variant"], row["channels"], row["keys"]), [0, 0])
        total[0] += int(row["runs_with_unselectable"] or 0)
        total[1] += int(row["runs"] or 0)
    return [(*place, hit / runs) for place, (hit, runs) in totals.items()]
