"""A small vision transformer on CIFAR-10 with LN and with LN-G.

Ni et al. 2024: LN bends its input, and LN of groups bends it more; test accuracy 88.81% with LN, 89.26% with LN-G.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad

from normscope.errors import InputError
from normscope.nn import Norm
from normscope_lab.engine.cell_state import CellState
from normscope_lab.engine.experiment import Cell, Experiment, Settings, in_groups
from normscope_lab.engine.statistics import paired_difference
from normscope_lab.engine.tidy_rows import BANDS, Row, column, draw_curve
from normscope_lab.loaders.data_files import place
from normscope_lab.loaders.images import image_files, read_images
from normscope_lab.results.reproduction import Finding
from normscope_lab.training.training_loop import best_device, cosine_decay, descend, hits, in_parts, shuffled, train
from normscope_lab.training.transformer import Attention, Block, FeedForward, small_weights

if TYPE_CHECKING:
    from matplotlib.figure import Figure

VARIANTS = ("LN", "LN-G")
CLASSES, SIDE = 10, 32  # of CIFAR-10
MEAN, DEVIATION = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)  # of its channels
MARGIN = 4  # pixels around an image before it is cropped


class VisionTransformer(nn.Module):
    """Patches as tokens, pre-norm layers, the mean of all tokens classified."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        width, dropout = settings["width"], settings["dropout"]
        groups = settings["groups"] if settings["variant"] == "LN-G" else 1
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
    data = "CIFAR-10 as .npz, in its binary or its Python version, or a folder with such a folder cifar10"
    seeds: ClassVar = {"quick": 3, "paper": 3}
    variants = VARIANTS
    paper: ClassVar = {
        "images": 50_000,
        "width": 192,
        "layers": 9,
        "heads": 12,
        "hidden": 384,
        "patch": 4,
        "groups": 48,
        "dropout": 0.1,
        "batch": 128,
        "learning_rate": 1e-3,
        "weight_decay": 0.05,
        "epochs": 200,
        "warmup_epochs": 10,
    }
    unpublished: ClassVar = tuple(paper)
    quick: ClassVar = {
        "images": 10_000,
        "width": 64,
        "layers": 4,
        "heads": 4,
        "hidden": 128,
        "groups": 16,
        "dropout": 0.0,
        "epochs": 36,
        "warmup_epochs": 3,
    }

    def files(self, data: Path) -> list[Path]:
        return image_files(place(data, "cifar10"))

    def run(self, cell: Cell, state: CellState) -> list[Row]:
        settings, device = cell.settings, best_device()
        images = read_images(place(cell.data or Path(), "cifar10"))
        count = min(settings["images"], len(images.x_train))
        if images.x_train.shape[1:] != (3, SIDE, SIDE):
            raise InputError(f"images must be those of CIFAR-10, 3 × {SIDE} × {SIDE}, got {images.x_train.shape[1:]}")
        x_train, x_test = (standard(x).to(device) for x in (images.x_train[:count], images.x_test))
        y_train, y_test = (torch.from_numpy(y.astype(np.int64)).to(device) for y in (images.y_train, images.y_test))
        model = VisionTransformer(settings).to(device)
        optimizer = torch.optim.AdamW(
            model.parameters(), lr=settings["learning_rate"], weight_decay=settings["weight_decay"]
        )
        steps = -(-count // settings["batch"])  # of an epoch
        schedule = cosine_decay(optimizer, settings["epochs"] * steps, warmup=settings["warmup_epochs"] * steps)
        where: Row = {"variant": settings["variant"], "seed": cell.seed, "images": count, "test_images": len(x_test)}

        def epoch(number: int) -> list[Row]:
            model.train()
            losses = []
            for batch in shuffled(count, settings["batch"]):
                loss = cross_entropy(model(shifted(x_train[batch])), y_train[batch])
                losses.append(descend(loss, optimizer, schedule))
            accuracy = accuracy_of(model, x_test, y_test)
            return [{**where, "epoch": number + 1, "loss": float(np.mean(losses)), "test_accuracy": accuracy}]

        return train(state, (model, optimizer, schedule), settings["epochs"], epoch)

    def findings(self, settings: Settings, rows: Sequence[Row]) -> list[Finding]:
        images, test_images = (max(int(row[name] or 0) for row in rows) for name in ("images", "test_images"))
        accuracy = [
            [100 * value for value in column(rows, "test_accuracy", variant=variant, epoch=settings["epochs"])]
            for variant in VARIANTS
        ]
        better = paired_difference(accuracy[1], accuracy[0])
        noise = 100 * float(np.sqrt(np.mean(accuracy[0]) / 100 * (1 - np.mean(accuracy[0]) / 100) / test_images))
        return [
            Finding(
                "LN-G classifies better than LN",
                "88.81% with LN, 89.26% with LN-G",
                f"{np.mean(accuracy[0]):.2f}% with LN, {np.mean(accuracy[1]):.2f}% with LN-G after the last epoch; "
                f"better by {better} points",
                better.above(),
                "95% interval of the paired difference over seeds above 0; "
                f"of one network, {test_images:,} test images leave a standard error of {noise:.2f} points",
                self.differences(
                    settings,
                    rows,
                    f"trained on {images:,} and tested on {test_images:,} images of CIFAR-10 (the paper: 50,000 and "
                    "10,000); sizes and training that stand for the paper's are those of a usual Tiny-ViT",
                    in_groups(settings),
                ),
            )
        ]

    def pictures(self, settings: Settings, rows: Sequence[Row]) -> "dict[str, Figure]":
        from matplotlib.figure import Figure

        figure = Figure(figsize=(9, 3.8), dpi=150, layout="constrained")
        shown = {"loss": "training loss", "test_accuracy": "test accuracy"}
        for ax, (name, label) in zip(figure.subplots(1, 2), shown.items(), strict=True):
            for variant in VARIANTS:
                draw_curve(ax, rows, "epoch", name, variant, variant=variant)
            ax.set(xlabel="epochs", ylabel=label)
            ax.grid(alpha=0.3)
            ax.legend()
        figure.suptitle(f"A small vision transformer on CIFAR-10 with LN and LN-G\n{BANDS}")
        return {"vit": figure}


def standard(images: np.ndarray) -> Tensor:
    """Bytes as floats, each channel with the mean 0 and the deviation 1 that it has over CIFAR-10."""
    mean, deviation = (torch.tensor(values).view(1, 3, 1, 1) for values in (MEAN, DEVIATION))
    return (torch.from_numpy(images.copy()).float() / 255 - mean) / deviation


def shifted(images: Tensor) -> Tensor:
    """Each image moved by up to four pixels in both directions, and half of them mirrored."""
    count, channels, height, width = images.shape
    wide = pad(images, (MARGIN, MARGIN, MARGIN, MARGIN))
    down, right = torch.randint(2 * MARGIN + 1, (2, count, 1)).to(images.device)
    rows = down + torch.arange(height, device=images.device)  # (count, height)
    columns = right + torch.arange(width, device=images.device)
    mirrored = (torch.rand(count, 1) < 0.5).to(images.device)
    columns = torch.where(mirrored, columns.flip(1), columns)
    sample = torch.arange(count, device=images.device)
    moved: Tensor = wide[
        sample[:, None, None, None],
        torch.arange(channels, device=images.device)[:, None, None],
        rows[:, None, :, None],
        columns[:, None, None, :],
    ]
    return moved


@torch.no_grad()
def accuracy_of(model: nn.Module, x: Tensor, y: Tensor) -> float:
    model.eval()
    return torch.cat([hits(model(part), target) for part, target in in_parts(x, y, 500)]).mean().item()
