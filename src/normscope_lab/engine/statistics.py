"""How claims are decided: an interval for the mean of paired differences, by Student's t, and what it could have seen.

power = P(interval above 0 | mean of the differences = E, their deviation = s, n seeds)
      = P(T' > t),  T' of the noncentral t distribution with n − 1 degrees of freedom and centre √n E/s
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from math import inf, isfinite, nan, sqrt

import numpy as np

from normscope.errors import InputError

LEVEL = 0.95
POWER = 0.8  # the chance to see an effect that a design should have
MOST_SEEDS = 100_000


@dataclass(frozen=True)
class Interval:
    """A mean with its confidence interval."""

    mean: float
    low: float
    high: float
    count: int
    deviation: float = nan  # of the values themselves

    @property
    def chance(self) -> float:
        """Two-sided: of a mean as far from 0 as this one if the truth is 0; 1 if it is not known."""
        from scipy.stats import t

        if self.count < 2 or not isfinite(self.mean):
            return 1.0
        if self.deviation == 0:
            return float(self.mean == 0)
        return float(2 * t.sf(abs(self.mean) / self.deviation * sqrt(self.count), self.count - 1))

    def above(self, limit: float = 0.0) -> bool | None:
        """True if the interval is above the limit, False if below, None if it contains it or is not known."""
        if self.low > limit:
            return True
        return False if self.high < limit else None

    def __str__(self) -> str:
        if np.isnan(self.mean):
            return "an unknown amount, as a seed diverged"
        if self.count < 2:
            return f"{self.mean:.3g}, of one seed"
        return f"{self.mean:.3g} [{self.low:.3g}, {self.high:.3g}]"


def require_scipy() -> None:
    """Say what is missing before a long run, not after it."""
    if find_spec("scipy") is None:
        raise InputError('reproduce needs scipy, and it is not installed: pip install "normscope[lab]"')


def mean_interval(values: Sequence[float]) -> Interval:
    """The mean of independent values and its 95% interval; infinitely wide for fewer than two values.

    >>> str(mean_interval([1.0, 2.0, 3.0]))
    '2 [-0.484, 4.48]'
    """
    from scipy.stats import t

    sample = np.asarray(values, float)
    mean = float(sample.mean())
    if len(sample) < 2:
        return Interval(mean, -np.inf, np.inf, len(sample))
    deviation = float(sample.std(ddof=1))
    reach = float(t.ppf(0.5 + LEVEL / 2, len(sample) - 1) * deviation / np.sqrt(len(sample)))
    return Interval(mean, mean - reach, mean + reach, len(sample), deviation)


def paired_difference(one: Sequence[float], other: Sequence[float]) -> Interval:
    """The mean of one − other, seed by seed."""
    if len(one) != len(other):
        raise InputError(f"pairs need as many values on both sides, got {len(one)} and {len(other)}")
    return mean_interval(np.subtract(one, other).tolist())


def power(effect: float, deviation: float, count: int) -> float:
    """The chance that the interval of `count` differences is above 0 if their mean is `effect`.

    >>> round(power(0.45, 1.10, 3), 2), round(power(0.45, 1.10, 49), 2)
    (0.07, 0.8)
    """
    from scipy.stats import nct, t

    if count < 2 or not isfinite(deviation):
        return 0.0
    if deviation == 0:
        return float(effect > 0)
    centre = sqrt(count) * effect / deviation
    if centre > 30:  # beyond what the distribution is computed for, and certain
        return 1.0
    return float(nct.sf(t.ppf(0.5 + LEVEL / 2, count - 1), count - 1, centre))


def seeds_needed(effect: float, deviation: float, chance: float = POWER) -> int:
    """The least number of seeds that sees an effect with this chance.

    >>> seeds_needed(0.45, 1.10), seeds_needed(0.22, 0.55), seeds_needed(2.0, 1.6)
    (49, 52, 8)
    """
    low, high = 1, 2
    while power(effect, deviation, high) < chance:
        low, high = high, 2 * high
        if high > MOST_SEEDS:
            return high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if power(effect, deviation, middle) >= chance else (middle, high)
    return high


def least_effect(deviation: float, count: int, chance: float = POWER) -> float:
    """The least effect that is seen with this chance.

    >>> round(least_effect(1.10, 10), 2)
    1.1
    """
    from scipy.optimize import brentq

    if count < 2 or not isfinite(deviation):
        return inf
    if deviation == 0:
        return 0.0
    return deviation * float(brentq(lambda effect: power(effect, 1.0, count) - chance, 0.0, 30.0))


def holm(chances: Sequence[float]) -> list[float]:
    """Chances of several tests together, by Holm's correction, in their order.

    >>> [round(each, 3) for each in holm([0.04, 0.01, 0.03])]
    [0.06, 0.03, 0.06]
    """
    adjusted, largest = [1.0] * len(chances), 0.0
    for place, number in enumerate(sorted(range(len(chances)), key=lambda number: chances[number])):
        largest = max(largest, min(1.0, (len(chances) - place) * chances[number]))
        adjusted[number] = largest
    return adjusted
