"""normscope: what the normalization layers of a neural network do.

>>> import normscope as ns
>>> norm = ns.Norm(gain=[1.0, 2.0, 3.0])
>>> norm.ellipsoid.dimension
2
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from normscope import capacity, errors, nn, results
    from normscope.check_model import check
    from normscope.data import demo_model
    from normscope.geometry import Ellipsoid
    from normscope.models.capture import capture
    from normscope.models.find import find
    from normscope.norm import Norm
    from normscope.results.result import load
    from normscope.rewrite.fold import fold
    from normscope.rewrite.swap import swap
    from normscope.separation.selectable import selectable
    from normscope.studies.certified_scales import static_scales
    from normscope.studies.inspect import inspect
    from normscope.studies.keys import keys
    from normscope.studies.ranges import ranges
    from normscope.studies.separability import separability
    from normscope.studies.spikes import spikes
    from normscope.studies.vocab import vocab
    from normscope.verify_file import verify

__version__ = "0.1.0"

# Where each public name lives; imported on first use, so that `import normscope` stays quick.
_HOMES = {
    "Ellipsoid": "geometry",
    "Norm": "norm",
    "capture": "models.capture",
    "check": "check_model",
    "demo_model": "data",
    "find": "models.find",
    "fold": "rewrite.fold",
    "inspect": "studies.inspect",
    "keys": "studies.keys",
    "load": "results.result",
    "ranges": "studies.ranges",
    "selectable": "separation.selectable",
    "separability": "studies.separability",
    "spikes": "studies.spikes",
    "static_scales": "studies.certified_scales",
    "swap": "rewrite.swap",
    "verify": "verify_file",
    "vocab": "studies.vocab",
}
_MODULES = ("capacity", "errors", "nn", "results")

__all__ = [
    "Ellipsoid",
    "Norm",
    "__version__",
    "capacity",
    "capture",
    "check",
    "demo_model",
    "errors",
    "find",
    "fold",
    "inspect",
    "keys",
    "load",
    "nn",
    "ranges",
    "results",
    "selectable",
    "separability",
    "spikes",
    "static_scales",
    "swap",
    "verify",
    "vocab",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"normscope.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'normscope' has no attribute {name!r}")
    value = getattr(import_module(f"normscope.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
