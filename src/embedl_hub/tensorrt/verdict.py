"""How far trtexec's samples can be trusted: the verdicts of the other toolchains, by the same rules and limits."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

PERCENTILE_RULE = "nearest rank"
_SAMPLES_FOR_P99 = 100
_DRIFT = 0.03
_SPREAD = 0.10
_MEAN_OFF_MEDIAN = 0.10
_Z = 1.96


def percentile(times: Sequence[float], percent: float) -> float:
    """Return a percentile by nearest rank: a value that was measured."""
    ordered = sorted(times)
    return ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)]


def median_interval(times: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of the median, from the order of the samples."""
    ordered = sorted(times)
    reach = _Z * math.sqrt(len(ordered)) / 2
    low = max(0, math.floor(len(ordered) / 2 - reach) - 1)
    high = min(len(ordered) - 1, math.ceil(len(ordered) / 2 + reach))
    return ordered[low], ordered[high]


def statistics(times_ms: Sequence[float]) -> dict[str, float | None]:
    """Return the headline numbers in ms; p99 of fewer than 100 samples would be a guess and is left out."""
    count = len(times_ms)
    mean = math.fsum(times_ms) / count
    variance = math.fsum((value - mean) ** 2 for value in times_ms) / (count - 1) if count > 1 else 0.0
    low, high = median_interval(times_ms)
    return {
        "mean": mean,
        "median": percentile(times_ms, 50),
        "median_low": low,
        "median_high": high,
        "p90": percentile(times_ms, 90),
        "p99": percentile(times_ms, 99) if count >= _SAMPLES_FOR_P99 else None,
        "min": min(times_ms),
        "max": max(times_ms),
        "std": math.sqrt(variance),
    }


def judge(times: Sequence[float], throttling: Sequence[str], unreadable: Sequence[str]) -> tuple[str, str]:
    """Return a verdict on samples and its reason.

    Args:
        times: The samples in microseconds, in the order they were taken; the warm-up is not among them.
        throttling: What the GPU says held its clocks down, in words.
        unreadable: What could not be read; it can never certify a clean run.
    """
    if throttling:
        return "throttled", "; ".join(throttling)
    third = max(1, len(times) // 3)
    first, last = times[:third], times[-third:]
    change = percentile(last, 50) / percentile(first, 50) - 1 if len(times) >= 9 else 0.0
    (first_low, first_high), (last_low, last_high) = median_interval(first), median_interval(last)
    if abs(change) > _DRIFT and (last_low > first_high or last_high < first_low):
        return "drifting", f"the median of the last third is {change:+.1%} against the first third"
    median = percentile(times, 50)
    spread = (percentile(times, 75) - percentile(times, 25)) / median if median else 0.0
    if spread > _SPREAD:
        return "noisy", f"half of the samples spread over {spread:.0%} of the median; is something else running?"
    mean = math.fsum(times) / len(times)
    if abs(mean - median) > _MEAN_OFF_MEDIAN * median:
        return "noisy", (
            f"a few samples are far off: the mean is {mean / 1e3:.4g} ms, the median {median / 1e3:.4g} ms; "
            "is something else running?"
        )
    note = f"{len(times)} samples"
    if len(times) >= _SAMPLES_FOR_P99:
        low, high = median_interval(times)
        note += f", the median is known to {(high - low) / 2 / median if median else 0:.1%}"
    if unreadable:
        note += f"; could not be read: {', '.join(unreadable)}"
    return "stable", note
