"""Runs and everything else as plain JSON values: what the pages' twins answer."""

from __future__ import annotations

import dataclasses
import json
import math
from enum import Enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from embedl_hub.tracking import Lineage, LoggedMetric, Run

_HEAD = (
    "id", "project", "type", "name", "status", "started_ms", "ended_ms", "parent_id", "component", "provider", "device",
    "archived",
)  # fmt: skip


def dumps(values: object) -> bytes:
    """Return JSON that every reader takes: numbers that are none become text, as in a manifest."""
    return json.dumps(plain(values), ensure_ascii=False, allow_nan=False).encode("utf-8", "replace")


def for_script(values: object) -> str:
    """Return JSON that can stand inside a script element, whatever it holds."""
    return dumps(values).decode().replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def plain(values: Any) -> Any:  # noqa: ANN401 - anything a view holds
    """Return values as dictionaries, lists, texts, numbers, true, false and null."""
    if isinstance(values, Enum):
        return values.value
    if dataclasses.is_dataclass(values) and not isinstance(values, type):
        fields = {field.name: getattr(values, field.name) for field in dataclasses.fields(values)}
        return {name: plain(value) for name, value in fields.items()}
    if isinstance(values, dict):
        return {str(name): plain(value) for name, value in values.items()}
    if isinstance(values, list | tuple):
        return [plain(value) for value in values]
    if isinstance(values, float) and not math.isfinite(values):
        return str(values)
    return values


def run_head(run: Run) -> dict[str, Any]:
    """Return what a link to a run needs."""
    return {name: plain(getattr(run, name)) for name in _HEAD}


def run_row(run: Run) -> dict[str, Any]:
    """Return a run as a row of a list: the last value of each metric."""
    return {
        **run_head(run),
        "error": run.error,
        "params": {name: param.value for name, param in run.params.items()},
        "metrics": {metric.name: plain(metric.value) for metric in run.metrics},
        "tags": dict(run.tags),
    }


def run_whole(run: Run) -> dict[str, Any]:
    """Return a run with everything it logged."""
    artifacts = {
        name: {
            "file_name": item.file_name, "size_bytes": item.size_bytes, "sha256": item.sha256,
            "is_folder": item.is_folder,
        }
        for name, item in run.artifacts.items()
    }  # fmt: skip
    return {
        **run_row(run),
        "metrics": [plain(metric) for metric in run.metrics],
        "artifacts": artifacts,
        "traceback": run.traceback,
    }


def lineage(found: Lineage) -> dict[str, Any]:
    """Return where a run stands."""
    return {
        "made_from": [run_head(run) for run in found.made_from],
        "used_by": [run_head(run) for run in found.used_by],
        "parent": None if found.parent is None else run_head(found.parent),
        "parts": [run_head(run) for run in found.parts],
    }


def series(run: Run) -> dict[str, list[LoggedMetric]]:
    """Return the values of each metric, in the order they were logged."""
    found: dict[str, list[LoggedMetric]] = {}
    for metric in run.metrics:
        found.setdefault(metric.name, []).append(metric)
    return found
