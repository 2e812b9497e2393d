"""The same question in better coordinates.

Which keys can win does not change under an affine map that is injective on the keys, so they are centred, every channel
is scaled by a power of two, and a linear map T gives them the covariance 1: z = cT. A direction v among the z is the
direction Tv among the c.

A bias is one more channel, whose weight t in a query must be positive. That is one more generator of the cone to be
separated from 0: the ray −e along that channel. If the keys leave the ray outside their span (a constant bias, or one
that is affine in the keys), t is free, and the ray asks for nothing.
"""

from dataclasses import dataclass

import numpy as np

from normscope.certificates.key_certificates import Ints
from normscope.checks import Floats

OUTSIDE = 1e-6  # |e − its projection on the span of the keys| above which the ray is free


@dataclass(frozen=True, eq=False)
class Whitened:
    """Distinct keys (n, D), with their bias as last channel if they have one, made round."""

    centred: Floats  # (n, D): channels in [−1, 1]
    exponents: Ints  # (D,): the powers of two by which channels were divided
    biased: bool
    points: Floats  # z: (n, r), r the rank
    back: Floats  # T: (D, r)
    ray: Floats | None  # (r,), of the size of a typical point; None if nothing is asked of it
    tilt: Floats | None  # (D,): a direction that all keys score equally and in which t grows

    def longest(self) -> float:
        return float(np.sqrt(np.einsum("ij,ij->i", self.points, self.points).max()))

    def noise(self) -> float:
        """How far rounding may move a point, over the longest: much, if the map blows up a weak direction."""
        rounding = 32 * (self.centred.shape[1] + 4) * 2.0**-53
        return float(
            rounding * np.linalg.norm(self.back, 2) * np.linalg.norm(self.centred, axis=1).max() / self.longest()
        )

    def is_flat(self) -> bool:
        """Whether the keys leave out a direction, as far as rounding lets see; constant channels do not count."""
        return bool(self.points.shape[1] < np.count_nonzero(self.centred.any(axis=0)))

    def queries(self, directions: Floats) -> Floats:
        """Queries (m, D) for the original keys from directions (m, r): of unit length, or with t = 1 if biased."""
        among_centred = directions @ self.back.T
        if self.tilt is not None:
            lacking = np.linalg.norm(among_centred, axis=1) - among_centred[:, -1]
            among_centred = among_centred + (lacking / self.tilt[-1])[:, None] * self.tilt
        return self.unscaled(among_centred)

    def unscaled(self, directions: Floats) -> Floats:
        """Queries for the original keys from directions among the centred ones."""
        with np.errstate(all="ignore"):  # what leaves the range of floats fails its check
            if self.biased:
                return np.asarray(np.ldexp(directions / directions[:, -1:], self.exponents[-1] - self.exponents))
            mantissa, power = np.frexp(directions)
            power = np.where(mantissa != 0, power - self.exponents, -(2**40))
            sized = np.ldexp(mantissa, np.clip(power - power.max(axis=1, keepdims=True), -5000, 0))
            return np.asarray(sized / np.linalg.norm(sized, axis=1, keepdims=True))


def whiten(keys: Floats, biased: bool, *, weakest: float = 0.0) -> Whitened:
    """Round coordinates for distinct keys (n, D), n ≥ 2, without directions whose spread is below weakest times the
    largest."""
    centred, exponents = _centred(keys)
    back, basis = _whitening_map(centred, weakest)
    ray, tilt = None, None
    if biased:
        away = -basis @ basis[-1]
        away[-1] += 1.0
        if np.linalg.norm(away) > OUTSIDE:
            tilt = away
        else:
            ray = -back[-1] * np.sqrt(back.shape[1]) / np.linalg.norm(back[-1])
    return Whitened(centred, exponents, biased, np.ascontiguousarray(centred @ back), back, ray, tilt)


def _centred(keys: Floats) -> tuple[Floats, Ints]:
    first = _exponents(keys)
    scaled = np.ldexp(keys, -first)
    scaled -= scaled.mean(axis=0)
    second = _exponents(scaled)
    return np.ldexp(scaled, -second), first + second


def _exponents(values: Floats) -> Ints:
    return np.asarray(np.frexp(np.abs(values).max(axis=0))[1], np.int64)


def _whitening_map(centred: Floats, weakest: float) -> tuple[Floats, Floats]:
    """T and an orthonormal basis (D, r) of the span of the keys."""
    count, channels = centred.shape
    if count > channels and not weakest:
        try:
            lower = np.linalg.cholesky(centred.T @ centred / count)
        except np.linalg.LinAlgError:
            lower = np.zeros((channels, channels))
        pivots = lower.diagonal()
        if pivots.min() > 1e-5 * pivots.max():
            return np.linalg.inv(lower).T, np.eye(channels)
    _, strengths, axes = np.linalg.svd(centred, full_matrices=False)
    noise = max(weakest, 8 * max(count, channels) * np.finfo(float).eps)
    basis = axes[strengths > noise * strengths[0]].T
    return basis * (np.sqrt(count) / strengths[: basis.shape[1]]), basis
