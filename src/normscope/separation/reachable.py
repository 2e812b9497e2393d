"""One problem with reachable queries: the plain question first, then the ellipsoid for the keys that are left.

A key that no query prefers at all is not preferred by a reachable one either, and its weights prove that too. Keys that
are clearly weighted means of others are no rivals: whoever beats the others beats them.
"""

import numpy as np

from normscope.checks import Floats
from normscope.separation.ball import REACHABLE, UNREACHABLE, reach, rivals_of
from normscope.separation.certificates import Ints
from normscope.separation.checking import lifted
from normscope.separation.reach_checking import advantages, lift, reach_margins
from normscope.separation.solve import CLEAR, Solution, solve


def solve_reachable(keys: Floats, bias: Floats | None, matrix: Floats, center: Floats) -> Solution:
    """Certificates for keys (n, d) and queries center + matrix·y; those of queries are the y, inside the unit ball."""
    plain = solve(lifted(keys, bias), bias is not None)
    solution = Solution(plain.degenerate.copy())
    _keep_weights(keys, bias, matrix, center, plain, solution)
    clearly_inside = np.zeros(len(keys), bool)
    clearly_inside[[key for key in plain.weights if not plain.degenerate[key]]] = True
    asked = np.array(sorted(plain.queries), np.int64)
    rivals = np.flatnonzero(~clearly_inside)
    if len(rivals) == 1:
        if len(asked):
            solution.queries[int(asked[0])] = (np.zeros(matrix.shape[1]), np.inf)
    elif len(asked):
        _ask(keys, bias, matrix, center, rivals, asked, solution)
    return solution


def _keep_weights(
    keys: Floats, bias: Floats | None, matrix: Floats, center: Floats, plain: Solution, solution: Solution
) -> None:
    """Weights that rule out all queries, with what they leave to reachable ones."""
    names = sorted(plain.weights)
    starts = np.cumsum([0, *(len(plain.weights[name][0]) for name in names)])
    indices = np.concatenate([np.zeros(0, np.int64), *(plain.weights[name][0] for name in names)])
    weights = np.concatenate([np.zeros(0), *(plain.weights[name][1] for name in names)])
    found = advantages(keys, bias, matrix, center, np.array(names, np.int64), starts, indices, weights)
    for name, largest in zip(names, found.largest.tolist(), strict=True):
        solution.weights[name] = (*plain.weights[name][:2], largest)


def _ask(
    keys: Floats,
    bias: Floats | None,
    matrix: Floats,
    center: Floats,
    rivals: Ints,
    asked: Ints,
    solution: Solution,
) -> None:
    seen = lift(keys[rivals], None if bias is None else bias[rivals], matrix, center).rows
    place = np.searchsorted(rivals, asked)
    # The longest rival is a fair start: it is an extreme point of the lifted keys, and so often in the way.
    longest = np.argsort(-np.einsum("ij,ij->i", seen, seen))[:2]
    first = np.where(place == longest[0], longest[1], longest[0])
    status, coordinates, supports, weights = reach(rivals_of(seen[:, :-1], seen[:, -1]), place, first)
    solution.degenerate[asked] = True
    won = status == REACHABLE
    margins = reach_margins(keys, bias, matrix, center, asked[won], coordinates[won])
    for a, row in enumerate(np.flatnonzero(won)):
        if margins.proven[a]:
            name = int(asked[row])
            solution.queries[name] = (coordinates[row], float(margins.least[a]))
            solution.degenerate[name] = margins.gap[a] <= CLEAR
    lost = np.flatnonzero(status == UNREACHABLE)
    used = supports[lost] >= 0
    starts = np.append(0, np.cumsum(used.sum(axis=1)))
    shares = weights[lost] / weights[lost].sum(axis=1, keepdims=True)
    named = rivals[supports[lost][used]]
    found = advantages(keys, bias, matrix, center, asked[lost], starts, named, shares[used])
    for a, row in enumerate(lost):
        if found.right[a]:
            entries = slice(starts[a], starts[a + 1])
            solution.weights[int(asked[row])] = (named[entries], shares[used][entries], float(found.largest[a]))
            solution.degenerate[int(asked[row])] = found.gap[a] <= CLEAR
