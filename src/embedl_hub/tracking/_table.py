"""The run table for other programs: CSV for spreadsheets, Parquet for data frames."""

from __future__ import annotations

import csv
import json
import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from embedl_hub.errors import ConfigError, TrackingError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from embedl_hub.tracking._models import Run

_FACTS = ("id", "project", "type", "name", "status", "device", "component", "provider", "parent_id", "error")
# What a spreadsheet would take for a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def write_table(runs: Sequence[Run], path: Path) -> None:
    """Write one row per run, with a column per parameter, metric and tag; the file's ending says the format."""
    if path.suffix not in {".csv", ".parquet"}:
        raise ConfigError(f"A table is written to a file that ends in .csv or .parquet, not {path.name!r}.")
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        (_write_csv if path.suffix == ".csv" else _write_parquet)(_columns(runs), part)
        part.replace(path)
    except OSError as error:
        raise TrackingError(f"{path} cannot be written: {error}") from error
    finally:
        part.unlink(missing_ok=True)


def _columns(runs: Sequence[Run]) -> dict[str, list[object]]:
    columns: dict[str, list[object]] = {name: [getattr(run, name) for run in runs] for name in _FACTS}
    columns["status"] = [run.status.value for run in runs]
    columns["started"] = [_moment(run.started_ms) for run in runs]
    columns["ended"] = [_moment(run.ended_ms) for run in runs]
    for group in ("params", "metrics", "tags"):
        values = [_values(run, group) for run in runs]
        for name in sorted({name for of_run in values for name in of_run}):
            columns[f"{group}.{name}"] = [of_run.get(name) for of_run in values]
    return columns


def _values(run: Run, group: str) -> dict[str, object]:
    if group == "metrics":
        return {metric.name: metric.value for metric in run.metrics}
    if group == "tags":
        return dict(run.tags)
    return {name: _plain(param.value) for name, param in run.params.items()}


def _plain(value: object) -> object:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else value


def _moment(time_ms: int | None) -> str | None:
    return None if time_ms is None else datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")


def _write_csv(columns: dict[str, list[object]], path: Path) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([_cell(title) for title in columns])
        writer.writerows([_cell(cell) for cell in row] for row in zip(*columns.values(), strict=True))


def _cell(value: object) -> object:
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


def _write_parquet(columns: dict[str, list[object]], path: Path) -> None:
    try:
        import pyarrow as pa  # type: ignore[import-not-found,import-untyped,unused-ignore]  # noqa: PLC0415 - an extra
        from pyarrow import parquet  # type: ignore[import-not-found,import-untyped,unused-ignore]  # noqa: PLC0415
    except ImportError as error:
        raise ConfigError(
            "Parquet needs a library that is not installed: pip install 'edgeproof-hub[parquet]'"
        ) from error
    # A parameter may be a number here and text there; a column holds one kind.
    kinds = {title: {type(cell) for cell in cells if cell is not None} for title, cells in columns.items()}
    plain = {
        title: cells if len(kinds[title]) <= 1 else [None if cell is None else str(cell) for cell in cells]
        for title, cells in columns.items()
    }
    parquet.write_table(pa.table(plain), path)
