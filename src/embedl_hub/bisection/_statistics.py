"""Decisions with a bounded error: Student's t over sittings, looked at now and then, each look at its share of it.

The error of a whole search is spent like this: decision k of a search may err with probability
alpha / (k (k + 1)), which adds up to alpha over any number of decisions; within a decision, look i of six takes half of
what is left. A decision that is not clear after the last look stays open, and an open one blames nobody.

One value for each sitting is what the test sees: within a sitting the processes are the same, and what their places in
memory do to their times is the same in all its rounds. Sittings are taken as independent and their values as about
normal; each value is a median of rounds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

LOOKS = (4, 6, 8, 12, 16, 24)
"""After so many sittings a decision is looked at."""


def share_of(decision: int, alpha: float) -> float:
    """Return how much of the search's error its decision number 1, 2, 3 ... may spend."""
    return alpha / (decision * (decision + 1))


def level_at(look: int, share: float) -> float:
    """Return how much of a decision's error its look number 0, 1, 2 ... may spend; all looks together spend it."""
    return share / float(2 ** min(look + 1, len(LOOKS) - 1))


@dataclass(frozen=True)
class Estimate:
    """The mean of sittings with its interval at the level that was asked for."""

    mean: float
    low: float
    high: float


def estimate(values: Sequence[float], level: float) -> Estimate:
    """Return the mean of values and the interval that misses it with probability ``level``."""
    count = len(values)
    mean = math.fsum(values) / count
    if count < 2:
        return Estimate(mean, -math.inf, math.inf)
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1))
    reach = student_quantile(level, count - 1) * deviation / math.sqrt(count)
    return Estimate(mean, mean - reach, mean + reach)


def student_p(t: float, degrees: int) -> float:
    """Return the two-sided probability that Student's t is farther from 0 than ``t``."""
    return _beta(degrees / (degrees + t * t), degrees / 2, 0.5)


def student_quantile(level: float, degrees: int) -> float:
    """Return the t whose two-sided probability is ``level``."""
    low, high = 0.0, 1.0
    while student_p(high, degrees) > level and high < 1e12:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if student_p(middle, degrees) > level else (low, middle)
    return high


def _beta(x: float, a: float, b: float) -> float:
    """Return the regularized incomplete beta function, by its continued fraction."""
    if x <= 0.0 or x >= 1.0:
        return 0.0 if x <= 0.0 else 1.0
    if x > (a + 1) / (a + b + 2):
        return 1.0 - _beta(1.0 - x, b, a)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    tiny = 1e-300
    c, d = 1.0, 1.0 / _off_zero(1.0 - (a + b) * x / (a + 1), tiny)
    fraction = d
    for m in range(1, 500):
        for numerator in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1.0 / _off_zero(1.0 + numerator * d, tiny)
            c = _off_zero(1.0 + numerator / c, tiny)
            fraction *= c * d
        if abs(c * d - 1.0) < 1e-14:
            break
    return math.exp(log_front) * fraction / a


def _off_zero(value: float, tiny: float) -> float:
    return value if abs(value) > tiny else tiny


def mcnemar_p(only_good_right: int, only_bad_right: int) -> float:
    """Return how likely it is by chance that two models answer otherwise at least so unevenly: McNemar's exact test."""
    count, fewer = only_good_right + only_bad_right, min(only_good_right, only_bad_right)
    if count == 0:
        return 1.0
    logs = [math.lgamma(count + 1) - math.lgamma(k + 1) - math.lgamma(count - k + 1) for k in range(fewer + 1)]
    tail = math.fsum(math.exp(each - count * math.log(2)) for each in logs)
    return min(1.0, 2 * tail)
