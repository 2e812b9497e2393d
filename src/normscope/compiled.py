"""How hot loops are compiled: one toolchain and one set of options for the whole package."""

from collections.abc import Callable
from typing import Any

import numba


def compiled(function: Callable[..., Any]) -> Any:
    """Compile with numba, cached on disk where possible, otherwise for this process only.

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
