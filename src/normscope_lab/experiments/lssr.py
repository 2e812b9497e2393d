"""How tightly classes can be made to cluster: linear networks stop at LSSR, networks with LayerNorm do not.

Ni et al. 2024: SSR, the share of the scatter that is within classes, is never brought below LSSR by linear maps; linear
maps with LayerNorm between them do it, and solve XOR. Both networks here are trained to make SSR itself small.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from normscope.capacity.scatter_ratios import scatter
from normscope.checks import Floats
from normscope.nn import Norm
from normscope_lab.engine.cell_state import CellState
from normscope_lab.engine.experiment import Cell, Experiment, Settings, cells_of
from normscope_lab.engine.statistics import mean_interval
from normscope_lab.engine.tidy_rows import Row, column, draw_curve
from normscope_lab.engine.verdicts import Compared, decided
from normscope_lab.results.reproduction import Finding
from normscope_lab.training.training_loop import descend, train

if TYPE_CHECKING:
    from matplotlib.figure import Figure

VARIANTS = ("linear network", "LN-Net")
Labels = NDArray[np.int64]
ROUNDING = 1e-9


def _xor(rng: np.random.Generator, labels: Labels) -> Floats:
    first = rng.integers(0, 2, len(labels))
    return np.stack([first, first ^ labels], axis=1).astype(np.float64)


def _blobs(rng: np.random.Generator, labels: Labels) -> Floats:
    return np.asarray(rng.normal(size=(len(labels), 4)) + 3.0 * labels[:, None])


def _rings(rng: np.random.Generator, labels: Labels) -> Floats:
    around = rng.uniform(0, 2 * np.pi, len(labels))
    length = 1 + 2 * labels + 0.1 * rng.normal(size=len(labels))
    return np.asarray(length[:, None] * np.stack([np.cos(around), np.sin(around)], axis=1))


DATA: dict[str, Callable[[np.random.Generator, Labels], Floats]] = {
    "XOR": _xor,
    "two blobs (linearly separable)": _blobs,
    "two rings (not linearly separable)": _rings,
}


class LinearLimit(Experiment):
    what = "SSR that linear networks and LN-Nets reach when they are trained for it, against LSSR of the data"
    source = "Ni et al. 2024, section 3"
    seeds: ClassVar = {"quick": 5, "paper": 10}

    paper: ClassVar = {"samples": 300, "width": 8, "layers": 3, "epochs": 40, "steps": 100}
    unpublished: ClassVar = (*paper, "seeds")
    quick: ClassVar = {"steps": 10}

    def cells(self, settings: Settings, seeds: Sequence[int]) -> list[Cell]:
        return cells_of(settings, seeds, data=tuple(DATA), variant=VARIANTS)

    def run(self, cell: Cell, state: CellState) -> list[Row]:
        settings = cell.settings
        rng = np.random.default_rng(cell.seed)
        labels: Labels = rng.integers(0, 2, size=(settings["samples"],))
        samples = DATA[settings["data"]](rng, labels)
        limit = scatter(samples, labels).lssr
        x, y = torch.from_numpy(samples), torch.from_numpy(labels)
        network = _network(samples.shape[1], settings["width"], settings["layers"], settings["variant"])
        optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)

        def epoch(number: int) -> list[Row]:
            for _ in range(settings["steps"]):
                descend(_ssr(network(x), y), optimizer)
            with torch.no_grad():
                reached = _ssr(network(x), y).item()
            place: Row = {"seed": cell.seed, "data": settings["data"], "variant": settings["variant"]}
            return [{**place, "step": (number + 1) * settings["steps"], "ssr": reached, "lssr": limit}]

        return train(state, (network, optimizer), settings["epochs"], epoch)

    def findings(self, settings: Settings, rows: Sequence[Row]) -> list[Finding]:
        last = settings["epochs"] * settings["steps"]
        differences = self.differences(settings, rows, f"{settings['samples']} samples drawn here")
        below = [
            min(
                each - limit for each, limit in zip(_reached(rows, data, VARIANTS[0]), _limits(rows, data), strict=True)
            )
            for data in DATA
        ]
        found = [
            Finding(
                "no linear network goes below LSSR",
                "proved",
                f"least SSR − LSSR {min(below):.3g}",
                min(below) >= -ROUNDING,
                f"not after any {settings['steps']} steps of any seed, to {ROUNDING:g}",
                differences,
                "exact: proved, and checked along training",
            )
        ]
        claims = []
        for data in DATA:
            limit = column(rows, "lssr", data=data, variant=VARIANTS[1], step=last)
            reached = column(rows, "ssr", data=data, variant=VARIANTS[1], step=last)
            gain = mean_interval(np.subtract(limit, reached).tolist())
            claims.append(
                Compared(
                    f"with LayerNorm SSR goes below LSSR: {data}",
                    "0 for XOR" if data == "XOR" else "below LSSR",
                    f"SSR {np.mean(reached):.3g}, LSSR {np.mean(limit):.3g}; below by {gain}",
                    gain,
                )
            )
        return [*found, *decided(claims, differences)]

    def pictures(self, settings: Settings, rows: Sequence[Row]) -> "dict[str, Figure]":
        from matplotlib.figure import Figure

        figure = Figure(figsize=(12, 3.8), dpi=150, layout="constrained")
        for ax, data in zip(figure.subplots(1, len(DATA)), DATA, strict=True):
            for variant in VARIANTS:
                draw_curve(ax, rows, "step", "ssr", variant, data=data, variant=variant)
            limit = float(np.mean(_limits(rows, data)))
            ax.axhline(limit, color="gray", linestyle="--", linewidth=0.9, label="LSSR of the data")
            ax.set(title=data, xlabel="steps", ylabel="SSR of the outputs", ylim=(-0.03, 1.03))
            ax.grid(alpha=0.3)
        figure.axes[0].legend(fontsize=8)
        figure.suptitle("SSR, trained for: mean over seeds, and one standard deviation")
        return {"lssr": figure}


def _network(channels: int, width: int, layers: int, variant: str) -> nn.Sequential:
    """Linear maps of some width, and in the LN-Net a LayerNorm after each but the last."""
    parts: list[nn.Module] = []
    for layer in range(layers):
        parts.append(nn.Linear(channels if layer == 0 else width, width, dtype=torch.float64))
        if variant == VARIANTS[1] and layer < layers - 1:
            parts.append(Norm(width, dtype=torch.float64))
    return nn.Sequential(*parts)


def _ssr(outputs: Tensor, labels: Tensor) -> Tensor:
    """Scatter within the two classes over all scatter, as something to be made small."""
    within = sum(_scatter(outputs[labels == label]) for label in (0, 1))
    return torch.as_tensor(within) / _scatter(outputs)


def _scatter(outputs: Tensor) -> Tensor:
    return (outputs - outputs.mean(dim=0)).square().sum()


def _reached(rows: Sequence[Row], data: str, variant: str) -> list[float]:
    return column(rows, "ssr", data=data, variant=variant)


def _limits(rows: Sequence[Row], data: str) -> list[float]:
    return column(rows, "lssr", data=data, variant=VARIANTS[0])
