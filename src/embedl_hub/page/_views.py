"""What each page shows. A view takes the visitor's scope and the request, and returns values; nothing is rendered."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, BinaryIO, TypeVar

from markupsafe import Markup

from embedl_device.statistics import Verdict
from embedl_graph import graph_data, graph_markup, node_table
from embedl_hub.comparison import ALPHA, FEWEST, Measured, compare, find_changes
from embedl_hub.core.document import document_of, find_metric
from embedl_hub.errors import ConfigError, TrackingError
from embedl_hub.fleet import CellState
from embedl_hub.page import _format, _table
from embedl_hub.page._bisect import MOST_NAMED, bisection_of, bisections_of
from embedl_hub.page._calibration import calibration_of
from embedl_hub.page._charts import MOST_POINTS, Chart, as_json, chart_of, wanted_of
from embedl_hub.page._devices import DeviceFacts, devices_of
from embedl_hub.page._graph import RunGraph, drawn, find_model, models_of, read_artifact
from embedl_hub.page._profile import profile_of
from embedl_hub.page._scope import NotHereError, Scope
from embedl_hub.page._sweeps import sweep_of, sweeps_of
from embedl_hub.tracking import Lineage, Run, RunStatus, RunType, equal, now_ms

if TYPE_CHECKING:
    from starlette.requests import Request

    from embedl_graph import ModelGraph
    from embedl_hub.page._ranking import Place
    from embedl_hub.page._scope import TtlCache
    from embedl_hub.tracking import LoggedArtifact

Value = TypeVar("Value")
FEWEST_COMPARED, MOST_COMPARED = 2, 6
_LOG_ENDINGS = (".log", ".out", ".err", ".txt")
_LOG_BYTES = 64_000
_NEWEST = 200


@dataclass(frozen=True)
class Answer:
    """What a page shows: ``data`` makes its JSON twin, ``parts`` are pieces that can be asked for alone."""

    template: str
    data: Callable[[], dict[str, object]]
    context: Mapping[str, object] = field(default_factory=dict)
    parts: dict[str, str] = field(default_factory=dict)
    status: int = 200


@dataclass(frozen=True)
class Visit:
    """One request for a page."""

    scope: Scope
    request: Request
    cache: TtlCache

    def cached(self, key: Hashable, look: Callable[[], Value]) -> Value:
        """Return an answer that changes slowly, as this visitor may see it."""
        return self.cache.get((self.scope.visible, key), look)


def projects(visit: Visit) -> Answer:
    projects = visit.scope.store.projects()
    return Answer("projects.html", lambda: {"projects": projects}, {"projects": projects})


def runs(visit: Visit) -> Answer:
    view = _table.View.of(visit.request.query_params.multi_items())
    names = visit.cached(("names", view.project), lambda: visit.scope.store.value_names(view.project or None))
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
        "view": view, "columns": columns, "shown_keys": [column.key for column in columns],
        "rows": _rows(visit, found, columns), "after": after, "message": message,
        "name_column": _table.column_of(view, "name"), "choices": _table.choices(names),
        **_pickers(visit),
    }  # fmt: skip

    def data() -> dict[str, object]:
        return {"runs": [_format.run_row(run) for run in found], "after": after, "error": message}

    return Answer("runs.html", data, context, {"rows": "rows.html"}, status)


def _rows(visit: Visit, found: Sequence[Run], columns: Sequence[_table.Column]) -> list[_table.Row]:
    has_model, now = any(column.key == "model" for column in columns), now_ms()
    return [_table.row_of(run, columns, _model_of(visit, run) if has_model else ("", ""), now) for run in found]


def _model_of(visit: Visit, run: Run) -> tuple[str, str]:
    """Return the name and hash of what a run read first. A list comes without artifacts; an ended run never changes."""

    def look() -> tuple[str, str]:
        artifact = visit.scope.run(run.id).artifacts.get("input")
        return ("", "") if artifact is None else (artifact.title, artifact.sha256)

    return look() if run.ended_ms is None else visit.cache.keep(("model", run.id), look)


def count(visit: Visit) -> Answer:
    """Say how many runs a run table has in all; asked for after the page, as counting takes longer than finding."""
    view = _table.View.of(visit.request.query_params.multi_items())
    number = visit.scope.count(view.where(), archived=view.shows_archived())
    return Answer("count.html", lambda: {"count": number}, {"count": number})


def charts(visit: Visit) -> Answer:
    """Draw one number of many runs over time; the address says which number, and which runs as in the run table."""
    view = _table.View.of(visit.request.query_params.multi_items())
    names = visit.cached(("names", view.project), lambda: visit.scope.store.value_names(view.project or None))
    wanted = wanted_of(view, visit.request.query_params.get("metric", ""), names)
    message: str | None = None
    chart, status = Chart(find_metric(wanted.metric), wanted.metric, ()), 200
    try:
        if wanted.metric:
            chart = chart_of(visit.scope, wanted, visit.cache)
    except ConfigError as error:
        message, status = str(error), 400
    context = {
        "view": view, "wanted": wanted, "chart": chart, "charts": chart.data(), "message": message,
        "most": MOST_POINTS, "alpha": ALPHA, "fewest": FEWEST, **_pickers(visit),
    }  # fmt: skip

    def data() -> dict[str, object]:
        return {**as_json(chart), "error": message}

    return Answer("charts.html", data, context, status=status)


def _pickers(visit: Visit) -> dict[str, object]:
    """Return what runs are narrowed by, beside the filter."""
    return {
        "devices": visit.cached("devices", visit.scope.store.devices),
        "statuses": [status.value for status in RunStatus],
        "types": [kind.value for kind in RunType],
        "project_names": [project.name for project in visit.cached("projects", visit.scope.store.projects)],
    }


def run(visit: Visit) -> Answer:
    shown = visit.scope.run(visit.request.path_params["run_id"])
    return run_answer(visit.scope, shown)


def run_answer(scope: Scope, run: Run) -> Answer:
    lineage, profile, shown = scope.store.lineage(run.id), profile_of(run), calibration_of(run)
    series = _format.series(run)
    charts: dict[str, object] = {
        "series": {name: [[metric.step, metric.value] for metric in metrics]
                   for name, metrics in series.items() if len(metrics) > 1},
    }  # fmt: skip
    if profile is not None:
        charts |= {
            "layers": [[layer.name, layer.op_type, layer.compute_unit, layer.time_ms] for layer in profile.layers],
            "by_op_type": profile.by_op_type, "by_unit": profile.by_unit, "samples_ms": profile.samples_ms,
            "sustained": profile.sustained,
        }  # fmt: skip
    models = models_of(run, lineage)
    graph = RunGraph(scope, run, models) if models and run.ended_ms else None
    context = {"run": run, "profile": profile, "lineage": lineage, "series": series, "charts": charts,
               "logs": _logs(run), "graph": graph, "ruined": _ruined(run, lineage),
               "warnings": _warnings(run), "calibration": shown}  # fmt: skip

    def data() -> dict[str, object]:
        return {"run": _format.run_whole(run), "lineage": _format.lineage(lineage), "profile": profile,
                "calibration": shown}  # fmt: skip

    return Answer("run.html", data, context)


def _ruined(run: Run, lineage: Lineage) -> list[tuple[str, float]]:
    """Return who says that the answers of a run's model are ruined: the run, or one that made what it read."""
    told = ((one.name, _format.ruined_cosine(one)) for one in (run, *lineage.made_from))
    return [(name, cosine) for name, cosine in told if cosine is not None]


def _warnings(run: Run) -> list[str]:
    """Return what a run warned of when it ran."""
    said = run.params["warnings"].value if "warnings" in run.params else []
    return [str(text) for text in said] if isinstance(said, list | tuple) else [str(said)]


def graph(visit: Visit) -> Answer:
    """Show a model of a run, or two models side by side; which, the address says."""
    wanted = visit.request.query_params
    run = visit.scope.run(visit.request.path_params["run_id"])
    models = models_of(run, visit.scope.store.lineage(run.id))
    if not models and not wanted.get("of"):
        raise NotHereError(f"Run {run.id} has no ONNX or TFLite model to show.")
    first = find_model(visit.scope, wanted["of"], models) if wanted.get("of") else models[0]
    second = find_model(visit.scope, wanted["against"], models) if wanted.get("against") else None

    def read(artifact: LoggedArtifact) -> ModelGraph:
        return visit.cached(("graph", artifact.sha256), lambda: read_artifact(artifact))

    pictures = [drawn(one.run if one.run.type == "PROFILE" else run, one, read) for one in (first, second) if one]
    data = graph_data(*pictures)
    known = {one.reference: one for one in (*models, first, *([second] if second else []))}
    context = {
        "run": run, "models": list(known.values()), "first": first, "second": second, "graph_data": data,
        "markup": Markup(graph_markup("Graph", count=len(pictures))),  # noqa: S704 - escaped where it is made
        "tables": [Markup(node_table(picture.graph)) for picture in pictures],  # noqa: S704 - likewise
        "pictures": pictures,
    }  # fmt: skip
    return Answer("graph.html", lambda: data, context)


def comparison(visit: Visit) -> Answer:
    return comparison_answer(visit.scope, visit.request.query_params.getlist("run"))


def comparison_answer(scope: Scope, ids: Sequence[str]) -> Answer:
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
    drawable = len(found) == 2 and all(models_of(run, Lineage()) for run in found)
    context = {
        "runs": found, "profiles": profiles, "compared": compared, "letters": letters, "charts": charts,
        "drawable": drawable, "ruined": [bool(_ruined(run, scope.store.lineage(run.id))) for run in found],
    }  # fmt: skip

    def data() -> dict[str, object]:
        return {"runs": [_format.run_whole(run) for run in found], "comparison": compared}

    return Answer("compare.html", data, context)


def _titles(runs: Sequence[Run]) -> list[str]:
    """Return what tells runs from each other: of model, precision, device and name those that are not all the same."""
    known = [
        [
            run.artifacts["input"].title if "input" in run.artifacts else "",
            str(run.params["precision"].value) if "precision" in run.params else "",
            run.device or "",
            run.name,
        ]
        for run in runs
    ]
    telling = [place for place, values in enumerate(zip(*known, strict=True)) if len(set(values)) > 1]
    return [
        " ".join(filter(None, (own[place] for place in telling))) or run.id
        for own, run in zip(known, runs, strict=True)
    ]


def sweeps(visit: Visit) -> Answer:
    newest = sweeps_of(visit.scope)
    return Answer("sweeps.html", lambda: {"sweeps": [_format.run_row(run) for run in newest]}, {"sweeps": newest})


def sweep(visit: Visit) -> Answer:
    wanted = dict(visit.request.query_params)
    return sweep_answer(visit.scope, visit.request.path_params["run_id"], wanted, visit.cache)


def sweep_answer(scope: Scope, run_id: str, wanted: Mapping[str, str], cache: TtlCache) -> Answer:
    shown = sweep_of(scope, run_id, wanted, cache)
    context = {
        "sweep": shown, "charts": shown.charts(), "states": list(CellState), "metric": find_metric(shown.choice.metric),
    }  # fmt: skip

    def data() -> dict[str, object]:
        cells = list(shown.matrix.cells.values())
        ranking = [{"target": each.target, "places": list(map(_place_row, each.places))} for each in shown.standings]
        run = _format.run_row(shown.run)
        return {"run": run, "cells": cells, "slots": shown.matrix.slots, "ranking": ranking}

    return Answer("sweep.html", data, context)


def _place_row(place: Place) -> dict[str, object]:
    names = ("value", "low", "high", "number", "is_tied", "to_best", "told_by", "why_not", "on_front")
    return {"model": place.cell.model, "option": place.cell.option} | {name: getattr(place, name) for name in names}


def bisections(visit: Visit) -> Answer:
    newest = bisections_of(visit.scope, visit.cache)

    def data() -> dict[str, object]:
        ends = ({"good": each.good, "bad": each.bad, "answer": each.answer} for each in newest)
        return {"bisections": [_format.run_row(each.run) | end for each, end in zip(newest, ends, strict=True)]}

    return Answer("bisections.html", data, {"bisections": newest})


def bisection(visit: Visit) -> Answer:
    return bisection_answer(visit.scope, visit.request.path_params["run_id"])


def bisection_answer(scope: Scope, run_id: str) -> Answer:
    shown = bisection_of(scope, run_id)

    def data() -> dict[str, object]:
        return {"run": _format.run_row(shown.run), **shown.result.as_dict()}

    return Answer("bisection.html", data, {"shown": shown, "most": MOST_NAMED})


def devices(visit: Visit) -> Answer:
    found = devices_of(visit.scope)

    def rows() -> dict[str, object]:
        return {"devices": [vars(each) for each in found.rows], "problem": found.problem}

    return Answer("devices.html", rows, {"devices": found.rows, "problem": found.problem})


def device(visit: Visit) -> Answer:
    history = history_of(visit.scope, visit.request.query_params.get("name", ""))

    def data() -> dict[str, object]:
        runs = [_format.run_row(run) for run in history.runs]
        return {"device": history.device, "runs": runs, "models": history.models}

    return Answer("device.html", data, {"history": history, "charts": {"models": history.models}})


def _logs(run: Run) -> list[tuple[str, str]]:
    """Return the ends of the logs among a run's artifacts."""
    ends = []
    for name, artifact in run.artifacts.items():
        if not artifact.is_folder and artifact.file_name.lower().endswith(_LOG_ENDINGS) and artifact.local_path:
            try:
                with artifact.open() as file:
                    ends.append((name, _tail(file)))
            except OSError as error:
                ends.append((name, f"(cannot be read: {error.strerror})"))
    return ends


def _tail(file: BinaryIO) -> str:
    size = file.seek(0, 2)
    file.seek(max(0, size - _LOG_BYTES))
    text = file.read(_LOG_BYTES).decode("utf-8", "replace")
    return text if size <= _LOG_BYTES else f"… ({size - _LOG_BYTES} bytes before)\n{text}"


def failure(error: Exception) -> Answer:
    status = 404 if isinstance(error, NotHereError) else 503 if isinstance(error, TrackingError) else 400
    return problem(str(error), status)


def problem(message: str, status: int) -> Answer:
    return Answer("error.html", lambda: {"error": message}, {"message": message, "status": status}, status=status)


@dataclass(frozen=True)
class Point:
    """One profile of a model; its median, or its mean where the tool tells no median."""

    run_id: str
    started_ms: int
    latency_ms: float
    verdict: Verdict | None
    is_doubtful: bool
    low: float | None = None  # the ends of the 95 % interval of the median, where it is told
    high: float | None = None
    change: str = ""  # ``faster`` or ``slower`` from here on, where the statistics tell it


@dataclass(frozen=True)
class History:
    """A device over time: its newest runs, and of the newest profiles those of each model, oldest first."""

    device: DeviceFacts
    runs: tuple[Run, ...]
    models: dict[str, list[Point]]

    @staticmethod
    def verdict_of(run: Run) -> Verdict | None:
        """Return what a run of the list says of its numbers."""
        return Verdict.of(run.params["verdict"].value) if "verdict" in run.params else None


def history_of(scope: Scope, name: str) -> History:
    facts = next((each for each in devices_of(scope).rows if each.name == name), None)
    if facts is None:
        raise NotHereError(f"There is no device {name!r} here, and no run was made on one.")
    on_it = equal("device", name)
    profiles = scope.find([on_it, "type = 'PROFILE'", "metrics.latency is not null"], limit=_NEWEST).runs
    models: dict[str, list[Point]] = {}
    for run in reversed(profiles):
        latency, judged = run.metric("latency_median") or run.metric("latency"), History.verdict_of(run)
        if latency is not None:
            is_doubtful = judged is not None and not judged.is_stable
            # A page of runs comes without artifacts.
            whole = scope.run(run.id)
            summary = document_of(whole)[0].latency_ms
            point = Point(
                run.id, run.started_ms, latency.value, judged, is_doubtful, summary.median_low, summary.median_high
            )
            models.setdefault(_model(whole), []).append(point)
    return History(facts, scope.find([on_it], limit=50).runs, _with_changes(models))


def _with_changes(models: Mapping[str, list[Point]]) -> dict[str, list[Point]]:
    measured = [
        [number for number, point in enumerate(points) if point.verdict is None or point.verdict.is_measured]
        for points in models.values()
    ]
    lines = [
        [Measured(points[n].started_ms, points[n].latency_ms, points[n].low, points[n].high) for n in numbers]
        for points, numbers in zip(models.values(), measured, strict=True)
    ]
    made = {}
    for (model, points), numbers, changes in zip(models.items(), measured, find_changes(lines), strict=True):
        words = {numbers[each.first]: "slower" if each.after > each.before else "faster" for each in changes}
        made[model] = [replace(point, change=words.get(number, "")) for number, point in enumerate(points)]
    return made


def _model(run: Run) -> str:
    # A model is known by its content, not by the run's name.
    artifact = run.artifacts.get("input")
    precision = f", {run.params['precision'].value}" if "precision" in run.params else ""
    return run.name if artifact is None else f"{artifact.title} ({artifact.sha256[:8]}{precision})"
