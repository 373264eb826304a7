"""How slow the slowest are: p90, p95 and p99, each with the value it stays below with 99 % confidence.

The bound is an order statistic, as in the early stopping of MLPerf's LoadGen (single stream): no distribution is
assumed. Of so many samples it takes the largest ``t`` for which ``t`` or fewer samples above the true percentile would
be seen in under 1 % of all runs, and returns the ``t``-th slowest sample.

That counts samples as independent. Where they are not, slow ones come together, and n of them tell less than n. Tests
against independence decide first, at a level that independent samples do not reach, so that these keep LoadGen's bound.
Where one fails, the samples count as n over how much more the number of slow ones varies from one stretch to the next
than it would if they were independent. Looked at are stretches of every length and slow ones by several thresholds:
where few samples are left above the percentile lower ones help, and what is slow only now and then shows further up.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Dict, Iterator, List, NamedTuple, Optional, Sequence

from embedl_device.statistics._samples import median_interval, nearest_rank

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

PERCENTS = (90, 95, 99)
BOUND_RULE = "one-sided 99 % upper bound by order statistics, as LoadGen's early stopping; of effective samples"

_CONFIDENCE = 0.99
# The thresholds, as multiples of the part of samples above the percentile.
_LEVELS = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
_LARGEST_PART = 0.5
_FEWEST_SLOW = 4
# So many samples above the percentile, or above a lower threshold, tell enough: none lower is needed.
_ENOUGH_SLOW = 200
_FEWEST_STRETCHES = 8
# Standard deviations of a normal number; the largest of all tests together exceeds it in 1 of 10,000 independent runs.
_SIGNIFICANT = 4.25
_NEGLIGIBLE = 1e-17


class Summary(NamedTuple):
    """The headline numbers of a series; None for what is not known."""

    mean: Optional[float] = None
    median: Optional[float] = None
    median_low: Optional[float] = None
    median_high: Optional[float] = None
    p90: Optional[float] = None
    p90_high: Optional[float] = None  # the percentile's 99 % upper bound, one-sided; the others likewise
    p95: Optional[float] = None
    p95_high: Optional[float] = None
    p99: Optional[float] = None
    p99_high: Optional[float] = None
    min: Optional[float] = None
    max: Optional[float] = None
    std: Optional[float] = None


class Tail(NamedTuple):
    """A percentile and its bound; None for what the samples do not support, with the reason."""

    percent: int
    value: Optional[float]
    high: Optional[float]
    samples: int
    effective: int  # what the samples count as
    needed: int  # about so many samples, of these, support the bound
    reason: Optional[str]

    def facts(self) -> Dict[str, object]:
        """Return what the document says of it beside the two numbers."""
        return {name: getattr(self, name) for name in ("samples", "effective", "needed", "reason")}


def summarize(values: Sequence[float], divisor: float = 1.0) -> Summary:
    """Return the headline numbers over a divisor, of samples in the order they were taken.

    A percentile of fewer samples than its bound needs would be a guess, and is left out.
    """
    count = len(values)
    mean = math.fsum(values) / count
    variance = math.fsum((value - mean) ** 2 for value in values) / (count - 1) if count > 1 else 0.0
    low, high = median_interval(values)
    ordered = sorted(values)
    numbers: Dict[str, Optional[float]] = {
        "mean": mean, "median": nearest_rank(ordered, 50), "median_low": low, "median_high": high,
        "min": ordered[0], "max": ordered[-1], "std": math.sqrt(variance),
    }  # fmt: skip
    for tail in tails(values):
        numbers["p{}".format(tail.percent)] = tail.value
        numbers["p{}_high".format(tail.percent)] = tail.high
    return Summary(**{name: None if number is None else number / divisor for name, number in numbers.items()})


def tails(values: Sequence[float], percents: Sequence[int] = PERCENTS) -> List[Tail]:
    """Return percentiles of samples in the order they were taken, with their bounds."""
    ordered = sorted(values)
    found = {percent: _tail(values, ordered, percent) for percent in percents}
    lowest = None
    for percent in sorted(found, reverse=True):
        tail = found[percent]
        # A higher percentile is never below a lower one, so that its bound holds for both.
        if lowest is not None and tail.value is not None and (tail.high is None or lowest < tail.high):
            found[percent] = tail._replace(high=lowest, reason=None)
        lowest = found[percent].high if found[percent].high is not None else lowest
    return [found[percent] for percent in percents]


def tail_facts(values: Sequence[float]) -> Dict[str, Dict[str, object]]:
    """Return what a document says of each percentile: samples, what they count as, and why a bound is missing."""
    return {"p{}".format(tail.percent): tail.facts() for tail in tails(values)}


def _tail(values: Sequence[float], ordered: Sequence[float], percent: int) -> Tail:
    count, fewest = len(values), fewest_samples(percent)
    if count < fewest:
        reason = "p{} needs {} samples, there are {:,}".format(percent, fewest, count)
        return Tail(percent, None, None, count, count, fewest, reason)
    value = nearest_rank(ordered, percent)
    effective = effective_number(values, percent)
    if effective < fewest:
        needed = math.ceil(fewest * count / max(1, effective))
        reason = (
            "p{} needs {} independent samples; slow ones come together, so that {:,} samples count as {:,}: "
            "about {:,} would do".format(percent, fewest, count, effective, _rounded(needed))
        )
        return Tail(percent, value, None, count, effective, needed, reason)
    # The share that is left out is that of as many independent samples; no more than a whole sample of it.
    left_out = math.floor((slowest_of_bound(effective, percent) - 1) * count / effective)
    return Tail(percent, value, ordered[count - 1 - left_out], count, effective, fewest, None)


def _rounded(number: int) -> int:
    """Return a number to two digits, upwards."""
    unit = int(10 ** max(0, len(str(number)) - 2))
    return math.ceil(number / unit) * unit


@lru_cache(maxsize=None)
def fewest_samples(percent: int) -> int:
    """Return how many independent samples a bound needs: 64 for p90, 130 for p95, 662 for p99."""
    high = 1
    while not slowest_of_bound(high, percent):
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if slowest_of_bound(middle, percent) else (middle, high)
    return high


@lru_cache(maxsize=1024)
def slowest_of_bound(count: int, percent: int) -> int:
    """Return which sample the bound is, counted from the slowest as 1; 0 where there are too few."""
    part = 1 - percent / 100
    low, high = 0, math.floor(count * part) + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _at_most(middle, count, part) < 1 - _CONFIDENCE else (low, middle)
    return low


def _at_most(slow: int, count: int, part: float) -> float:
    """Return how likely ``slow`` or fewer of independent samples are among the given part: the binomial tail."""
    if slow >= count:
        return 1.0
    term = total = 1.0
    for number in range(slow, 0, -1):
        term *= number * (1 - part) / ((count - number + 1) * part)
        total += term
        if term < _NEGLIGIBLE * total:
            break
    last = _log_choose(count, slow) + slow * math.log(part) + (count - slow) * math.log1p(-part)
    return math.exp(last) * total


def _log_choose(count: int, chosen: int) -> float:
    return math.lgamma(count + 1) - math.lgamma(chosen + 1) - math.lgamma(count - chosen + 1)


def effective_number(values: Sequence[float], percent: int) -> int:
    """Return as how many independent samples these count for a percentile; all of them if they seem independent."""
    import numpy as np

    samples = np.asarray(values, float)
    levels = list(_levels(samples, 1 - percent / 100))
    significance = max([_neighbors(samples), *(level.significance for level in levels)])
    if significance <= _SIGNIFICANT:
        return len(samples)
    return int(len(samples) / max([1.0, *(level.excess for level in levels)]))


class _Level(NamedTuple):
    """What samples above one threshold show: how surely they come together, and how much more they vary for it."""

    significance: float
    excess: float


def _levels(samples: Floats, part: float) -> Iterator[_Level]:
    import numpy as np

    count, number = len(samples), 0
    ordered = np.sort(samples)
    for multiple in _LEVELS:
        if part * multiple > _LARGEST_PART or (multiple > 1 and number >= _ENOUGH_SLOW):
            return
        threshold = ordered[count - 1 - int(part * multiple * count)]
        slow = samples > threshold
        if not slow.any():
            slow = samples >= threshold
        number = int(slow.sum())
        if _FEWEST_SLOW <= number < count:
            yield _level(slow.astype(float), number / count, _runs(slow, number))


def _level(slow: Floats, part: float, significance: float) -> _Level:
    """Compare how the number of slow samples varies between stretches with how it would between independent ones."""
    excess, length, counts = 1.0, 1, slow
    while True:
        stretches, length = len(counts) // 2, 2 * length
        if stretches < _FEWEST_STRETCHES:
            return _Level(significance, excess)
        counts = counts[: 2 * stretches : 2] + counts[1 : 2 * stretches : 2]
        expected = length * part * (1 - part)
        squares = float(((counts - counts.mean()) ** 2).sum()) / expected
        # A few stretches show less than there is about as often as more: one standard error is added.
        excess = max(excess, squares / (stretches - 1) * (1 + math.sqrt(2 / (stretches - 1))))
        if length * part >= 1:
            significance = max(significance, _dispersion(squares, stretches, (1 - 6 * part * (1 - part)) / expected))


def _dispersion(squares: float, stretches: int, kurtosis: float) -> float:
    """Return how unlikely squared deviations are, in standard deviations: chi-square by Wilson and Hilferty.

    Scaled to the variance that counts as small as these have: theirs is not quite chi-square's.
    """
    degrees = stretches - 1
    scale = 1 + stretches * kurtosis / (2 * degrees)
    spread = 2 * scale / (9 * degrees)
    return float((squares / degrees) ** (1 / 3) - (1 - spread)) / math.sqrt(spread)


def _runs(slow: NDArray[np.bool_], number: int) -> float:
    """Return how unlikely it is that slow samples stand in so few runs, in standard deviations; exact for any number.

    Of independent ones every arrangement is as likely as any other (Wald and Wolfowitz).
    """
    count = len(slow)
    runs = int((slow[1:] & ~slow[:-1]).sum()) + int(slow[0])
    if runs >= number * (count - number + 1) / count:
        return 0.0
    term = total = 1.0
    for found in range(runs, 1, -1):
        term *= (found - 1) * found / ((number - found + 1) * (count - number - found + 2))
        total += term
        if term < _NEGLIGIBLE * total:
            break
    last = _log_choose(number - 1, runs - 1) + _log_choose(count - number + 1, runs) - _log_choose(count, number)
    return _deviations(last + math.log(total))


def _deviations(log_probability: float) -> float:
    """Return the normal deviate that is exceeded with a probability under one half (Hastings' approximation)."""
    if log_probability >= math.log(0.5):
        return 0.0
    root = math.sqrt(-2 * log_probability)
    above = 2.515517 + 0.802853 * root + 0.010328 * root * root
    return root - above / (1 + 1.432788 * root + 0.189269 * root**2 + 0.001308 * root**3)


def _neighbors(samples: Floats) -> float:
    """Return how surely samples resemble their neighbors: the correlation of their ranks, in standard deviations."""
    import numpy as np

    _, places, counts = np.unique(samples, return_inverse=True, return_counts=True)
    # Equal samples share a rank: in the order they were taken they would seem to rise.
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[places.reshape(-1)]
    ranks = ranks - ranks.mean()
    variance = float(ranks @ ranks)
    return float(ranks[:-1] @ ranks[1:]) / variance * math.sqrt(len(samples)) if variance else 0.0
