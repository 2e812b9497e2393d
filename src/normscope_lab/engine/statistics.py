"""How claims are decided: an interval for the mean of paired differences, by Student's t."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np

from normscope.errors import InputError

LEVEL = 0.95


@dataclass(frozen=True)
class Interval:
    """A mean with its confidence interval."""

    mean: float
    low: float
    high: float
    count: int

    def above(self, limit: float = 0.0) -> bool | None:
        """True if the interval is above the limit, False if below, None if it contains it or is not known."""
        if self.low > limit:
            return True
        return False if self.high < limit else None

    def __str__(self) -> str:
        if np.isnan(self.mean):
            return "an unknown amount, as a seed diverged"
        if self.count < 2:
            return f"{self.mean:.4g}, of one seed"
        return f"{self.mean:.4g} [{self.low:.4g}, {self.high:.4g}]"


def require_scipy() -> None:
    """Say what is missing before a long run, not after it."""
    if find_spec("scipy") is None:
        raise InputError('reproduce needs scipy, and it is not installed: pip install "normscope[lab]"')


def mean_interval(values: Sequence[float]) -> Interval:
    """The mean of independent values and its 95% interval; infinitely wide for fewer than two values.

    >>> str(mean_interval([1.0, 2.0, 3.0]))
    '2 [-0.4841, 4.484]'
    """
    from scipy.stats import t

    sample = np.asarray(values, float)
    mean = float(sample.mean())
    if len(sample) < 2:
        return Interval(mean, -np.inf, np.inf, len(sample))
    reach = float(t.ppf(0.5 + LEVEL / 2, len(sample) - 1) * sample.std(ddof=1) / np.sqrt(len(sample)))
    return Interval(mean, mean - reach, mean + reach, len(sample))


def paired_difference(one: Sequence[float], other: Sequence[float]) -> Interval:
    """The mean of one − other, seed by seed."""
    if len(one) != len(other):
        raise InputError(f"pairs need as many values on both sides, got {len(one)} and {len(other)}")
    return mean_interval(np.subtract(one, other).tolist())
