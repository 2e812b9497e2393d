"""Random labels: the best linear map, a linear network, LayerNorm between linear maps, and LN of groups between them.

Ni et al. 2024: a linear network, however deep, is one linear map; LN between its layers bends it enough to fit labels
that it can't, and LN-G more. What a linear network could fit is not what training reached: the least loss of any linear
map is found by convex optimisation, and the LN-Net's loss is compared with that.
"""

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d, cross_entropy

from normscope.errors import InputError
from normscope.nn import Norm
from normscope_lab.engine.cell_state import CellState
from normscope_lab.engine.choosing import choosing_seeds, chosen, other_seeds, stage_cells
from normscope_lab.engine.experiment import CHOOSING, JUDGING, Cell, Experiment, Settings, require_fitting
from normscope_lab.engine.statistics import mean_interval, paired_difference
from normscope_lab.engine.tidy_rows import BANDS, Row, column, draw_curve, rows_where
from normscope_lab.engine.verdicts import Compared, decided
from normscope_lab.loaders.images import image_files, read_images
from normscope_lab.results.reproduction import Finding
from normscope_lab.training.linear_map import SMALL_GRADIENT, least_loss_map
from normscope_lab.training.training_loop import best_device, cosine_decay, descend, hits, shuffled, train

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CLASSES = 10
DATASETS = {"cifar10": "CIFAR-10", "mnist": "MNIST"}
BEST, LINEAR, NET = "best linear map", "linear network", "LN-Net"


class RandomLabels(Experiment):
    what = "random labels fitted by the best linear map, a linear network, an LN-Net, and LN-Nets with LN-G"
    source = "Ni et al. 2024"
    data = "a folder with the folders cifar10 and mnist (.npz, .bin, .png or IDX files), or those that `datasets` names"
    seeds: ClassVar = {"quick": 10, "paper": 10}
    first_seed = 200
    paper: ClassVar = {
        "datasets": ["cifar10", "mnist"],
        "images": 60_000,
        "side": 32,
        "width": 256,
        "depth": 10,
        "groups": [4, 16, 64],
        "learning_rates": [1e-3, 3e-3, 1e-2],
        "epochs": [150, 400],
        "batches": [128, 256],
        "choosing_seeds": 3,
    }
    unpublished: ClassVar = (*paper, "seeds")
    quick: ClassVar = {
        "datasets": ["mnist"],
        "images": 1000,
        "side": 8,
        "width": 64,
        "depth": 6,
        "groups": [4, 16],
        "learning_rates": [3e-3],
        "epochs": [150],
        "batches": [128],
    }

    def files(self, data: Path) -> list[Path]:
        there = [dataset for dataset in DATASETS if (data / dataset).is_dir()]
        if not there:
            raise FileNotFoundError(f"{data} must have the folders {' and '.join(DATASETS)}, or one of them")
        return [path for dataset in there for path in image_files(data / dataset)]

    def cells(self, settings: Settings, seeds: Sequence[int]) -> list[Cell]:
        require_fitting(settings)
        for dataset in settings["datasets"]:
            if dataset not in DATASETS:
                raise InputError(f"datasets must be of {', '.join(DATASETS)}, got {dataset}")
        tried = grid(settings)
        variants = [
            {"dataset": dataset, "variant": variant, "setting": setting}
            for dataset in settings["datasets"]
            for variant in (LINEAR, NET)
            for setting in tried
        ]
        return stage_cells(CHOOSING, settings, choosing_seeds(settings), variants if len(tried) > 1 else [])

    def later(self, settings: Settings, seeds: Sequence[int], rows: Sequence[Row]) -> list[Cell]:
        tried = list(grid(settings))
        variants = []
        for dataset in settings["datasets"]:
            best = {
                variant: chosen(rows, tried, "setting", "loss", least=True, dataset=dataset, variant=variant)
                for variant in (LINEAR, NET)
            }
            variants += [
                {"dataset": dataset, "variant": variant, "setting": best.get(variant, best[NET])}
                for variant in networks(settings)
            ]
        return stage_cells(JUDGING, settings, seeds, variants)

    def plan(self, settings: Settings, seeds: Sequence[int]) -> list[str]:
        return [
            "primary: loss of the LN-Net below the least loss of any linear map, 95% interval over seeds; then its "
            "accuracy, against the better of both linear sides in each seed",
            f"the same {len(grid(settings))} settings are tried for both networks, by the loss they reach with "
            f"{other_seeds(settings)}"
            if len(grid(settings)) > 1
            else "settings were found on other seeds",
        ]

    def run(self, cell: Cell, state: CellState) -> list[Row]:
        settings, device = cell.settings, best_device()
        folder = (cell.data or Path()) / settings["dataset"]
        if not folder.is_dir():
            raise FileNotFoundError(f"{cell.data} must have the folder {settings['dataset']}, and has none")
        x = samples(folder, settings)
        drawn = torch.Generator().manual_seed(cell.seed)  # the same labels for every network
        y = torch.randint(CLASSES, (len(x),), generator=drawn)
        where: Row = {name: settings[name] for name in ("stage", "dataset", "variant", "setting")}
        where |= {"seed": cell.seed, "images": len(x)}
        if settings["variant"] == BEST:
            found = least_loss_map(x.double().numpy(), y.numpy(), CLASSES)
            right = found.scores(x.double().numpy()).argmax(axis=1) == y.numpy()
            return [{**where, "loss": found.loss, "accuracy": float(right.mean()), "gradient": found.gradient}]
        x, y = x.to(device), y.to(device)
        rate, epochs, size = grid(settings)[settings["setting"]]
        model = network(x.shape[1], networks(settings)[settings["variant"]], settings).to(device)
        optimizer = torch.optim.Adam(model.parameters(), lr=rate)
        schedule = cosine_decay(optimizer, epochs * -(-len(x) // size))

        def epoch(number: int) -> list[Row]:
            for batch in shuffled(len(x), size):
                descend(cross_entropy(model(x[batch]), y[batch]), optimizer, schedule)
            with torch.no_grad():
                scores = model(x)
            loss, accuracy = cross_entropy(scores, y).item(), hits(scores, y).mean().item()
            return [{**where, "epoch": number + 1, "loss": loss, "accuracy": accuracy}]

        rows = train(state, (model, optimizer, schedule), epochs, epoch)
        rows[-1]["last"] = 1
        return rows if settings["stage"] == JUDGING else rows[-1:]

    def findings(self, settings: Settings, rows: Sequence[Row]) -> list[Finding]:
        found = []
        for dataset in settings["datasets"]:
            title, judging = DATASETS[dataset], rows_where(rows, stage=JUDGING, dataset=dataset)
            last = [row for row in judging if row["variant"] == BEST or row.get("last")]
            losses = {variant: column(last, "loss", variant=variant) for variant in networks(settings)}
            accuracy = {
                variant: [100 * value for value in column(last, "accuracy", variant=variant)]
                for variant in networks(settings)
            }
            steep = max(float(row["gradient"] or 0) for row in rows_where(last, variant=BEST))
            images = max(int(row["images"] or 0) for row in judging)
            differences = self.differences(
                {name: value for name, value in settings.items() if name != "datasets"},
                judging,
                f"{images:,} images of {title}, averaged down to at most {settings['side']} pixels a side; "
                "sizes and training that stand for the paper's are taken from its description",
                *_settings_used(judging, settings),
            )
            means = ", ".join(
                f"{variant} {np.mean(accuracy[variant]):.1f}% (loss {np.mean(losses[variant]):.3f})"
                for variant in networks(settings)
            )
            below = paired_difference(losses[BEST], losses[NET])
            linear = [max(pair) for pair in zip(accuracy[BEST], accuracy[LINEAR], strict=True)]
            more = paired_difference(accuracy[NET], linear)
            claims = [
                Compared(
                    f"{title}: an LN-Net reaches a lower loss on random labels than any linear map",
                    "it fits labels that a linear network can't",
                    f"{means}; LN-Net's loss below that of the {BEST} by {below}",
                    below,
                    rule=f"the largest gradient of a {BEST} is {steep:.0e}",
                    missing="" if steep <= SMALL_GRADIENT else "more steps of L-BFGS, until the gradient vanishes",
                ),
                Compared(
                    f"{title}: and fits more of them than either linear side",
                    "it does",
                    f"LN-Net more than the better of {BEST} and {LINEAR} by {more} points",
                    more,
                    unit=" points",
                    rule="accuracy alone does not bound linear maps, as the loss does",
                ),
            ]
            for groups in settings["groups"]:
                fitted = accuracy[_grouped(groups)]
                grouped = paired_difference(fitted, accuracy[NET])
                claims.append(
                    Compared(
                        f"{title}: LN-G of {groups} groups fits more of them than LN",
                        "it does",
                        f"{np.mean(fitted):.1f}%{', all there are,' * (min(fitted) == 100)} and "
                        f"{np.mean(accuracy[NET]):.1f}%; more by {grouped} points",
                        grouped,
                        unit=" points",
                    )
                )
            found += decided(claims, differences)
        return found

    def pictures(self, settings: Settings, rows: Sequence[Row]) -> "dict[str, Figure]":
        from matplotlib.figure import Figure

        figure = Figure(figsize=(10, 3.8 * len(settings["datasets"])), dpi=150, layout="constrained")
        places = figure.subplots(len(settings["datasets"]), 2, squeeze=False)
        for pair, dataset in zip(places, settings["datasets"], strict=True):
            judging = rows_where(rows, stage=JUDGING, dataset=dataset)
            for ax, name in zip(pair, ("loss", "accuracy"), strict=True):
                trained = [row for row in judging if row["variant"] != BEST]
                for variant in list(networks(settings))[1:]:
                    draw_curve(ax, trained, "epoch", name, variant, variant=variant)
                best = mean_interval(column(judging, name, variant=BEST)).mean
                ax.axhline(best, color="black", linestyle="--", linewidth=1, label=BEST)
                ax.set(title=DATASETS[dataset], xlabel="epochs", ylabel=f"{name} on the training labels")
                ax.grid(alpha=0.3)
        figure.legend(*figure.axes[0].get_legend_handles_labels(), fontsize=8, ncols=5, loc="outside lower center")
        figure.suptitle(f"Random labels fitted: {BANDS}")
        return {"random-labels": figure}


def _settings_used(judging: Sequence[Row], settings: Settings) -> list[str]:
    """What was chosen for each side, beside all that was tried: others beyond an end of it might be better."""
    if len(grid(settings)) == 1:
        return []
    used = {variant: rows_where(judging, variant=variant)[0]["setting"] for variant in (LINEAR, NET)}
    return [
        f"chosen for the {LINEAR} {used[LINEAR]}, for the {NET} {used[NET]}, which LN-G was given too, of all "
        f"{len(grid(settings))} settings with {', '.join(map(str, settings['learning_rates']))}, "
        f"{', '.join(map(str, settings['epochs']))} and {', '.join(map(str, settings['batches']))}"
    ]


def grid(settings: Settings) -> dict[str, tuple[float, int, int]]:
    """The settings that are tried, by name: learning rate, epochs, batch.

    >>> grid({"learning_rates": [0.003], "epochs": [150], "batches": [128]})
    {'learning rate 0.003, 150 epochs, batch 128': (0.003, 150, 128)}
    """
    return {
        f"learning rate {rate:g}, {epochs} epochs, batch {size}": (rate, epochs, size)
        for rate, epochs, size in product(settings["learning_rates"], settings["epochs"], settings["batches"])
    }


def networks(settings: Settings) -> dict[str, int]:
    """All sides by name, with the groups of their norms; 0: no norms."""
    return {BEST: 0, LINEAR: 0, NET: 1, **{_grouped(groups): groups for groups in settings["groups"]}}


def _grouped(groups: int) -> str:
    return f"{NET} with LN-G, g = {groups}"


def network(channels: int, groups: int, settings: Settings) -> nn.Module:
    """Linear maps with norms between them and nothing else."""
    width = settings["width"]
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
