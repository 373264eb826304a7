"""The run table: what its address asks for, its columns and its rows.

The address is the whole state, so that a view can be kept, sent and opened again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from embedl_hub.errors import ConfigError
from embedl_hub.page import _words
from embedl_hub.page._scope import quoted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from embedl_hub.tracking import Run, ValueNames

    Query = Sequence[tuple[str, str]]

_FACTS = {
    "status": "Status", "type": "Type", "project": "Project", "device": "Device", "model": "Model",
    "started": "Started", "duration": "Took", "component": "Component", "provider": "Provider", "id": "Id",
}  # fmt: skip
# The hub's own metrics, which have their unit by definition.
_UNITS = {
    "metrics.latency": "Mean, ms", "metrics.latency_median": "Median, ms", "metrics.peak_memory_mb": "Memory, MB",
    "metrics.latency_p99": "p99, ms", "params.verdict": "Verdict",
}  # fmt: skip
_UNSORTED = {"model"}
_DEFAULT_FACTS = ("status", "type", "model", "device")
# The verdict speaks of the median, so the median stands beside it.
_DEFAULT_VALUES = ("metrics.latency_median", "metrics.peak_memory_mb", "params.verdict")
_GROUPS = ("metrics", "params", "tags")
_TEXTS = ("project", "q", "status", "type", "device", "archived", "sort", "after")
_MOST_COLUMNS = 40
_ARCHIVED: Mapping[str, bool | None] = {"": False, "only": True, "both": None}
PAGE_SIZE = 50


@dataclass(frozen=True)
class View:
    """What an address asks for.

    Attributes:
        q: A filter in the store's words.
        archived: Empty to leave archived runs out, ``only`` or ``both``.
        sort: A column, with a minus in front for the largest first.
        columns: The columns wanted; empty for the usual ones.
        after: Where the page before ended.
    """

    project: str = ""
    q: str = ""
    status: str = ""
    type: str = ""
    device: str = ""
    archived: str = ""
    sort: str = "-started"
    columns: tuple[str, ...] = ()
    after: str = ""

    @classmethod
    def of(cls, query: Query) -> View:
        """Read an address; what it does not know it passes over, as addresses live long."""
        texts = {name: value for name, value in query if name in _TEXTS and value}
        columns = tuple(dict.fromkeys(value for name, value in query if name == "column" and _is_column(value)))
        return cls(**texts, columns=columns[:_MOST_COLUMNS])

    def where(self) -> list[str]:
        """Return the conditions."""
        picked = [
            f"{name} = {quoted(value)}"
            for name in ("project", "status", "type", "device")
            if (value := str(getattr(self, name)))
        ]
        return [self.q, *picked]

    def order(self) -> str:
        """Return the order in the store's words."""
        minus, name = ("-", self.sort[1:]) if self.sort.startswith("-") else ("", self.sort)
        return minus + _field(name)

    def shows_archived(self) -> bool | None:
        """Return what the store is asked for."""
        if self.archived not in _ARCHIVED:
            raise ConfigError("archived is empty, 'only' or 'both'.")
        return _ARCHIVED[self.archived]

    def query(self, **changes: str) -> str:
        """Return the address of a changed view; a change starts at its first page."""
        changed = replace(self, **{"after": "", **changes})  # type: ignore[arg-type]
        pairs = [(name, str(getattr(changed, name))) for name in _TEXTS]
        pairs = [(name, text) for name, text in pairs if text and not (name == "sort" and text == "-started")]
        return urlencode([*pairs, *(("column", name) for name in changed.columns)])


@dataclass(frozen=True)
class Column:
    """A column of the table.

    Attributes:
        key: ``device``, or a logged name such as ``metrics.latency``.
        sorted: ``ascending``, ``descending`` or empty.
        query: The address of the table ordered by it; None where it cannot be.
    """

    key: str
    title: str
    is_number: bool
    sorted: str
    query: str | None


def columns_of(view: View, names: ValueNames | None) -> list[Column]:
    """Return the columns that are shown, after the name."""
    keys = view.columns or _usual(view, names)
    return [_column(view, key) for key in keys]


def choices(names: ValueNames | None) -> dict[str, list[str]]:
    """Return the columns that can be shown, by group."""
    logged = {} if names is None else {group: getattr(names, group) for group in _GROUPS}
    found = {"run": list(_FACTS)}
    return found | {group: [f"{group}.{name}" for name in listed] for group, listed in logged.items() if listed}


def name_column(view: View) -> Column:
    """Return the column that is always there."""
    return _column(view, "name")


@dataclass(frozen=True, slots=True)
class Cell:
    """What a run has in a column.

    Attributes:
        kind: ``status``, ``verdict``, ``time``, ``link``, ``num`` or ``text``: how it is shown.
        exact: The whole or exact value, for a title.
    """

    kind: str
    text: str
    exact: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """A run in the table."""

    run: Run
    cells: list[Cell]


def row_of(run: Run, columns: Sequence[Column], model: tuple[str, str], now_ms: int) -> Row:
    """Return a run as a row; a list of runs comes without artifacts, so its model is given."""
    return Row(run, [_cell(run, column.key, model, now_ms) for column in columns])


def _cell(run: Run, key: str, model: tuple[str, str], now_ms: int) -> Cell:
    group, dot, name = key.partition(".")
    if dot:
        return _logged(run, group, name)
    if key == "model":
        return Cell("text", *model)
    if key == "duration":
        took = None if run.ended_ms is None else run.ended_ms - run.started_ms
        return Cell("num", _words.span(took), "" if took is None else f"{took / 1000} s")
    if key == "started":
        return Cell("time", _words.ago(run.started_ms, now_ms), _words.moment(run.started_ms))
    text = str(getattr(run, key) or "")
    return Cell({"status": "status", "device": "link"}.get(key, "text"), text, text)


def _logged(run: Run, group: str, name: str) -> Cell:
    if group == "metrics":
        metric = run.metric(name)
        return Cell("num", "") if metric is None else Cell("num", _words.number(metric.value), repr(metric.value))
    if group == "params":
        text = _words.value(run.params[name].value) if name in run.params else ""
        return Cell("verdict" if name == "verdict" and text else "text", text, text)
    text = run.tags.get(name, "")
    return Cell("text", text, text)


def _usual(view: View, names: ValueNames | None) -> list[str]:
    there = {key for keys in choices(names).values() for key in keys}
    facts = [key for key in _DEFAULT_FACTS if not (key in {"status", "type", "device"} and getattr(view, key))]
    values = [key for key in _DEFAULT_VALUES if key in there]
    if "metrics.latency_median" not in there and "metrics.latency" in there:
        values.insert(0, "metrics.latency")
    project = [] if view.project else ["project"]
    return [*facts, *values, *project, "duration", "started"]


def _column(view: View, key: str) -> Column:
    is_number = key.startswith("metrics.") or key == "duration"
    direction = {key: "ascending", f"-{key}": "descending"}.get(view.sort, "")
    # The first click shows the best first: the least of a number, the newest of times.
    first, second = (f"-{key}", key) if key == "started" else (key, f"-{key}")
    query = None if key in _UNSORTED else view.query(sort=second if view.sort == first else first)
    title = {"name": "Name", **_FACTS, **_UNITS}.get(key, key.partition(".")[2])
    return Column(key, title, is_number, direction, query)


def _is_column(key: str) -> bool:
    group, dot, name = key.partition(".")
    return key in _FACTS or (group in _GROUPS and bool(dot and name) and "\x00" not in name)


def _field(key: str) -> str:
    group, dot, name = key.partition(".")
    return f'{group}."{name.replace(chr(34), chr(34) * 2)}"' if dot else key
