"""Random labels: linear maps alone, with LayerNorm between them, and with LN of groups between them.

Ni et al. 2024: a linear network, however deep, is one linear map; LN between its layers bends it enough to fit labels
that it can't, and LN-G more.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d, cross_entropy

from normscope.nn import Norm
from normscope_lab.engine.cell_state import CellState
from normscope_lab.engine.experiment import Cell, Experiment, Settings, file_name, require_fitting
from normscope_lab.engine.statistics import paired_difference
from normscope_lab.engine.tidy_rows import BANDS, Row, column, draw_curve
from normscope_lab.loaders.images import image_files, read_images
from normscope_lab.results.reproduction import Finding
from normscope_lab.training.training_loop import best_device, descend, hits, shuffled, train

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CLASSES = 10
DATASETS = {"cifar10": "CIFAR-10", "mnist": "MNIST"}
LINEAR = "linear network"


class RandomLabels(Experiment):
    what = "random labels fitted by a linear network, an LN-Net, and LN-Nets with LN-G"
    source = "Ni et al. 2024"
    data = "a folder with the folders cifar10 and mnist (.npz, .bin or IDX files)"
    seeds: ClassVar = {"quick": 3, "paper": 3}
    paper: ClassVar = {
        "images": 60_000,
        "side": 32,
        "width": 256,
        "depth": 10,
        "groups": [4, 16, 64],
        "batch": 128,
        "learning_rate": 1e-3,
        "halved_every": 20,
        "epochs": 150,
    }
    unpublished: ClassVar = tuple(paper)
    quick: ClassVar = {"images": 4000, "side": 8, "width": 128, "depth": 6, "groups": [4, 16, 32], "epochs": 80}

    def files(self, data: Path) -> list[Path]:
        for dataset in DATASETS:
            if not (data / dataset).is_dir():
                raise FileNotFoundError(f"{data} must have the folders {' and '.join(DATASETS)}, and has no {dataset}")
        return [path for dataset in DATASETS for path in image_files(data / dataset)]

    def cells(self, settings: Settings, seeds: Sequence[int]) -> list[Cell]:
        require_fitting(settings)
        return [
            Cell(
                file_name(dataset, variant, f"seed {seed}"),
                seed,
                {**settings, "dataset": dataset, "variant": variant, "groups": groups},
            )
            for seed in seeds
            for dataset in DATASETS
            for variant, groups in networks(settings).items()
        ]

    def run(self, cell: Cell, state: CellState) -> list[Row]:
        settings, device = cell.settings, best_device()
        x = samples((cell.data or Path()) / settings["dataset"], settings).to(device)
        drawn = torch.Generator().manual_seed(cell.seed)  # the same labels for every network
        y = torch.randint(CLASSES, (len(x),), generator=drawn).to(device)
        model = network(x.shape[1], settings).to(device)
        optimizer = torch.optim.Adam(model.parameters(), lr=settings["learning_rate"])
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, settings["halved_every"], gamma=0.5)
        where: Row = {
            "dataset": settings["dataset"],
            "variant": settings["variant"],
            "seed": cell.seed,
            "images": len(x),
        }

        def epoch(number: int) -> list[Row]:
            losses = []
            for batch in shuffled(len(x), settings["batch"]):
                loss = cross_entropy(model(x[batch]), y[batch])
                losses.append(descend(loss, optimizer))
            schedule.step()
            with torch.no_grad():
                accuracy = hits(model(x), y).mean().item()
            return [{**where, "epoch": number + 1, "loss": float(np.mean(losses)), "accuracy": accuracy}]

        return train(state, (model, optimizer, schedule), settings["epochs"], epoch)

    def findings(self, settings: Settings, rows: Sequence[Row]) -> list[Finding]:
        found = []
        for dataset, title in DATASETS.items():
            accuracy = {
                variant: [
                    100 * value
                    for value in column(rows, "accuracy", dataset=dataset, variant=variant, epoch=settings["epochs"])
                ]
                for variant in networks(settings)
            }
            grouped = {variant: values for variant, values in accuracy.items() if "g =" in variant}
            best = max(grouped, key=lambda variant: float(np.mean(grouped[variant])))
            images = max(int(row["images"] or 0) for row in rows if row["dataset"] == dataset)
            differences = self.differences(
                settings,
                rows,
                f"{images:,} images of {title}, averaged down to at most {settings['side']} pixels a side; "
                "sizes and training that stand for the paper's are taken from its description",
            )
            means = ", ".join(f"{variant} {np.mean(values):.1f}%" for variant, values in accuracy.items())
            for claim, paper, (one, other) in (
                ("an LN-Net fits more random labels than a linear network", "it does", ("LN-Net", LINEAR)),
                ("LN-G fits more of them than LN", "it does, more so with more groups", (best, "LN-Net")),
            ):
                more = paired_difference(accuracy[one], accuracy[other])
                found.append(
                    Finding(
                        f"{title}: {claim}",
                        paper,
                        f"{means} of training labels; {one} more than {other} by {more} points",
                        more.above(),
                        "95% interval of the paired difference over seeds above 0"
                        + "; the best number of groups was chosen by the mean" * (one == best),
                        differences,
                    )
                )
        return found

    def pictures(self, settings: Settings, rows: Sequence[Row]) -> "dict[str, Figure]":
        from matplotlib.figure import Figure

        figure = Figure(figsize=(10, 3.8), dpi=150, layout="constrained")
        for ax, (dataset, title) in zip(figure.subplots(1, 2, sharey=True), DATASETS.items(), strict=True):
            for variant in networks(settings):
                draw_curve(ax, rows, "epoch", "accuracy", variant, dataset=dataset, variant=variant)
            ax.set(title=title, xlabel="epochs", ylabel="accuracy on the training labels")
            ax.grid(alpha=0.3)
        figure.legend(*figure.axes[0].get_legend_handles_labels(), fontsize=8, ncols=5, loc="outside lower center")
        figure.suptitle(f"Random labels fitted: {BANDS}")
        return {"random-labels": figure}


def networks(settings: Settings) -> dict[str, int]:
    """All networks by name, with the groups of their norms; 0: no norms."""
    return {LINEAR: 0, "LN-Net": 1, **{f"LN-Net with LN-G, g = {groups}": groups for groups in settings["groups"]}}


def network(channels: int, settings: Settings) -> nn.Module:
    """Linear maps with norms between them and nothing else."""
    width, groups = settings["width"], settings["groups"]
    layers: list[nn.Module] = []
    for number in range(settings["depth"]):
        layers.append(nn.Linear(width if number else channels, width))
        layers += [Norm(width, groups=groups)] if groups else []
    return nn.Sequential(*layers, nn.Linear(width, CLASSES))


def samples(folder: Path, settings: Settings) -> Tensor:
    """Images as vectors (images, channels), each channel with mean 0 and deviation 1."""
    images = torch.from_numpy(read_images(folder).x_train[: settings["images"]].copy()).float()
    small = adaptive_avg_pool2d(images, min(settings["side"], images.shape[-1]))
    x = small.flatten(1)
    return (x - x.mean(dim=0)) / x.std(dim=0).clamp(min=1.0)  # pixels that never change stay 0
