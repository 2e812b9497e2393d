"""normscope: what the normalization layers of a neural network really do.

>>> import normscope as ns
>>> norm = ns.Norm(gain=[1.0, 2.0, 3.0])
>>> norm.ellipsoid.dimension
2
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from normscope import nn
    from normscope.capacity.ln_net import LNNet, load_network
    from normscope.capacity.memorize import memorize
    from normscope.capacity.nonlinearity import bending, nonlinearity
    from normscope.capacity.scaling_layer import scaling_layer
    from normscope.capacity.scatter import lssr, scatter, ssr
    from normscope.capacity.shatter import shatter
    from normscope.geometry import Ellipsoid, EllipsoidSum
    from normscope.models.capture import capture
    from normscope.models.find import find
    from normscope.norm import Norm
    from normscope.rewrite.fold import fold
    from normscope.rewrite.swap import swap
    from normscope.separation.selectable import Selectable, selectable
    from normscope.separation.storage import save_certificates, verify_certificates
    from normscope.studies.inspect import inspect
    from normscope.studies.keys import keys
    from normscope.studies.ranges import ranges
    from normscope.studies.separability import separability
    from normscope.studies.vocab import vocab

__version__ = "0.1.0"

# Where each public name lives; imported on first use, so that `import normscope` stays quick.
_HOMES = {
    "Ellipsoid": "normscope.geometry",
    "EllipsoidSum": "normscope.geometry",
    "LNNet": "normscope.capacity.ln_net",
    "Norm": "normscope.norm",
    "Selectable": "normscope.separation.selectable",
    "bending": "normscope.capacity.nonlinearity",
    "capture": "normscope.models.capture",
    "find": "normscope.models.find",
    "fold": "normscope.rewrite.fold",
    "inspect": "normscope.studies.inspect",
    "keys": "normscope.studies.keys",
    "load_network": "normscope.capacity.ln_net",
    "lssr": "normscope.capacity.scatter",
    "memorize": "normscope.capacity.memorize",
    "nonlinearity": "normscope.capacity.nonlinearity",
    "ranges": "normscope.studies.ranges",
    "save_certificates": "normscope.separation.storage",
    "scaling_layer": "normscope.capacity.scaling_layer",
    "scatter": "normscope.capacity.scatter",
    "selectable": "normscope.separation.selectable",
    "separability": "normscope.studies.separability",
    "shatter": "normscope.capacity.shatter",
    "ssr": "normscope.capacity.scatter",
    "swap": "normscope.rewrite.swap",
    "verify_certificates": "normscope.separation.storage",
    "vocab": "normscope.studies.vocab",
}

__all__ = [
    "Ellipsoid",
    "EllipsoidSum",
    "LNNet",
    "Norm",
    "Selectable",
    "__version__",
    "bending",
    "capture",
    "find",
    "fold",
    "inspect",
    "keys",
    "load_network",
    "lssr",
    "memorize",
    "nn",
    "nonlinearity",
    "ranges",
    "save_certificates",
    "scaling_layer",
    "scatter",
    "selectable",
    "separability",
    "shatter",
    "ssr",
    "swap",
    "verify_certificates",
    "vocab",
]


def __getattr__(name: str) -> Any:
    if name == "nn":  # a room whose names are used with it: normscope.nn.Norm
        return import_module("normscope.nn")
    if name not in _HOMES:
        raise AttributeError(f"module 'normscope' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
