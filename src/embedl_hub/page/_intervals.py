"""The 95 % interval of a number of a run, where its record has one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from embedl_device.statistics import mean_interval
from embedl_hub.core.document import document_of, find_metric

if TYPE_CHECKING:
    from embedl_hub.tracking import Run

Ends = tuple[float | None, float | None]
NO_ENDS: Ends = (None, None)


def logged_interval(metrics: Mapping[str, float], key: str) -> Ends:
    """Return the ends that were logged beside a number."""
    low, high = metrics.get(f"{key}_low"), metrics.get(f"{key}_high")
    return NO_ENDS if low is None or high is None else (low, high)


def has_document_interval(key: str) -> bool:
    """Tell whether a profile's document tells the interval of a number: of the median, and of the mean."""
    metric = find_metric(key)
    return metric.key == key and not metric.per_second and metric.statistic in ("mean", 50.0)


def document_interval(run: Run, key: str, value: float) -> Ends:
    """Return the ends that a run's document tells of its median or its mean."""
    document = document_of(run)[0]
    if find_metric(key).statistic == 50.0:
        return document.latency_ms.median_low, document.latency_ms.median_high
    interval = mean_interval(value, [time_us / 1e3 for time_us in document.samples_us])
    return interval.low, interval.high
