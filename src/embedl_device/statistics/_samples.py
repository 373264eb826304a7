"""One series of samples: percentiles, headline numbers, intervals, drift and spread; and how far to trust it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Optional, Sequence, Tuple

# Percentiles are nearest-rank: a value that was really measured, never one between two.
PERCENTILE_RULE = "nearest rank"

_DRIFT = 0.03
_FEWEST_FOR_DRIFT = 9
_FEWEST_FOR_A_MEDIAN = 100
_Z_95 = 1.96
_BLOCKS = 10
# Student's t for ten blocks, 95 % two-sided.
_T_95 = 2.262
_SPREAD = 0.10
_MEAN_OFF_MEDIAN = 0.10


@dataclass(frozen=True)
class Interval:
    """A number and the interval that it is known to, if one is known."""

    value: float
    low: Optional[float] = None
    high: Optional[float] = None


def mean_of(values: Sequence[float]) -> float:
    """Return the mean; the standard library's module for it takes longer to import than a small model to run."""
    return math.fsum(values) / len(values)


def deviation(values: Sequence[float]) -> float:
    """Return the standard deviation of a sample."""
    middle = mean_of(values)
    return math.sqrt(math.fsum((value - middle) ** 2 for value in values) / (len(values) - 1))


def percentile(values: Sequence[float], percent: float) -> float:
    """Return a percentile by nearest rank."""
    return nearest_rank(sorted(values), percent)


def nearest_rank(ordered: Sequence[float], percent: float) -> float:
    """Return a percentile of values that are in order."""
    return ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)]


def median_interval(values: Sequence[float]) -> Tuple[float, float]:
    """Return the 95 % interval of the median from the order of the samples; no distribution is assumed."""
    ordered = sorted(values)
    count = len(ordered)
    reach = _Z_95 * math.sqrt(count) / 2
    low = max(0, math.floor(count / 2 - reach) - 1)
    high = min(count - 1, math.ceil(count / 2 + reach))
    return ordered[low], ordered[high]


def mean_interval(mean: float, values: Sequence[float]) -> Interval:
    """Return a mean with its 95 % interval; samples resemble their neighbors, the means of ten stretches less so."""
    if len(values) < 3 * _BLOCKS:
        return Interval(mean)
    size = len(values) / _BLOCKS
    means = [mean_of(values[int(n * size) : int((n + 1) * size)]) for n in range(_BLOCKS)]
    half = _T_95 * deviation(means) / math.sqrt(_BLOCKS)
    return Interval(mean, max(0.0, mean - half), mean + half)


def relative_change(values: Sequence[float]) -> Optional[float]:
    """Return how far the median of the last third is off that of the first; None when small or by chance."""
    if len(values) < _FEWEST_FOR_DRIFT:
        return None
    third = len(values) // 3
    first, last = values[:third], values[-third:]
    change = percentile(last, 50) / percentile(first, 50) - 1
    (first_low, first_high), (last_low, last_high) = median_interval(first), median_interval(last)
    return change if abs(change) > _DRIFT and (last_low > first_high or last_high < first_low) else None


def spread(values: Sequence[float]) -> float:
    """Return over how much of the median the middle half of the samples is spread."""
    median = percentile(values, 50)
    return (percentile(values, 75) - percentile(values, 25)) / median if median else 0.0


class Verdict(str, Enum):
    """What samples say of themselves. Stored and shown as its text."""

    STABLE = "stable"
    NOISY = "noisy"
    DRIFTING = "drifting"
    THROTTLED = "throttled"
    INDICATIVE = "indicative"
    ESTIMATED = "estimated"

    def __str__(self) -> str:
        return str(self.value)

    @property
    def is_stable(self) -> bool:
        """Whether the numbers can be taken as they are."""
        return self is Verdict.STABLE

    @property
    def is_measured(self) -> bool:
        """Whether the model ran at all to give them."""
        return self is not Verdict.ESTIMATED

    @classmethod
    def of(cls, text: object) -> Optional[Verdict]:
        """Return the verdict of a record; None where there is none.

        A word that is not known here, of a newer version or of somebody's own tool, vouches for nothing.
        """
        if text is None:
            return None
        try:
            return cls(text)
        except ValueError:
            return cls.INDICATIVE


class Judgement(NamedTuple):
    """A verdict and why."""

    verdict: Verdict
    reason: str


def judge(
    times_us: Sequence[float],
    throttling: Sequence[str] = (),
    unreadable: Sequence[str] = (),
    unsettled_after: Optional[int] = None,
) -> Judgement:
    """Judge samples in the order they were taken, without the warm-up.

    Args:
        times_us: The samples.
        throttling: What the board says happened to its clocks meanwhile, in words.
        unreadable: The sensors that could not be read; they can never certify a clean run.
        unsettled_after: The runs of the warm-up, if the times had not settled when it ended.
    """
    if throttling:
        return Judgement(Verdict.THROTTLED, "; ".join(throttling))
    change = relative_change(times_us)
    if change is not None:
        return Judgement(
            Verdict.DRIFTING, "the median of the last third is {:+.1%} against the first third".format(change)
        )
    if unsettled_after is not None:
        return Judgement(
            Verdict.DRIFTING, "the times had not settled when the warm-up ended after {} runs".format(unsettled_after)
        )
    middle_half, median = spread(times_us), percentile(times_us, 50)
    if middle_half > _SPREAD:
        return Judgement(
            Verdict.NOISY,
            "half of the samples spread over {:.0%} of the median; is something else running?".format(middle_half),
        )
    mean = math.fsum(times_us) / len(times_us)
    if abs(mean - median) > _MEAN_OFF_MEDIAN * median:
        return Judgement(
            Verdict.NOISY,
            "a few samples are far off: the mean is {:.4g} ms, the median {:.4g} ms; is something else running?".format(
                mean / 1e3, median / 1e3
            ),
        )
    note = "{} samples".format(len(times_us))
    if len(times_us) >= _FEWEST_FOR_A_MEDIAN:
        low, high = median_interval(times_us)
        note += ", the median is known to {:.1%}".format((high - low) / 2 / median if median else 0)
    return Judgement(Verdict.STABLE, "; ".join([note, *_not_read(unreadable)]))


def judge_ratios(
    series: Sequence[Sequence[float]], throttling: Sequence[str], unreadable: Sequence[str], notes: Sequence[str] = ()
) -> Judgement:
    """Judge the ratios of models measured in turns to the first; ``series`` has their times, one for each round.

    What moves all of them alike, a drift or a change of clocks, is in no ratio and troubles nobody.
    """
    if throttling:
        return Judgement(Verdict.THROTTLED, "; ".join(throttling))
    worst = 0.0
    first, *others = series
    for number, times in enumerate(others, 2):
        ratios = [time / first_time for time, first_time in zip(times, first)]
        change = relative_change(ratios)
        if change is not None:
            return Judgement(
                Verdict.DRIFTING,
                "the ratio of model {} to the first is {:+.1%} in the last third".format(number, change),
            )
        worst = max(worst, spread(ratios))
    if worst > _SPREAD:
        return Judgement(
            Verdict.NOISY, "half of the rounds' ratios spread over {:.0%}; is something else running?".format(worst)
        )
    note = "{} rounds, half of their ratios within {:.1%}".format(len(first), worst)
    return Judgement(Verdict.STABLE, "; ".join([note, *notes, *_not_read(unreadable)]))


def _not_read(unreadable: Sequence[str]) -> Sequence[str]:
    return ["could not be read: {}".format(", ".join(unreadable))] if unreadable else []
