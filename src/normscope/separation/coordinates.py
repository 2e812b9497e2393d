"""The same question in better coordinates.

Which keys can win does not change under an affine map that is injective on the keys, so they are centred, every channel
is scaled by a power of two, and a linear map T gives them the covariance 1: z = cT. A direction v among the z is the
direction Tv among the c.

A bias is one more channel, whose weight t in a query must be positive. That is one more generator of the cone to be
separated from 0: the ray −e along that channel. If the keys leave the ray outside their span (a constant bias, or one
that is affine in the keys), t is free, and the ray imposes no condition.

All this is done for many sets at once, and a single set is a batch of one, so that a verdict does not depend on the
rest of its batch. Sets come in groups of equal rank, because points of a group share one array.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from normscope.certificates.key_certificates import Ints
from normscope.checks import Floats

OUTSIDE = 1e-6  # |e − its projection on the span of the keys| above which the ray is free


@dataclass(frozen=True, eq=False)
class Whitened:
    """Sets (m, n, D) of distinct keys of rank r, with their bias as last channel if they have one, made round.

    A set alone has no axis of sets: all arrays without their first axis.
    """

    numbers: Ints  # (m,): which sets these are
    centred: Floats  # (m, n, D): channels in [−1, 1]
    exponents: Ints  # (m, D): the powers of two by which channels were divided
    biased: bool
    points: Floats  # z: (m, n, r)
    back: Floats  # T: (m, D, r)
    ray: Floats | None  # (m, r), of the size of a typical point; None if it imposes no condition
    tilt: Floats | None  # (m, D): a direction that all keys score equally and in which t grows

    @cached_property
    def longest(self) -> Floats:
        return np.asarray(np.sqrt(np.einsum("...j,...j->...", self.points, self.points).max(axis=-1)))

    def noise(self, some: Ints) -> Floats:
        """How far rounding may move a point of some of the sets, over the longest: much, if the map blows up a weak
        direction."""
        rounding = 32 * (self.centred.shape[-1] + 4) * 2.0**-53
        stretch = np.linalg.norm(self.back[some], 2, axis=(-2, -1))
        lengths = np.linalg.norm(self.centred[some], axis=-1).max(axis=-1)
        return np.asarray(rounding * stretch * lengths / self.longest[some])

    @cached_property
    def is_flat(self) -> NDArray[np.bool_]:
        """Whether the keys leave out a direction, as far as rounding lets see; constant channels do not count."""
        return np.asarray(self.points.shape[-1] < np.count_nonzero(self.centred.any(axis=-2), axis=-1))

    def queries(self, directions: Floats) -> Floats:
        """Queries (m, a, D) for the original keys from directions (m, a, r): of unit length, or with t = 1."""
        among_centred = directions @ np.swapaxes(self.back, -1, -2)
        if self.tilt is not None:
            lacking = np.linalg.norm(among_centred, axis=-1) - among_centred[..., -1]
            among_centred += (lacking / self.tilt[..., -1:])[..., None] * self.tilt[..., None, :]
        return self.unscaled(among_centred)

    def unscaled(self, directions: Floats) -> Floats:
        """Queries for the original keys from directions among the centred ones."""
        exponents = self.exponents[..., None, :]
        with np.errstate(all="ignore"):  # overflow fails the check
            if self.biased:
                return np.asarray(np.ldexp(directions / directions[..., -1:], exponents[..., -1:] - exponents))
            mantissa, power = np.frexp(directions)
            power = np.where(mantissa != 0, power - exponents, -(2**40))
            sized = np.ldexp(mantissa, np.clip(power - power.max(axis=-1, keepdims=True), -5000, 0))
            return np.asarray(sized / np.linalg.norm(sized, axis=-1, keepdims=True))

    def alone(self, place: int) -> "Whitened":
        """One of the sets, by its place in the group."""
        ray, tilt = (None if part is None else part[place] for part in (self.ray, self.tilt))
        parts = (self.numbers[place], self.centred[place], self.exponents[place], self.biased)
        return Whitened(*parts, self.points[place], self.back[place], ray, tilt)


def whiten(keys: Floats, biased: bool) -> Whitened:
    """Round coordinates for one set of distinct keys (n, D), n ≥ 2."""
    return next(whiten_sets(keys[None], biased)).alone(0)


def whiten_sets(keys: Floats, biased: bool, *, weakest: float = 0.0) -> Iterator[Whitened]:
    """Round coordinates for sets of distinct keys (m, n, D), n ≥ 2, without directions whose spread is below weakest
    times the largest.

    >>> squares = np.array([[[0.0, 0], [0, 2], [2, 0], [2, 2]], [[0, 0], [1, 1], [2, 2], [3, 3]]])
    >>> [(whitened.numbers, whitened.points.shape) for whitened in whiten_sets(squares, False)]
    [(array([0]), (1, 4, 2)), (array([1]), (1, 4, 1))]
    """
    centred, exponents = _centred(keys)
    for numbers, back, basis in _whitening_maps(centred, weakest):
        away = _away(basis) if biased else None
        is_free = np.zeros(len(numbers), bool) if away is None else np.linalg.norm(away, axis=1) > OUTSIDE
        for free in (False, True):
            some = np.flatnonzero(is_free == free)
            if not len(some):
                continue
            named, map_back = numbers[some], _taken(back, some)
            ray, tilt = None if free or not biased else _ray(map_back), None if away is None or not free else away[some]
            mine = _taken(centred, named)
            points = np.ascontiguousarray(mine @ map_back)
            yield Whitened(named, mine, exponents[named], biased, points, map_back, ray, tilt)


def _taken(array: Floats, some: Ints) -> Floats:
    """array[some], for ascending numbers; not a copy if that is all of it."""
    return array if len(some) == len(array) else np.asarray(array[some])


def _centred(sets: Floats) -> tuple[Floats, Ints]:
    first = _exponents(sets)
    scaled = np.ldexp(sets, -first[:, None])
    scaled -= scaled.mean(axis=1, keepdims=True)
    second = _exponents(scaled)
    return np.ldexp(scaled, -second[:, None]), first + second


def _exponents(values: Floats) -> Ints:
    return np.asarray(np.frexp(np.abs(values).max(axis=1))[1], np.int64)


def _whitening_maps(centred: Floats, weakest: float) -> Iterator[tuple[Ints, Floats, Floats]]:
    """Per group of sets their numbers, T (m, D, r) and orthonormal bases (m, D, r) of the spans of their keys."""
    total, count, channels = centred.shape
    is_round = np.zeros(total, bool)
    if count > channels and not weakest:
        lower = _lower_factors(centred.transpose(0, 2, 1) @ centred / count)
        pivots = np.diagonal(lower, axis1=1, axis2=2)
        is_round = pivots.min(axis=1) > 1e-5 * pivots.max(axis=1)
        if is_round.any():
            whole = np.broadcast_to(np.eye(channels), (int(is_round.sum()), channels, channels))
            yield np.flatnonzero(is_round), np.linalg.inv(lower[is_round]).transpose(0, 2, 1), whole
    rest = np.flatnonzero(~is_round)
    if not len(rest):
        return
    _, strengths, axes = np.linalg.svd(_taken(centred, rest), full_matrices=False)
    noise = max(weakest, 8 * max(count, channels) * np.finfo(float).eps)
    ranks = np.sum(strengths > noise * strengths[:, :1], axis=1)
    for rank in np.unique(ranks):
        some = np.flatnonzero(ranks == rank)
        basis = axes[some, :rank].transpose(0, 2, 1)
        yield rest[some], basis * (np.sqrt(count) / strengths[some, None, :rank]), basis


def _lower_factors(covariances: Floats) -> Floats:
    """Cholesky factors; 0 where there is none."""
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
