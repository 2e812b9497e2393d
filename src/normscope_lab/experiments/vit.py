"""A small vision transformer on CIFAR-10 with LN and with LN-G.

Ni et al. 2024: LN bends its input, and LN of groups bends it more; test accuracy 88.81% with LN, 89.26% with LN-G. How
many channels its groups have is not known here: the size is chosen on images that are not tested, then judged.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from normscope.nn import Norm
from normscope_lab.engine.cell_state import CellState
from normscope_lab.engine.choosing import choosing_seeds, chosen, stage_cells
from normscope_lab.engine.experiment import CHOOSING, JUDGING, Cell, Experiment, Settings, require_fitting
from normscope_lab.engine.statistics import paired_difference
from normscope_lab.engine.tidy_rows import Row, column, rows_where
from normscope_lab.engine.verdicts import Compared, decided, not_inferior, planned
from normscope_lab.loaders.data_files import place
from normscope_lab.loaders.images import image_files
from normscope_lab.results.reproduction import Finding
from normscope_lab.training.group_sizes import (
    LN,
    LNG,
    best_size,
    choice_shown,
    drawn_sizes,
    judged_sizes,
    of_size,
    size_variants,
    sizes_tried,
)
from normscope_lab.training.image_task import CLASSES, SIDE, cifar_splits, images_too, scored, shifted
from normscope_lab.training.training_loop import best_device, cosine_decay, descend, shuffled, train
from normscope_lab.training.transformer import Attention, Block, FeedForward, small_weights

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PUBLISHED = 0.45  # points by which LN-G is better
POINTS = " points"


class VisionTransformer(nn.Module):
    """Patches as tokens, pre-norm layers, the mean of all tokens classified."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        width, dropout = settings["width"], settings["dropout"]
        groups = width // (settings["channels"] or width)
        self.patches = nn.Conv2d(3, width, settings["patch"], stride=settings["patch"])
        self.positions = nn.Parameter(0.02 * torch.randn((SIDE // settings["patch"]) ** 2, width))
        self.blocks = nn.Sequential(
            *(
                Block(
                    Attention(width, settings["heads"]),
                    FeedForward(width, settings["hidden"], nn.GELU(), dropout),
                    Norm(width, groups=groups),
                    Norm(width, groups=groups),
                    dropout,
                )
                for _ in range(settings["layers"])
            )
        )
        self.norm = Norm(width, groups=groups)
        self.head = nn.Linear(width, CLASSES)
        self.apply(small_weights)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.patches(images).flatten(2).transpose(1, 2) + self.positions
        scores: Tensor = self.head(self.norm(self.blocks(tokens)).mean(dim=1))
        return scores


class VitGroups(Experiment):
    what = "Tiny-ViT on CIFAR-10 with LN and LN-G"
    source = "Ni et al. 2024"
    data = "CIFAR-10 as .npz, in its binary, Python or npm version, or a folder with such a folder cifar10"
    seeds: ClassVar = {"quick": 10, "paper": 10}
    first_seed = 100
    paper: ClassVar = {
        "images": 45_000,
        "validation": 5000,
        "width": 192,
        "layers": 9,
        "heads": 12,
        "hidden": 384,
        "patch": 4,
        "group_channels": [8, 16, 32],
        "dropout": 0.1,
        "batch": 128,
        "learning_rate": 1e-3,
        "weight_decay": 0.05,
        "epochs": 200,
        "warmup_epochs": 10,
        "choosing_seeds": 3,
        "margin": 1.0,
        "expected_deviation": 1.1,
    }
    unpublished: ClassVar = (*paper, "seeds")
    quick: ClassVar = {
        "images": 10_000,
        "width": 64,
        "layers": 4,
        "heads": 4,
        "hidden": 128,
        "dropout": 0.0,
        "epochs": 36,
        "warmup_epochs": 3,
    }

    def files(self, data: Path) -> list[Path]:
        return image_files(place(data, "cifar10"))

    def cells(self, settings: Settings, seeds: Sequence[int]) -> list[Cell]:
        require_fitting(settings)
        return stage_cells(CHOOSING, settings, choosing_seeds(settings), size_variants(settings))

    def later(self, settings: Settings, seeds: Sequence[int], rows: Sequence[Row]) -> list[Cell]:
        size = chosen(rows, settings["group_channels"], "channels", "validation_accuracy", variant=LNG)
        return stage_cells(JUDGING, settings, seeds, judged_sizes(size))

    def plan(self, settings: Settings, seeds: Sequence[int]) -> list[str]:
        spread, count = settings["expected_deviation"], len(seeds)
        return [
            planned("LN-G classifies better", PUBLISHED, spread, count, POINTS),
            planned("LN-G is not worse by the margin", settings["margin"], spread, count, POINTS),
            f"{sizes_tried(settings)}, by accuracy on the validation images; judged by the 95% interval of the paired "
            "difference in test accuracy",
        ]

    def run(self, cell: Cell, state: CellState) -> list[Row]:
        settings, device = cell.settings, best_device()
        splits = cifar_splits(place(cell.data or Path(), "cifar10"), settings["images"], settings["validation"], device)
        x, y = splits.training
        model = VisionTransformer(settings).to(device)
        optimizer = torch.optim.AdamW(
            model.parameters(), lr=settings["learning_rate"], weight_decay=settings["weight_decay"]
        )
        steps = -(-len(x) // settings["batch"])  # of an epoch
        schedule = cosine_decay(optimizer, settings["epochs"] * steps, warmup=settings["warmup_epochs"] * steps)
        where: Row = {name: settings[name] for name in ("stage", "variant", "channels")}
        where |= {"seed": cell.seed, "images": len(x)}

        def epoch(number: int) -> list[Row]:
            model.train()
            losses = []
            for batch in shuffled(len(x), settings["batch"]):
                loss = cross_entropy(model(shifted(x[batch])), y[batch])
                losses.append(descend(loss, optimizer, schedule))
            return [{**where, "epoch": number + 1, "loss": float(np.mean(losses))}]

        rows = train(state, (model, optimizer, schedule), settings["epochs"], epoch)
        return [*rows[:-1], rows[-1] | scored(model, splits, tested=settings["stage"] == JUDGING)]

    def findings(self, settings: Settings, rows: Sequence[Row]) -> list[Finding]:
        size = best_size(rows)
        last = rows_where(rows, stage=JUDGING, epoch=settings["epochs"])
        images, test_images = (max(int(row.get(name) or 0) for row in last) for name in ("images", "test_images"))
        accuracy = {
            variant: [100 * value for value in column(last, "test_accuracy", variant=variant)] for variant in (LN, LNG)
        }
        better = paired_difference(accuracy[LNG], accuracy[LN])
        hits = [
            [str(row["hits"]) for row in sorted(rows_where(last, variant=variant), key=_seed) if row.get("hits")]
            for variant in (LNG, LN)
        ]
        both = ""
        if hits[0] and len(hits[0]) == len(hits[1]):
            both = images_too(hits[0], hits[1], test_images)
        means = (
            f"{np.mean(accuracy[LN]):.2f}% with LN, {np.mean(accuracy[LNG]):.2f}% with {of_size(size)}; "
            f"better by {better}{POINTS}{both}" + choice_shown(rows, "validation_accuracy", ".1%")
        )
        differences = self.differences(
            settings,
            rows,
            f"trained on {images:,} and tested on {test_images:,} images of CIFAR-10 (the paper: 50,000 and "
            f"10,000); {sizes_tried(settings)}; sizes and training that stand for the paper's are those of a "
            "usual Tiny-ViT",
        )
        return [
            *decided(
                [
                    Compared(
                        f"{of_size(size)} classifies better than LN",
                        "88.81% with LN, 89.26% with LN-G",
                        means,
                        better,
                        PUBLISHED,
                        POINTS,
                    )
                ],
                differences,
            ),
            *(
                not_inferior(f"{of_size(size)} is not worse than LN", means, better, margin, POINTS, differences)
                for margin in [settings.get("margin")]
                if margin is not None  # earlier runs fixed none
            ),
        ]

    def pictures(self, settings: Settings, rows: Sequence[Row]) -> "dict[str, Figure]":
        figure = drawn_sizes(
            rows,
            settings,
            "training loss",
            ("validation_accuracy", "validation accuracy, choosing"),
            ("test_accuracy", "test accuracy"),
        )
        figure.suptitle("A small vision transformer on CIFAR-10 with LN and LN-G")
        return {"vit": figure}


def _seed(row: Row) -> int:
    return int(row["seed"] or 0)
