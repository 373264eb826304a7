"""Runs as tables for spreadsheets and data frames, both ways: CSV and Parquet, by the ending of a file's name.

A table of runs has a row for each and a column for each value: ``params.NAME``, ``metrics.NAME`` (the last value),
``tags.NAME``. What a spreadsheet would take for a formula gets an apostrophe in front, which is taken off on the way
back. A table comes from elsewhere, so nothing in it is believed, and it comes in whole or not at all.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import io
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embedl_device.readers import UnreadableError, open_plain, parse_json, size_of
from embedl_hub.errors import ConfigError, TrackingError
from embedl_hub.paths import replacing
from embedl_hub.tracking._export import Imported
from embedl_hub.tracking._journal import now_ms
from embedl_hub.tracking._models import LoggedMetric, LoggedParam, Run, RunStatus, RunType, Value
from embedl_hub.tracking._records import RUN_ID
from embedl_hub.tracking._staging import Staging
from embedl_hub.tracking._values import check_name

if TYPE_CHECKING:
    from embedl_hub.tracking._store import Store

SUFFIXES = (".csv", ".parquet")
_FACTS = ("id", "project", "type", "name", "status", "device", "component", "provider", "parent_id", "error")
_TIMES = ("started", "ended")
_GROUPS = ("params", "metrics", "tags")
# What a spreadsheet would take for a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_LARGEST_FILE = 1 << 30
_LARGEST_CELL = 1 << 20
_MOST_ROWS, _MOST_COLUMNS, _MOST_CELLS = 1_000_000, 10_000, 20_000_000
_NUMBER = re.compile(r"-?(\d+|\d+\.\d+(e[-+]\d+)?|\d+e[-+]\d+)", re.ASCII)
Columns = Mapping[str, Sequence[object]]


def write_table(runs: Sequence[Run], path: Path) -> None:
    """Write one row per run, with a column per parameter, metric and tag; the file's ending says the format."""
    write_columns(_columns(runs), path)


def write_columns(columns: Columns, path: Path) -> None:
    """Write a table of columns of one length; the file's ending says the format."""
    if path.suffix not in SUFFIXES:
        raise ConfigError(f"A table is written to a file that ends in .csv or .parquet, not {path.name!r}.")
    try:
        with replacing(path) as part:
            (_write_csv if path.suffix == ".csv" else _write_parquet)(columns, part)
    except OSError as error:
        raise TrackingError(f"{path} cannot be written: {error}") from error


def series_columns(runs: Sequence[Run]) -> Columns:
    """Return a row for each number that runs logged, with its step and time; runs as ``Store.run`` gives them."""
    rows = [(run, metric) for run in runs for metric in run.metrics]
    return {
        "run": [run.id for run, _ in rows],
        "name": [run.name for run, _ in rows],
        "metric": [metric.name for _, metric in rows],
        "step": [metric.step for _, metric in rows],
        "value": [metric.value for _, metric in rows],
        "time": [_moment(metric.time_ms) for _, metric in rows],
    }


def import_table(store: Store, path: Path, *, project: str = "default") -> Imported:
    """Take the runs of a table in, all of them or, when a cell cannot be read, none; those that are here stay.

    Args:
        store: Where to, open.
        path: A ``.csv`` or ``.parquet`` file.
        project: Where rows belong that do not say.

    Raises:
        ConfigError: A column or a cell is not what it should be; names the row, counted with the head, and the column.
        TrackingError: The file cannot be read.
    """
    try:
        columns = _read_csv(path) if path.suffix == ".csv" else _read_parquet(path)
    except FileNotFoundError:
        raise TrackingError(f"There is no file {path}.") from None
    except (OSError, ValueError, csv.Error) as error:
        if isinstance(error, ConfigError):
            raise
        raise TrackingError(f"{path} cannot be read as a table: {error}") from error
    runs = list(_runs(columns, path.name, project))
    brought, known = [], []
    with Staging(store) as staging:
        for run in runs:
            if store.run_dir(run.id).exists():
                known.append(run.id)
            else:
                staging.add(run, {})
                brought.append(run.id)
    return Imported(tuple(brought), tuple(known))


def _columns(runs: Sequence[Run]) -> Columns:
    columns: dict[str, list[object]] = {name: [getattr(run, name) for run in runs] for name in _FACTS}
    columns["status"] = [run.status.value for run in runs]
    columns |= {name: [_moment(getattr(run, f"{name}_ms")) for run in runs] for name in _TIMES}
    for group in _GROUPS:
        values = [_values(run, group) for run in runs]
        for name in sorted({name for of_run in values for name in of_run}):
            columns[f"{group}.{name}"] = [of_run.get(name) for of_run in values]
    return columns


def _values(run: Run, group: str) -> dict[str, object]:
    if group == "metrics":
        return {metric.name: metric.value for metric in run.metrics}
    if group == "tags":
        return dict(run.tags)
    values = {name: param.value for name, param in run.params.items()}
    return {
        name: json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else value
        for name, value in values.items()
    }


def _moment(time_ms: int | None) -> str | None:
    return None if time_ms is None else datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")


def _write_csv(columns: Columns, path: Path) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([_cell(title) for title in columns])
        writer.writerows([_cell(cell) for cell in row] for row in zip(*columns.values(), strict=True))


def _cell(value: object) -> object:
    return f"'{value}" if isinstance(value, str) and value.startswith((*_FORMULA, "'")) else value


class _Untyped(str):
    """A cell of a CSV file: a number, a flag or a text, as it reads."""

    __slots__ = ()


def _plain(cell: str) -> str:
    """Return a cell without the apostrophe that keeps it from being a formula; one that had it is a text."""
    is_marked = cell.startswith("'") and cell[1:].startswith((*_FORMULA, "'"))
    return cell[1:] if is_marked else _Untyped(cell)


def _write_parquet(columns: Columns, path: Path) -> None:
    pa, parquet = _arrow()
    # A parameter may be a number here and text there; a column holds one kind.
    kinds = {title: {type(cell) for cell in cells if cell is not None} for title, cells in columns.items()}
    plain = {
        title: cells if len(kinds[title]) <= 1 else [None if cell is None else str(cell) for cell in cells]
        for title, cells in columns.items()
    }
    parquet.write_table(pa.table(plain), path)


def _arrow() -> tuple[Any, Any]:
    try:
        import pyarrow as pa  # type: ignore[import-not-found,import-untyped,unused-ignore]  # noqa: PLC0415 - an extra
        from pyarrow import parquet  # type: ignore[import-not-found,import-untyped,unused-ignore]  # noqa: PLC0415
    except ImportError as error:
        raise ConfigError(
            "Parquet needs a library that is not installed: pip install 'edgeproof-hub[parquet]'"
        ) from error
    return pa, parquet


def _read_csv(path: Path) -> dict[str, list[Any]]:
    """Return the columns of a CSV file; an empty cell is nothing. A semicolon parts the cells where no comma does."""
    with open_plain(path) as file:
        if size_of(file) > _LARGEST_FILE:
            raise ValueError(f"it has {size_of(file)} bytes; at most {_LARGEST_FILE} are read")
        text = file.read(_LARGEST_FILE).decode("utf-8-sig")
    head = text.partition("\n")[0]
    delimiter = ";" if ";" in head and "," not in head else ","
    before = csv.field_size_limit(_LARGEST_CELL)
    try:
        rows = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
        titles = [str(_plain(title)) for title in next(rows, [])]
        _check_titles(titles, path.name)
        columns: dict[str, list[Any]] = {title: [] for title in titles}
        for number, row in enumerate(rows, start=2):
            if not row:
                continue
            if len(row) != len(titles):
                raise ConfigError(f"{path.name}, row {number} has {len(row)} cells, and the head {len(titles)}.")
            _check_size(number, len(titles))
            for title, cell in zip(titles, row, strict=True):
                columns[title].append(_plain(cell) if cell else None)
    finally:
        csv.field_size_limit(before)
    return columns


def _read_parquet(path: Path) -> dict[str, list[Any]]:
    _, parquet = _arrow()
    with open_plain(path) as file, parquet.ParquetFile(file) as table:
        facts = table.metadata
        size = sum(facts.row_group(number).total_byte_size for number in range(facts.num_row_groups))
        if size > _LARGEST_FILE:
            raise ValueError(f"it unpacks to {size} bytes; at most {_LARGEST_FILE} are read")
        titles = list(table.schema_arrow.names)
        _check_titles(titles, path.name)
        _check_size(facts.num_rows + 1, len(titles))
        found: dict[str, list[Any]] = table.read().to_pydict()
        return found


def _check_size(rows: int, columns: int) -> None:
    if rows > _MOST_ROWS or columns > _MOST_COLUMNS or rows * columns > _MOST_CELLS:
        raise ValueError(f"it has more than {_MOST_ROWS:,} rows, {_MOST_COLUMNS:,} columns or {_MOST_CELLS:,} cells")


def _check_titles(titles: Sequence[str], file: str) -> None:
    if wrong := [title for title in titles if not _is_title(title)]:
        known = ", ".join((*_FACTS, *_TIMES, *(f"{group}.NAME" for group in _GROUPS)))
        raise ConfigError(
            f"{file} has a column {wrong[0]!r:.100}; a column is called: {known}. Rename it, or leave it out."
        )
    if len(set(titles)) < len(titles) or not titles:
        twice = next((title for title in titles if titles.count(title) > 1), None)
        raise ConfigError(
            f"{file} has two columns {twice!r:.100}." if twice else f"{file} has no head with names of columns."
        )


def _is_title(title: str) -> bool:
    group, dot, name = title.partition(".")
    return title in {*_FACTS, *_TIMES} or (group in _GROUPS and bool(dot) and bool(name.strip()))


def _runs(columns: Mapping[str, list[Any]], file: str, project: str) -> Iterator[Run]:
    now, seen = now_ms(), dict[str, int]()
    for at in range(len(next(iter(columns.values())))):
        number = at + 2  # as a spreadsheet counts, with the head
        row = {title: cells[at] for title, cells in columns.items() if cells[at] is not None}
        if not row:
            continue
        reader = _Row(row, f"{file}, row {number}")
        run = reader.run(project, now)
        if run.id in seen:
            raise ConfigError(f"{file}, row {number}, column 'id': row {seen[run.id]} is the same run.")
        seen[run.id] = number
        yield run


class _Row:
    """One row, whose errors name it."""

    def __init__(self, row: Mapping[str, Any], where: str) -> None:
        self._row, self._where = row, where

    def run(self, project: str, now: int) -> Run:
        status = RunStatus(self._one_of("status", tuple(RunStatus)) or "FINISHED")
        error = self._text("error")
        if status in {RunStatus.RUNNING, RunStatus.SCHEDULED}:
            # Its process is elsewhere and this copy will never hear of its end.
            status, error = RunStatus.KILLED, error or "The run was still going on when the table was written."
        started = self._time("started")
        ended = self._time("ended")
        begun = started if started is not None else ended if ended is not None else now
        if ended is not None and ended < begun:
            raise self._wrong("ended", "is before the start")
        run_type = self._one_of("type", tuple(RunType)) or RunType.CUSTOM.value
        return Run(
            self._id(), self._name("project") or project, run_type, self._name("name") or run_type.lower(), status,
            begun, begun if ended is None else ended, parent_id=self._run_id("parent_id"),
            component=self._name("component"), provider=self._name("provider"), device=self._name("device"),
            error=error,
            params={name: LoggedParam(name, self._param(title)) for title, name in self._group("params")},
            metrics=tuple(
                LoggedMetric(name, self._number(title), None, begun) for title, name in self._group("metrics")
            ),
            tags={name: str(self._row[title]) for title, name in self._group("tags")},
        )  # fmt: skip

    def _group(self, group: str) -> Iterator[tuple[str, str]]:
        for title in self._row:
            head, _, name = title.partition(".")
            if head == group:
                try:
                    check_name(f"name of column {title!r:.100}", name)
                except ConfigError as error:
                    raise ConfigError(f"{self._where}: {error}") from error
                yield title, name

    def _wrong(self, title: str, what: str) -> ConfigError:
        return ConfigError(
            f"{self._where}, column {title!r}: {self._row.get(title)!r:.100} {what}. Nothing was imported."
        )

    def _text(self, title: str) -> str | None:
        value = self._row.get(title)
        return None if value is None else str(value)

    def _name(self, title: str) -> str | None:
        text = self._text(title)
        try:
            if text is not None:
                check_name(title, text)
        except ConfigError as error:
            raise self._wrong(title, "is no name: 1 to 200 bytes of printable text") from error
        return text

    def _one_of(self, title: str, words: tuple[str, ...]) -> str | None:
        text = self._text(title)
        if text is not None and text not in words:
            raise self._wrong(title, f"is none of {', '.join(words)}")
        return text

    def _id(self) -> str:
        if "id" in self._row:
            return self._run_id("id") or ""
        # The same row is the same run, however often its table is imported.
        return hashlib.sha256(repr(sorted(self._row.items())).encode("utf-8", "replace")).hexdigest()[:21]

    def _run_id(self, title: str) -> str | None:
        text = self._text(title)
        if text is not None and not RUN_ID.fullmatch(text):
            raise self._wrong(title, "is no id of a run: 8 to 64 digits and letters a to f")
        return text

    def _number(self, title: str) -> float:
        value = self._row[title]
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            if not isinstance(value, bool) and (not math.isfinite(number := float(value)) or abs(number) <= 1.7e308):
                return number
        raise self._wrong(title, "is no number")

    def _time(self, title: str) -> int | None:
        value = self._row.get(title)
        if value is None or isinstance(value, datetime):
            return None if value is None else round(value.replace(tzinfo=value.tzinfo or UTC).timestamp() * 1000)
        with contextlib.suppress(ValueError, OverflowError):
            moment = datetime.fromisoformat(str(value))
            return round(moment.replace(tzinfo=moment.tzinfo or UTC).timestamp() * 1000)
        raise self._wrong(title, "is no time such as 2026-11-18T04:53:00+00:00")

    def _param(self, title: str) -> Value:
        """Return a parameter; of a cell of a CSV file a number where it reads the same again."""
        value = self._row[title]
        if isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
            return value
        text = str(value)
        if isinstance(value, _Untyped) and text in {"True", "False"}:
            return text == "True"
        if isinstance(value, _Untyped) and _NUMBER.fullmatch(text) and len(text) <= 24:
            number = float(text) if set(text) & set(".e") else int(text)
            return number if str(number) == text and math.isfinite(number) else text
        if text[:1] in {"[", "{"}:
            with contextlib.suppress(UnreadableError):
                found: Value = parse_json(text)
                return found
        return text
