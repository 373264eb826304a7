"""What each page shows. A view takes the visitor's scope and the request, and returns values; nothing is rendered."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from embedl_hub.comparison import compare
from embedl_hub.errors import ConfigError, TrackingError
from embedl_hub.page import _json, _table
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
        data: Makes the JSON twin, when that is asked for.
        context: What the template needs.
        parts: Pieces of the page that can be asked for alone, by name.
        status: The HTTP status.
    """

    template: str
    data: Callable[[], dict[str, Any]]
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
    return Answer("projects.html", lambda: {"projects": _json.plain(found)}, {"projects": found, **_now()})


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
    except ConfigError as error:
        message, status = str(error), 400
    context = {
        "view": view, "columns": columns, "shown_keys": [column.key for column in columns], "devices": devices,
        "rows": _rows(visit, found, columns), "after": after, "message": message,
        "name_column": _table.name_column(view), "choices": _table.choices(names),
        "statuses": [one.value for one in RunStatus], "types": [one.value for one in RunType],
        "project_names": [one.name for one in visit.recall("projects", visit.scope.projects)], **_now(),
    }  # fmt: skip

    def data() -> dict[str, Any]:
        return {"runs": [_json.run_row(run) for run in found], "after": after, "error": message}

    return Answer("runs.html", data, context, {"rows": "rows.html"}, status)


def _rows(visit: Visit, found: Sequence[Run], columns: Sequence[_table.Column]) -> list[_table.Row]:
    now_ms, models = _now()["now_ms"], {}
    if any(column.key == "model" for column in columns):
        models = {run.id: _model_of(visit, run) for run in found}
    return [_table.row_of(run, columns, models.get(run.id, ("", "")), now_ms) for run in found]


def _model_of(visit: Visit, run: Run) -> tuple[str, str]:
    """Return the name and hash of what a run read first. A list comes without artifacts; an ended run never changes."""

    def look() -> tuple[str, str]:
        artifact = visit.scope.run(run.id).artifacts.get("input")
        return ("", "") if artifact is None else (artifact.file_name, artifact.sha256)

    return look() if run.ended_ms is None else visit.memory.keep(("model", run.id), look)


def count(visit: Visit) -> Answer:
    """Say how many runs a run table has in all; asked for after the page, as counting takes longer than finding."""
    view = _table.View.of(visit.request.query_params.multi_items())
    number = visit.scope.count(view.where(), archived=view.shows_archived())
    return Answer("count.html", lambda: {"count": number}, {"count": number})


def run(visit: Visit) -> Answer:
    """Show one run."""
    found = visit.scope.run(visit.request.path_params["run_id"])
    return run_answer(visit.scope, found)


def run_answer(scope: Scope, found: Run) -> Answer:
    """Return what the page of a run shows."""
    lineage, profile = scope.lineage(found), profile_of(found)
    series = _json.series(found)
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

    def data() -> dict[str, Any]:
        return {"run": _json.run_whole(found), "lineage": _json.lineage(lineage), "profile": _json.plain(profile)}

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
        "runs": [f"{letter} {title}" for letter, title in zip(letters, _titles(found), strict=True)],
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

    def data() -> dict[str, Any]:
        return {"runs": [_json.run_whole(run) for run in found], "comparison": _json.plain(compared)}

    return Answer("compare.html", data, context)


def _titles(runs: Sequence[Run]) -> list[str]:
    """Return what tells runs from each other: of model, precision, device and name those that are not all the same."""
    known = [
        [
            run.artifacts["input"].file_name if "input" in run.artifacts else "",
            str(run.params["precision"].value) if "precision" in run.params else "",
            run.device or "",
            run.name,
        ]
        for run in runs
    ]
    telling = [place for place, values in enumerate(zip(*known, strict=True)) if len(set(values)) > 1]
    words = [[one[place] for place in telling] for one in known]
    return [" ".join(filter(None, own)) or run.id for own, run in zip(words, runs, strict=True)]


def devices(visit: Visit) -> Answer:
    """Show the devices that runs were made on."""
    found = visit.scope.devices()
    health = visit.scope.health(device.name for device in found)

    def rows() -> dict[str, object]:
        return {"devices": [{**vars(one), "health": _json.plain(health[one.name])} for one in found]}

    return Answer("devices.html", rows, {"devices": found, "health": health, **_now()})


def device(visit: Visit) -> Answer:
    """Show one device and its history."""
    history = history_of(visit.scope, visit.request.query_params.get("name", ""))

    def data() -> dict[str, Any]:
        runs = [_json.run_row(run) for run in history.runs]
        return {"device": _json.plain(history.device), "runs": runs, "models": _json.plain(history.models)}

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
    return problem(str(error), status)


def problem(message: str, status: int) -> Answer:
    """Return a page that holds a message."""
    return Answer("error.html", lambda: {"error": message}, {"message": message, "status": status}, status=status)
