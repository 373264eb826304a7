"""A figure: two sides of one question, how far it moved from turn to turn, and what a repeat may say.

Standard library only: the workers of opponents import it in environments that lack the project.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

MANY = 10
"""From so many turns on the outer tenths are left out of the spread."""


@dataclass(frozen=True)
class Figure:
    """One figure of a benchmark.

    Attributes:
        what: The question; it names the figure within its benchmark.
        ours: Our side, in ``unit``.
        theirs: The opponent's side; ``None`` without an opponent, or when it gave no number.
        ratio: Ours to theirs; ``None`` without a number of theirs.
        low: The lower end of what a repeat may give for the ratio, or for ``ours`` where there is no ratio.
        high: The upper end.
        spread: How the two ends were found.
        limit: What is required, in words; empty when nothing is.
        met: Whether that holds.
        failed: Why the opponent gave no number.
        headline: Whether the short table has it.
    """

    what: str
    unit: str
    ours: float
    low: float
    high: float
    spread: str
    opponent: str = ""
    theirs: float | None = None
    ratio: float | None = None
    limit: str = ""
    met: bool | None = None
    failed: str = ""
    headline: bool = False

    @property
    def value(self) -> float:
        """Return what is compared with another time's: the ratio, or our side alone."""
        return self.ours if self.ratio is None else self.ratio

    def as_dict(self) -> dict[str, Any]:
        """Return the figure as a result file keeps it."""
        kept = {key: value for key, value in asdict(self).items() if value is not None and value != ""}
        return kept if self.headline else {key: value for key, value in kept.items() if key != "headline"}

    def required(self, limit: str, met: bool) -> Figure:
        """Return the figure with what is required of it."""
        return replace(self, limit=limit, met=met)

    def at_most(self, limit: float) -> Figure:
        """Return the figure with a limit on its ratio, or on our side alone."""
        return self.required(f"at most {limit:.3g}", self.value <= limit)

    def at_least(self, limit: float) -> Figure:
        """Return the figure with a least value."""
        return self.required(f"at least {limit:.3g}", self.value >= limit)

    def in_short(self) -> Figure:
        """Return the figure as one of the short table."""
        return replace(self, headline=True)


def against(
    what: str,
    unit: str,
    ours: Sequence[float],
    opponent: str,
    theirs: Sequence[float] | None,
    *,
    why: str = "",
    tolerance: float = 0.0,
) -> Figure:
    """Make a figure from turns: both medians, and the median and the spread of the ratios turn by turn.

    Without their turns it says why they are missing.
    """
    if not theirs:
        return replace(alone(what, unit, ours), opponent=opponent, failed=why.removeprefix("missing: "))
    ratios = [one / two for one, two in zip(ours, theirs, strict=True)]
    ratio = statistics.median(ratios)
    low, high, words = spread(ratios, ratio, tolerance)
    return Figure(
        what, unit, statistics.median(ours), low, high, words, opponent, statistics.median(theirs), ratio
    )  # fmt: skip


def alone(what: str, unit: str, values: Sequence[float], *, tolerance: float = 0.0) -> Figure:
    """Make a figure without an opponent from repeats."""
    middle = statistics.median(values)
    low, high, words = spread(values, middle, tolerance)
    return Figure(what, unit, middle, low, high, words)


def least(what: str, unit: str, ours: Sequence[float], opponent: str, theirs: Sequence[float]) -> Figure:
    """Make a figure of minima, for CPU times: what stands above the least is other work's; turns give the spread."""
    ratio = min(ours) / min(theirs)
    low, high, words = spread([one / two for one, two in zip(ours, theirs, strict=True)], ratio, 0.05)
    return Figure(what, unit, min(ours), low, high, f"least of both; {words}", opponent, min(theirs), ratio)


def declared(
    what: str,
    unit: str,
    ours: float,
    tolerance: float,
    opponent: str = "",
    theirs: float | None = None,
) -> Figure:
    """Make a figure of single values: what a repeat may give is stated as a share of it, 0 for what must be equal."""
    ratio = ours / theirs if theirs else None
    value = ours if ratio is None else ratio
    words = f"stated: ±{tolerance:.0%}" if tolerance else "must repeat"
    low, high = sorted((value * (1 - tolerance), value * (1 + tolerance)))
    return Figure(what, unit, ours, low, high, words, opponent, theirs, ratio)


def bounded(what: str, unit: str, ours: float, margin: float, opponent: str = "") -> Figure:
    """Make a figure of a single value that may move by a margin in its own unit: points, dB."""
    return Figure(what, unit, ours, ours - margin, ours + margin, f"stated: ±{margin:.2g} {unit}".strip(), opponent)


def rate(what: str, count: int, trials: int, opponent: str = "", theirs: int | None = None) -> Figure:
    """Make a figure of how often something happens, in per cent; two standard errors, or three events, either way."""
    share = count / trials
    margin = max(2 * math.sqrt(share * (1 - share) / trials), 3 / trials)
    low, high = max(0.0, share - margin), min(1.0, share + margin)
    other = None if theirs is None else 100 * theirs / trials
    return Figure(what, "%", 100 * share, 100 * low, 100 * high, f"binomial, {trials} trials", opponent, other)


def spread(values: Sequence[float], middle: float, tolerance: float) -> tuple[float, float, str]:
    """Return the ends of a spread, no nearer to the middle than the tolerance, and how they were found."""
    if len(values) >= MANY:
        tenths = statistics.quantiles(values, n=10)
        low, high, words = tenths[0], tenths[-1], f"80 % of {len(values)} turns"
    else:
        low, high, words = min(values), max(values), f"all of {len(values)} turns"
    if tolerance and (low > middle * (1 - tolerance) or high < middle * (1 + tolerance)):
        low, high = min(low, middle * (1 - tolerance)), max(high, middle * (1 + tolerance))
        words += f", at least ±{tolerance:.0%}"
    # The middle is within by definition; interpolation may miss it by the last bit.
    return min(low, middle), max(high, middle), words


def read(rows: Sequence[dict[str, Any]]) -> dict[str, Figure]:
    """Return the figures of a result file by their questions."""
    return {row["what"]: Figure(**{"unit": "", **row}) for row in rows}
