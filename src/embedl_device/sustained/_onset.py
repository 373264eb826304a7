"""When a board began to throttle: what it says of itself, and the latency, must both tell.

Another job on the machine slows a model down as well, and a counter may rise without being felt. So an onset needs the
board's own word (a throttling counter that rises, a cooling state, a clock limit that fell, a CPU quota that was used
up, a clock that fell) and, from there on, a higher latency. A latency that rises alone is a slowdown of unknown cause.
"""

from __future__ import annotations

import math
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

from embedl_device.statistics import correlation_length, percentile
from embedl_device.sustained._journal import CLOCK, COUNTER, LEVEL, LIMIT, Bin, Recording

_WINDOW_S = 3.0
_SLOWER = 1.05
_LIMIT_FELL = 0.98
_CLOCK_FELL = 0.95
# A change without the board's word: so much, so far beyond the spread, and at least so long on both sides.
_UNEXPLAINED = 1.10
_SURE = 6.0
_FEWEST_BINS = 6
_LEAST_S = 3.0
_FEWEST_AFTER = 4


class Onset(NamedTuple):
    """From when on the latency was higher, between which readings that was seen, by how much, and what told it."""

    at_s: float
    low_s: float
    high_s: float
    ratio: Optional[float]
    evidence: Tuple[str, ...]


class Word(NamedTuple):
    """What the board said between two readings: it was slowing itself down."""

    low_s: float
    high_s: float
    what: Tuple[str, ...]


def words(recording: Recording) -> List[Word]:
    """Return what the board said between each reading and the next while it was under load; empty where nothing."""
    found = []
    readings = recording.readings
    first = _first_values(recording)
    for before, after in zip(readings, readings[1:]):
        if after.at_s <= 0:
            continue
        said = []
        for number, channel in enumerate(recording.channels):
            old, now, start = before.values[number], after.values[number], first.get(number)
            if now is None or old is None or start is None:
                continue
            if channel.kind == COUNTER and now > old:
                said.append("{} rose".format(channel.name))
            elif channel.kind == LEVEL and now > start:
                said.append(channel.name)
            elif channel.kind == LIMIT and now < _LIMIT_FELL * start:
                said.append("clock limit of {} fell from {:.0f} to {:.0f} MHz".format(channel.name, start, now))
        found.append(Word(max(0.0, before.at_s), after.at_s, tuple(said)))
    return found


def _first_values(recording: Recording) -> Dict[int, float]:
    """Return what each channel said first."""
    first: Dict[int, float] = {}
    for reading in recording.readings:
        for number, value in enumerate(reading.values):
            if value is not None:
                first.setdefault(number, value)
        if len(first) == len(recording.channels):
            break
    return first


def find_onset(recording: Recording) -> Optional[Onset]:
    """Return when the board began to throttle; None where it did not, or not so that the latency shows it."""
    said = words(recording)
    for number, word in enumerate(said):
        if not word.what:
            continue
        until_s = word.low_s + _WINDOW_S
        ahead = [each for each in said[number:] if each.low_s < until_s]
        # Once is a hiccup: it must go on for most of the next seconds.
        if len(ahead) < 2 or 2 * sum(bool(each.what) for each in ahead) <= len(ahead):
            continue
        ratio = _slower_by(recording.bins, word.low_s, word.high_s, until_s)
        if ratio is not None and ratio < _SLOWER:
            continue
        return Onset((word.low_s + word.high_s) / 2, word.low_s, word.high_s, ratio, _told(ahead))
    return _by_clock(recording)


def _told(ahead: Sequence[Word]) -> Tuple[str, ...]:
    """Return what was said, each thing once; of a limit that fell further and further, the first."""
    found: Dict[str, str] = {}
    for word in ahead:
        for text in word.what:
            found.setdefault(text.partition(" fell ")[0], text)
    return tuple(found.values())


def _slower_by(bins: Sequence[Bin], low_s: float, from_s: float, until_s: float) -> Optional[float]:
    """Return the latency after over that before; None where there is none before, so that nothing can be held to it."""
    # A bin that ended by then is before; the one in which it happened is neither.
    before = [each for each in bins if each.end_s <= low_s]
    after = [each for each in bins if from_s < each.end_s <= until_s + each.width_s]
    if not before:
        return None
    # The very end of a run is too short to tell.
    if len(after) < _FEWEST_AFTER:
        return 1.0
    return mean_us(after) / percentile([each.mean_us for each in before], 50)


def mean_us(bins: Sequence[Bin]) -> float:
    """Return the mean time of the inferences of several bins."""
    return math.fsum(each.busy_us for each in bins) / sum(each.inferences for each in bins)


def find_change(bins: Sequence[Bin]) -> Optional[Onset]:
    """Return from when on the latency was higher and stayed so, by the times alone; None where it did not."""
    if len(bins) < 2 * _FEWEST_BINS:
        return None
    logs = [math.log(each.mean_us) for each in bins]
    # A few disturbed bins must not decide.
    low, high = percentile(logs, 5), percentile(logs, 95)
    logs = [min(max(value, low), high) for value in logs]
    best, place = 0.0, 0
    total, left = math.fsum(logs), 0.0
    count = len(logs)
    for number in range(1, count):
        left += logs[number - 1]
        if number < _FEWEST_BINS or count - number < _FEWEST_BINS:
            continue
        step = (total - left) / (count - number) - left / number
        score = step * math.sqrt(number * (count - number) / count)
        if score > best:
            best, place = score, number
    if not place or not _is_sure(logs, place, best):
        return None
    before, after = bins[:place], bins[place:]
    ratio = math.exp(percentile(logs[place:], 50) - percentile(logs[:place], 50))
    last = logs[place + 2 * (count - place) // 3 :]
    stayed = math.exp(percentile(last, 50) - percentile(logs[:place], 50))
    is_long = before[-1].end_s >= _LEAST_S and after[-1].end_s - before[-1].end_s >= _LEAST_S
    if ratio < _UNEXPLAINED or stayed < _SLOWER or not is_long:
        return None
    low_s = before[-1].end_s
    return Onset(low_s, max(0.0, low_s - before[-1].width_s), after[0].end_s, ratio, ())


def _is_sure(logs: Sequence[float], place: int, score: float) -> bool:
    """Tell whether a step stands out of what the bins scatter, neighbors counted as the few that they are."""
    residuals: List[float] = []
    for part in (logs[:place], logs[place:]):
        middle = math.fsum(part) / len(part)
        residuals += [value - middle for value in part]
    scatter = math.sqrt(math.fsum(value * value for value in residuals) / (len(residuals) - 2))
    return score > _SURE * max(scatter, 1e-6) * math.sqrt(correlation_length(residuals))


def _by_clock(recording: Recording) -> Optional[Onset]:
    """Return the change of the latency at which the clocks fell, where no counter tells it."""
    change = find_change(recording.bins)
    if change is None:
        return None
    evidence = []
    for number in recording.numbers(CLOCK):
        told = [(each.at_s, each.values[number]) for each in recording.readings if each.at_s > 0]
        before = [value for at_s, value in told if value is not None and at_s <= change.low_s]
        after = [value for at_s, value in told if value is not None and at_s > change.high_s]
        if before and after:
            old, now = percentile(before, 50), percentile(after, 50)
            if now < _CLOCK_FELL * old:
                name = recording.channels[number].name
                evidence.append("clock of {} fell from {:.0f} to {:.0f} MHz".format(name, old, now))
    return change._replace(evidence=tuple(evidence)) if evidence else None
