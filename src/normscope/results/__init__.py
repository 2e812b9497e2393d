"""Result types, one file for each; a type is found by the name of its file, and imported when it is needed.

>>> from normscope.results import names
>>> "inspection" in names()
True
"""

from importlib import import_module
from pkgutil import iter_modules

_MACHINERY = ("describe", "result", "rows")


def names() -> list[str]:
    """The kinds of results of this package."""
    return sorted(module.name for module in iter_modules(__path__) if module.name not in _MACHINERY)


def __getattr__(name: str) -> type:
    """A type by its name, for annotations: normscope.results.Inspection."""
    for kind in names():
        if name.lower() == kind.replace("_", ""):
            found: type = getattr(import_module(f"{__name__}.{kind}"), name)
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
