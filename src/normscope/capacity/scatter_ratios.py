"""Sum-of-squares ratios: how tightly classes cluster, and how tightly a linear map could make them.

    SSR  = tr S_w / tr S_t                      within-class over total scatter
    LSSR = min over linear A of SSR(A X)        = smallest generalised eigenvalue of (S_w, S_t)

No linear network goes below LSSR; one LayerNorm can [1].

With W the samples minus the means of their classes and B the rows √(class size)·(class mean − mean), S_w = WᵀW and
S_t = KᵀK for K = [W; B]. Neither is formed, so small ratios keep their digits: W is reduced to its triangular factor,
K = P S Vᵀ, and LSSR is σ_min² of those rows of P that belong to W; near 1 it is taken from 1 − σ_max² of the others.

Directions in which the samples differ by no more than rounding error are ignored: they would count as
much as any other. Float32 samples are taken to be rounded to float32, all others to float64.

W has rank m − C at most for m samples in C classes. Where the samples have a larger rank, some linear map takes every
class to one point for any labels: LSSR is trivially 0, and says nothing about the classes.

[1] Ni et al., On the Nonlinearity of Layer Normalization, ICML 2024.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from normscope.checks import Floats, as_floats
from normscope.errors import InputError

BLOCK = 2**20  # values processed at a time: 8 MB
ROUNDINGS = 4  # how many times a sample may have been rounded before


class CoincidingSamplesError(InputError):
    """All samples are the same: there is no scatter to compare."""


@dataclass(frozen=True)
class Scatter:
    """How samples of several classes are scattered."""

    samples: int
    classes: int
    rank: int  # of the samples, minus their mean
    ssr: float
    lssr: float
    trivial: bool  # whether LSSR is 0 for any labels: samples < rank + classes


def scatter(samples: ArrayLike, labels: ArrayLike) -> Scatter:
    """SSR and LSSR of labelled samples: how tightly classes cluster, and how tightly a linear map could make them.

    Parameters
    ----------
    samples
        Numbers, one row per sample.
    labels
        One per sample; two classes or more.

    Returns
    -------
    Scatter
        The share of the scatter that is within classes (SSR: 0 is perfectly clustered, 1 is no class structure), the
        least share that any linear map reaches (LSSR), the rank of the samples, and whether LSSR is trivially 0.

    >>> xor = [[0, 0], [1, 1], [0, 1], [1, 0]]
    >>> scatter(xor, [0, 0, 1, 1]).lssr
    1.0
    >>> scatter([[0, 0], [2, 0], [0, 3]], ["a", "a", "b"])
    Scatter(samples=3, classes=2, rank=2, ssr=0.23076923076923078, lssr=0.0, trivial=True)
    """
    classes = _Classes(samples, labels)
    count, channels = len(classes.between), classes.between.shape[1]
    within = np.empty((0, channels))
    for rows in classes.within():
        within = _triangle(np.concatenate([within, rows]))
    between = classes.between if count <= channels else _triangle(classes.between)
    whole = np.concatenate([within, between])
    # Channels in units of their samples, deviations and mean: then rounding noise is about the same in each.
    sizes = np.sqrt(np.einsum("ij,ij->j", whole, whole) + classes.samples * classes.mean**2)
    left, strengths, _ = np.linalg.svd(whole / sizes, full_matrices=False)
    noise = ROUNDINGS * classes.precision * np.sqrt(channels)
    ours = max(classes.samples, channels) * np.finfo(float).eps * strengths[0]
    rank = int(np.count_nonzero(strengths > max(noise, ours)))
    if not rank:
        raise CoincidingSamplesError("samples must not all coincide up to rounding: there is no scatter to compare")
    share = _ratio(np.einsum("ij,ij->j", within, within), classes)
    if classes.samples < rank + count:
        return Scatter(classes.samples, count, rank, share, lssr=0.0, trivial=True)
    least = float(np.linalg.svd(left[: len(within), :rank], compute_uv=False)[-1] ** 2)
    if least > 0.5:
        least = 1 - min(1.0, float(np.linalg.svd(left[len(within) :, :rank], compute_uv=False)[0] ** 2))
    return Scatter(classes.samples, count, rank, share, least, trivial=False)


class _Classes:
    """Labelled samples, checked. Constant channels are dropped, the others scaled to the same size by powers of two.

    LSSR does not depend on this scaling, and nothing overflows.
    """

    def __init__(self, samples: ArrayLike, labels: ArrayLike) -> None:
        self.precision = _precision(samples)
        self._x = as_floats(samples, "samples")
        if self._x.ndim != 2 or not self._x.size:
            raise InputError(f"samples must be a matrix (one row per sample), got shape {self._x.shape}")
        self._y, sizes = class_numbers(labels, len(self._x))
        low, high = self._x.min(axis=0), self._x.max(axis=0)
        self._live = np.flatnonzero(low < high)
        if not len(self._live):
            raise CoincidingSamplesError("samples must not all coincide: there is no scatter to compare")
        low, high = low[self._live], high[self._live]
        self._middle = low / 2 + high / 2
        self.units = np.ldexp(1.0, np.frexp(high / 2 - low / 2)[1])
        sums = np.zeros((len(sizes), len(self._live)))
        for rows, y in self._blocks():
            order = np.argsort(y, kind="stable")
            present, starts = np.unique(y[order], return_index=True)
            sums[present] += np.add.reduceat(rows[order], starts)
        self.samples = len(self._x)
        centre = sums.sum(axis=0) / self.samples
        self.mean = self._middle / self.units + centre
        self._means = sums / sizes[:, None]
        self.between = np.sqrt(sizes)[:, None] * (self._means - centre)

    def within(self) -> Iterator[Floats]:
        """Samples minus the mean of their class, a block of rows at a time."""
        for rows, y in self._blocks():
            yield rows - self._means[y]

    def _blocks(self) -> Iterator[tuple[Floats, NDArray[np.intp]]]:
        channels = len(self._live)
        step = max(4 * channels, BLOCK // channels)  # many times as many rows as channels make a quick factorisation
        whole = channels == self._x.shape[1]
        for start in range(0, len(self._x), step):
            rows = self._x[start : start + step]
            chosen = rows if whole else rows[:, self._live]
            yield (chosen - self._middle) / self.units, self._y[start : start + step]


def _precision(samples: ArrayLike) -> float:
    """Relative rounding of the samples: that of float32 if they come in float32 or less, else that of float64."""
    dtype: Any = getattr(samples, "dtype", None)
    is_float = getattr(dtype, "is_floating_point", getattr(dtype, "kind", None) == "f")  # of torch, or of numpy
    return float(np.finfo(np.float32 if is_float and dtype.itemsize <= 4 else np.float64).eps)


def _triangle(rows: Floats) -> Floats:
    """R of rows = QR: as many rows as channels, or fewer, with the same scatter."""
    triangle: Floats = np.asarray(np.linalg.qr(rows, mode="r"))
    return triangle


def _ratio(within: Floats, classes: _Classes) -> float:
    """SSR, from the scatter within classes of each channel."""
    relative = (classes.units / classes.units.max()) ** 2
    inside = float(within @ relative)
    return inside / (inside + float(np.einsum("ij,ij->j", classes.between, classes.between) @ relative))


def class_numbers(labels: ArrayLike, samples: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """The class of each sample as a number from 0 on, and the sizes of the classes.

    >>> class_numbers(["b", "a", "b"], samples=3)
    (array([1, 0, 1]), array([1, 2]))
    """
    if hasattr(labels, "detach"):  # a torch tensor
        labels = labels.detach().cpu().numpy()
    names = np.asarray(labels)
    if names.shape != (samples,):
        raise InputError(f"labels must be one per sample, {samples} in all, got shape {names.shape}")
    try:
        _, numbers, sizes = np.unique(names, return_inverse=True, return_counts=True)
    except TypeError as error:
        raise InputError(f"labels must be of one kind, all numbers or all strings: {error}") from None
    if len(sizes) < 2:
        raise InputError(f"labels must name two or more classes, got {len(sizes)}")
    return numbers, sizes
