"""Coordinates in which most tokens win along themselves.

    y = T(p)ᵀ(point − center),   T(p) = axes · variances^(−p/2)

p = 1 makes the cloud of points round, p = 0 only turns it. Where a token is its own query, p = 1 keeps rivals farthest
apart and p = 0 scores the token highest; in between is best, where heights have to be overcome.
"""

from dataclasses import dataclass

import numpy as np

from normscope.certificates.token_table import View
from normscope.checks import Floats

NOTHING = 1e-12  # variance over the largest, that counts as none


@dataclass(frozen=True, eq=False)
class Frame:
    """Where points are, and along which axes they spread how much."""

    center: Floats  # (N,)
    axes: Floats  # (N, r)
    variances: Floats  # (r,), descending

    @property
    def scale(self) -> float:
        """The largest standard deviation: coordinates and heights are measured in it."""
        return float(np.sqrt(self.variances[0]))

    def map(self, power: float) -> Floats:
        """T(p), in units that give the first coordinate a variance of 1: (N, r)."""
        relative = self.variances / self.variances[0]
        return np.asarray(self.axes * (relative ** (-power / 2) / self.scale))


def frame_of(view: View) -> Frame:
    """Center and principal axes of the points of a view; directions in which they do not spread are left out."""
    total = np.zeros(view.table.channels)
    for part in view.parts():
        total += view.points(part).sum(axis=0)
    center = total / len(view)
    scatter = np.zeros((len(center), len(center)))
    for part in view.parts():
        centred = view.points(part) - center
        scatter += centred.T @ centred
    variances, axes = np.linalg.eigh(scatter / len(view))
    kept = np.flatnonzero(variances > NOTHING * max(variances[-1], 0.0))[::-1]
    if not len(kept):  # all points coincide
        return Frame(center, axes[:, :1].copy(), np.ones(1))
    return Frame(center, np.ascontiguousarray(axes[:, kept]), variances[kept])
