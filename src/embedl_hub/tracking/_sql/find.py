"""Questions to the index: which runs, in which order, with which values.

A page of runs is found by walking an index in the wanted order and stopping when full, or, when a tag or parameter is
rare, by starting from the runs that have it. Pages follow each other by key, not by counting, where the order has an
index (time, metrics); so the thousandth page costs what the first did.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from embedl_hub.errors import ConfigError, quoted_list
from embedl_hub.tracking import _filter
from embedl_hub.tracking._filter import Compare, Condition, Field, Joined, Literal, Not, missing
from embedl_hub.tracking._journal import LATEST_MS, now_ms
from embedl_hub.tracking._models import LoggedMetric, LoggedParam, Run, RunStatus, RunType, Value
from embedl_hub.tracking._sql.migrations import LONGEST_INDEXED

if TYPE_CHECKING:
    from embedl_hub.tracking._sql.database import Connection, SqlDialect

LARGEST_PAGE = 500
# A condition that so few runs meet is the place to start from.
_RARE = 5000
_VARIABLES = LARGEST_PAGE + 1  # a page, and the run that says that there are more
RUN_COLUMNS = (
    "run.key, run.id, project.name, run.type, run.name, run.status, run.started_ms, run.ended_ms, "
    "run.parent_id, run.component, run.provider, run.device, run.error, run.traceback, run.archived"
)
_TEXT_COLUMNS = {
    "id": "run.id", "name": "run.name", "project": "project.name", "type": "run.type", "status": "run.status",
    "device": "run.device", "component": "run.component", "provider": "run.provider", "parent": "run.parent_id",
    "error": "run.error",
}  # fmt: skip
_NUMBER_COLUMNS = {
    "started": "run.started_ms",
    "ended": "run.ended_ms",
    "duration": "(run.ended_ms - run.started_ms) / 1000.0",
}
_COLUMNS = _TEXT_COLUMNS | _NUMBER_COLUMNS
_AGO = re.compile(r"(\d+(?:\.\d+)?)\s*([smhdw])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_STATUSES = frozenset(RunStatus)
_LARGEST_COUNT = 2**53
_SPELLINGS = {"status": tuple(RunStatus), "type": tuple(RunType)}


@dataclass(frozen=True)
class Page:
    """Some runs of a list, each metric with its last value; the next call goes on from ``after``, None at the end."""

    runs: tuple[Run, ...]
    after: str | None = None


@dataclass(frozen=True)
class Query:
    """Which runs are wanted, as ``Store.find`` says, and of which projects, whatever else is said; None for all."""

    where: str = ""
    order: str = "-started"
    archived: bool | None = False
    projects: tuple[str, ...] | None = None


@dataclass(frozen=True)
class _Sql:
    """A piece of a statement with its values."""

    text: str
    values: tuple[object, ...] = ()


_RUN, _PROJECT = _Sql("run"), _Sql("project")


@dataclass(frozen=True)
class _Search:
    """Where to start, and what must hold."""

    start: _Sql
    conditions: tuple[_Sql, ...]

    def also(self, condition: _Sql) -> _Search:
        return _Search(self.start, (*self.conditions, condition))


@dataclass(frozen=True)
class _Order:
    field: Field
    descending: bool

    @property
    def direction(self) -> str:
        return "DESC" if self.descending else "ASC"


@dataclass
class Finder:
    """Answers queries on one connection."""

    connection: Connection
    dialect: SqlDialect
    now_s: float = field(default_factory=lambda: now_ms() / 1000)

    def page(self, query: Query, *, after: str | None = None, limit: int = 50, offset: int = 0) -> Page:
        """Return the next runs of a query, with their values; ``offset`` costs as much as showing what it passes."""
        if not 1 <= limit <= LARGEST_PAGE:
            raise ConfigError(f"A page holds 1 to {LARGEST_PAGE} runs, not {limit}.")
        if offset < 0:
            raise ConfigError(f"The offset is {offset}; it cannot be less than 0.")
        name = query.order.strip()
        order = _Order(_filter.parse_field(name.lstrip("-")), name.startswith("-"))
        by = {"started": self._page_by_time, "id": self._page_by_time, "metrics": self._page_by_metric}
        return by.get(order.field.group, self._page_by_counting)(self._search(query), order, after, limit, offset)

    def count(self, query: Query) -> int:
        return self._count(self._search(query))

    def _count(self, search: _Search) -> int:
        tables, where = _together(" CROSS JOIN ", [search.start, _PROJECT], bare=True), _joined(search.conditions)
        statement = f"SELECT count(*) FROM {tables.text} WHERE project.key = run.project AND {where.text}"  # noqa: S608 - our own words
        return int(self.connection.execute(statement, (*tables.values, *where.values)).fetchone()[0])

    def _search(self, query: Query) -> _Search:
        condition = _filter.parse(query.where)
        parts = condition.parts if isinstance(condition, Joined) and condition.word == "and" else (condition,)
        start, conditions = _RUN, []
        for part in parts:
            if start is _RUN and (few := self._few(part)) is not None:
                # Written as a table, so that SQLite starts here whatever else there is.
                start = _Sql(f"({few.text}) AS few CROSS JOIN run", few.values)
                conditions.append(_Sql("run.key = few.run"))
            else:
                conditions.append(self._sql(part))
        if query.archived is not None:
            conditions.append(_Sql("run.archived = ?", (int(query.archived),)))
        if query.projects is not None:
            conditions.append(_of_projects(query.projects))
        return _Search(start, tuple(conditions))

    def _page_by_time(self, search: _Search, order: _Order, after: str | None, limit: int, offset: int) -> Page:
        if after is not None:
            (run_id,) = _unpack(after, "t", 1)
            search = search.also(_Sql(f"run.id {'<' if order.descending else '>'} ?", (str(run_id),)))
        runs = self._runs(search, _Sql(f"run.id {order.direction}"), limit + 1, offset)
        return _cut(runs, limit, lambda last: _pack("t", last.id))

    def _page_by_metric(self, search: _Search, order: _Order, after: str | None, limit: int, offset: int) -> Page:
        """Walk the metric's index; when it ends, go on with the runs that do not have it, newest first."""
        value, last_id = _unpack(after, "m", 2) if after is not None else (None, None)
        in_order = after is None or value is not None
        runs = self._runs_by_metric(search, order, value, last_id, limit + 1, offset) if in_order else []
        ranked = len(runs)
        if ranked <= limit:
            if in_order and offset:
                having = search.also(self._sql(Not(missing(order.field))))
                offset = max(0, offset - self._count(having))
            rest = search.also(self._sql(missing(order.field)))
            if not in_order:
                rest = rest.also(_Sql("run.id < ?", (str(last_id),)))
            runs += self._runs(rest, _Sql("run.id DESC"), limit + 1 - ranked, offset)

        def position(last: Run) -> str:
            metric = last.metric(order.field.name)
            return _pack("m", None if metric is None or math.isnan(metric.value) else metric.value, last.id)

        return _cut(runs, limit, position)

    def _runs_by_metric(
        self, search: _Search, order: _Order, value: object, last_id: object, limit: int, offset: int
    ) -> list[Run]:
        sign, direction = "<" if order.descending else ">", order.direction
        sorted_first = [
            _Sql("sorted.run = run.key AND sorted.latest = 1 AND sorted.value IS NOT NULL"),
            _Sql("sorted.name = ?", (order.field.name,)),
        ]
        if value is not None:
            # The second part is there to tell equals apart; a run that is gone meanwhile leaves only the first.
            key = self.connection.execute("SELECT key FROM run WHERE id = ?", (str(last_id),)).fetchone()
            place = (float(str(value)), key[0] if key else -1)
            sorted_first.append(_Sql(f"(sorted.value, sorted.run) {sign} (?, ?)", place))
        walked = _Sql("metric AS sorted")
        tables = [walked, search.start] if search.start is _RUN else [search.start, walked]
        ordered = _Search(_together(" CROSS JOIN ", tables, bare=True), (*sorted_first, *search.conditions))
        return self._runs(ordered, _Sql(f"sorted.value {direction}, sorted.run {direction}"), limit, offset)

    def _page_by_counting(self, search: _Search, order: _Order, after: str | None, limit: int, offset: int) -> Page:
        if after is not None:
            (counted,) = _unpack(after, "c", 1)
            offset = int(str(counted))
        # What a run does not have comes last in either direction.
        by = [
            _Sql(f"{part.text} IS NULL, {part.text} {order.direction}", part.values * 2)
            for part in self._order_expressions(order.field)
        ]
        runs = self._runs(search, _together(", ", [*by, _Sql("run.id DESC")], bare=True), limit + 1, offset)
        return _cut(runs, limit, lambda _: _pack("c", offset + limit))

    def _order_expressions(self, field: Field) -> list[_Sql]:
        if field.group in _COLUMNS:
            return [_Sql(_COLUMNS[field.group])]
        number = self.dialect.number_of.format("item.value")
        columns = ("item.value",) if field.group == "tags" else (number, "item.value")
        table = f"{field.group[:-1]} AS item WHERE item.run = run.key AND item.name = ?"
        return [_Sql(f"(SELECT {column} FROM {table})", (field.name,)) for column in columns]  # noqa: S608 - our own words

    def _runs(self, search: _Search, order: _Sql, limit: int, offset: int) -> list[Run]:
        tables = _together(" CROSS JOIN ", [search.start, _PROJECT], bare=True)
        where = _joined([_Sql("project.key = run.project"), *search.conditions])
        statement = f"""SELECT {RUN_COLUMNS} FROM {tables.text} WHERE {where.text}
            ORDER BY {order.text} LIMIT ? OFFSET ?"""  # noqa: S608 - our own words
        values = (*tables.values, *where.values, *order.values, limit, offset)
        return self._with_last_values(self.connection.execute(statement, values).fetchall())

    def having(
        self, query: Query, metric: str, *, metrics: Sequence[str], params: Sequence[str], limit: int
    ) -> list[tuple[object, Run]]:
        """Return the newest runs that have a metric, each behind its key, with these values only."""
        search = self._search(query)
        own = _Sql("own.name = ? AND own.latest = 1 AND own.value IS NOT NULL", (metric,))
        if search.start is _RUN and self._is_rare(own):
            few = _Sql(f"(SELECT own.run FROM metric AS own WHERE {own.text}) AS having_it CROSS JOIN run", own.values)  # noqa: S608 - our own words
            search = _Search(few, (*search.conditions, _Sql("run.key = having_it.run")))
        else:
            search = search.also(self._sql(Not(missing(Field("metrics", metric)))))
        tables = _together(" CROSS JOIN ", [search.start, _PROJECT], bare=True)
        where = _joined([_Sql("project.key = run.project"), *search.conditions])
        statement = f"""SELECT {RUN_COLUMNS} FROM {tables.text} WHERE {where.text} ORDER BY run.id DESC LIMIT ?"""  # noqa: S608 - our own words
        rows = self.connection.execute(statement, (*tables.values, *where.values, limit)).fetchall()
        runs = self._with_last_values(rows, params=params, metrics=metrics)
        return [(row[0], run) for row, run in zip(rows, runs, strict=True)]

    def _is_rare(self, own: _Sql) -> bool:
        counting = f"SELECT count(*) FROM (SELECT 1 FROM metric AS own WHERE {own.text} LIMIT {_RARE}) AS few"  # noqa: S608 - our own words
        return int(self.connection.execute(counting, own.values).fetchone()[0]) < _RARE

    def tagged(
        self, name: str, tag_values: Iterable[str], *, params: Sequence[str], projects: tuple[str, ...] | None
    ) -> list[Run]:
        """Return the runs whose tag has one of some values, oldest first, with these parameters only."""
        rows: list[tuple[object, ...]] = []
        in_sight = _joined([] if projects is None else [_of_projects(projects)])
        for group, marks in in_groups(list(tag_values)):
            statement = f"""SELECT {RUN_COLUMNS} FROM tag AS own CROSS JOIN run CROSS JOIN project
                WHERE own.name = ? AND own.value IN ({marks}) AND length(own.value) <= {LONGEST_INDEXED}
                AND run.key = own.run AND project.key = run.project AND {in_sight.text}"""  # noqa: S608 - our own words
            rows += self.connection.execute(statement, (name, *group, *in_sight.values)).fetchall()
        return self._with_last_values(sorted(rows, key=lambda row: str(row[1])), params=params)

    def _with_last_values(
        self,
        rows: list[tuple[object, ...]],
        *,
        params: Sequence[str] | None = None,
        metrics: Sequence[str] | None = None,
    ) -> list[Run]:
        """Return the runs of rows with their values; of parameters and metrics perhaps only those named."""
        only_params, only_metrics = _only(params), _only(metrics)
        found: dict[object, dict[str, LoggedParam]] = defaultdict(dict)
        logged: dict[object, list[LoggedMetric]] = defaultdict(list)
        tags: dict[object, dict[str, str]] = defaultdict(dict)
        ask = self.connection.execute
        for keys, marks in in_groups([row[0] for row in rows]):
            statement = f"SELECT run, name, value FROM param WHERE run IN ({marks}){only_params.text}"  # noqa: S608 - question marks
            for key, name, value in ask(statement, (*keys, *only_params.values)):
                found[key][name] = LoggedParam(name, _value_of(value))
            statement = f"""SELECT run, name, value, step, time_ms FROM metric
                WHERE run IN ({marks}) AND latest = 1{only_metrics.text}"""  # noqa: S608 - question marks
            for key, name, value, step, time_ms in ask(statement, (*keys, *only_metrics.values)):
                logged[key].append(LoggedMetric(name, math.nan if value is None else value, step, time_ms))
            for key, name, value in ask(f"SELECT run, name, value FROM tag WHERE run IN ({marks})", keys):  # noqa: S608 - question marks
                tags[key][name] = value
        return [run_of(row, params=found[row[0]], metrics=tuple(logged[row[0]]), tags=tags[row[0]]) for row in rows]

    def _few(self, part: Condition) -> _Sql | None:
        """Return a query for the runs that meet a condition, when it is an equality that few runs meet."""
        if not isinstance(part, Compare) or part.sign != "=" or part.field.group not in {"params", "tags"}:
            return None
        table, exact = part.field.group[:-1], _spellings(part.field, part.value)
        if any(len(text) > LONGEST_INDEXED for text in exact):
            return None
        marks = ", ".join("?" * len(exact))
        same = f"FROM {table} WHERE name = ? AND value IN ({marks}) AND length(value) <= {LONGEST_INDEXED}"
        values = (part.field.name, *exact)
        counting = f"SELECT count(*) FROM (SELECT 1 {same} LIMIT {_RARE}) AS few"  # noqa: S608 - our own words
        count = self.connection.execute(counting, values).fetchone()[0]
        return _Sql(f"SELECT run {same}", values) if count < _RARE else None

    def _sql(self, condition: Condition) -> _Sql:
        match condition:
            case Joined(parts=()):
                return _Sql("1 = 1")
            case Joined(word=word, parts=parts):
                return _together(f" {word.upper()} ", [self._sql(part) for part in parts])
            case Not(part=part):
                inner = self._sql(part)
                # What is unknown about a run counts as not so; its opposite is then so.
                return _Sql(f"NOT coalesce(({inner.text}), FALSE)", inner.values)
            case Compare(field=of, sign="is null"):
                return self._missing(of)
            case Compare(field=of, sign="!=", value=value):
                has = self._sql(Not(missing(of)))
                return _together(" AND ", [has, self._sql(Not(Compare(of, "=", value)))])
            case Compare():
                return self._compare(condition)

    def _missing(self, of: Field) -> _Sql:
        if of.group in _COLUMNS:
            return _Sql(f"{_COLUMNS[of.group]} IS NULL")
        if of.group in {"archived", "model"}:
            raise ConfigError(f"{of.group} is never null.")
        # A metric that is not a number has no place in an order either.
        more = " AND +item.latest = 1 AND item.value IS NOT NULL" if of.group == "metrics" else ""
        return _Sql(f"NOT {_item(of, more)}", (of.name,))

    def _compare(self, condition: Compare) -> _Sql:
        of, sign, value = condition.field, condition.sign, condition.value
        if of.group in _TEXT_COLUMNS:
            return self._text(_TEXT_COLUMNS[of.group], of, sign, value)
        if of.group in _NUMBER_COLUMNS:
            number = _as_number(of, value) if of.group == "duration" else self._moment_ms(of, value)
            return _Sql(f"{_NUMBER_COLUMNS[of.group]} {_no_tilde(of, sign)} ?", (number,))
        if of.group == "archived":
            if sign != "=" or not isinstance(value, bool):
                raise ConfigError("archived is asked for as: archived = true, or archived = false.")
            return _Sql("run.archived = ?", (int(value),))
        if of.group in {"model", "artifacts"}:
            return _artifact(of, sign, value)
        if of.group == "metrics":
            # The plus keeps SQLite from walking all runs' values: this run's own are found by its key.
            more = f" AND +item.latest = 1 AND +item.value {_no_tilde(of, sign)} ?"
            return _Sql(_item(of, more), (of.name, _as_number(of, value)))
        return self._value(of, sign, value)

    def _text(self, column: str, of: Field, sign: str, value: Literal) -> _Sql:
        if not isinstance(value, str):
            raise ConfigError(f"{of} is text; write the value in quotation marks: '{value}'.")
        if sign == "~":
            return _contains(column, value)
        if of.group == "project" and sign == "=":
            # By its key: the index of a project's runs starts with it.
            return _Sql("run.project = (SELECT key FROM project WHERE name = ?)", (value,))
        if of.group in _SPELLINGS:
            if value.upper() not in _SPELLINGS[of.group]:
                raise ConfigError(f"There is no run {of.group} {value!r}; known: {quoted_list(_SPELLINGS[of.group])}.")
            value = value.upper()
        return _Sql(f"{column} {sign} ?", (value,))

    def _value(self, of: Field, sign: str, value: Literal) -> _Sql:
        """Compare a parameter or a tag: a number by size, text by letters."""
        if sign == "~":
            inside = _contains("item.value", str(value))
            return _Sql(_item(of, f" AND {inside.text}"), (of.name, *inside.values))
        if sign == "=":
            exact = _spellings(of, value)
            marks = ", ".join("?" * len(exact))
            return _Sql(_item(of, f" AND item.value IN ({marks})"), (of.name, *exact))
        if isinstance(value, float):
            number = self.dialect.number_of.format("item.value")
            return _Sql(_item(of, f" AND {number} {sign} ?"), (of.name, value))
        text = value if of.group == "tags" else json.dumps(value, ensure_ascii=False)
        quoted = " AND item.value >= '\"' AND item.value < '#'" if of.group == "params" else ""
        return _Sql(_item(of, f"{quoted} AND item.value {sign} ?"), (of.name, str(text)))

    def _moment_ms(self, of: Field, value: Literal) -> int:
        """Return a moment: a date, a date with a time, or so long ago."""
        if isinstance(value, str):
            try:
                if ago := _AGO.fullmatch(value.strip()):
                    ago_ms = int((self.now_s - float(ago[1]) * _SECONDS[ago[2]]) * 1000)
                    return max(-LATEST_MS, ago_ms)
                moment = datetime.fromisoformat(value)
                moment = moment if moment.tzinfo else moment.astimezone()
                return int(moment.timestamp() * 1000)
            except (ValueError, OverflowError):
                pass
        raise ConfigError(
            f"{of} is a moment such as '2026-11-15', '2026-11-15T08:30' or, so long ago, '7d', '12h', '30m'; "
            f"not {value!r}."
        )


_scan: Callable[[str, int], tuple[Value, int]] = json.JSONDecoder().scan_once  # type: ignore[attr-defined]


def _value_of(text: str) -> Value:
    """Return what JSON says; what we wrote has no space around it, whose search takes longer than the rest."""
    try:
        value, end = _scan(text, 0)
    except StopIteration:
        end, value = -1, None
    if end != len(text):
        value = json.loads(text)
    return value


def run_of(row: tuple[object, ...], **values: object) -> Run:
    """Return the run of a row of ``RUN_COLUMNS``."""
    _, run_id, project, run_type, name, status, *rest, archived = row
    facts = (str(run_id), str(project), str(run_type), str(name), _status(status), *rest)
    return Run(*facts, **{**values, "archived": bool(archived)})  # type: ignore[arg-type]


def _status(text: object) -> RunStatus:
    # An index of an earlier version may hold what a foreign record said; a list of runs must not end there.
    return RunStatus(str(text)) if text in _STATUSES else RunStatus.KILLED


def _item(of: Field, more: str) -> str:
    return f"EXISTS (SELECT 1 FROM {of.group[:-1]} AS item WHERE item.run = run.key AND item.name = ?{more})"  # noqa: S608 - our own tables


def _only(names: Sequence[str] | None) -> _Sql:
    """Return the condition for these names only; none for all."""
    if names is None:
        return _Sql("")
    return _Sql(f" AND name IN ({', '.join('?' * len(names)) or 'NULL'})", tuple(names))


def _spellings(of: Field, value: Literal) -> tuple[str, ...]:
    """Return how a value may stand in its column: a parameter as JSON, a tag as text."""
    if isinstance(value, float):
        return (str(int(value)), str(value)) if value.is_integer() and abs(value) < 1e15 else (str(value),)
    return (str(value) if of.group == "tags" else json.dumps(value, ensure_ascii=False),)


def _artifact(of: Field, sign: str, value: Literal) -> _Sql:
    if not isinstance(value, str) or sign not in {"=", "~"}:
        raise ConfigError(f"{of} is asked for as: {of.group}{'.NAME' if of.name else ''} = 'the beginning of a hash'.")
    if sign == "~":
        meant = _contains("item.file_name", value)
    elif re.fullmatch(r"[0-9a-f]{4,64}", value):
        meant = _Sql("item.sha256 >= ? AND item.sha256 < ?", (value, value + "g"))
    else:
        meant = _Sql("item.file_name = ?", (value,))
    where = _together(" AND ", [meant, _Sql("item.name = ?", (of.name,))] if of.name else [meant], bare=True)
    return _Sql(f"run.key IN (SELECT item.run FROM artifact AS item WHERE {where.text})", where.values)  # noqa: S608 - our own words


def _contains(column: str, text: str) -> _Sql:
    pattern = re.sub(r"([\\%_])", r"\\\1", text.lower())
    return _Sql(f"lower({column}) LIKE ? ESCAPE '\\'", (f"%{pattern}%",))


def _no_tilde(of: Field, sign: str) -> str:
    if sign == "~":
        raise ConfigError(f"{of} is no text; ~ means 'contains'.")
    return sign


def _as_number(of: Field, value: Literal) -> float:
    if isinstance(value, bool) or not isinstance(value, float):
        raise ConfigError(f"{of} is a number, not {value!r}.")
    return value


def _of_projects(names: tuple[str, ...]) -> _Sql:
    if len(names) == 1:
        # By its key: the index of a project's runs starts with it.
        return _Sql("run.project = (SELECT key FROM project WHERE name = ?)", names)
    marks = ", ".join("?" * len(names))
    return _Sql(f"run.project IN (SELECT key FROM project WHERE name IN ({marks}))" if marks else "1 = 0", names)  # noqa: S608 - question marks


def _joined(conditions: Sequence[_Sql]) -> _Sql:
    return _together(" AND ", conditions) if conditions else _Sql("1 = 1")


def _together(word: str, parts: Sequence[_Sql], *, bare: bool = False) -> _Sql:
    text = word.join(part.text for part in parts)
    return _Sql(text if bare else f"({text})", tuple(value for part in parts for value in part.values))


def in_groups(keys: Sequence[object]) -> Iterator[tuple[tuple[object, ...], str]]:
    """Yield keys in groups that one statement can take, each with its question marks."""
    for start in range(0, len(keys), _VARIABLES):
        group = tuple(keys[start : start + _VARIABLES])
        yield group, ", ".join("?" * len(group))


def _cut(runs: list[Run], limit: int, position: Callable[[Run], str]) -> Page:
    return Page(tuple(runs[:limit]), position(runs[limit - 1]) if len(runs) > limit else None)


def _pack(kind: str, *values: object) -> str:
    plain = [str(value) if isinstance(value, float) and math.isinf(value) else value for value in values]
    return base64.urlsafe_b64encode(json.dumps([kind, *plain]).encode()).decode().rstrip("=")


def _unpack(text: str, kind: str, count: int) -> list[object]:
    try:
        values = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        is_valid = isinstance(values, list) and values[0] == kind and len(values) == count + 1
        if is_valid and kind == "m" and values[1] is not None:
            float(values[1])
        if is_valid and kind == "c":
            is_valid = 0 <= int(values[1]) <= _LARGEST_COUNT
        is_valid = is_valid and all(isinstance(value, str | int | float | None) for value in values)
    except (ValueError, TypeError, OverflowError, RecursionError, IndexError):
        is_valid = False
    if not is_valid:
        raise ConfigError("This page does not follow from the one before: 'after' is not of this list. Start again.")
    return list(values[1:])
