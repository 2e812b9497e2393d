"""One linear program per key, by HiGHS: the standard way to find which keys are selectable.

    max t   with   q·(kᵢ − kⱼ) + s(bᵢ − bⱼ) ≥ t·|(kᵢ − kⱼ, bᵢ − bⱼ)|  for all j ≠ i,   −1 ≤ q ≤ 1,  0 ≤ s ≤ 1,  t ≤ 1

q = 0 gives t = 0, and key i is selectable iff more is possible: then s may be a little above 0, too, and q/s is a query
that prefers it. Differences are taken at unit length, so that keys far away do not hide the near ones.
"""

from typing import Any

import numpy as np

from normscope.checks import Floats

TOLERANCE = 1e-10  # the least that HiGHS takes; its time does not depend on it
PREFERS = 1e-9  # t above this is more than HiGHS's rounding


def preference(keys: Any, key: int, bias: Any = None) -> float | None:
    """The largest t of keys[key] among keys (n, d), with bias (n,) if they have one; None if HiGHS finds no optimum.

    >>> square = [[0, 0], [2, 0], [0, 2], [2, 2], [1, 1]]
    >>> [preference(square, key) > PREFERS for key in range(5)]
    [True, True, True, True, False]
    >>> preference([[0], [1], [-1]], 1, bias=[0, -1000, 0]) > PREFERS
    True
    """
    from scipy.optimize import linprog

    points = np.asarray(keys, np.float64)
    if bias is not None:
        points = np.column_stack([points, np.asarray(bias, np.float64)])
    differences: Floats = points[key] - np.delete(points, key, axis=0)
    lengths = np.linalg.norm(differences, axis=1, keepdims=True)
    differences /= np.where(lengths > 0, lengths, 1.0)
    channels = points.shape[1]
    lowest = np.append(np.full(channels, -1.0), 0.0)
    if bias is not None:
        lowest[-2] = 0.0
    solved = linprog(
        np.append(np.zeros(channels), -1.0),
        A_ub=np.column_stack([-differences, np.ones(len(differences))]),
        b_ub=np.zeros(len(differences)),
        bounds=np.column_stack([lowest, np.ones(channels + 1)]),
        method="highs",
        options={"primal_feasibility_tolerance": TOLERANCE, "dual_feasibility_tolerance": TOLERANCE},
    )
    return float(-solved.fun) if solved.status == 0 else None
