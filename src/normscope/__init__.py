"""normscope: what the normalization layers of a neural network really do.

>>> import normscope as ns
>>> norm = ns.Norm(gain=[1.0, 2.0, 3.0])
>>> norm.ellipsoid.dimension
2
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from normscope.geometry import Ellipsoid, EllipsoidSum
    from normscope.norm import Norm

__version__ = "0.1.0"

# Where each public name lives; imported on first use, so that `import normscope` stays quick.
_HOMES = {
    "Ellipsoid": "normscope.geometry",
    "EllipsoidSum": "normscope.geometry",
    "Norm": "normscope.norm",
}

__all__ = ["Ellipsoid", "EllipsoidSum", "Norm", "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'normscope' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
