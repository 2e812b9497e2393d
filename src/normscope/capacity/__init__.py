"""How much a norm bends, and what networks of nothing but Linear maps and LayerNorms can do.

>>> import normscope as ns
>>> ns.capacity.scatter([[0, 0], [1, 1], [0, 1], [1, 0]], [0, 0, 1, 1]).lssr
1.0
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from normscope.capacity.labellings import shatter
    from normscope.capacity.ln_net import LNNet
    from normscope.capacity.memorizing import memorize
    from normscope.capacity.plane_scaling import scaling_layer
    from normscope.capacity.scatter_ratios import scatter
    from normscope.capacity.second_derivative import nonlinearity

# Where each public name lives; imported on first use. No file has the name of a function: it would hide it.
_HOMES = {
    "LNNet": "ln_net",
    "memorize": "memorizing",
    "nonlinearity": "second_derivative",
    "scaling_layer": "plane_scaling",
    "scatter": "scatter_ratios",
    "shatter": "labellings",
}

__all__ = ["LNNet", "memorize", "nonlinearity", "scaling_layer", "scatter", "shatter"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
