"""One family of norms: project, then scale, then affine, inside each of g groups of c = N/g channels.

    project   z = x − mean(x)                       (Πx, Π = I − 11ᵀ/c)
    scale     s = z / r,   r = sqrt(mean(z²) + ε)   (|s| ≤ √c, with equality iff ε = 0)
    affine    y = gain · s + bias                   (over all N channels)

LayerNorm has all three steps in one group, RMSNorm [1] leaves out the first, LN-G [2] has several groups, and the
ablations of [3] keep only the projection or only the scaling.

[1] Zhang and Sennrich, Root Mean Square Layer Normalization, NeurIPS 2019.
[2] Ni et al., On the Nonlinearity of Layer Normalization, ICML 2024.
[3] Brody et al., On the Expressivity Role of LayerNorm in Transformers' Attention, ACL Findings 2023.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from normscope.checks import Floats, as_count, as_floats, as_vectors, frozen
from normscope.errors import InputError

if TYPE_CHECKING:
    from normscope.geometry import Ellipsoid, Neighbourhood


@dataclass(frozen=True, init=False, eq=False, repr=False)
class Norm:
    """A normalization layer as a value, applied to float64 arrays of shape (..., N).

    Parameters
    ----------
    gain
        The gain of each channel, (N,).
    bias
        The bias of each channel, (N,); zero by default.
    eps
        Added to the mean square before the root.
    project, scale
        False leaves out the step: project=False gives RMSNorm, scale=False the projection alone.
    groups
        The number of groups of channels that are normalized separately; must divide N.

    >>> norm = Norm(gain=[1, 2, 3], eps=0)
    >>> norm([5, 5, 8]).round(4)
    array([-0.7071, -1.4142,  4.2426])
    >>> norm.ellipsoid.lengths.round(4)
    array([4.5826, 2.6458])

    A constant input has nothing left after the projection. With eps = 0, where the scale step would divide zero by
    zero, its output is the bias: the limit of eps → 0.
    """

    gain: Floats
    bias: Floats
    eps: float
    projects: bool
    scales: bool
    groups: int

    def __init__(
        self,
        *,
        gain: ArrayLike,
        bias: ArrayLike | None = None,
        eps: float = 1e-5,
        project: bool = True,
        scale: bool = True,
        groups: int = 1,
    ) -> None:
        channels = as_floats(gain, "gain")
        if channels.ndim != 1 or not len(channels):
            raise InputError(f"gain must be a vector of one or more channels, got shape {channels.shape}")
        shift = np.zeros(len(channels)) if bias is None else as_floats(bias, "bias")
        if shift.shape != channels.shape:
            raise InputError(f"bias must have the shape of gain, {channels.shape}, got {shift.shape}")
        groups = as_count(groups, "groups", least=1)
        if len(channels) % groups:
            raise InputError(
                f"groups must divide the number of channels, got {groups} groups of {len(channels)} channels"
            )
        floor = as_floats(eps, "eps")
        if floor.ndim or floor < 0:
            raise InputError(f"eps must be one number, 0 or more, got {eps!r}")
        for name, flag in (("project", project), ("scale", scale)):
            if not isinstance(flag, (bool, np.bool_)):
                raise InputError(f"{name} must be True or False, got {flag!r}")
        for name, value in (
            ("gain", frozen(channels)),
            ("bias", frozen(shift)),
            ("eps", float(floor)),
            ("projects", bool(project)),
            ("scales", bool(scale)),
            ("groups", groups),
        ):
            object.__setattr__(self, name, value)

    @property
    def size(self) -> int:
        """N, the number of channels."""
        return len(self.gain)

    @property
    def kind(self) -> str:
        """The name of this member of the family: layernorm, lng, rmsnorm, projection, or affine (neither step)."""
        if self.scales:
            return ("layernorm" if self.groups == 1 else "lng") if self.projects else "rmsnorm"
        return "projection" if self.projects else "affine"

    @cached_property
    def ellipsoid(self) -> Ellipsoid:
        """The set that the outputs fill."""
        from normscope.geometry import ellipsoid_of

        return ellipsoid_of(self)

    def __call__(self, x: ArrayLike) -> Floats:
        return self.affine(self.scale(self.project(x)))

    def project(self, x: ArrayLike) -> Floats:
        """x minus the mean of its group; x itself where the norm does not project."""
        x = as_vectors(x, "x", self.size)
        return self._join(_centred(self._split(x))) if self.projects else x.copy()

    def scale(self, x: ArrayLike) -> Floats:
        """x over the root mean square of its group (with eps); x itself where the norm does not scale."""
        x = as_vectors(x, "x", self.size)
        return self._join(_scaled(self._split(x), self.eps)[0]) if self.scales else x.copy()

    def affine(self, x: ArrayLike) -> Floats:
        """gain · x + bias."""
        return self.gain * as_vectors(x, "x", self.size) + self.bias

    def nearness(self, x: ArrayLike) -> Floats:
        """How close the output for x is to the surface of its ellipsoid, group by group, (..., groups): 1 is on it.

            |Πx| / sqrt(|Πx|² + cε)

        >>> Norm(gain=[1, 1], eps=3).nearness([-1, 1])
        array([0.5])
        """
        if not self.scales:
            raise InputError(
                "nearness needs a norm that scales: without scaling, outputs are unbounded and have no surface"
            )
        scaled, _ = _scaled(self._split(self.project(x)), self.eps)
        nearness: Floats = np.minimum(1.0, np.sqrt(np.mean(scaled**2, axis=-1)))
        return nearness

    def jvp(self, x: ArrayLike, tangent: ArrayLike) -> Floats:
        """The Jacobian at x times a tangent: G (I − ssᵀ/c) Π t / r, in O(N).

        >>> norm = Norm(gain=[1, 1, 1], eps=0)
        >>> norm.jvp([-1, 0, 1], [1, -2, 1]).round(4)  # sideways; along the input itself nothing would change
        array([ 1.2247, -2.4495,  1.2247])
        """
        direction = as_vectors(tangent, "tangent", self.size)
        return self.gain * self._join(self._bend(x, self._split(self.project(direction))))

    def vjp(self, x: ArrayLike, cotangent: ArrayLike) -> Floats:
        """A cotangent times the Jacobian at x: Π (I − ssᵀ/c) G w / r, in O(N)."""
        weights = as_vectors(cotangent, "cotangent", self.size)
        return self.project(self._join(self._bend(x, self._split(self.gain * weights))))

    def singular_values(self, x: ArrayLike) -> Floats:
        """All N singular values of the Jacobian at one point x, descending, without forming it.

        >>> Norm(gain=[2, 2, 2], eps=0).singular_values([-1, 0, 1]).round(4)
        array([2.4495, 0.    , 0.    ])
        """
        from normscope.geometry.jacobian import singular_values

        x = as_vectors(x, "x", self.size)
        if x.ndim != 1:
            raise InputError(f"singular_values takes one point of {self.size} channels, got shape {x.shape}")
        scaled, root = self._scaled_at(x)
        return singular_values(self, scaled, root[..., 0])

    def around(self, x: ArrayLike, radius: float) -> Neighbourhood:
        """The set of outputs for all inputs within a radius of one point x, measured by the Euclidean length.

        >>> norm = Norm(gain=[1, 1, 1], eps=0)
        >>> near = norm.around([-1, 0, 1], radius=0.1)
        >>> float(near.support([0, 0, 1]).round(4)), float(norm([-1, 0, 1])[2].round(4))
        (1.2717, 1.2247)
        """
        from normscope.geometry import Neighbourhood

        return Neighbourhood(self, x, radius)

    def _bend(self, x: ArrayLike, direction: Floats) -> Floats:
        """The derivative of the scale step at x, applied to a direction given group by group."""
        if not self.scales:
            return direction
        scaled, root = self._scaled_at(x)
        along = np.sum(scaled * direction, axis=-1, keepdims=True) / scaled.shape[-1]
        bent: Floats = (direction - scaled * along) / root
        return bent

    def _scaled_at(self, x: ArrayLike) -> tuple[Floats, Floats]:
        """The scale step's output and its divisor at x, group by group: (..., g, c), (..., g, 1)."""
        projected = self._split(self.project(x))
        if not self.scales:
            return projected, np.ones((*projected.shape[:-1], 1))
        scaled, root = _scaled(projected, self.eps)
        if not root.all():
            what = "constant" if self.projects else "zero"
            raise InputError(
                f"the norm has no derivative here: x is {what} in a group and eps is 0; use eps > 0 or move x"
            )
        return scaled, root

    def _split(self, x: Floats) -> Floats:
        return x.reshape(*x.shape[:-1], self.groups, self.size // self.groups)

    def _join(self, grouped: Floats) -> Floats:
        return grouped.reshape(*grouped.shape[:-2], self.size)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Norm) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[Any, ...]:
        # adding 0.0 makes −0.0 and 0.0, which are equal, the same bytes
        return (
            (self.gain + 0.0).tobytes(),
            (self.bias + 0.0).tobytes(),
            self.eps,
            self.projects,
            self.scales,
            self.groups,
        )

    def __reduce__(self) -> tuple[Any, ...]:
        build = partial(
            Norm,
            gain=self.gain,
            bias=self.bias,
            eps=self.eps,
            project=self.projects,
            scale=self.scales,
            groups=self.groups,
        )
        return build, ()  # through the constructor, so that a copy is read-only too

    def __repr__(self) -> str:
        grouped = f", groups={self.groups}" if self.groups > 1 else ""
        return f"Norm({self.kind}, size={self.size}{grouped}, eps={self.eps:g})"


def _centred(x: Floats) -> Floats:
    """x minus its mean over the last axis, right for any input below half of the largest float."""
    unit, exponent = _in_units(np.max(np.abs(x), axis=-1, keepdims=True), x)
    # Subtracting a sample first keeps what differs when the mean is far larger than the differences.
    shifted = unit - unit[..., :1]
    centred: Floats = np.ldexp(shifted - np.mean(shifted, axis=-1, keepdims=True), exponent)
    return centred


def _scaled(z: Floats, eps: float) -> tuple[Floats, Floats]:
    """z / r over the last axis, and r = sqrt(mean(z²) + eps); zero stays zero where r = 0."""
    largest = np.maximum(np.max(np.abs(z), axis=-1, keepdims=True), np.sqrt(eps))
    unit, exponent = _in_units(largest, z)
    root = np.sqrt(np.mean(unit**2, axis=-1, keepdims=True) + np.ldexp(eps, -2 * exponent))
    return unit / np.where(root == 0.0, 1.0, root), np.ldexp(root, exponent)


def _in_units(largest: Floats, x: Floats) -> tuple[Floats, Any]:
    """x in units of the power of two above `largest`, so that its square can neither overflow nor vanish."""
    _, exponent = np.frexp(largest)
    return np.ldexp(x, -exponent), exponent
