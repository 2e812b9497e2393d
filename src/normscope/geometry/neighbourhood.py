"""The outputs of a norm for all inputs within a radius of one point: what a linear reader can see of them, exactly.

    sup w·y = w·b + √c · |v| · max { v̂·z/√(|z|² + cε) : |z − z₀| ≤ r },     z₀ = Πx,  v = ΠGw,  v̂ = v/|v|

(Π = I where the norm does not project.) The maximum is a problem in the plane of z₀ and v: `plane_maximum.py`. Whether
a given y is an output is decided in `preimage.py`. Without the scale step the norm is linear: sup w·y = w·f(x) + r·|v|.
"""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from normscope.checks import Floats, as_vectors, frozen, quoted
from normscope.errors import InputError
from normscope.geometry.factors import length_of
from normscope.geometry.plane_maximum import PlaneMaximum, plane_maximum
from normscope.geometry.preimage import reached
from normscope.norm import Norm

ROUNDING = 1e-12  # relative error of outputs that `contains` allows for
NEARLY_ALONG = 0.01  # sin²φ below which v is split into vectors along z₀ and across it
LARGE = 1e280  # squares between 1/LARGE and LARGE are exact to the last digits
NEARLY_CONSTANT = 1e-8  # what `maximizer` leaves of an input whose limit is constant, relative to x


class Neighbourhood:
    """The outputs of a norm for all inputs a with |a − x| ≤ radius.

    Parameters
    ----------
    norm
        The norm.
    x
        One input, (N,).
    radius
        0 or more, Euclidean; infinite for all inputs.

    >>> norm = Norm(gain=[1, 2, 3], bias=[0, 0, 5])
    >>> near = norm.around([-1, 0, 2], radius=0.5)
    >>> near
    Neighbourhood(Norm(layernorm, size=3, eps=1e-05), radius 0.5, exact)
    >>> readers = np.array([[0, 0, 1], [1, -1, 0]])
    >>> near.support(readers).round(4), -near.support(-readers).round(4)  # the highest and the lowest values
    (array([9.2215, 0.3371]), array([ 8.5786, -1.3771]))
    >>> float(norm(near.maximizer([0, 0, 1]))[2].round(4))
    9.2215
    >>> near.contains(norm([[-1, 0.4, 2], [-1, 0.7, 2]]))
    array([ True, False])

    Support functions are exact for one group, and without the scale step. For several groups that scale, `support`
    gives each group the whole radius, although they share it: a bound, and `is_exact` is False. `contains` is exact
    for every norm.
    """

    def __init__(self, norm: Norm, x: ArrayLike, radius: float) -> None:
        point = as_vectors(x, "x", norm.size)
        if point.ndim != 1:
            raise InputError(f"x must be one input of {norm.size} channels, got shape {point.shape}")
        self._norm = norm
        self._x = frozen(point)
        self._radius = _nonnegative(radius, "radius")
        channels = norm.size // norm.groups
        self._start = norm.project(point).reshape(norm.groups, channels)  # z₀
        self._length = length_of(self._start)  # ρ, (g,)
        self._axis = self._start / np.where(self._length == 0, 1.0, self._length)[:, None]

    @property
    def norm(self) -> Norm:
        """The norm."""
        return self._norm

    @property
    def x(self) -> Floats:
        """The input in the middle, (N,)."""
        return self._x

    @property
    def radius(self) -> float:
        """The greatest distance of an input from x."""
        return self._radius

    @property
    def is_exact(self) -> bool:
        """Whether `support` is the supremum; False where several groups scale, for which it is a bound above it."""
        return self.norm.groups == 1 or not self.norm.scales

    def support(self, w: ArrayLike) -> Floats:
        """sup w·y over the set, for each w in the last axis. Attained, or approached where eps = 0.

        For an infinite radius, the support function of the norm's ellipsoid. For several groups that scale, a bound:
        each group with the whole radius.
        """
        w = as_vectors(w, "w", self.norm.size)
        if math.isinf(self.radius):
            return self.norm.ellipsoid.support(w)
        if not self.norm.scales:
            linear: Floats = w @ self.norm(self.x) + self.radius * length_of(self.norm.project(self.norm.gain * w))
            return linear
        size, cosine, sine = self._angles(self._pulled(w))
        support: Floats = w @ self.norm.bias + np.sum(size * self._maximum(cosine, sine).value, axis=-1)
        return support

    def maximizer(self, w: ArrayLike) -> Floats:
        """The input within the radius whose output attains the support, for each w in the last axis.

        With eps = 0 and a radius of exactly |Πx|, the supremum may be the limit of ever smaller Πa in one direction:
        then it is an input in this direction with |Πa| near 1e-8·|Πx|.
        """
        w = as_vectors(w, "w", self.norm.size)
        self._require_maximizer()
        if not self.norm.scales:
            pulled = self.norm.project(self.norm.gain * w)
            size = length_of(pulled)[..., None]
            linear: Floats = self.x + self.radius * (pulled / np.where(size == 0, 1.0, size))
            return linear
        _, direction, cosine, sideways = self._split_off_axis(self._pulled(w))
        if self._length[0] == 0:  # every direction is as good: straight along v
            return self.x + self.radius * direction[..., 0, :]
        sine = np.linalg.norm(sideways, axis=-1)
        found = self._maximum(cosine, sine)
        side = np.where(sine[..., None] > 0, sideways, self._any_side())
        side = side - self._axis * np.sum(side * self._axis, axis=-1, keepdims=True)
        side = side / np.maximum(np.linalg.norm(side, axis=-1, keepdims=True), np.finfo(float).tiny)
        along, across = found.cosine, found.sine
        if self.norm.eps == 0 and self.radius == self._length[0] and not self._on_a_line:
            across = np.where(along < 0, np.maximum(across, NEARLY_CONSTANT), across)
            along = np.copysign(np.sqrt((1 - across) * (1 + across)), along)
        step = along[..., None] * self._axis + across[..., None] * side
        attained: Floats = self.x + self.radius * step[..., 0, :]
        return attained

    def contains(self, y: ArrayLike, tol: float = ROUNDING) -> NDArray[np.bool_]:
        """Whether y is the output for an input within the radius, for each y in the last axis; exact for every norm.

        y gives the direction of Πa on live channels and, if eps > 0, its length. The decision is whether the nearest
        of the inputs that give y is within radius + tol·(radius + |Πx|). y stands for all points that differ from it by
        tol·(|y| + |bias| + |gain|) in each channel: for outputs computed in float32, take tol=1e-6. Near the surface of
        the ellipsoid a small error of y is a large one of |Πa|, by the factor (|Πa|² + cε)/cε, so that a rounded y
        says little about the length.
        """
        y = as_vectors(y, "y", self.norm.size)
        return reached(self.norm, self._start, self.radius, y, min(_nonnegative(tol, "tol"), 1.0))

    @property
    def _on_a_line(self) -> bool:
        """Whether Πa has one dimension or none, so that only its sign can turn."""
        return self.norm.size // self.norm.groups - self.norm.projects <= 1

    def _pulled(self, w: Floats) -> Floats:
        """√c·ΠGw, group by group: (..., g, c)."""
        groups, channels = self._start.shape
        pulled = (w * (math.sqrt(channels) * self.norm.gain)).reshape(*w.shape[:-1], groups, channels)
        if self.norm.projects:
            pulled -= pulled.mean(axis=-1, keepdims=True)
        return pulled

    def _angles(self, pulled: Floats) -> tuple[Floats, Floats, Floats]:
        """|v| in every group, and the cosine and sine of its angle to z₀; where z₀ = 0, as if along v."""
        with np.errstate(over="ignore", invalid="ignore"):
            squares = np.einsum("...gc,...gc->...g", pulled, pulled)
            along = np.einsum("...gc,gc->...g", pulled, self._axis)
            across = squares - along**2
            ordinary = (across > NEARLY_ALONG * squares) & (squares > 1 / LARGE) & (squares < LARGE)
        if ordinary.all():  # then the difference keeps its digits, and nothing else of the size of w is needed
            size = np.sqrt(squares)
            cosine, sine = along / size, np.sqrt(across) / size
        else:
            size, _, cosine, sideways = self._split_off_axis(pulled)
            sine = np.linalg.norm(sideways, axis=-1)
        nowhere = self._length == 0
        return size, np.where(nowhere, 1.0, cosine), np.where(nowhere, 0.0, sine)

    def _split_off_axis(self, pulled: Floats) -> tuple[Floats, Floats, Floats, Floats]:
        """|v|, v̂, the cosine of its angle to z₀, and what is left of v̂ across z₀."""
        size = length_of(pulled)
        direction = pulled / np.where(size == 0, 1.0, size)[..., None]
        cosine = np.sum(direction * self._axis, axis=-1)
        return size, direction, cosine, direction - cosine[..., None] * self._axis

    def _maximum(self, cosine: Floats, sine: Floats) -> PlaneMaximum:
        """The problem in the plane, in units in which no square overflows."""
        root = math.sqrt(self._start.shape[1] * self.norm.eps)
        unit = np.maximum(self._length, max(self.radius, root))
        unit = np.where(unit == 0, 1.0, unit)
        start, radius, floor = self._length / unit, self.radius / unit, (root / unit) ** 2
        return plane_maximum(cosine, sine, start, radius, floor, line=self._on_a_line)

    def _any_side(self) -> Floats:
        """Some direction across z₀ in each group, for v along z₀: that of the channel in which z₀ is least."""
        least = np.argmin(np.abs(self._axis), axis=-1, keepdims=True)
        side = np.zeros_like(self._axis)
        np.put_along_axis(side, least, 1.0, axis=-1)
        if self.norm.projects:
            side -= side.mean(axis=-1, keepdims=True)
        side -= self._axis * np.sum(side * self._axis, axis=-1, keepdims=True)
        return side

    def _require_maximizer(self) -> None:
        if math.isinf(self.radius):
            raise InputError("maximizer needs a finite radius: over all inputs, no input attains the support")
        if not self.is_exact:
            raise InputError(
                f"maximizer needs one group: {self.norm.groups} groups share the radius, and support is a bound"
            )

    def __repr__(self) -> str:
        exact = "exact" if self.is_exact else f"a bound: {self.norm.groups} groups share the radius"
        return f"Neighbourhood({self.norm}, radius {self.radius:.4g}, {exact})"


def _nonnegative(value: float, name: str) -> float:
    """value as a float: 0 or more, infinity included."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not number >= 0 or isinstance(value, (str, bytes, bool)):
        raise InputError(f"{name} must be one number, 0 or more, got {quoted(value)}")
    return number
