"""What each page shows. A view takes the visitor's scope and the request, and returns values; nothing is rendered."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from embedl_hub.errors import ConfigError, TrackingError
from embedl_hub.page import _json, _table
from embedl_hub.page._comparison import compare
from embedl_hub.page._devices import history_of
from embedl_hub.page._profile import profile_of
from embedl_hub.page._scope import NotHereError
from embedl_hub.tracking import RunStatus, RunType

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence
    from pathlib import Path

    from starlette.requests import Request

    from embedl_hub.page._remember import Memory
    from embedl_hub.page._scope import Scope
    from embedl_hub.tracking import Run

Found = TypeVar("Found")
FEWEST_COMPARED, MOST_COMPARED = 2, 6
_LOG_ENDINGS = (".log", ".out", ".err", ".txt")
_LOG_BYTES = 64_000


@dataclass(frozen=True)
class Answer:
    """What a page shows.

    Attributes:
        template: The page.
        data: The JSON twin.
        context: What the template needs.
        parts: Pieces of the page that can be asked for alone, by name.
        status: The HTTP status.
    """

    template: str
    data: dict[str, Any]
    context: dict[str, Any] = field(default_factory=dict)
    parts: dict[str, str] = field(default_factory=dict)
    status: int = 200


@dataclass(frozen=True)
class Visit:
    """One request for a page."""

    scope: Scope
    request: Request
    memory: Memory

    def recall(self, key: Hashable, look: Callable[[], Found]) -> Found:
        """Return an answer that changes slowly, as this visitor may see it."""
        return self.memory.recall((self.scope.visible, key), look)


def projects(visit: Visit) -> Answer:
    """Show the projects."""
    found = visit.scope.projects()
    return Answer("projects.html", {"projects": _json.plain(found)}, {"projects": found, **_now()})


def runs(visit: Visit) -> Answer:
    """Show the run table."""
    view = _table.View.of(visit.request.query_params.multi_items())
    names = visit.recall(("names", view.project), lambda: visit.scope.value_names(view.project or None))
    devices = visit.recall("devices", visit.scope.devices)
    columns = _table.columns_of(view, names)
    message: str | None = None
    found: tuple[Run, ...] = ()
    after, status = None, 200
    try:
        page = visit.scope.find(
            view.where(), order=view.order(), archived=view.shows_archived(), after=view.after or None,
            limit=_table.PAGE_SIZE,
        )  # fmt: skip
        found, after = page.runs, page.after
        if any(column.key == "model" for column in columns):
            found = tuple(visit.scope.run(run.id) for run in found)
    except ConfigError as error:
        message, status = str(error), 400
    context = {
        "view": view, "columns": columns, "shown_keys": [column.key for column in columns], "devices": devices,
        "runs": found, "after": after, "message": message,
        "name_column": _table.name_column(view), "choices": _table.choices(names), "cell": _table.cell,
        "statuses": [one.value for one in RunStatus], "types": [one.value for one in RunType],
        "project_names": [one.name for one in visit.recall("projects", visit.scope.projects)], **_now(),
    }  # fmt: skip
    data = {"runs": [_json.run_row(run) for run in found], "after": after, "error": message}
    return Answer("runs.html", data, context, {"rows": "rows.html"}, status)


def count(visit: Visit) -> Answer:
    """Say how many runs a run table has in all; asked for after the page, as counting takes longer than finding."""
    view = _table.View.of(visit.request.query_params.multi_items())
    number = visit.scope.count(view.where(), archived=view.shows_archived())
    return Answer("count.html", {"count": number}, {"count": number})


def run(visit: Visit) -> Answer:
    """Show one run."""
    found = visit.scope.run(visit.request.path_params["run_id"])
    return run_answer(visit.scope, found)


def run_answer(scope: Scope, found: Run) -> Answer:
    """Return what the page of a run shows."""
    lineage, profile = scope.lineage(found), profile_of(found)
    series = _json.series(found)
    data = {
        "run": _json.run_whole(found), "lineage": _json.lineage(lineage),
        "profile": None if profile is None else _json.plain(profile),
    }  # fmt: skip
    charts: dict[str, Any] = {
        "series": {name: [[metric.step, metric.value] for metric in metrics]
                   for name, metrics in series.items() if len(metrics) > 1},
    }  # fmt: skip
    if profile is not None:
        charts |= {
            "layers": [[layer.name, layer.op_type, layer.compute_unit, layer.time_ms] for layer in profile.layers],
            "by_op_type": profile.by_op_type, "by_unit": profile.by_unit, "samples_ms": profile.samples_ms,
        }  # fmt: skip
    context = {"run": found, "profile": profile, "lineage": lineage, "series": series, "charts": charts,
               "logs": _logs(found), **_now()}  # fmt: skip
    return Answer("run.html", data, context)


def comparison(visit: Visit) -> Answer:
    """Show runs side by side."""
    return comparison_answer(visit.scope, visit.request.query_params.getlist("run"))


def comparison_answer(scope: Scope, ids: Sequence[str]) -> Answer:
    """Return what the page of a comparison shows."""
    if not FEWEST_COMPARED <= len(ids) <= MOST_COMPARED:
        raise ConfigError(
            f"{FEWEST_COMPARED} to {MOST_COMPARED} runs can be compared, not {len(ids)}: tick them in the run table."
        )
    found = [scope.run(run_id) for run_id in ids]
    compared, profiles = compare(found), [profile_of(run) for run in found]
    letters = "ABCDEF"[: len(found)]
    charts = {
        "runs": [f"{letter} {_title(run)}" for letter, run in zip(letters, found, strict=True)],
        "layers": [[row.name, list(row.times_ms)] for row in compared.layers],
        "samples_ms": [profile.samples_ms if profile else () for profile in profiles],
    }
    context = {
        "runs": found,
        "profiles": profiles,
        "compared": compared,
        "letters": letters,
        "charts": charts,
        **_now(),
    }
    data = {"runs": [_json.run_whole(run) for run in found], "comparison": _json.plain(compared)}
    return Answer("compare.html", data, context)


def _title(run: Run) -> str:
    """Return what tells a run from its neighbours best: its model."""
    artifact = run.artifacts.get("input")
    return run.name if artifact is None else artifact.file_name


def devices(visit: Visit) -> Answer:
    """Show the devices that runs were made on."""
    found = visit.scope.devices()
    return Answer("devices.html", {"devices": _json.plain(found)}, {"devices": found, **_now()})


def device(visit: Visit) -> Answer:
    """Show one device and its history."""
    history = history_of(visit.scope, visit.request.query_params.get("name", ""))
    data = {"device": _json.plain(history.device), "runs": [_json.run_row(run) for run in history.runs],
            "models": _json.plain(history.models)}  # fmt: skip
    return Answer("device.html", data, {"history": history, "charts": {"models": history.models}, **_now()})


def _logs(run: Run) -> list[tuple[str, str]]:
    """Return the ends of the logs among a run's artifacts."""
    found = []
    for name, artifact in run.artifacts.items():
        if not artifact.is_folder and artifact.file_name.lower().endswith(_LOG_ENDINGS) and artifact.local_path:
            try:
                found.append((name, _tail(artifact.local_path)))
            except OSError as error:
                found.append((name, f"(cannot be read: {error.strerror})"))
    return found


def _tail(path: Path) -> str:
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - _LOG_BYTES))
        text = file.read(_LOG_BYTES).decode("utf-8", "replace")
    return text if size <= _LOG_BYTES else f"… ({size - _LOG_BYTES} bytes before)\n{text}"


def _now() -> dict[str, int]:
    return {"now_ms": time.time_ns() // 1_000_000}


def failure(error: Exception) -> Answer:
    """Return the page that says why there is nothing to show."""
    status = 404 if isinstance(error, NotHereError) else 503 if isinstance(error, TrackingError) else 400
    return Answer("error.html", {"error": str(error)}, {"message": str(error), "status": status}, status=status)
