"""Latency, measured so that it can be defended: warm-up until stable, raw samples, a verdict with its reason.

Knows nothing of any runtime: it times a function. Times are kept in microseconds.
"""

from __future__ import annotations

import math
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

# Percentiles are nearest-rank: a value that was really measured, never one between two.
PERCENTILE_RULE = "nearest rank"
_SAMPLES_FOR_P99 = 100

_WINDOW_RUNS = 5
_WINDOWS_THAT_MUST_AGREE = 3
_WINDOWS_AGREE_WITHIN = 0.03

_DRIFT = 0.03
_SPREAD = 0.10
_MEAN_OFF_MEDIAN = 0.10
_Z = 1.96


class Plan(NamedTuple):
    """How much to measure.

    Attributes:
        iterations: At least so many samples, unless ``max_seconds`` ends it.
        min_seconds: Also at least so long.
        max_seconds: At most so long, whatever the number of samples.
        max_warmup_seconds: Warm-up ends here even if the times still change.
    """

    iterations: int = 100
    min_seconds: float = 1.0
    max_seconds: float = 30.0
    max_warmup_seconds: float = 5.0

    def method(self) -> Dict[str, Any]:
        """Return the rules in words and numbers, for the report."""
        return {
            "clock": "perf_counter_ns around each run, profiling off",
            "warmup_rule": (
                "until the medians of {} windows of {} runs agree within {:.0%}, at most {:g} s".format(
                    _WINDOWS_THAT_MUST_AGREE, _WINDOW_RUNS, _WINDOWS_AGREE_WITHIN, self.max_warmup_seconds
                )
            ),
            "stop_rule": "at least {} samples and {:g} s, at most {:g} s".format(
                self.iterations, self.min_seconds, self.max_seconds
            ),
            "percentile_rule": PERCENTILE_RULE,
        }


class Samples(NamedTuple):
    """What was measured: the first run, the warm-up and the samples that count, in microseconds."""

    first_us: float
    warmup_us: List[float]
    is_warm: bool
    times_us: List[float]


def take_samples(run: Callable[[], object], plan: Plan, clock_ns: Callable[[], int] = time.perf_counter_ns) -> Samples:
    """Time a function: once cold, then until it is warm, then for the record."""

    def timed() -> float:
        start = clock_ns()
        run()
        return (clock_ns() - start) / 1e3

    first = timed()
    warmup: List[float] = []
    deadline = clock_ns() + plan.max_warmup_seconds * 1e9
    while not is_warm(warmup) and clock_ns() < deadline:
        warmup.append(timed())
    times: List[float] = []
    start = clock_ns()
    while True:
        times.append(timed())
        spent_s = (clock_ns() - start) / 1e9
        if spent_s >= plan.max_seconds or (len(times) >= plan.iterations and spent_s >= plan.min_seconds):
            return Samples(first, warmup, is_warm(warmup), times)


def is_warm(times_us: Sequence[float]) -> bool:
    """Tell whether times have settled; asked after whole windows only."""
    needed = _WINDOW_RUNS * _WINDOWS_THAT_MUST_AGREE
    if len(times_us) < needed or len(times_us) % _WINDOW_RUNS:
        return False
    tail = times_us[-needed:]
    medians = [percentile(tail[at : at + _WINDOW_RUNS], 50) for at in range(0, needed, _WINDOW_RUNS)]
    return max(medians) <= min(medians) * (1 + _WINDOWS_AGREE_WITHIN)


def percentile(times: Sequence[float], percent: float) -> float:
    """Return a percentile by nearest rank."""
    ordered = sorted(times)
    return ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)]


def statistics_ms(times_us: Sequence[float]) -> Dict[str, Optional[float]]:
    """Return the headline numbers in milliseconds; p99 of fewer than 100 samples would be a guess and is left out."""
    count = len(times_us)
    mean = math.fsum(times_us) / count
    variance = math.fsum((value - mean) ** 2 for value in times_us) / (count - 1) if count > 1 else 0.0
    low, high = median_interval(times_us)
    return {
        "mean": mean / 1e3,
        "median": percentile(times_us, 50) / 1e3,
        "median_low": low / 1e3,
        "median_high": high / 1e3,
        "p90": percentile(times_us, 90) / 1e3,
        "p99": percentile(times_us, 99) / 1e3 if count >= _SAMPLES_FOR_P99 else None,
        "min": min(times_us) / 1e3,
        "max": max(times_us) / 1e3,
        "std": math.sqrt(variance) / 1e3,
    }


def median_interval(times_us: Sequence[float]) -> Tuple[float, float]:
    """Return the 95 % interval of the median from the order of the samples; no distribution is assumed."""
    ordered = sorted(times_us)
    count = len(ordered)
    reach = _Z * math.sqrt(count) / 2
    low = max(0, math.floor(count / 2 - reach) - 1)
    high = min(count - 1, math.ceil(count / 2 + reach))
    return ordered[low], ordered[high]


def relative_change(values: Sequence[float]) -> Optional[float]:
    """Return how far the median of the last third is off that of the first; None when small or by chance."""
    if len(values) < 9:
        return None
    third = len(values) // 3
    first, last = values[:third], values[-third:]
    change = percentile(last, 50) / percentile(first, 50) - 1
    (first_low, first_high), (last_low, last_high) = median_interval(first), median_interval(last)
    return change if abs(change) > _DRIFT and (last_low > first_high or last_high < first_low) else None


def judge(samples: Samples, throttling: Sequence[str], unreadable: Sequence[str]) -> Tuple[str, str]:
    """Return a verdict on the samples and its reason.

    Args:
        samples: What was measured.
        throttling: What the board's own counters say happened to its clocks meanwhile, in words.
        unreadable: The sensors that could not be read; they can never certify a clean run.
    """
    times = samples.times_us
    if throttling:
        return "throttled", "; ".join(throttling)
    change = relative_change(times)
    if change is not None:
        return "drifting", "the median of the last third is {:+.1%} against the first third".format(change)
    if not samples.is_warm:
        return "drifting", "the times had not settled when the warm-up ended after {} runs".format(
            len(samples.warmup_us)
        )
    median = percentile(times, 50)
    spread = (percentile(times, 75) - percentile(times, 25)) / median if median else 0.0
    if spread > _SPREAD:
        return "noisy", "half of the samples spread over {:.0%} of the median; is something else running?".format(
            spread
        )
    mean = math.fsum(times) / len(times)
    if abs(mean - median) > _MEAN_OFF_MEDIAN * median:
        return "noisy", (
            "a few samples are far off: the mean is {:.4g} ms, the median {:.4g} ms; is something else running?".format(
                mean / 1e3, median / 1e3
            )
        )
    if len(times) < _SAMPLES_FOR_P99:
        note = "{} samples".format(len(times))
    else:
        low, high = median_interval(times)
        note = "{} samples, the median is known to {:.1%}".format(
            len(times), (high - low) / 2 / median if median else 0
        )
    if unreadable:
        note += "; could not be read: {}".format(", ".join(unreadable))
    return "stable", note
