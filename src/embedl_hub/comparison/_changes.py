"""Changes in a number over many runs, told from the noise within runs and between them, with a bounded error.

What is tested are sessions: runs that began within an hour of each other share what the machine did then, so they are
one value, their middle. (Where all runs are of one session, they are tested one by one.) A session that is above
another counts as such only where the intervals of the two do not meet (Gehan, 1965), so the recorded spread counts;
how sessions differ among themselves counts because of what they are compared with: the same sessions in another order.
Where nothing changed, every order is as likely as the one that happened. The largest step between a stretch of sessions
(up to a moment, or between two) and all others is called a change if fewer orders than its share of the error have one
as large: a permutation test of the maximum, so that looking at many stretches costs nothing. Then the parts are asked
again, by themselves; at last each end is moved to where its two neighbors differ most, and dropped if they do not.

The error of a chart is shared by its lines, and a part of a line is asked with its share of the line's (Meinshausen,
2008), so that a chart has a mark where nothing changed with at most `ALPHA`. That holds as far as sessions are
independent: a number that drifts slowly does change, and is marked.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

ALPHA = 0.01
"""At most this part of charts in which nothing changed have a mark."""
FEWEST = 3
"""A level needs so many sessions: one value that is off is none."""
SESSION_MS = 3_600_000
_MOST_UNITS = 300
_ORDERS = 19_999
_FIRST_ORDERS = 199
_SEED = 20_261_118


@dataclass(frozen=True)
class Measured:
    """One value of a series, with the ends of its interval where the record has one."""

    time_ms: int
    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Change:
    """A change that the statistics tell: the first value after it, and the middles of both levels."""

    first: int  # the number of that value in the series
    before: float
    after: float
    p: float  # so probable is a step as large by chance, or less

    @property
    def ratio(self) -> float | None:
        """After to before; None where that says nothing."""
        return self.after / self.before if self.before > 0 and self.after > 0 else None


@dataclass(frozen=True)
class _Unit:
    """A session: the number of its first value, and its middle with the middles of the ends."""

    first: int
    value: float
    low: float
    high: float


def find_changes(lines: Sequence[Sequence[Measured]], alpha: float = ALPHA) -> list[tuple[Change, ...]]:
    """Return the changes of each line of a chart, in the order of time; the error over all lines is at most alpha.

    Args:
        lines: The values of each line, oldest first. Of long ones the newest 300 sessions are looked at.
        alpha: The part of charts without a change that may have a mark.
    """
    units = [_units(line) for line in lines]
    testable = sum(len(each) >= 2 * FEWEST for each in units)
    return [_changes(each, alpha / testable) if len(each) >= 2 * FEWEST else () for each in units]


def _units(line: Sequence[Measured]) -> list[_Unit]:
    """Return the sessions of a line."""
    sessions: list[list[int]] = []
    for number, each in enumerate(line):
        if sessions and 0 <= each.time_ms - line[sessions[-1][0]].time_ms < SESSION_MS:
            sessions[-1].append(number)
        else:
            sessions.append([number])
    if len(sessions) == 1:
        sessions = [[number] for number in range(len(line))]
    return [_unit(line, members) for members in sessions][-_MOST_UNITS:]


def _unit(line: Sequence[Measured], members: Sequence[int]) -> _Unit:
    values = [line[number] for number in members]
    return _Unit(
        members[0],
        statistics.median(each.value for each in values),
        statistics.median(each.value if each.low is None else each.low for each in values),
        statistics.median(each.value if each.high is None else each.high for each in values),
    )


def _changes(units: Sequence[_Unit], share: float) -> tuple[Change, ...]:
    """Split a line where it changed, and its parts again."""
    found: list[int] = []
    waiting = [(0, len(units))]
    while waiting:
        begin, end = waiting.pop(0)
        if end - begin < 2 * FEWEST:
            continue
        splits, _ = _test(units[begin:end], _stretches(end - begin), share * (end - begin) / len(units))
        if splits:
            found += [begin + split for split in splits]
            ends = [begin, *(begin + split for split in splits), end]
            waiting += list(itertools.pairwise(ends))
    return _told(units, sorted(found), share)


def _told(units: Sequence[_Unit], found: Sequence[int], share: float) -> tuple[Change, ...]:
    """Move each split to where its neighbors differ most, drop those whose neighbors do not, and say how large."""
    ends, number, probable = [0, *found, len(units)], 1, []
    while number < len(ends) - 1:
        begin, end = ends[number - 1], ends[number + 1]
        ends[number] = begin + _largest(units[begin:end])
        splits, p = _test(units[begin:end], [(0, ends[number] - begin)], share * (end - begin) / len(units))
        if splits:
            number += 1
            probable.append(p)
        else:
            del ends[number]
    levels = [statistics.median(each.value for each in units[a:b]) for a, b in itertools.pairwise(ends)]
    return tuple(
        Change(units[place].first, levels[number], levels[number + 1], probable[number])
        for number, place in enumerate(ends[1:-1])
    )


def _largest(units: Sequence[_Unit]) -> int:
    """Return the split with the largest step."""
    import numpy as np  # noqa: PLC0415 - importing this module costs nothing

    splits = np.arange(FEWEST, len(units) - FEWEST + 1)
    steps = np.abs(np.cumsum(_scores(units))[splits - 1]) / np.sqrt(splits * (len(units) - splits))
    return int(splits[int(steps.argmax())])


def _stretches(count: int) -> list[tuple[int, int]]:
    """Return the stretches that are looked at: up to every moment, and inner ones of some lengths at some places."""
    found = [(0, split) for split in range(FEWEST, count - FEWEST + 1)]
    length = FEWEST
    while length <= count - 2 * FEWEST:
        places = range(FEWEST, count - FEWEST - length + 1, max(1, length // 4))
        found += [(place, place + length) for place in places]
        length = max(length + 1, length * 4 // 3)
    return found


def _test(
    units: Sequence[_Unit], stretches: Sequence[tuple[int, int]], level: float
) -> tuple[tuple[int, ...], float]:  # fmt: skip
    """Return where units change, if they do at this level, and how probable such a step is by chance at most."""
    import numpy as np  # noqa: PLC0415 - see above

    scores = _scores(units)
    begins, ends = np.array(stretches).T
    weights = np.sqrt((ends - begins) * (len(units) - ends + begins))
    sums = np.concatenate(([0.0], np.cumsum(scores)))
    steps = np.abs(sums[ends] - sums[begins]) / weights
    # Equal steps are equal however their sums were rounded.
    largest = float(steps.max()) * (1 - 1e-12)
    if largest <= 0:
        return (), 1.0
    p = _bound(scores, largest, ends - begins)
    if p > level:
        p = _permuted(scores, begins, ends, weights, largest, level)
    best = stretches[int(steps.argmax())]
    return (tuple(split for split in best if split) if p <= level else ()), p


def _scores(units: Sequence[_Unit]) -> NDArray[np.float64]:
    """Return for each unit how many others it is above, less how many it is below; their sum is 0."""
    import numpy as np  # noqa: PLC0415 - see above

    lows, highs = (np.array([getattr(unit, name) for unit in units]) for name in ("low", "high"))
    above = np.searchsorted(np.sort(highs), lows, "left")
    below = len(units) - np.searchsorted(np.sort(lows), highs, "right")
    return (above - below).astype(np.float64)


def _bound(scores: NDArray[np.float64], largest: float, lengths: NDArray[np.int64]) -> float:
    """Return a bound on the probability of so large a step, by Serfling's inequality for each stretch: quickly.

    Sums of scores drawn without replacement are as far from 0 as t with 2 exp(-2 t² / (m (1 - (m - 1) / n) range²)).
    """
    import numpy as np  # noqa: PLC0415 - see above

    count, reach = len(scores), float(scores.max() - scores.min())
    fewer = np.minimum(lengths, count - lengths)
    squares = largest**2 * lengths * (count - lengths)
    chances = 2 * np.exp(-2 * squares / (fewer * (1 - (fewer - 1) / count) * reach**2))
    return min(1.0, float(chances.sum()))


def _permuted(
    scores: NDArray[np.float64], begins: NDArray[np.int64], ends: NDArray[np.int64], weights: NDArray[np.float64],
    largest: float, level: float,
) -> float:  # fmt: skip
    """Return the share of orders with a step as large; where that cannot be below the level any more, a rough one."""
    import numpy as np  # noqa: PLC0415 - see above

    drawn = np.random.default_rng(_SEED)
    orders = as_large = 0
    while orders < _ORDERS:
        # In few and then in many: most lines do not change, and that is soon seen.
        more = min(_FIRST_ORDERS if orders == 0 else 1000, _ORDERS - orders)
        shuffled = drawn.permuted(np.broadcast_to(scores, (more, len(scores))), axis=1)
        sums = np.zeros((more, len(scores) + 1))
        np.cumsum(shuffled, axis=1, out=sums[:, 1:])
        steps = np.abs(sums[:, ends] - sums[:, begins]) / weights
        as_large += int((steps.max(axis=1) >= largest).sum())
        orders += more
        if (as_large + 1) / (_ORDERS + 1) > level:
            break
    return (as_large + 1) / (orders + 1)
