"""How hot loops are compiled: one toolchain, one set of options, for all rooms."""

from collections.abc import Callable
from typing import Any

import numba


def compiled(function: Callable[..., Any]) -> Any:
    """Compile with numba, kept on disk where a place can be written, for this process alone where none can.

    Sums may be reordered to fill vector registers; NaN and infinity keep their meaning.

    >>> @compiled
    ... def doubled(x):
    ...     return 2 * x
    >>> doubled(1.5)
    3.0
    """
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": {"reassoc", "contract", "nsz"}}
    try:
        return numba.njit(cache=True, **options)(function)
    except RuntimeError:  # no folder for the cache, as in a read-only installation without a home
        return numba.njit(**options)(function)
