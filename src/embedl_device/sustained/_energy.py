"""Joules of an inference: what the sources counted under load, less what the idle board takes in that time."""

from __future__ import annotations

import bisect
import math
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from embedl_device.power import choose, words_of
from embedl_device.statistics import Interval
from embedl_device.sustained._journal import ENERGY, POWER, Recording

_BLOCKS = 10
_FEWEST_BLOCKS = 5
# Student's t, 95 % two-sided, for 4 to 9 degrees of freedom.
_T_95 = {4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}
_LEAST_IDLE_S = 1.0
# What went before is still felt: clocks and regulators settle.
_SETTLES_S = 0.5


class Series(NamedTuple):
    """Joules since the first reading, at the times of the readings that have them."""

    times_s: List[float]
    joules: List[float]

    def at(self, time_s: float) -> Optional[float]:
        """Return the joules until a time; None outside of what was read."""
        times = self.times_s
        if not times or not times[0] <= time_s <= times[-1]:
            return None
        after = bisect.bisect_left(times, time_s)
        if after == 0 or times[after] == times[after - 1]:
            return self.joules[after]
        share = (time_s - times[after - 1]) / (times[after] - times[after - 1])
        return self.joules[after - 1] + share * (self.joules[after] - self.joules[after - 1])

    def watts(self, from_s: float, until_s: float) -> Optional[float]:
        """Return the mean power of a time; None where it was not read, or too short."""
        first, last = self.at(from_s), self.at(until_s)
        if first is None or last is None or until_s <= from_s:
            return None
        return (last - first) / (until_s - from_s)


def integrated(times_s: Sequence[float], watts: Sequence[float]) -> Series:
    """Return the joules of power that was read at times, by trapezoids."""
    joules = [0.0]
    for number in range(1, len(times_s)):
        step = (watts[number] + watts[number - 1]) / 2 * (times_s[number] - times_s[number - 1])
        joules.append(joules[-1] + step)
    return Series(list(times_s), joules if times_s else [])


def series_of(recording: Recording, number: int) -> Series:
    """Return the joules that a channel of energy or power tells; readings that failed are bridged."""
    told = [(each.at_s, each.values[number]) for each in recording.readings]
    known = [(at_s, value) for at_s, value in told if value is not None]
    times, values = [at_s for at_s, _ in known], [value for _, value in known]
    if recording.channels[number].kind == POWER:
        return integrated(times, values)
    # A counter that falls was reset; what it says then is no difference.
    if any(now < old for old, now in zip(values, values[1:])):
        return Series([], [])
    return Series(times, [value - values[0] for value in values])


def added(parts: Sequence[Series]) -> Series:
    """Return the sum of series, at the times of the first that all of them cover."""
    times, joules = [], []
    for time_s in parts[0].times_s:
        each = [part.at(time_s) for part in parts]
        known = [value for value in each if value is not None]
        if len(known) == len(parts):
            times.append(time_s)
            joules.append(math.fsum(known))
    return Series(times, joules)


def energy_of(recording: Recording, wanted: Sequence[str] = ()) -> Dict[str, Any]:
    """Return the energy of an inference and how it was found; a sentence under ``problem`` where there is none."""
    numbers = [number for number, each in enumerate(recording.channels) if each.kind in (ENERGY, POWER)]
    channels = {recording.channels[number].name: number for number in numbers}
    rows = [recording.channels[number] for number in numbers]
    names, problem = choose([(each.name, each.domain, each.family) for each in rows], wanted)
    problems = list(recording.start.get("power_problems") or ())
    if not names:
        return {"problem": "; ".join([problem or "no source", *problems])}
    parts = [series_of(recording, channels[name]) for name in names]
    broken = [name for name, part in zip(names, parts) if len(part.times_s) < 2]
    if broken:
        return {"problem": "{} gave no readings that can be used".format(", ".join(broken))}
    is_counted = all(recording.channels[channels[name]].kind == ENERGY for name in names)
    domains = [recording.channels[channels[name]].domain for name in names]
    method = "the sensors' own counters" if is_counted else "trapezoids over samples of power"
    found = energy_from(recording, added(parts))
    return dict(found, sources=names, covers=words_of(names, domains), method=method, unused=problems)


def energy_from(recording: Recording, series: Series) -> Dict[str, Any]:
    """Return the energy of an inference from a series of joules on the run's own clock."""
    bins = recording.bins
    if not bins:
        return {"problem": "no inference was timed"}
    idle, idle_words = _idle(recording, series)
    begin_s, end_s = 0.0, bins[-1].end_s
    total = series.watts(begin_s, end_s)
    if total is None:
        return {"problem": "the readings of energy do not cover the load, from 0 to {:.1f} s".format(end_s)}
    count = sum(each.inferences for each in bins)
    result: Dict[str, Any] = {
        "mean_w": total,
        "gross_mj": 1e3 * total * (end_s - begin_s) / count,
        "idle_w": idle,
        "idle": idle_words,
        "inferences": count,
    }
    if idle is None:
        result["problem"] = "idle power is not known, so it cannot be taken off: {}".format(idle_words)
        return result
    net = total - idle
    if net <= 0:
        result["problem"] = "under load it took {:.3g} W, no more than the {:.3g} W of the idle board".format(
            total, idle
        )
        return result
    interval = _interval(recording, series, idle)
    mean_mj = 1e3 * net * (end_s - begin_s) / count
    low, high = (None, None) if interval is None else (mean_mj - interval, mean_mj + interval)
    result["energy"] = vars(Interval(mean_mj, None if low is None else max(0.0, low), high))
    return result


def _idle(recording: Recording, series: Series) -> Tuple[Optional[float], str]:
    """Return the idle power, and from which times it is, in words."""
    readings = recording.readings
    end_s = recording.bins[-1].end_s
    stretches = [
        ("before", readings[0].at_s + _SETTLES_S, min(0.0, readings[-1].at_s)),
        ("after", end_s + 2 * _SETTLES_S, readings[-1].at_s),
    ]
    found: List[Tuple[str, float, float]] = []
    for word, from_s, until_s in stretches:
        watts = series.watts(from_s, until_s) if until_s - from_s >= _LEAST_IDLE_S else None
        if watts is not None:
            found.append((word, watts, until_s - from_s))
    if not found:
        return None, "no idle time of at least {:g} s was read before or after".format(_LEAST_IDLE_S)
    said = ", ".join("{:.3g} W over {:.1f} s {}".format(watts, length, word) for word, watts, length in found)
    return math.fsum(watts for _, watts, _ in found) / len(found), said


def _interval(recording: Recording, series: Series, idle_w: float) -> Optional[float]:
    """Return half the width of the 95 % interval of the mean, in mJ, from stretches of the run."""
    edges = [0.0] + [each.end_s for each in recording.bins]
    counts = [each.inferences for each in recording.bins]
    blocks = min(_BLOCKS, len(counts))
    if blocks < _FEWEST_BLOCKS:
        return None
    values = []
    for number in range(blocks):
        first, last = number * len(counts) // blocks, (number + 1) * len(counts) // blocks
        watts = series.watts(edges[first], edges[last])
        if watts is None:
            return None
        values.append(1e3 * (watts - idle_w) * (edges[last] - edges[first]) / sum(counts[first:last]))
    middle = math.fsum(values) / blocks
    deviation = math.sqrt(math.fsum((value - middle) ** 2 for value in values) / (blocks - 1))
    return _T_95[blocks - 1] * deviation / math.sqrt(blocks)
