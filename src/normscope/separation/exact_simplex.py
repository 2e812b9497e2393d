"""Separation without rounding: the simplex method on whole numbers.

    min Σ artificials   with   Σ λⱼgⱼ = 0,  Σ λⱼ = 1,  λ ≥ 0          for generators g of whole numbers

Minimum 0: λ are the weights. Minimum m > 0: the dual solution is a direction v with v·gⱼ ≥ m for all j. The tableau
stays whole (Edmonds): all its entries share one denominator, the last pivot. Bland's rule ends every chain of ties.
"""

from dataclasses import dataclass
from fractions import Fraction

from normscope.checks import Floats


@dataclass
class Budget:
    """How many entries of a tableau may still be computed; one of many digits counts as several."""

    entries: int


@dataclass(frozen=True)
class Separation:
    """One of the two."""

    weights: list[Fraction] | None = None
    direction: list[Fraction] | None = None


def separate(generators: list[list[int]], budget: Budget) -> Separation | None:
    """Weights that bring the generators to 0, or a direction of positive product with all; None if out of budget.

    >>> separate([[1, 0], [-1, 1], [-1, -1]], Budget(1000)).weights
    [Fraction(1, 2), Fraction(1, 4), Fraction(1, 4)]
    >>> separate([[1, 0], [0, 1]], Budget(1000)).direction
    [Fraction(1, 1), Fraction(1, 1)]
    """
    count, rows = len(generators), len(generators[0]) + 1
    tableau = [
        [column[row] for column in generators] + [int(row == a) for a in range(rows)] + [0] for row in range(rows - 1)
    ]
    tableau.append([1] * count + [0] * (rows - 1) + [1, 1])
    cost = [-sum(line[j] for line in tableau) for j in range(count)] + [0] * rows + [-1]
    tableau.append(cost)
    basis, denominator = list(range(count, count + rows)), 1
    while True:
        entering = next((j for j in range(count) if tableau[-1][j] < 0), None)
        if entering is None:
            break
        budget.entries -= len(tableau) * len(tableau[0]) * (1 + denominator.bit_length() // 256)
        if budget.entries < 0:
            return None
        leaving = _leaving(tableau, basis, entering)
        denominator = _pivot(tableau, leaving, entering, denominator)
        basis[leaving] = entering
    if tableau[-1][-1] == 0:
        values = dict(zip(basis, tableau, strict=False))
        return Separation(
            weights=[Fraction(values[j][-1], denominator) if j in values else Fraction(0) for j in range(count)]
        )
    return Separation(direction=[Fraction(tableau[-1][count + a], denominator) - 1 for a in range(rows - 1)])


def whole_differences(keys: Floats, origin: Floats) -> tuple[list[list[int]], list[Fraction]]:
    """keys − origin without rounding, every channel multiplied by what makes it whole, and those multipliers.

    >>> import numpy as np
    >>> whole_differences(np.array([[0.75, 2.0]]), np.array([0.5, 8.0]))
    ([[1, -6]], [Fraction(4, 1), Fraction(1, 1)])
    """
    differences = [
        [Fraction(a) - Fraction(b) for a, b in zip(key, origin.tolist(), strict=True)] for key in keys.tolist()
    ]
    multipliers = [Fraction(max(line[channel].denominator for line in differences)) for channel in range(len(origin))]
    return [[int(a * m) for a, m in zip(line, multipliers, strict=True)] for line in differences], multipliers


def _leaving(tableau: list[list[int]], basis: list[int], entering: int) -> int:
    """The row that first reaches 0 as the entering column grows; of several, that of the first column."""
    best = -1
    for row in range(len(basis)):
        step = tableau[row][entering]
        if step <= 0:
            continue
        if best >= 0:
            ahead = tableau[row][-1] * tableau[best][entering] - tableau[best][-1] * step
            if ahead > 0 or (ahead == 0 and basis[row] > basis[best]):
                continue
        best = row
    return best


def _pivot(tableau: list[list[int]], row: int, column: int, denominator: int) -> int:
    """Eliminate a column from all other rows; the new denominator."""
    line = tableau[row]
    pivot = line[column]
    for number, other in enumerate(tableau):
        if number == row:
            continue
        factor = other[column]
        if factor:
            tableau[number] = [(a * pivot - factor * b) // denominator for a, b in zip(other, line, strict=True)]
        else:
            tableau[number] = [a * pivot // denominator for a in other]
    return pivot
