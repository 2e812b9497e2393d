"""What every norm of a model really is: kind, dimension and semi-axes of the set its outputs fill."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from normscope.norm import Norm

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class NormGeometry:
    """One norm; axes are None where there are none: an unbounded norm, or one whose outputs are a single point."""

    name: str
    kind: str
    size: int
    groups: int
    eps: float
    has_bias: bool
    dimension: int
    zero_gains: int
    negative_gains: int
    axis_max: float | None
    axis_median: float | None
    axis_min: float | None
    participation_ratio: float | None


@dataclass(frozen=True)
class Inspection:
    """The geometry of every norm of a model, in the order in which they were found."""

    model: str
    norms: tuple[NormGeometry, ...]

    def to_dict(self) -> dict[str, Any]:
        """Exactly what `normscope inspect --json` prints; schema: normscope/schemas/inspect.json."""
        return {"schema_version": SCHEMA_VERSION, "model": self.model, "norms": [asdict(norm) for norm in self.norms]}


def inspect(norms: Mapping[str, Norm], model: str) -> Inspection:
    """The geometry of named norms.

    >>> inspect({"ln": Norm(gain=[1, 2, 3])}, "example").norms[0].dimension
    2
    """
    return Inspection(model, tuple(_geometry(name, norm) for name, norm in norms.items()))


def _geometry(name: str, norm: Norm) -> NormGeometry:
    ellipsoid = norm.ellipsoid
    lengths = ellipsoid.lengths if ellipsoid.bounded and ellipsoid.dimension else None
    return NormGeometry(
        name=name,
        kind=norm.kind,
        size=norm.size,
        groups=norm.groups,
        eps=norm.eps,
        has_bias=bool(norm.bias.any()),
        dimension=ellipsoid.dimension,
        zero_gains=int(np.count_nonzero(norm.gain == 0)),
        negative_gains=int(np.count_nonzero(norm.gain < 0)),
        axis_max=None if lengths is None else float(lengths[0]),
        axis_median=None if lengths is None else float(np.median(lengths)),
        axis_min=None if lengths is None else float(lengths[-1]),
        participation_ratio=None if lengths is None else _participation_ratio(lengths / lengths[0]),
    )


def _participation_ratio(lengths: np.ndarray[Any, np.dtype[np.float64]]) -> float:
    """(Σℓ²)²/Σℓ⁴: how many axes carry the spread, from 1 (a needle) to the dimension (a ball)."""
    squares = lengths**2
    return float(squares.sum() ** 2 / np.sum(squares**2))
