"""The one table of metrics: a row added here appears on the command line, the page, in comparisons and sweeps."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

_NUMBERED = re.compile(r"_\d+$")


class Better(StrEnum):
    """Which way a metric gets better."""

    LOWER = "lower"
    HIGHER = "higher"
    NONE = "none"


@dataclass(frozen=True)
class Metric:
    """A number that runs log. Its place in the table is its order wherever several are shown."""

    key: str  # the name it is logged under
    title: str  # what people call it
    short: str = ""  # the same where there is little room, as in the head of a column; the key if empty
    unit: str = ""  # its unit
    better: Better = Better.NONE  # which way it gets better
    decimals: int | None = None  # so many digits behind the point; None for four digits that count
    headline: bool = False  # whether it is shown right after a step
    # Whether tables of runs and sweeps have it unless asked otherwise, and the page of a run at its top.
    column: bool = False
    instead_of: str | None = None  # a metric that it only stands in for: left out of tables where that one is known
    field: str = ""  # where a profile document has it: a number of its own, or ``latency_ms.mean``; the key if empty
    per_second: bool = False  # whether it is how often a second the time in that field passes
    # How it follows from a profile's samples: their mean, or a percentile or its bound; None if it does not.
    statistic: Literal["mean"] | float | None = None
    is_speed: bool = False  # whether more or less of it is called faster and slower
    is_effort: bool = False  # whether it says how a measurement was made, not what came out
    is_bound: bool = False  # whether it is the end of an interval around another: two of them tell no difference

    @property
    def column_title(self) -> str:
        """What the head of a column says."""
        return f"{self.short or self.key}, {self.unit}" if self.unit else self.short or self.key

    @property
    def is_more_better(self) -> bool:
        """Whether more of it is better; of a metric that nobody knows, less is."""
        return self.better is Better.HIGHER

    def difference(self, *, is_more: bool) -> str:
        """Return the word for more or less of it."""
        if not self.is_speed:
            return "higher" if is_more else "lower"
        return "faster" if is_more is self.is_more_better else "slower"


def _time(key: str, title: str, short: str, field: str, **more: object) -> Metric:
    return Metric(key, title, short, "ms", Better.LOWER, field=field, **more)  # type: ignore[arg-type]


METRICS: tuple[Metric, ...] = (
    _time("latency_median", "Median latency", "Median", "latency_ms.median", headline=True, column=True,
          statistic=50.0, is_speed=True),
    _time("latency", "Mean latency", "Mean", "latency_ms.mean", headline=True, column=True,
          instead_of="latency_median", statistic="mean", is_speed=True),
    Metric("accuracy", "Accuracy", better=Better.HIGHER, column=True),
    Metric("top1_agreement", "Same class as float", better=Better.HIGHER, column=True),
    Metric("cosine", "Cosine to float", better=Better.HIGHER, column=True),
    _time("latency_p90", "90th percentile", "p90", "latency_ms.p90", headline=True, statistic=90.0, is_speed=True),
    _time("latency_p90_high", "p90, 99 % upper bound", "p90 bound", "latency_ms.p90_high", headline=True,
          statistic=90.0, is_speed=True, is_bound=True),
    _time("latency_p95", "95th percentile", "p95", "latency_ms.p95", headline=True, statistic=95.0, is_speed=True),
    _time("latency_p95_high", "p95, 99 % upper bound", "p95 bound", "latency_ms.p95_high", headline=True,
          statistic=95.0, is_speed=True, is_bound=True),
    _time("latency_p99", "99th percentile", "p99", "latency_ms.p99", headline=True, statistic=99.0, is_speed=True),
    _time("latency_p99_high", "p99, 99 % upper bound", "p99 bound", "latency_ms.p99_high", headline=True,
          statistic=99.0, is_speed=True, is_bound=True),
    _time("latency_min", "Fastest inference", "Fastest", "latency_ms.min", is_speed=True),
    _time("latency_std", "Standard deviation", "Deviation", "latency_ms.std", is_speed=True),
    Metric("fps", "Inferences per second", "", "1/s", Better.HIGHER, headline=True, field="latency_ms.mean",
           per_second=True, statistic="mean", is_speed=True),
    _time("load_time", "Time to load", "Load", "load_time_ms", headline=True),
    _time("first_latency", "First inference", "First", "first_latency_ms", headline=True),
    _time("start_time", "Start to first answer", "Start", "", headline=True, column=True),
    _time("process_time", "Start of the process", "Process", "", headline=True),
    _time("import_time", "Import of the runtime", "Import", "", headline=True),
    _time("start_time_cold", "Start to first answer, files read from storage", "Cold start", "", headline=True,
          column=True),
    _time("process_time_cold", "Start of the process, files read from storage", "Cold process", "", headline=True),
    _time("import_time_cold", "Import of the runtime, files read from storage", "Cold import", "", headline=True),
    _time("load_time_cold", "Time to load, files read from storage", "Cold load", "", headline=True),
    _time("first_latency_cold", "First inference, files read from storage", "Cold first", "", headline=True),
    _time("steady_latency", "Steady latency under load", "Steady", "steady_latency_ms", headline=True, column=True,
          is_speed=True),
    _time("fresh_latency", "Fresh latency under load", "Fresh", "fresh_latency_ms", headline=True, column=True,
          is_speed=True),
    Metric("steady_ratio", "Steady latency over fresh", "Steady/fresh", "x", Better.LOWER, headline=True, column=True),
    Metric("steady_ratio_low", "Steady over fresh, low end of its 95 % interval", "", "x", Better.LOWER, is_bound=True),
    Metric("steady_ratio_high", "Steady over fresh, high end of its 95 % interval", "", "x", Better.LOWER,
           is_bound=True),
    Metric("onset", "Throttling began after", "Throttled", "s", Better.HIGHER, headline=True, column=True,
           field="onset_s"),
    Metric("energy", "Energy of an inference", "Energy", "mJ", Better.LOWER, headline=True, column=True,
           field="energy_mj"),
    Metric("energy_low", "Energy, low end of its 95 % interval", "", "mJ", Better.LOWER, is_bound=True),
    Metric("energy_high", "Energy, high end of its 95 % interval", "", "mJ", Better.LOWER, is_bound=True),
    Metric("mean_power", "Power under load", "Power", "W", Better.LOWER, headline=True, field="mean_w"),
    Metric("idle_power", "Idle power", "Idle", "W", Better.LOWER, headline=True, field="idle_w"),
    Metric("temperature_start", "Temperature before the load", "", "°C", headline=True, field="temperature_start_c"),
    Metric("temperature_end", "Temperature at its end", "", "°C", Better.LOWER, headline=True,
           field="temperature_end_c"),
    _time("latency_alone", "Mean latency alone", "Alone", "", is_speed=True),
    _time("latency_concurrent", "Mean latency beside the others", "Beside", "", is_speed=True),
    Metric("interference", "Latency beside the others over alone", "Interference", "x", Better.LOWER),
    Metric("interference_low", "Interference, low end of its 99 % interval", "Interference, low", "x",
           Better.LOWER, is_bound=True),
    Metric("interference_high", "Interference, high end of its 99 % interval", "Interference, high", "x",
           Better.LOWER, is_bound=True),
    Metric("fps_alone", "Inferences per second alone", "", "1/s", Better.HIGHER, is_speed=True),
    Metric("fps_concurrent", "Inferences per second beside the others", "", "1/s", Better.HIGHER, is_speed=True),
    Metric("peak_memory_mb", "Peak memory", "Memory", "MB", Better.LOWER, headline=True, column=True),
    Metric("arena_peak_mb", "Peak of the runtime's arena", "Arena", "MB", Better.LOWER, headline=True),
    Metric("predicted_memory_mb", "Predicted memory", "Predicted", "MB", Better.LOWER, headline=True),
    Metric("model_size_mb", "Model size", "Size", "MB", Better.LOWER, headline=True, column=True),
    Metric("calibration_cosine", "Cosine to float on calibration data", better=Better.HIGHER, headline=True),
    Metric("conversion_error", "Error of the conversion", "", "of the range", Better.LOWER, headline=True),
    Metric("quantization_sqnr_db", "Signal to quantization noise", "SQNR", "dB", Better.HIGHER, headline=True),
    Metric("iterations", "Measured inferences", decimals=0, headline=True, is_effort=True),
    Metric("missed", "Inferences that came too late", "Too late", "", Better.LOWER, decimals=0),
    Metric("starts", "Starts with the page cache, and as many without", decimals=0, is_effort=True),
    Metric("rounds", "Rounds", decimals=0, is_effort=True),
    Metric("warmup", "Inferences before them", decimals=0, is_effort=True),
)  # fmt: skip


def find_metric(key: str) -> Metric:
    """Return the row of a metric; a plain one for a metric of somebody's own.

    Of models measured in turns each has its own, counted from 1: ``latency_median_2``.
    """
    rows = {metric.key: metric for metric in METRICS}
    return rows.get(key) or rows.get(_NUMBERED.sub("", key)) or Metric(key, key)


def in_order(keys: Iterable[str]) -> list[str]:
    """Return keys in the order in which a reader asks for them; those that the table lacks follow by name."""
    order = {metric.key: number for number, metric in enumerate(METRICS)}
    return sorted(keys, key=lambda key: (order.get(key, len(order)), key))


def headlines() -> list[Metric]:
    """Return what is shown right after a step."""
    return [metric for metric in METRICS if metric.headline]


def columns(known: Collection[str]) -> list[str]:
    """Return, of the metrics that are known, those that a table has unless asked otherwise."""
    return [each.key for each in METRICS if each.column and each.key in known and each.instead_of not in known]
