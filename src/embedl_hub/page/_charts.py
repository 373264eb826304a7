"""A number over many runs: one line for each model, device and precision, with the changes that the statistics tell."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from embedl_device.statistics import Verdict
from embedl_hub.comparison import Change, Measured, find_changes
from embedl_hub.core.document import Metric, find_metric, in_order
from embedl_hub.core.steps import place_of
from embedl_hub.errors import ConfigError, quoted_list
from embedl_hub.page._intervals import NO_ENDS, Ends, document_interval, has_document_interval, logged_interval

if TYPE_CHECKING:
    from embedl_hub.page._scope import Scope, TtlCache
    from embedl_hub.page._table import View
    from embedl_hub.tracking import Run, ValueNames

MOST_POINTS = 1000
MOST_LINES = 12
_MOST_READ = 300  # so many documents are opened for their intervals, of the newest runs
_WIDE = 20.0  # lines so many times apart share an axis only if it is logarithmic
_SHARES = frozenset({"accuracy", "top1_agreement", "cosine", "calibration_cosine"})
# On these a difference says something, and nothing is no natural end.
_WITHOUT_ZERO = frozenset({"dB", "°C"})
_PARAMS = ("precision", "verdict")
_ARTIFACTS = ("input", "output_file")


@dataclass(frozen=True)
class Dot:
    """One run of a line."""

    run_id: str
    run_name: str
    started_ms: int
    value: float
    low: float | None = None  # the ends of its 95 % interval, where the record has one
    high: float | None = None
    verdict: Verdict | None = None
    change: Change | None = None  # where the line changed with it

    @property
    def is_doubtful(self) -> bool:
        """Whether its own profile does not trust it."""
        return self.verdict is not None and not self.verdict.is_stable

    @property
    def is_measured(self) -> bool:
        """Whether it was measured; an estimate is drawn, and no change is told by it."""
        return self.verdict is None or self.verdict.is_measured


@dataclass(frozen=True)
class Line:
    """The runs of one model on one device in one precision, oldest first."""

    model: str
    device: str
    precision: str
    dots: tuple[Dot, ...]

    @property
    def title(self) -> str:
        """What the legend says."""
        return ", ".join(filter(None, (self.model, self.precision, self.device)))

    @property
    def changes(self) -> tuple[Dot, ...]:
        """The first run after each change."""
        return tuple(dot for dot in self.dots if dot.change is not None)


@dataclass(frozen=True)
class Chart:
    """A number over time."""

    metric: Metric
    key: str  # the name it is logged under
    lines: tuple[Line, ...]
    left_out: tuple[str, ...] = ()  # lines that are not drawn
    is_cut: bool = False  # whether there are older runs that are not drawn

    @property
    def axis(self) -> dict[str, object]:
        """Its title, its ends where the charts' library would choose others, and whether it is logarithmic."""
        unit = f", {self.metric.unit}" if self.metric.unit else ""
        values = [end for line in self.lines for dot in line.dots for end in (dot.value, dot.low, dot.high)]
        known = [value for value in values if value is not None and math.isfinite(value)]
        least, most = (min(known), max(known)) if known else (0.0, 1.0)
        if self.key in _SHARES and least >= 0 and most <= 1:
            room = max(0.02, (1 - least) * 0.15)
            return {"title": self.metric.title, "ends": [max(0.0, least - room), 1 + min(0.02, room / 4)], "log": False}
        if least > 0 and most / least > _WIDE:
            return {"title": f"{self.metric.title}{unit}, logarithmic", "ends": None, "log": True}
        starts_at_zero = least >= 0 and self.metric.unit not in _WITHOUT_ZERO
        ends = [0.0, most * 1.08 or 1.0] if starts_at_zero else None
        return {"title": f"{self.metric.title}{unit}", "ends": ends, "log": False}

    def word(self, change: Change) -> str:
        """Return what a change is called."""
        return self.metric.difference(is_more=change.after > change.before)

    def is_better(self, change: Change) -> bool | None:
        """Tell whether a change is for the better; None where nobody knows which way that is."""
        if self.metric.better == "none":
            return None
        return (change.after > change.before) is self.metric.is_more_better

    def data(self) -> dict[str, object]:
        """Return what the script draws."""
        return {
            "axis": self.axis,
            "unit": self.metric.unit,
            "lines": [
                {"title": line.title,
                 "dots": [[dot.run_id, dot.started_ms, dot.value, dot.low, dot.high, dot.is_doubtful,
                           self.word(dot.change) if dot.change else "", self._side(dot)] for dot in line.dots]}
                for line in self.lines
            ],
        }  # fmt: skip

    def _side(self, dot: Dot) -> int:
        """Return which way a change went: 1 up, -1 down, 0 for none."""
        return 0 if dot.change is None else 1 if dot.change.after > dot.change.before else -1


@dataclass(frozen=True)
class Wanted:
    """What an address asks for: the runs as the run table takes them, and the number."""

    view: View
    metric: str
    known: tuple[str, ...] = field(default_factory=tuple)  # all numbers there are to choose from


def wanted_of(view: View, metric: str, names: ValueNames) -> Wanted:
    known = tuple(in_order(names.metrics))
    return Wanted(view, metric or next(iter(known), ""), known)


def chart_of(scope: Scope, wanted: Wanted, cache: TtlCache) -> Chart:
    """Read the newest runs that have the number; the cache keeps what was read of runs that have ended."""
    key = wanted.metric
    if "\x00" in key or (wanted.known and key not in wanted.known and not _has(scope, wanted)):
        raise ConfigError(f"No run that is shown has a number {key!r}; there are: {quoted_list(wanted.known)}.")
    runs = scope.having(
        key, wanted.view.where(), archived=wanted.view.shows_archived(), metrics=(f"{key}_low", f"{key}_high"),
        params=_PARAMS, artifacts=_ARTIFACTS, limit=MOST_POINTS + 1,
    )  # fmt: skip
    groups: dict[tuple[str, str, str], list[Dot]] = {}
    for number, run in enumerate(runs[:MOST_POINTS]):
        if (dot := _dot(run, key, cache if number < _MOST_READ else None)) is not None:
            groups.setdefault(_group(run), []).append(dot)
    # Those with most runs first, and the same order whatever was looked at before.
    largest = sorted(groups, key=lambda group: (-len(groups[group]), group))
    lines = [Line(*group, tuple(reversed(groups[group]))) for group in largest[:MOST_LINES]]
    left_out = tuple(Line(*group, ()).title for group in largest[MOST_LINES:])
    return Chart(find_metric(key), key, tuple(_with_changes(lines, cache)), left_out, len(runs) > MOST_POINTS)


def _has(scope: Scope, wanted: Wanted) -> bool:
    """Tell whether an older run has a number that the newest ones do not."""
    return bool(wanted.metric) and bool(scope.having(wanted.metric, (), archived=None, limit=1))


def _with_changes(lines: Sequence[Line], cache: TtlCache) -> list[Line]:
    # Values that are not stable count: how far they scatter is what the others are held against.
    measured = [[number for number, dot in enumerate(line.dots) if dot.is_measured] for line in lines]
    series = [
        [Measured(line.dots[n].started_ms, line.dots[n].value, line.dots[n].low, line.dots[n].high) for n in numbers]
        for line, numbers in zip(lines, measured, strict=True)
    ]
    # Orders are drawn to tell chance from change; the same values need that once.
    digest = hashlib.sha256(repr(series).encode()).hexdigest()
    found = cache.get(("changes", digest), lambda: find_changes(series))
    made = []
    for line, numbers, changes in zip(lines, measured, found, strict=True):
        at = {numbers[change.first]: change for change in changes}
        made.append(replace(line, dots=tuple(replace(dot, change=at.get(n)) for n, dot in enumerate(line.dots))))
    return made


def _group(run: Run) -> tuple[str, str, str]:
    """Return model, device and precision. A model keeps its name while its content changes: that is what is watched."""
    artifact = run.artifacts.get("input")
    precision = str(run.params["precision"].value) if "precision" in run.params else ""
    model = run.tags.get("model", run.name) if artifact is None else artifact.title
    return model, place_of(run) or "", precision


def _dot(run: Run, key: str, cache: TtlCache | None) -> Dot | None:
    logged = {metric.name: metric.value for metric in run.metrics}
    if not math.isfinite(value := logged.get(key, math.nan)):
        return None
    low, high = logged_interval(logged, key)
    if low is None:
        low, high = _told(run, key, value, cache)
    if low is None or high is None or not low <= value <= high:
        low = high = None
    verdict = Verdict.of(run.params["verdict"].value) if "verdict" in run.params else None
    return Dot(run.id, run.name, run.started_ms, value, low, high, verdict)


def _told(run: Run, key: str, value: float, cache: TtlCache | None) -> Ends:
    if cache is None or "output_file" not in run.artifacts or not has_document_interval(key):
        return NO_ENDS
    if run.ended_ms is None:
        return document_interval(run, key, value)
    return cache.keep(("interval", key, run.id), lambda: document_interval(run, key, value))


def as_json(chart: Chart) -> Mapping[str, object]:
    """Return the chart's twin."""
    return {
        "metric": chart.key,
        "unit": chart.metric.unit,
        "is_cut": chart.is_cut,
        "left_out": chart.left_out,
        "lines": [
            {"model": line.model, "device": line.device, "precision": line.precision,
             "runs": [{**vars(dot), "change": None if dot.change is None else
                       {**vars(dot.change), "ratio": dot.change.ratio}} for dot in line.dots]}
            for line in chart.lines
        ],
    }  # fmt: skip
