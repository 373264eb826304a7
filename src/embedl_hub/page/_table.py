"""The run table: what its address asks for, its columns and its rows.

The address is the whole state, so that a view can be kept, sent and opened again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from embedl_device.statistics import Verdict
from embedl_hub.core.document import columns, find_metric
from embedl_hub.errors import ConfigError
from embedl_hub.page import _format
from embedl_hub.tracking import Run, ValueNames, equal

if TYPE_CHECKING:
    Query = Sequence[tuple[str, str]]

_FACTS = {
    "status": "Status", "type": "Type", "project": "Project", "device": "Device", "model": "Model",
    "started": "Started", "duration": "Took", "component": "Component", "provider": "Provider", "id": "Id",
}  # fmt: skip
_UNSORTED = {"model"}
_DEFAULT_FACTS = ("status", "type", "model", "device")
_GROUPS = ("metrics", "params", "tags")
_TEXTS = ("project", "q", "status", "type", "device", "archived", "sort", "after")
_MOST_COLUMNS = 40
_PROOFS = {"PASS": "stable", "FAIL": "failed"}  # what `verify` says of a file, by its first word
_ARCHIVED: Mapping[str, bool | None] = {"": False, "only": True, "both": None}
PAGE_SIZE = 50


@dataclass(frozen=True)
class View:
    """What an address asks for."""

    project: str = ""
    q: str = ""  # A filter in the store's words
    status: str = ""
    type: str = ""
    device: str = ""
    archived: str = ""  # empty to leave archived runs out, ``only`` or ``both``
    sort: str = "-started"  # A column, with a minus in front for the largest first
    columns: tuple[str, ...] = ()  # the columns wanted; empty for the usual ones
    after: str = ""

    @classmethod
    def of(cls, query: Query) -> View:
        """Read an address; what it does not know it passes over, as addresses live long."""
        texts = {name: value for name, value in query if name in _TEXTS and value}
        columns = tuple(dict.fromkeys(value for name, value in query if name == "column" and _is_column(value)))
        return cls(**texts, columns=columns[:_MOST_COLUMNS])

    def where(self) -> list[str]:
        """Return the conditions."""
        names = ("project", "status", "type", "device")
        return [self.q, *(equal(name, str(getattr(self, name))) for name in names if getattr(self, name))]

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
    """A column such as ``device`` or ``metrics.latency``, and the address of the table ordered by it, if it can be."""

    key: str
    title: str
    is_number: bool
    sorted: str
    query: str | None

    @property
    def style(self) -> str:
        """The class of its cells: what a small screen can do without is hidden there."""
        return f"col-{self.key}" if self.key in _FACTS else ""


def columns_of(view: View, names: ValueNames) -> list[Column]:
    """Return the columns that are shown, after the name."""
    return [column_of(view, key) for key in view.columns or _usual(view, names)]


def choices(names: ValueNames) -> dict[str, list[str]]:
    """Return the columns that can be shown, by group."""
    logged = {group: [f"{group}.{name}" for name in getattr(names, group)] for group in _GROUPS}
    return {"run": list(_FACTS)} | {group: keys for group, keys in logged.items() if keys}


@dataclass(frozen=True, slots=True)
class Cell:
    """What a run has in a column, how it is shown (``status``, ``num`` ...), and the exact value for a title."""

    kind: str
    text: str
    exact: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """A run in the table."""

    run: Run
    cells: list[Cell]
    ruined: float | None = None  # the cosine to float's answers, where they are ruined


def row_of(run: Run, columns: Sequence[Column], model: tuple[str, str], now_ms: int) -> Row:
    """Return a run as a row; a list of runs comes without artifacts, so its model is given."""
    cells = [_cell(run, column.key, model, now_ms) for column in columns]
    return Row(run, cells, _format.ruined_cosine(run))


def _cell(run: Run, key: str, model: tuple[str, str], now_ms: int) -> Cell:
    group, dot, name = key.partition(".")
    if dot:
        return _logged(run, group, name)
    if key == "model":
        return Cell("text", *model)
    if key == "duration":
        took = None if run.ended_ms is None else run.ended_ms - run.started_ms
        return Cell("num", _format.span(took), "" if took is None else f"{took / 1000} s")
    if key == "started":
        return Cell("time", _format.ago(run.started_ms, now_ms), _format.moment(run.started_ms))
    text = str(getattr(run, key) or "")
    return Cell({"status": "status", "device": "link"}.get(key, "text"), text, text)


def _logged(run: Run, group: str, name: str) -> Cell:
    if group == "metrics":
        metric = run.metric(name)
        if metric is None:
            return Cell("num", "")
        return Cell("num", _format.number(metric.value, find_metric(name).decimals), repr(metric.value))
    if group == "params":
        text = _format.value(run.params[name].value) if name in run.params else ""
        return _verdict(text) if name == "verdict" and text else Cell("text", text, text)
    text = run.tags.get(name, "")
    return Cell("text", text, text)


def _verdict(text: str) -> Cell:
    """Return what a measurement or a proof says of itself; of a sentence the word in front."""
    word = text.partition(":")[0]
    if word in _PROOFS:
        return Cell(_PROOFS[word], word, text)
    verdict = Verdict.of(text)
    return Cell("stable" if verdict is not None and verdict.is_stable else "doubtful", text, text)


def _usual(view: View, names: ValueNames) -> list[str]:
    facts = [key for key in _DEFAULT_FACTS if not (key in {"status", "type", "device"} and getattr(view, key))]
    if "precision" in names.params and "model" in facts:
        facts.insert(facts.index("model") + 1, "params.precision")
    values = [f"metrics.{key}" for key in columns(names.metrics)]
    values += ["params.verdict"] if "verdict" in names.params else []
    project = [] if view.project else ["project"]
    return [*facts, *values, *project, "duration", "started"]


def column_of(view: View, key: str) -> Column:
    is_number = key.startswith("metrics.") or key == "duration"
    direction = {key: "ascending", f"-{key}": "descending"}.get(view.sort, "")
    # The first click shows the best first: the least of a number, the newest of times.
    first, second = (f"-{key}", key) if key == "started" else (key, f"-{key}")
    query = None if key in _UNSORTED else view.query(sort=second if view.sort == first else first)
    return Column(key, _title(key), is_number, direction, query)


def _title(key: str) -> str:
    group, _, name = key.partition(".")
    if group == "metrics":
        return find_metric(name).column_title
    return {"name": "Name", "params.verdict": "Verdict", "params.precision": "Precision", **_FACTS}.get(key, name)


def _is_column(key: str) -> bool:
    group, dot, name = key.partition(".")
    return key in _FACTS or (group in _GROUPS and bool(dot and name) and "\x00" not in name)


def _field(key: str) -> str:
    group, dot, name = key.partition(".")
    return f'{group}."{name.replace(chr(34), chr(34) * 2)}"' if dot else key
