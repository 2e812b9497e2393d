"""A small residual network on CIFAR-10 with BN, LN, LN-G and GroupNorm, with and without ReLU.

Ni et al. 2024: LN over the channels of each position bends where BN, at test time, is a linear map; LN-G bends more, so
that a network without other nonlinearities gains most. LN and LN-G here are taken at each position, unlike GroupNorm,
which averages over space as well. Without ReLU a network with BN is a linear map of the image at test time, and stands
beside logistic regression on the pixels.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d, cross_entropy

from normscope.errors import InputError
from normscope.nn import Norm
from normscope_lab.engine.cell_state import CellState
from normscope_lab.engine.choosing import choosing_seeds, chosen, other_seeds, stage_cells
from normscope_lab.engine.experiment import CHOOSING, JUDGING, Cell, Experiment, Settings
from normscope_lab.engine.statistics import mean_interval, paired_difference
from normscope_lab.engine.tidy_rows import BANDS, Row, column, draw_curve, rows_where
from normscope_lab.engine.verdicts import Compared, decided
from normscope_lab.loaders.data_files import place
from normscope_lab.loaders.images import image_files
from normscope_lab.results.reproduction import Finding
from normscope_lab.training.image_task import CLASSES, Labelled, Splits, cifar_splits, images_too, packed, scored
from normscope_lab.training.linear_map import least_loss_map
from normscope_lab.training.training_loop import best_device, cosine_decay, descend, shuffled, train

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BN, LN, LNG, FINE, POOLED = NORMS = ("BN", "LN", "LN-G of 8 channels", "LN-G of 4 channels", "GroupNorm of 8 channels")
CHANNELS = {LNG: 8, FINE: 4, POOLED: 8}  # of a group
WITHOUT, WITH = ACTIVATIONS = ("without ReLU", "with ReLU")
LOGISTIC = "logistic regression"
PENALTIES = (0.001, 0.003, 0.01, 0.03, 0.1)
FLAT = 1e-4  # gradient at which logistic regression stops: its accuracy no longer changes
POINTS = " points"
PROPOSED, OWN = "proposed for any network; figures are not known here", "our own question"
QUESTIONS = (  # activation, better, worse, what the paper says
    (WITHOUT, LNG, LN, PROPOSED),
    (WITHOUT, LNG, BN, OWN),
    (WITHOUT, LNG, LOGISTIC, OWN),
    (WITHOUT, LNG, POOLED, OWN),
    (WITH, LNG, LN, PROPOSED),
    (WITH, LNG, BN, OWN),
)


class Residual(nn.Module):
    """x + norm(conv(act(norm(conv(x))))), at half the side where the channels change."""

    def __init__(self, before: int, channels: int, norm: str, activation: str) -> None:
        super().__init__()
        stride = 1 if before == channels else 2
        self.body = nn.Sequential(
            nn.Conv2d(before, channels, 3, stride, 1, bias=False),
            normed(norm, channels),
            acting(activation),
            nn.Conv2d(channels, channels, 3, 1, 1, bias=False),
            normed(norm, channels),
        )
        self.way = nn.Identity() if stride == 1 else nn.Conv2d(before, channels, 1, stride, bias=False)
        self.act = acting(activation)

    def forward(self, x: Tensor) -> Tensor:
        joined: Tensor = self.act(self.way(x) + self.body(x))
        return joined


class ConvGroups(Experiment):
    what = "a small ResNet on CIFAR-10 with BN, LN, LN-G and GroupNorm, with and without ReLU"
    source = "Ni et al. 2024"
    data = "CIFAR-10 as .npz, in its binary, Python or npm version, or a folder with such a folder cifar10"
    seeds: ClassVar = {"quick": 5, "paper": 5}
    first_seed = 100
    paper: ClassVar = {
        "images": 45_000,
        "validation": 5000,
        "side": 32,
        "widths": [16, 32, 64],
        "blocks": 3,
        "batch": 64,
        "learning_rates": [0.02, 0.05, 0.1],
        "weight_decay": 5e-4,
        "epochs": 100,
        "warmup_epochs": 2,
        "choosing_seeds": 1,
    }
    unpublished: ClassVar = (*paper, "seeds")
    quick: ClassVar = {"images": 10_000, "side": 16, "blocks": 1, "epochs": 30}

    def files(self, data: Path) -> list[Path]:
        return image_files(place(data, "cifar10"))

    def cells(self, settings: Settings, seeds: Sequence[int]) -> list[Cell]:
        for width in settings["widths"]:
            if width % max(CHANNELS.values()):
                raise InputError(f"widths must be multiples of {max(CHANNELS.values())}, got {width}")
        rates = settings["learning_rates"]
        tried = [{**variant, "rate": rate} for variant in _networks() for rate in rates] if len(rates) > 1 else []
        return stage_cells(CHOOSING, settings, choosing_seeds(settings), tried)

    def later(self, settings: Settings, seeds: Sequence[int], rows: Sequence[Row]) -> list[Cell]:
        rates = settings["learning_rates"]
        variants = [
            {**each, "rate": chosen(rows, rates, "rate", "validation_accuracy", **each)} for each in _networks()
        ]
        baseline = {"activation": WITHOUT, "norm": LOGISTIC, "rate": rates[0]}  # no seed changes it
        return [
            *stage_cells(JUDGING, settings, seeds[:1], [baseline]),
            *stage_cells(JUDGING, settings, seeds, variants),
        ]

    def plan(self, settings: Settings, seeds: Sequence[int]) -> list[str]:
        return [
            f"a learning rate of {', '.join(map(str, settings['learning_rates']))} for each norm, by accuracy on "
            f"images that are neither trained on nor tested, with {other_seeds(settings)}",
            "judged by 95% intervals of paired differences in test accuracy, by Holm's correction for "
            f"{len(QUESTIONS)} claims; the group of 8 channels is the one that is judged, that of 4 is shown beside it",
        ]

    def run(self, cell: Cell, state: CellState) -> list[Row]:
        settings, device = cell.settings, best_device()
        found = cifar_splits(place(cell.data or Path(), "cifar10"), settings["images"], settings["validation"], device)
        splits = Splits(*(Labelled(smaller(part.x, settings["side"]), part.y) for part in found))
        x, y = splits.training
        where: Row = {name: settings[name] for name in ("stage", "activation", "norm", "rate")}
        where |= {"variant": _named(where), "seed": cell.seed, "images": len(x)}
        if settings["norm"] == LOGISTIC:
            return [{**where, **logistic(splits)}]
        model = network(settings).to(device)
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        optimizer = torch.optim.SGD(
            model.parameters(),
            lr=settings["rate"],
            momentum=0.9,
            weight_decay=settings["weight_decay"],
            nesterov=True,
        )
        steps = -(-len(x) // settings["batch"])  # of an epoch
        schedule = cosine_decay(optimizer, settings["epochs"] * steps, warmup=settings["warmup_epochs"] * steps)

        def epoch(number: int) -> list[Row]:
            model.train()
            losses = []
            for batch in shuffled(len(x), settings["batch"]):
                images = mirrored(x[batch]).contiguous(memory_format=torch.channels_last)
                losses.append(descend(cross_entropy(model(images), y[batch]), optimizer, schedule))
            return [{**where, "epoch": number + 1, "loss": float(np.mean(losses))}]

        rows = train(state, (model, optimizer, schedule), settings["epochs"], epoch)
        return [*rows[:-1], rows[-1] | scored(model, splits, tested=settings["stage"] == JUDGING)]

    def findings(self, settings: Settings, rows: Sequence[Row]) -> list[Finding]:
        last = [row for row in rows_where(rows, stage=JUDGING) if "test_accuracy" in row]
        images, test_images = (max(int(row[name] or 0) for row in last) for name in ("images", "test_images"))
        differences = self.differences(
            settings,
            rows,
            f"trained on {images:,} and tested on {test_images:,} images of CIFAR-10, at {settings['side']} pixels a "
            "side; the paper's networks, training and figures are not known here",
            *best_at_an_end(last, settings["learning_rates"]),
        )
        return decided([self._compared(last, test_images, *question) for question in QUESTIONS], differences)

    def _compared(
        self, last: Sequence[Row], test_images: int, activation: str, one: str, other: str, paper: str
    ) -> Compared:
        def accuracy(norm: str) -> list[float]:
            return [100 * value for value in column(last, "test_accuracy", activation=activation, norm=norm)]

        def hits(norm: str) -> list[str]:
            chosen_rows = rows_where(last, activation=activation, norm=norm)
            return [str(row["hits"]) for row in sorted(chosen_rows, key=lambda row: int(row["seed"] or 0))]

        baseline, against = accuracy(other), hits(other)
        if other == LOGISTIC:
            baseline, against = baseline * len(accuracy(one)), against * len(accuracy(one))
        better = paired_difference(accuracy(one), baseline)
        named = (*NORMS, LOGISTIC) if activation == WITHOUT else NORMS
        means = ", ".join(f"{norm} {np.mean(accuracy(norm)):.1f}%" for norm in named)
        return Compared(
            f"{activation}, {one} classifies better than {other}",
            paper,
            f"{means}; better by {better}{POINTS}{images_too(hits(one), against, test_images)}",
            better,
            unit=POINTS,
        )

    def pictures(self, settings: Settings, rows: Sequence[Row]) -> "dict[str, Figure]":
        from matplotlib.figure import Figure

        figure = Figure(figsize=(12, 7), dpi=150, layout="constrained")
        for pair, activation in zip(figure.subplots(2, 2), ACTIVATIONS, strict=True):
            judging = rows_where(rows, stage=JUDGING, activation=activation)
            for number, norm in enumerate(NORMS):
                draw_curve(pair[0], rows_where(judging, norm=norm), "epoch", "loss", norm)
                values = column(judging, "test_accuracy", norm=norm)
                pair[1].plot([number] * len(values), values, "o", alpha=0.7)
                pair[1].plot([number - 0.2, number + 0.2], [np.mean(values)] * 2, color="black")
            if activation == WITHOUT:
                height = mean_interval(column(judging, "test_accuracy", norm=LOGISTIC)).mean
                pair[1].axhline(height, color="gray", linestyle="--", label=LOGISTIC)
                pair[1].legend(fontsize=8)
            pair[0].set(title=activation, xlabel="epochs", ylabel="training loss")
            pair[0].legend(fontsize=8)
            pair[1].set(title=activation, ylabel="test accuracy, one point a seed")
            pair[1].set_xticks(range(len(NORMS)), [norm.replace(" of ", "\n") for norm in NORMS], fontsize=8)
            for ax in pair:
                ax.grid(alpha=0.3)
        figure.suptitle(f"A small residual network on CIFAR-10: {BANDS}")
        return {"conv-net": figure}


def network(settings: Settings) -> nn.Module:
    """Stages of residual blocks, each of half the side of the one before; the mean over space is classified."""
    norm, activation, widths = settings["norm"], settings["activation"], settings["widths"]
    blocks: list[nn.Module] = []
    before = widths[0]
    for channels in widths:
        for _ in range(settings["blocks"]):
            blocks.append(Residual(before, channels, norm, activation))
            before = channels
    return nn.Sequential(
        nn.Conv2d(3, widths[0], 3, 1, 1, bias=False),
        normed(norm, widths[0]),
        acting(activation),
        *blocks,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(widths[-1], CLASSES),
    )


def normed(norm: str, channels: int) -> nn.Module:
    if norm == BN:
        return nn.BatchNorm2d(channels)
    if norm == POOLED:
        return nn.GroupNorm(channels // CHANNELS[norm], channels)
    return Norm(channels, groups=channels // CHANNELS.get(norm, channels), axis=1)


def acting(activation: str) -> nn.Module:
    return nn.ReLU() if activation == WITH else nn.Identity()


def smaller(images: Tensor, side: int) -> Tensor:
    return adaptive_avg_pool2d(images, side) if images.shape[-1] > side else images


def mirrored(images: Tensor) -> Tensor:
    """Half of the images, at random, mirrored."""
    turned = (torch.rand(len(images)) < 0.5).to(images.device)
    return torch.where(turned[:, None, None, None], images.flip(-1), images)


def logistic(splits: Splits) -> Row:
    """Logistic regression on the pixels of the images and their mirror images, its penalty chosen as all else is."""
    x, y = splits.training
    given = torch.cat([x, x.flip(-1)]).flatten(1).double().cpu().numpy()
    labels = torch.cat([y, y]).cpu().numpy()
    held_out, test = (part.x.flatten(1).double().cpu().numpy() for part in splits[1:])
    goals, answers = (part.y.cpu().numpy() for part in splits[1:])
    found = [least_loss_map(given, labels, CLASSES, penalty, FLAT) for penalty in PENALTIES]
    accuracies = [float((each.scores(held_out).argmax(axis=1) == goals).mean()) for each in found]
    best = int(np.argmax(accuracies))
    right = found[best].scores(test).argmax(axis=1) == answers
    return {
        "penalty": PENALTIES[best],
        "validation_accuracy": accuracies[best],
        "test_accuracy": float(right.mean()),
        "test_images": len(right),
        "hits": packed(right),
    }


def _networks() -> list[dict[str, Any]]:
    return [{"activation": activation, "norm": norm} for activation in ACTIVATIONS for norm in NORMS]


def best_at_an_end(rows: Sequence[Row], rates: Sequence[float]) -> list[str]:
    """How many networks were best with the smallest or largest learning rate: others beyond might be better."""
    best = {_named(row): row["rate"] for row in rows if row["norm"] != LOGISTIC}
    at_an_end = sum(rate in (min(rates), max(rates)) for rate in best.values())
    if len(rates) == 1 or not at_an_end:
        return []
    return [
        f"the best of the learning rates was the smallest or the largest, {min(rates):g} or {max(rates):g}, for "
        f"{at_an_end} of {len(best)} networks"
    ]


def _named(row: Row) -> str:
    return f"{row['norm']}, {row['activation']}"
