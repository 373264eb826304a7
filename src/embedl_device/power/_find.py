"""All sources of a board, the most trusted kind first: counters before samples of power."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import Any, List

from embedl_device.power._nvml import find_nvml
from embedl_device.power._source import Found, Source
from embedl_device.power._sysfs import find_battery, find_hwmon, find_jetson, find_powercap
from embedl_device.power._tegrastats import find_tegrastats

GROUP = "embedl_device.power_sources"
SYSFS = Path("/sys")


def find_sources(sysfs: Path = SYSFS) -> Found:
    """Return every source that can be read, and what is wrong with those that cannot."""
    sources: List[Source] = []
    problems: List[str] = []
    for found in (find_powercap(sysfs), find_nvml(), find_hwmon(sysfs), find_jetson(sysfs)):
        sources += found.sources
        problems += found.problems
    # It reads the sensors that hwmon shows; asked only where that shows none, since it is a process of its own.
    if not any(source.family in ("hwmon", "ina3221x") for source in sources) and sysfs == SYSFS:
        found = find_tegrastats()
        sources += found.sources
        problems += found.problems
    sources += find_battery(sysfs).sources
    for entry in _entries():
        found = _from_outside(entry)
        sources += found.sources
        problems += found.problems
    return Found(sources, problems)


def _from_outside(entry: Any) -> Found:
    try:
        found = Found(*entry.load()())
        sources = [source for source in found.sources if _is_source(source)]
        return Found(sources, [str(problem)[:300] for problem in found.problems])
    except Exception as error:  # somebody else's code; a measurement goes on without it
        return Found(problems=["The power source {!r} failed: {}".format(entry.name, error)])


def _is_source(value: Any) -> bool:
    return all(hasattr(value, name) for name in ("name", "domain", "family", "is_counter", "read", "close"))


def _entries() -> List[Any]:
    every: Any = importlib.metadata.entry_points()
    # Python 3.8 and 3.9 have a dictionary of groups.
    found = every.select(group=GROUP) if hasattr(every, "select") else every.get(GROUP, ())
    return sorted(found, key=lambda entry: str(entry.name))
