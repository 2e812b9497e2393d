"""Images to train on, to choose settings with, and to test with; what a network gets right, image by image.

Hits are kept for every test image, so that images can count as a sample as well as seeds: an interval over seeds alone
holds for the one test set that was used.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad

from normscope.errors import InputError
from normscope_lab.engine.statistics import LEVEL, Interval, mean_interval
from normscope_lab.engine.tidy_rows import Row
from normscope_lab.loaders.images import read_images
from normscope_lab.training.training_loop import hits, in_parts

CLASSES, SIDE = 10, 32  # of CIFAR-10
MEAN, DEVIATION = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)  # of its channels
MARGIN = 4  # pixels around an image before it is cropped
LARGEST_SHARE = 5  # at most a fifth of the training images is kept to choose settings with
HEXADECIMAL = "0x"  # begins what is packed, so that no reader takes it for a number


class Labelled(NamedTuple):
    """Images (samples, 3, 32, 32) and their labels."""

    x: Tensor
    y: Tensor


class Splits(NamedTuple):
    """The first training images, the last of them, which are not trained on, and the test images."""

    training: Labelled
    validation: Labelled
    test: Labelled


def cifar_splits(folder: Path, images: int, validation: int, device: torch.device) -> Splits:
    """CIFAR-10, of its training images the first `images` to train on and the last `validation` to choose with."""
    found = read_images(folder)
    if found.x_train.shape[1:] != (3, SIDE, SIDE):
        raise InputError(f"images must be those of CIFAR-10, 3 × {SIDE} × {SIDE}, got {found.x_train.shape[1:]}")
    total = len(found.x_train)
    kept = min(validation, max(1, total // LARGEST_SHARE))
    count = min(images, total - kept)
    parts = (
        (found.x_train[:count], found.y_train[:count]),
        (found.x_train[total - kept :], found.y_train[total - kept :]),
        (found.x_test, found.y_test),
    )
    return Splits(
        *(Labelled(standard(x).to(device), torch.from_numpy(y.astype(np.int64)).to(device)) for x, y in parts)
    )


def standard(images: NDArray[np.uint8]) -> Tensor:
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


def scored(model: nn.Module, splits: Splits, *, tested: bool) -> Row:
    """Accuracy and loss on the validation images and, if it is to be tested, on the test images, with every hit."""
    right, loss = _right(model, splits.validation)
    row: Row = {"validation_accuracy": right.mean().item(), "validation_loss": loss}
    if tested:
        right, loss = _right(model, splits.test)
        row |= {"test_accuracy": right.mean().item(), "test_loss": loss, "test_images": len(right)}
        row["hits"] = packed(right.cpu().numpy() == 1)
    return row


@torch.no_grad()
def _right(model: nn.Module, images: Labelled) -> tuple[Tensor, float]:
    model.eval()
    scores = [(model(part), target) for part, target in in_parts(images.x, images.y, 500)]
    loss = sum(cross_entropy(score, target, reduction="sum").item() for score, target in scores) / len(images.y)
    return torch.cat([hits(score, target) for score, target in scores]), loss


def packed(right: NDArray[np.bool_]) -> str:
    """Hits as hexadecimal digits, eight to a byte.

    >>> packed(np.array([True, False, True]))
    '0xa0'
    """
    return HEXADECIMAL + np.packbits(right).tobytes().hex()


def unpacked(text: str, count: int) -> NDArray[np.bool_]:
    """The hits that were packed.

    >>> unpacked("0xa0", 3).tolist()
    [True, False, True]
    """
    raw = np.frombuffer(bytes.fromhex(text.removeprefix(HEXADECIMAL)), np.uint8)
    return np.unpackbits(raw, count=count).astype(bool)


def images_too(one: Sequence[str], other: Sequence[str], count: int) -> str:
    """The interval of a difference over seeds and images, in words."""
    both = over_images(one, other, count)
    return f" ([{both.low:.3g}, {both.high:.3g}] over images too)" if both.count > 1 else ""


def over_images(one: Sequence[str], other: Sequence[str], count: int) -> Interval:
    """The 95% interval of a difference in accuracy, in points, if the images tested are a sample as well as the seeds.

    By an analysis of variance in two ways: with n seeds and m images, and mean squares S between seeds, I between
    images and R of what is left, the mean has a variance of (S + I − R)/(nm). Student's t is taken with n − 1 degrees
    of freedom.
    """
    from scipy.stats import t

    pairs = zip(one, other, strict=True)
    apart = 100 * np.stack([unpacked(a, count).astype(float) - unpacked(b, count) for a, b in pairs])
    found = mean_interval(apart.mean(axis=1).tolist())
    if found.count < 2:
        return found
    seeds, images = apart.mean(axis=1, keepdims=True), apart.mean(axis=0, keepdims=True)
    left = apart - seeds - images + found.mean
    between_seeds = count * seeds.var(ddof=1)
    others = len(apart) * images.var(ddof=1) - np.square(left).sum() / ((len(apart) - 1) * (count - 1))
    deviation = float(np.sqrt((between_seeds + max(others, 0.0)) / count))
    reach = float(t.ppf(0.5 + LEVEL / 2, len(apart) - 1)) * deviation / np.sqrt(len(apart))
    return Interval(found.mean, found.mean - reach, found.mean + reach, len(apart), deviation)
