"""Many sets in round coordinates at once: `whiten`, with one more axis.

Sets are whitened by the same steps as one set alone, so that an answer does not depend on the company it is asked in.
They come in groups of equal rank, because points of a group share one array.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from normscope.certificates.key_certificates import Ints
from normscope.checks import Floats
from normscope.separation.coordinates import OUTSIDE


@dataclass(frozen=True, eq=False)
class WhitenedSets:
    """Sets of distinct keys (n, D), with their bias as last channel if they have one, all of rank r."""

    numbers: Ints  # (m,): which sets these are
    centred: Floats  # (m, n, D): channels in [−1, 1]
    exponents: Ints  # (m, D): the powers of two by which channels were divided
    biased: bool
    points: Floats  # (m, n, r)
    back: Floats  # (m, D, r)
    ray: Floats | None  # (m, r)
    tilt: Floats | None  # (m, D)

    @cached_property
    def longest(self) -> Floats:
        return np.asarray(np.sqrt(np.einsum("mij,mij->mi", self.points, self.points).max(axis=1)))

    def noise(self, some: Ints) -> Floats:
        """How far rounding may move a point of some of the sets, over the longest."""
        rounding = 32 * (self.centred.shape[2] + 4) * 2.0**-53
        stretch = np.linalg.norm(self.back[some], 2, axis=(1, 2))
        return np.asarray(
            rounding * stretch * np.linalg.norm(self.centred[some], axis=2).max(axis=1) / self.longest[some]
        )

    @cached_property
    def is_flat(self) -> NDArray[np.bool_]:
        """Whether the keys leave out a direction, as far as rounding lets see; constant channels do not count."""
        return np.asarray(self.points.shape[2] < np.count_nonzero(self.centred.any(axis=1), axis=1))

    def queries(self, directions: Floats) -> Floats:
        """Queries (m, n, D) for the original keys from directions (m, n, r): of unit length, or with t = 1."""
        among_centred = directions @ self.back.transpose(0, 2, 1)
        exponents = self.exponents[:, None]
        if self.tilt is not None:
            lacking = np.linalg.norm(among_centred, axis=2) - among_centred[..., -1]
            among_centred += (lacking / self.tilt[:, -1:])[..., None] * self.tilt[:, None]
        with np.errstate(all="ignore"):  # what leaves the range of floats fails its check
            if self.biased:
                return np.asarray(np.ldexp(among_centred / among_centred[..., -1:], exponents[..., -1:] - exponents))
            mantissa, power = np.frexp(among_centred)
            power = np.where(mantissa != 0, power - exponents, -(2**40))
            sized = np.ldexp(mantissa, np.clip(power - power.max(axis=2, keepdims=True), -5000, 0))
            return np.asarray(sized / np.linalg.norm(sized, axis=2, keepdims=True))


def whiten_sets(keys: Floats, biased: bool) -> Iterator[WhitenedSets]:
    """Round coordinates for sets of distinct keys (m, n, D), n ≥ 2.

    >>> squares = np.array([[[0.0, 0], [0, 2], [2, 0], [2, 2]], [[0, 0], [1, 1], [2, 2], [3, 3]]])
    >>> [(whitened.numbers, whitened.points.shape) for whitened in whiten_sets(squares, False)]
    [(array([0]), (1, 4, 2)), (array([1]), (1, 4, 1))]
    """
    centred, exponents = _centred(keys)
    for numbers, back, basis in _whitening_maps(centred):
        away = _away(basis) if biased else np.zeros((len(numbers), 1))
        is_free = np.linalg.norm(away, axis=1) > OUTSIDE
        for free in np.unique(is_free):
            some = np.flatnonzero(is_free == free)
            named, map_back = numbers[some], back[some]
            ray = None if free or not biased else _ray(map_back)
            points = np.ascontiguousarray(centred[named] @ map_back)
            tilt = away[some] if free else None
            yield WhitenedSets(named, centred[named], exponents[named], biased, points, map_back, ray, tilt)


def _centred(sets: Floats) -> tuple[Floats, Ints]:
    first = _exponents(sets)
    scaled = np.ldexp(sets, -first[:, None])
    scaled -= scaled.mean(axis=1, keepdims=True)
    second = _exponents(scaled)
    return np.ldexp(scaled, -second[:, None]), first + second


def _exponents(values: Floats) -> Ints:
    return np.asarray(np.frexp(np.abs(values).max(axis=1))[1], np.int64)


def _whitening_maps(centred: Floats) -> Iterator[tuple[Ints, Floats, Floats]]:
    """Per group of sets their numbers, T (m, D, r) and orthonormal bases (m, D, r) of the spans of their keys."""
    total, count, channels = centred.shape
    is_round = np.zeros(total, bool)
    if count > channels:
        lower = _lower_factors(centred.transpose(0, 2, 1) @ centred / count)
        pivots = np.diagonal(lower, axis1=1, axis2=2)
        is_round = pivots.min(axis=1) > 1e-5 * pivots.max(axis=1)
        if is_round.any():
            whole = np.broadcast_to(np.eye(channels), (int(is_round.sum()), channels, channels))
            yield np.flatnonzero(is_round), np.linalg.inv(lower[is_round]).transpose(0, 2, 1), whole
    rest = np.flatnonzero(~is_round)
    if not len(rest):
        return
    _, strengths, axes = np.linalg.svd(centred[rest], full_matrices=False)
    ranks = np.sum(strengths > 8 * max(count, channels) * np.finfo(float).eps * strengths[:, :1], axis=1)
    for rank in np.unique(ranks):
        some = np.flatnonzero(ranks == rank)
        basis = axes[some, :rank].transpose(0, 2, 1)
        yield rest[some], basis * (np.sqrt(count) / strengths[some, None, :rank]), basis


def _lower_factors(covariances: Floats) -> Floats:
    """Of Cholesky; 0 where there is none."""
    try:
        return np.asarray(np.linalg.cholesky(covariances))
    except np.linalg.LinAlgError:
        if len(covariances) == 1:
            return np.zeros_like(covariances)
        return np.concatenate([_lower_factors(covariances[a : a + 1]) for a in range(len(covariances))])


def _away(basis: Floats) -> Floats:
    """What the channel of the bias (its unit vector) has outside the span of the keys."""
    away = -(basis @ basis[:, -1, :, None])[..., 0]
    away[:, -1] += 1.0
    return away


def _ray(back: Floats) -> Floats:
    return np.asarray(-back[:, -1] * np.sqrt(back.shape[2]) / np.linalg.norm(back[:, -1], axis=1, keepdims=True))
