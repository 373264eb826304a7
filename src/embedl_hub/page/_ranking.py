"""The cells of a target from the best to the worst by one number, with ties where the records do not tell them apart.

What cannot be used is behind what can, with the reason: too little accuracy, answers that INT8 ruined, a step that
failed. Neighbors of one model that were measured in turns are told apart by that; all others by the 95 % intervals of
their own profiles, at an error of 5 % over all neighbors of the page.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

from embedl_hub.core.document import find_metric
from embedl_hub.fleet import CellState, Matrix, MatrixCell, Ranking

ALPHA = 0.05
_Z_95 = 1.96

Ends = tuple[float | None, float | None]


@dataclass(frozen=True)
class Place:
    """A cell in the ranking of its target."""

    cell: MatrixCell
    value: float | None
    low: float | None = None  # the ends of the value's 95 % interval, where the record has one
    high: float | None = None
    number: int | None = None  # its place; None for what cannot be used
    is_tied: bool = False  # whether another cell has the same place
    to_best: float | None = None  # how many times the best
    told_by: str = ""  # what tells it from the one before it: ``in turns``, ``intervals``, ``value``; empty if nothing
    tied_in_turns: bool = False  # whether measuring in turns did not tell it from the one before
    why_not: str = ""  # why it cannot be used
    on_front: bool = False  # whether no other cell of the target is at least as good in both numbers of the plot


@dataclass(frozen=True)
class Standings:
    """The ranking of one target."""

    target: str
    places: tuple[Place, ...]

    @property
    def has_ties(self) -> bool:
        """Whether some cells are not told apart."""
        return any(place.is_tied for place in self.places)


def standings_of(
    matrix: Matrix, metric: str, *, quality: str, least: float | None, front: frozenset[tuple[str, str, str]],
    ends_of: Callable[[MatrixCell], Ends], paired: Sequence[Ranking],
) -> tuple[Standings, ...]:  # fmt: skip
    """Rank the cells of each target.

    Args:
        matrix: The sweep.
        metric: The number that ranks.
        quality: A number of which a cell needs some.
        least: How much of that; None for any.
        front: The cells on the front of the plot, as (model, option, target).
        ends_of: Tells the ends of a cell's interval.
        paired: What was measured in turns.
    """
    by_target = {
        target: [cell for key, cell in matrix.cells.items() if key[2] == target] for target in matrix.targets
    }  # fmt: skip
    neighbors = sum(max(0, len(cells) - 1) for cells in by_target.values())
    level = ALPHA / max(1, neighbors)
    turns = _turns(paired)
    made = []
    for target, cells in by_target.items():
        places = [_place(cell, metric, quality, least, ends_of, front) for cell in cells]
        usable = [place for place in places if not place.why_not]
        rest = [place for place in places if place.why_not]
        usable.sort(key=lambda place: (_cost(metric, place), place.cell.name))
        rest.sort(key=lambda place: (place.cell.state is CellState.FAILED, place.why_not, place.cell.name))
        made.append(Standings(target, (*_numbered(usable, metric, level, turns), *rest)))
    return tuple(made)


def _place(
    cell: MatrixCell, metric: str, quality: str, least: float | None, ends_of: Callable[[MatrixCell], Ends],
    front: frozenset[tuple[str, str, str]],
) -> Place:  # fmt: skip
    value = cell.metrics.get(metric)
    low, high = ends_of(cell) if value is not None else (None, None)
    if low is None or high is None or value is None or not 0 < low <= value <= high:
        low = high = None
    why = _why_not(cell, metric, quality, least)
    on_front = (cell.model, cell.option, cell.target) in front and not why
    return Place(cell, value, low, high, why_not=why, on_front=on_front)


def _why_not(cell: MatrixCell, metric: str, quality: str, least: float | None) -> str:
    if cell.state is CellState.FAILED:
        return f"failed: {cell.reason or 'no reason is known'}"
    if cell.state is not CellState.DONE:
        return f"{cell.state.value}"
    if cell.ruined_cosine is not None:
        return f"ruined: cosine {cell.ruined_cosine:.3f} to the answers in float"
    if not math.isfinite(cell.metrics.get(metric, math.nan)):
        return f"has no {metric}"
    return "" if least is None else _too_little(cell, quality, least)


def _too_little(cell: MatrixCell, quality: str, least: float) -> str:
    found, is_more = cell.metrics.get(quality), find_metric(quality).is_more_better
    if found is None:
        return f"has no {quality}"
    if found >= least if is_more else found <= least:
        return ""
    return f"{quality} {found:.4g} is {'below' if is_more else 'above'} {least:g}"


def _numbered(
    places: Sequence[Place], metric: str, level: float, turns: Mapping[tuple[str, str, str, str], bool]
) -> list[Place]:  # fmt: skip
    made: list[Place] = []
    for number, place in enumerate(places, 1):
        told = _told_apart(made[-1], place, metric, level, turns) if made else "first"
        tied = not told
        shared = made[-1].number if tied else number
        if tied:
            made[-1] = replace(made[-1], is_tied=True)
        best = places[0].value
        to_best = place.value / best if place.value is not None and best else None
        told_by = "" if told == "first" else told
        in_turns = tied and find_metric(metric).is_speed and _pair(made[-1], place) in turns
        made.append(
            replace(place, number=shared, is_tied=tied, to_best=to_best, told_by=told_by, tied_in_turns=in_turns)
        )
    return made


def _told_apart(
    one: Place, other: Place, metric: str, level: float, turns: Mapping[tuple[str, str, str, str], bool]
) -> str:  # fmt: skip
    """Return what tells two neighbors apart; empty if nothing does."""
    if _pair(one, other) in turns and find_metric(metric).is_speed:
        return "in turns" if turns[_pair(one, other)] else ""
    if one.value is None or other.value is None or one.value == other.value:
        return ""
    if not find_metric(metric).is_speed and one.low is None and other.low is None:
        return "value"  # sizes and scores repeat exactly
    if one.low is None or one.high is None or other.low is None or other.high is None:
        return ""
    error = math.hypot(_log_error(one.low, one.high), _log_error(other.low, other.high))
    apart = abs(math.log(other.value / one.value)) > NormalDist().inv_cdf(1 - level / 2) * error
    return "intervals" if apart else ""


def _pair(one: Place, other: Place) -> tuple[str, str, str, str]:
    """Return what a pair that was measured in turns is known by; only options of one model are."""
    model = one.cell.model if one.cell.model == other.cell.model else ""
    return model, one.cell.target, one.cell.option, other.cell.option


def _log_error(low: float, high: float) -> float:
    return math.log(high / low) / (2 * _Z_95)


def _turns(paired: Sequence[Ranking]) -> dict[tuple[str, str, str, str], bool]:
    """Return whether neighbors that were measured in turns are told apart, by model, target and both options."""
    found = {}
    for ranking in paired:
        for first, fast in enumerate(ranking.options):
            for last, slow in enumerate(ranking.options[first + 1 :], first + 1):
                # Whoever is shown to be faster than one is faster than all behind that one.
                apart = any(each.is_significant for each in ranking.options[first:last])
                found[ranking.model, ranking.target, fast.option, slow.option] = apart
                # Single profiles that put them the other way around are told nothing by that.
                found[ranking.model, ranking.target, slow.option, fast.option] = False
    return found


def _cost(metric: str, place: Place) -> float:
    value = math.inf if place.value is None else place.value
    return -value if find_metric(metric).is_more_better else value
