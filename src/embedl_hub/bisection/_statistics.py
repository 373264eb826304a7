"""Decisions with a bounded error: a trimmed t over sittings, looked at now and then, each look at its share of it.

The error of a whole search is spent like this: decision k of a search may err with probability alpha / (k (k + 1)),
which adds up to alpha over any number of decisions; within a decision, the looks share that evenly.
Only answers that name a cause, or clear one, are made at that level. A trial that behaves as GOOD names nobody and
clears nobody (its switches stay in the search), so it may err more often: `STEERING` for each decision.
A decision that is not clear after the last look stays open, and an open one blames nobody.

One value for each sitting is what the test sees: within a sitting the processes are the same, and what their places in
memory do to their times is the same in all its rounds. Each value is a median of rounds. A sitting that something
disturbed is far from the others and says little: from eight sittings on, a sixth of the values at either end are left
out of the mean, and the spread is that of the values with these moved to the next ones (Tukey and McLaughlin, 1963;
Yuen, 1974). On normal values that test errs up to three times as often as its table says, so it is asked at a quarter.
Sittings are taken as independent, and their values as about symmetric.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

LOOKS = (4, 6, 8, 12, 16, 24, 36, 54, 80)
"""After so many sittings a decision is looked at."""
STEERING = 0.01
"""How often an answer may be wrong that only steers the search."""

_TRIM = 6
_FEWEST_TO_TRIM = 8
_TRIMMED_LEVEL = 0.25
# Before so many sittings nobody gives up.
_FEWEST_TO_GIVE_UP = 12


def share_of(decision: int, alpha: float) -> float:
    """Return how much of the search's error its decision number 1, 2, 3 ... may spend."""
    return alpha / (decision * (decision + 1))


def level_at(share: float) -> float:
    """Return how much of a decision's error one of its looks may spend; all looks together spend it."""
    return share / len(LOOKS)


@dataclass(frozen=True)
class Estimate:
    """The middle of sittings with its interval at the level that was asked for."""

    mean: float
    low: float
    high: float
    error: float = 0.0  # the standard error of the mean


def estimate(values: Sequence[float], level: float) -> Estimate:
    """Return the trimmed mean of values and the interval that misses it with probability ``level``, or less."""
    count = len(values)
    if count < 2:
        return Estimate(values[0], -math.inf, math.inf, math.inf)
    cut = _cut(count)
    kept = sorted(values)[cut : count - cut]
    mean = math.fsum(kept) / len(kept)
    moved = [*[kept[0]] * cut, *kept, *[kept[-1]] * cut]
    middle = math.fsum(moved) / count
    deviation = math.sqrt(math.fsum((value - middle) ** 2 for value in moved) / (count - 1))
    error = deviation * count / len(kept) / math.sqrt(count)
    reach = _quantile(level, count) * error
    return Estimate(mean, mean - reach, mean + reach, error)


def _cut(count: int) -> int:
    """Return how many values at either end are left out."""
    return count // _TRIM if count >= _FEWEST_TO_TRIM else 0


def _quantile(level: float, count: int) -> float:
    cut = _cut(count)
    return student_quantile(level * _TRIMMED_LEVEL if cut else level, count - 2 * cut - 1)


def is_hopeless(found: Estimate, distance: float, level: float, *, sittings: int, most: int) -> bool:
    """Tell whether more sittings are no use: even from two standard errors farther off, all of them would not do.

    Giving up is always honest: the answer stays open.

    Args:
        found: What was measured so far.
        distance: How far its mean is beyond the bound that it must leave.
        level: The error of one look.
        sittings: How many there were.
        most: How many there may be.
    """
    if sittings < _FEWEST_TO_GIVE_UP:
        return False
    reach = _quantile(level, most) * found.error * math.sqrt(sittings / most)
    return reach > distance + 2 * found.error


def student_p(t: float, degrees: int) -> float:
    """Return the two-sided probability that Student's t is farther from 0 than ``t``."""
    return _beta(degrees / (degrees + t * t), degrees / 2, 0.5)


@functools.cache
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
