"""Packages that only benchmarks need, checked before the work begins."""

from importlib.util import find_spec

from normscope.errors import InputError


def require_solvers(*packages: str) -> None:
    """Refuse to start without the solvers that ours is compared with.

    >>> require_solvers("numpy", "a_solver_nobody_has")
    Traceback (most recent call last):
    normscope.errors.InputError: this benchmark needs a_solver_nobody_has: pip install normscope[bench]
    """
    missing = [package for package in packages if find_spec(package) is None]
    if missing:
        raise InputError(f"this benchmark needs {' and '.join(missing)}: pip install normscope[bench]")
