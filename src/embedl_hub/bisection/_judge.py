"""What sittings say: looked at now and then until the answer is clear, hopeless or too long in coming."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from embedl_device.statistics import percentile
from embedl_hub.bisection._search import Answer
from embedl_hub.bisection._statistics import LOOKS, STEERING, Estimate, estimate, is_hopeless, level_at

Sitting = Sequence[float]
"""The logarithm of the metric of each variant: the good end, the bad end and, where there is one, the trial."""


@dataclass(frozen=True)
class Verdict:
    """What a look at sittings says."""

    answer: Answer
    found: Estimate  # what was tested
    distance: float  # how far that is beyond the bound of the answer that is worth waiting for
    shown: Estimate  # what people are shown


def judge_ends(sittings: Sequence[Sitting], at: float, least: float, *, is_rest: bool) -> Verdict:
    """Tell whether two ends differ by more than ``least``: BAD if so, GOOD if they are shown not to.

    Args:
        sittings: What was measured.
        at: The error of this look.
        least: A smaller difference is none.
        is_rest: Whether it is worth waiting until nothing is shown to be left; where the search has not begun, there is
            nothing to explain as soon as there is no hope to show a difference.
    """
    found = estimate([sitting[1] - sitting[0] for sitting in sittings], at)
    distance = abs(found.mean) - least
    if is_rest:
        distance = abs(distance)
    if found.low > least or found.high < -least:
        return Verdict(Answer.BAD, found, distance, found)
    is_alike = -least <= found.low and found.high <= least
    return Verdict(Answer.GOOD if is_alike else Answer.OPEN, found, distance, found)


def judge_trial(sittings: Sequence[Sitting], at: float, *, steers: bool) -> Verdict:
    """Tell which end a trial is nearer to, beyond the middle between both.

    Args:
        sittings: What was measured.
        at: The error of this look.
        steers: Whether GOOD only steers the search: it names nobody and clears nobody then, and may err more often.
    """
    towards = 1.0 if percentile([bad - good for good, bad, _ in sittings], 50) >= 0 else -1.0
    values = [towards * (trial - (good + bad) / 2) for good, bad, trial in sittings]
    found = estimate(values, at)
    loose = estimate(values, max(at, level_at(STEERING))) if steers else found
    answer = Answer.BAD if found.low > 0 else Answer.GOOD if loose.high < 0 else Answer.OPEN
    return Verdict(answer, found, abs(found.mean), estimate([trial - good for good, _, trial in sittings], at))


def until_clear(
    take: Callable[[int, int], Sequence[Sitting]],
    judge: Callable[[Sequence[Sitting], float], Verdict],
    level: float,
    most: int,
) -> tuple[Verdict, list[Sitting]]:
    """Take sittings until the answer is clear, more are no use, or there are ``most`` of them.

    Args:
        take: Takes so many more after so many.
        judge: Says what they show, at the error of a look.
        level: The error of all looks together.
        most: So many at most.
    """
    sittings: list[Sitting] = []
    at = level_at(level)
    for look in [look for look in LOOKS if look <= most] or [LOOKS[0]]:
        sittings += take(look - len(sittings), len(sittings))
        verdict = judge(sittings, at)
        if verdict.answer is not Answer.OPEN:
            break
        if is_hopeless(verdict.found, verdict.distance, at, sittings=look, most=most):
            break
    return verdict, sittings
