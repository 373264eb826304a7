"""A sustained load as one picture: latency, clocks, temperature, power and throttling over the same time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from embedl_hub.core.document import ProfileDocument

_MOST_POINTS = 2000
_MOST_LINES = 12
_KINDS = {
    "clock_mhz": ("Clock", "MHz"),
    "temperature_c": ("Temperature", "°C"),
    "power_w": ("Power", "W"),
}
# So long a counter is looked at for one value of power: it ticks in steps.
_LEAST_STEP_S = 0.9

Values = tuple[float | None, ...]


@dataclass(frozen=True)
class Line:
    """One line of a panel."""

    name: str
    x: tuple[float, ...]
    y: Values


@dataclass(frozen=True)
class Panel:
    """One of the pictures above each other."""

    title: str
    unit: str
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class Chart:
    """What is drawn of a sustained load, and what is said of it."""

    panels: tuple[Panel, ...]
    throttled_s: tuple[float, ...]  # when the board said that it slows itself down
    onset_s: tuple[float, float] | None  # between which readings throttling began to be felt
    fresh_s: tuple[float, float] | None  # from when until when the latency counts as fresh
    steady_s: tuple[float, float] | None  # and as steady
    words: tuple[str, ...]  # what there is to say, one sentence each


def chart_of(document: ProfileDocument) -> Chart | None:
    """Return the picture of a sustained load; None for another document, or one that is not whole."""
    if document.fact("kind") != "sustained":
        return None
    bins, readings = document.fact("sustained", "bins"), document.fact("sustained", "readings")
    if not isinstance(bins, Mapping) or not isinstance(readings, Mapping):
        return None
    times = _numbers(bins.get("end_s"))
    names = {"median_ms": "median", "p90_ms": "90th percentile", "mean_ms": "mean"}
    lines = [line for key, name in names.items() if (line := _line(name, times, bins.get(key))) is not None]
    panels = [Panel("Latency", "ms", tuple(lines)), *_panels(readings)]
    throttled = _numbers(document.fact("sustained", "throttled", "at_s"))
    return Chart(
        panels=tuple(panel for panel in panels if panel.lines),
        throttled_s=tuple(value for value in throttled if value is not None)[:_MOST_POINTS],
        onset_s=_range(document.fact("sustained", "onset"), "low_s", "high_s"),
        fresh_s=_range(document.fact("sustained", "fresh"), "from_s", "until_s"),
        steady_s=_range(document.fact("sustained", "steady"), "from_s", "until_s"),
        words=tuple(_words(document)),
    )


def _panels(readings: Mapping[str, object]) -> list[Panel]:
    times = _numbers(readings.get("at_s"))
    channels = readings.get("channels")
    found: dict[str, list[Line]] = {kind: [] for kind in _KINDS}
    for channel in channels if isinstance(channels, list) else ():
        kind, name = (channel.get(key) for key in ("kind", "name")) if isinstance(channel, Mapping) else (None, None)
        line = _line(str(name), times, channel.get("values")) if isinstance(channel, Mapping) else None
        if line is None:
            continue
        if kind == "energy_j":
            kind, line = "power_w", _derived(line)
        if kind in found and len(found[kind]) < _MOST_LINES and any(value is not None for value in line.y):
            found[kind].append(line)
    return [Panel(*_KINDS[kind], tuple(lines)) for kind, lines in found.items()]


def _derived(line: Line) -> Line:
    """Return the power of a line of energy."""
    known = [(x, y) for x, y in zip(line.x, line.y, strict=True) if y is not None]
    times: list[float] = []
    watts: list[float | None] = []
    for time_s, joules in known:
        if not times:
            last_s, last_j = time_s, joules
            times.append(time_s)
            watts.append(None)
        elif time_s - last_s >= _LEAST_STEP_S:
            times.append(time_s)
            watts.append((joules - last_j) / (time_s - last_s))
            last_s, last_j = time_s, joules
    return Line(line.name, tuple(times), tuple(watts))


def _line(name: str, times: Sequence[float | None], values: object) -> Line | None:
    numbers = _numbers(values)
    pairs = [(x, y) for x, y in zip(times, numbers, strict=False) if x is not None]
    pairs = pairs[:: len(pairs) // _MOST_POINTS + 1]
    return Line(name, tuple(x for x, _ in pairs), tuple(y for _, y in pairs)) if pairs else None


def _numbers(values: object) -> list[float | None]:
    return [_number(value) for value in values] if isinstance(values, list) else []


def _number(value: object) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) else None  # type: ignore[arg-type]


def _range(value: object, first: str, last: str) -> tuple[float, float] | None:
    if not isinstance(value, Mapping):
        return None
    low, high = _number(value.get(first)), _number(value.get(last))
    return None if low is None or high is None else (low, high)


def _words(document: ProfileDocument) -> list[str]:
    """Return what is said below the picture."""
    found: list[str] = []
    evidence = document.fact("sustained", "onset", "evidence")
    if (onset_s := document.numbers.get("onset_s")) is not None:
        told = "; ".join(map(str, evidence)) if isinstance(evidence, list) else ""
        found.append(f"Throttling began at {onset_s:.1f} s: {told}.")
    else:
        found.append("No throttling was seen that the latency shows.")
    problem = document.fact("sustained", "energy", "problem")
    covers, idle = document.fact("sustained", "energy", "covers"), document.fact("sustained", "energy", "idle")
    if problem is not None:
        found.append(f"There is no energy of an inference: {problem}.")
    elif covers is not None:
        method = document.fact("sustained", "energy", "method")
        found.append(f"Energy is of {covers}, by {method}; idle power is taken off: {idle}.")
    if (stopped := document.fact("sustained", "stopped")) is not None:
        found.append(f"The load ended {stopped}." if str(stopped).startswith("after") else f"It ended: {stopped}.")
    return found
