"""An external meter's record beside a sustained run: a CSV file by time stamps, laid on the run's own clock.

Files of the usual meters are understood by the names of their columns: time, and power, or energy, or current and
voltage, with their units. The meter's clock is told how far it is off, or that is found: the step from rest to load.
"""

from __future__ import annotations

import csv
import datetime as dt
import io
import math
import os
import re
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from embedl_device.sustained import Recording, Series, energy_from, integrated
from embedl_hub.errors import ConfigError
from embedl_hub.paths import open_plain

_MOST_BYTES = 128_000_000
_MOST_ROWS = 5_000_000
_LOOK_AT = 50
# By what is measured: names of columns, and what one of the column's unit is in ours.
_NAMES = {
    "time": re.compile(r"^(time|timestamp|date|datetime|elapsed|t|zeit)\b|^time"),
    "power": re.compile(r"power|watt|leistung|^p\b"),
    "energy": re.compile(r"energy|energie|joule|\bm?wh\b|\bk?wh\b"),
    "current": re.compile(r"current|curr|amp|strom|\(?[muµ]a\)?$|^i\b"),
    "voltage": re.compile(r"volt|spannung|^u\b|^v\b"),
}
_SCALES = {
    "time": {"s": 1.0, "sec": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9},
    "power": {"w": 1.0, "mw": 1e-3, "uw": 1e-6, "µw": 1e-6, "kw": 1e3},
    "energy": {"j": 1.0, "mj": 1e-3, "uj": 1e-6, "µj": 1e-6, "wh": 3600.0, "mwh": 3.6, "kwh": 3.6e6},
    "current": {"a": 1.0, "ma": 1e-3, "ua": 1e-6, "µa": 1e-6, "na": 1e-9},
    "voltage": {"v": 1.0, "mv": 1e-3, "uv": 1e-6, "µv": 1e-6},
}
# A number of seconds since 1970 in our days, and the same in ms, us and ns.
_EPOCHS = ((1e9, 1e10, 1.0), (1e12, 1e13, 1e-3), (1e15, 1e16, 1e-6), (1e18, 1e19, 1e-9))
_CLEAR_STEP = 0.05


@dataclass(frozen=True)
class MeterRecord:
    """What a meter recorded."""

    times_s: tuple[float, ...]  # since 1970, or since the meter's own begin
    watts: tuple[float, ...] = ()  # power at these times, or nothing where it counts energy
    joules: tuple[float, ...] = ()  # energy until these times, or nothing
    is_absolute: bool = True  # whether the times are of a clock
    columns: str = ""  # which columns were taken, in words

    def series(self, shift_s: float) -> Series:
        """Return the joules on another clock, which is ``shift_s`` behind."""
        times = [time_s - shift_s for time_s in self.times_s]
        return Series(times, list(self.joules)) if self.joules else integrated(times, self.watts)


def read_meter(path: Path, *, voltage: float | None = None, time_zone: str | None = None) -> MeterRecord:
    """Read a meter's CSV file.

    Args:
        path: The file; commas, semicolons or tabs, with a line of titles.
        voltage: What a file with current alone was measured at.
        time_zone: Of dates without one, such as ``Europe/Stockholm``; UTC when not given.
    """
    try:
        with open_plain(path) as raw:
            if (size := os.fstat(raw.fileno()).st_size) > _MOST_BYTES:
                raise ConfigError(f"{path} has {size} bytes; at most {_MOST_BYTES} are read.")
            text = raw.read(_MOST_BYTES).decode("utf-8-sig", "replace")
        return _read(io.StringIO(text, newline=""), voltage, time_zone)
    except OSError as error:
        raise ConfigError(f"The meter's file {path} cannot be read: {error}.") from error
    except (ValueError, csv.Error) as error:
        raise ConfigError(f"The meter's file {path} cannot be understood: {error}.") from error


def _read(file: io.StringIO, voltage: float | None, time_zone: str | None) -> MeterRecord:
    head = [file.readline(10_000) for _ in range(_LOOK_AT)]
    lines = [line for line in head if line.strip()] or [""]
    # A comma last: beside the others it is a decimal point.
    marks = [mark for mark in "\t;," if statistics.median(line.count(mark) for line in lines) >= 1]
    delimiter = marks[0] if marks else ","
    place, titles = _titles(head, delimiter)
    columns = _columns(titles, voltage)
    file.seek(0)
    rows = _rows(csv.reader(file, delimiter=delimiter), place + 1, columns, has_decimal_comma=delimiter != ",")
    try:
        zone = ZoneInfo(time_zone) if time_zone else dt.UTC
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(f"{time_zone!r:.60} is no time zone; give a name such as Europe/Stockholm") from None
    times: list[float] = []
    values: list[float] = []
    scale, is_absolute = 0.0, True
    for cells in rows:
        number, is_date = _time(cells[0], zone)
        if not scale:
            scale, is_absolute = _time_scale(number, titles[columns["time"]], is_date=is_date)
        time_s = number * scale
        if times and time_s <= times[-1]:
            raise ValueError(f"its times go back at row {len(times) + 1}")
        value = math.prod(float(cell) for cell in cells[1:])
        if not math.isfinite(time_s) or not math.isfinite(value):
            raise ValueError(f"row {len(times) + 1} has {', '.join(cells)}")
        times.append(time_s)
        values.append(value)
    if len(times) < 3:
        raise ValueError("it has fewer than three rows")
    taken = [name for name in ("energy", "power", "current", "voltage") if name in columns]
    unit = math.prod(_scale(name, titles[columns[name]]) for name in taken)
    if taken == ["current"]:
        unit *= voltage or 1.0
    numbers = tuple(value * unit for value in values)
    words = ", ".join(repr(titles[columns[name]]) for name in ("time", *taken))
    if "energy" in taken:
        return MeterRecord(tuple(times), joules=tuple(n - numbers[0] for n in numbers), is_absolute=is_absolute,
                           columns=words)  # fmt: skip
    return MeterRecord(tuple(times), watts=numbers, is_absolute=is_absolute, columns=words)


def _titles(head: Sequence[str], delimiter: str) -> tuple[int, list[str]]:
    """Return the line of titles: the first with a title for the time and one for what was measured."""
    for number, line in enumerate(head):
        cells = [cell.strip().strip('"') for cell in line.strip().split(delimiter)]
        found = {name for name, form in _NAMES.items() for cell in cells if form.search(cell.lower())}
        if "time" in found and len(found) > 1:
            return number, cells
    raise ValueError("no line of titles has a time and a power, energy or current; write one such as: time_s,power_w")


def _columns(titles: Sequence[str], voltage: float | None) -> dict[str, int]:
    """Return which columns are taken: power, else energy, else current with voltage."""
    found: dict[str, int] = {}
    for number, title in enumerate(titles):
        # The time first: a title such as "timestamp (ms)" names nothing else.
        for name in ("time", "voltage", "power", "energy", "current"):
            if _NAMES[name].search(title.lower()):
                found.setdefault(name, number)
                break
    if "power" in found:
        return {name: found[name] for name in ("time", "power")}
    if "energy" in found:
        return {name: found[name] for name in ("time", "energy")}
    if "current" in found and "voltage" in found:
        return {name: found[name] for name in ("time", "current", "voltage")}
    if "current" in found and voltage is not None:
        return {name: found[name] for name in ("time", "current")}
    raise ValueError(
        f"of its columns {', '.join(titles)[:200]!r} none is power, energy, or current with voltage; --voltage V says "
        "at what voltage a current flowed"
    )


def _rows(
    reader: Iterator[list[str]], skip: int, columns: dict[str, int], *, has_decimal_comma: bool
) -> Iterator[list[str]]:
    order = [columns[name] for name in ("time", "energy", "power", "current", "voltage") if name in columns]
    for number, row in enumerate(reader):
        if number > _MOST_ROWS:
            raise ValueError(f"it has more than {_MOST_ROWS} rows")
        if number < skip or not any(cell.strip() for cell in row):
            continue
        if len(row) <= max(order):
            raise ValueError(f"row {number + 1} has {len(row)} cells")
        cells = [row[place].strip() for place in order]
        if has_decimal_comma:
            cells = [cells[0], *(cell.replace(",", ".") for cell in cells[1:])]
        yield cells


def _time(text: str, zone: dt.tzinfo) -> tuple[float, bool]:
    try:
        return float(text.replace(",", ".")), False
    except ValueError:
        moment = dt.datetime.fromisoformat(text.replace("/", "-"))
        return (moment if moment.tzinfo else moment.replace(tzinfo=zone)).timestamp(), True


def _time_scale(first: float, title: str, *, is_date: bool) -> tuple[float, bool]:
    """Return what one of the times is in seconds, and whether they are of a clock."""
    if is_date:
        return 1.0, True
    for low, high, scale in _EPOCHS:
        if low <= first < high:
            return scale, True
    return _scale("time", title), False


def _scale(name: str, title: str) -> float:
    """Return what one of a column's unit is in ours, by the last word of its title that is a unit."""
    known = _SCALES[name]
    words = [word for word in re.split(r"[^a-zµ]+", title.lower()) if word in known]
    return known[words[-1]] if words else 1.0


@dataclass(frozen=True)
class Metered:
    """The energy of a run by a meter."""

    energy: dict[str, Any]  # as a sustained document has it
    offset_s: float  # how far the meter's clock was ahead of the device's
    offset_words: str  # how that is known


def metered(recording: Recording, record: MeterRecord, offset_s: float | None) -> Metered:
    """Return what a meter says of a run.

    Args:
        recording: The run's journal.
        record: What the meter recorded.
        offset_s: How far the meter's clock is ahead; found by the step from rest to load when not given.
    """
    clock_s = float(recording.start["clock_s"])
    if offset_s is not None:
        words, shift_s = "as you said", clock_s + offset_s
        if not record.is_absolute:
            words, shift_s = "as you said: the load began at this time of the meter", offset_s
    else:
        shift_s = _found_shift(recording, record)
        offset_s = shift_s - clock_s if record.is_absolute else shift_s
        words = "found by the step of the power from rest to load"
    energy = energy_from(recording, record.series(shift_s))
    return Metered(
        {**energy, "covers": "what the meter feeds", "method": f"a meter: {record.columns}"}, offset_s, words
    )


def _found_shift(recording: Recording, record: MeterRecord) -> float:
    """Return the meter's time at which the load began: where power in the load stands out most from the rest."""
    end_s = recording.bins[-1].end_s
    rest_s = min(3.0, -recording.readings[0].at_s)
    if rest_s < 1.0:
        raise ConfigError(
            "The run had no rest before the load, so the meter's clock cannot be found by its step; say how far it is "
            "ahead: --clock-offset SECONDS."
        )
    series = record.series(0.0)
    first, last = record.times_s[0] + rest_s, record.times_s[-1] - end_s

    def step(at_s: float) -> float:
        busy, before = series.watts(at_s, at_s + end_s), series.watts(at_s - rest_s, at_s - 0.1)
        after = series.watts(at_s + end_s + 0.1, at_s + end_s + rest_s)
        if busy is None or before is None:
            return -math.inf
        return busy - (before if after is None else (before + after) / 2)

    if last < first:
        raise ConfigError(
            f"The meter recorded {record.times_s[-1] - record.times_s[0]:.1f} s, less than the {end_s + rest_s:.1f} s "
            "of the load and the rest before it."
        )
    best = max(_grid(first, last, 0.5), key=step)
    best = max(_grid(max(first, best - 0.6), min(last, best + 0.6), 0.02), key=step)
    level = series.watts(record.times_s[0], record.times_s[-1]) or 0.0
    if not step(best) > _CLEAR_STEP * abs(level):
        raise ConfigError(
            "The meter's power shows no clear step from rest to load; say how far its clock is ahead: --clock-offset "
            "SECONDS."
        )
    return best


def _grid(first: float, last: float, step: float) -> list[float]:
    return [first + number * step for number in range(int((last - first) / step) + 1)]
