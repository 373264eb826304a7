"""What a sustained run wrote down: one JSON object a line, the first what it is, the last how it ended.

Lines between are ``{"s": [...]}``, what the board said then, and ``{"b": [...]}``, the inferences since then.
A run that was killed has no last line, and perhaps half a line; the rest counts.
"""

from __future__ import annotations

import json
import math
from typing import IO, Any, Dict, Iterable, List, NamedTuple, Optional, Sequence

from embedl_device.readers import parse_json

JOURNAL_FORMAT = 1
_MOST_LINES = 200_000
_MOST_CHANNELS = 2000
_BIN_FIELDS = 7
# What a channel's numbers are.
CLOCK, LIMIT, TEMPERATURE, COUNTER, LEVEL, ENERGY, POWER = (
    "clock_mhz", "clock_limit_mhz", "temperature_c", "counter", "level", "energy_j", "power_w",
)  # fmt: skip
KINDS = (CLOCK, LIMIT, TEMPERATURE, COUNTER, LEVEL, ENERGY, POWER)


class Channel(NamedTuple):
    """One number that was read again and again; ``domain`` and ``family`` say what a power source is."""

    kind: str
    name: str
    domain: str = ""
    family: str = ""


class Bin(NamedTuple):
    """The inferences that ended between two readings; times in us, ``end_s`` counts from the begin of the load."""

    end_s: float
    width_s: float
    inferences: int
    busy_us: float
    median_us: float
    p90_us: float
    max_us: float

    @property
    def mean_us(self) -> float:
        """The mean time of one inference."""
        return self.busy_us / self.inferences


class Reading(NamedTuple):
    """What the board said at a time, one value for each channel; None where it said nothing."""

    at_s: float
    values: Sequence[Optional[float]]


class Recording(NamedTuple):
    """A journal that was read."""

    start: Dict[str, Any]
    channels: List[Channel]
    bins: List[Bin]
    readings: List[Reading]
    end: Optional[Dict[str, Any]]

    def numbers(self, kind: str) -> List[int]:
        """Return the channels of a kind, by number."""
        return [number for number, channel in enumerate(self.channels) if channel.kind == kind]


class Journal:
    """Writes lines as they come; each is one write, so that a kill tears at most the last."""

    def __init__(self, file: Optional[IO[str]], start: Dict[str, Any], channels: Sequence[Channel]) -> None:
        self._file = file
        self.recording = Recording(start, list(channels), [], [], None)
        self._line(dict(start, kind="start", format=JOURNAL_FORMAT, channels=[list(each) for each in channels]))

    def add(self, reading: Reading, found: Optional[Bin]) -> None:
        """Write what the board said and what was measured since."""
        self.recording.readings.append(reading)
        self._line({"s": [_short(reading.at_s), *map(_short, reading.values)]})
        if found is not None:
            self.recording.bins.append(found)
            self._line({"b": [_short(value) for value in found]})

    def finish(self, end: Dict[str, Any]) -> Recording:
        """Write the last line and return all of it."""
        self._line(dict(end, kind="end"))
        self.recording = self.recording._replace(end=end)
        return self.recording

    def _line(self, value: Dict[str, Any]) -> None:
        if self._file is not None:
            self._file.write(json.dumps(value) + "\n")
            self._file.flush()


def _short(value: Optional[float]) -> Optional[float]:
    return None if value is None else value if isinstance(value, int) else float("{:.7g}".format(value))


def parse_journal(lines: Iterable[bytes]) -> Recording:
    """Read a journal; a ValueError for what is none. Half a line at the end is left out."""
    start: Optional[Dict[str, Any]] = None
    channels: List[Channel] = []
    bins: List[Bin] = []
    readings: List[Reading] = []
    for number, line in enumerate(lines):
        if number > _MOST_LINES:
            raise ValueError("the journal has more than {} lines".format(_MOST_LINES))
        if not line.endswith(b"\n"):
            break
        value = parse_json(line)
        if not isinstance(value, dict):
            raise ValueError("line {} of the journal is no object".format(number + 1))  # noqa: TRY004 - a reader's error
        if start is None:
            start = _checked_start(value)
            channels = _channels(start.pop("channels", None))
        elif "s" in value:
            readings.append(_reading(value["s"], len(channels)))
        elif "b" in value:
            bins.append(_bin(value["b"]))
        elif value.get("kind") == "end":
            return Recording(start, channels, bins, readings, value)
    if start is None:
        raise ValueError("the journal is empty")
    return Recording(start, channels, bins, readings, None)


def _checked_start(value: Dict[str, Any]) -> Dict[str, Any]:
    if value.get("kind") != "start" or value.get("format") != JOURNAL_FORMAT:
        raise ValueError("the journal has format {!r:.60}, this reads {}".format(value.get("format"), JOURNAL_FORMAT))
    return {key: each for key, each in value.items() if key not in ("kind", "format")}


def _channels(value: Any) -> List[Channel]:
    if not isinstance(value, list) or len(value) > _MOST_CHANNELS:
        raise ValueError("the journal does not say its channels")
    found = []
    for row in value:
        is_row = isinstance(row, list) and 2 <= len(row) <= 4 and all(isinstance(word, str) for word in row)
        if not is_row or row[0] not in KINDS:
            raise ValueError("the journal has a channel {!r:.60}".format(row))
        found.append(Channel(*(word[:200] for word in row)))
    return found


def _reading(value: Any, channels: int) -> Reading:
    if not isinstance(value, list) or len(value) != channels + 1 or not _is_number(value[0]):
        raise ValueError("the journal has a reading {!r:.60}".format(value))
    if not all(each is None or _is_number(each) for each in value):
        raise ValueError("the journal has a reading {!r:.60}".format(value))
    return Reading(float(value[0]), value[1:])


def _bin(value: Any) -> Bin:
    if not isinstance(value, list) or len(value) != _BIN_FIELDS or not all(map(_is_number, value)):
        raise ValueError("the journal has times {!r:.60}".format(value))
    found = Bin(*value)
    if found.inferences < 1 or found.busy_us <= 0 or found.width_s <= 0:
        raise ValueError("the journal has times {!r:.60}".format(value))
    return found


def _is_number(value: Any) -> bool:
    return (
        isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and abs(value) < 1e18
    )
