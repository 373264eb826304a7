"""Runs of a store to an MLflow server: each project is an experiment; what is there already is not sent again."""

from __future__ import annotations

import io
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from embedl_hub.errors import TrackingError
from embedl_hub.mlflow import _words as words
from embedl_hub.mlflow._api import AbsentError, Api, RefusedError, objects, text_of
from embedl_hub.mlflow._read import data_of, history, id_of, listing, object_of, proxied, tags_of

if TYPE_CHECKING:
    from embedl_hub.tracking import LoggedArtifact, LoggedMetric, Run, Store

_METRICS, _OTHERS = 1000, 100
_LARGEST_BATCH = 900_000
_FACTS = ("project", "type", "component", "provider", "device", "error", "traceback", "parent_id")


@dataclass(frozen=True)
class Exported:
    """What became of runs that an MLflow server was to get."""

    runs: dict[str, str] = field(default_factory=dict)  # MLflow's id of each run that was written
    known_already: dict[str, str] = field(default_factory=dict)  # and of each that was there whole
    left_out: dict[str, list[str]] = field(default_factory=dict)  # what of a run MLflow cannot hold, in words


def export_runs(
    store: Store,
    run_ids: Sequence[str],
    api: Api,
    *,
    experiment: str | None = None,
    with_artifacts: bool = True,
    progress: Callable[[int, int], None] = lambda _done, _all: None,
) -> Exported:
    """Write runs to an MLflow server, the oldest first, so that a parent is there before its parts.

    A run that is there whole is left alone; one that is there in part, because an export was cut off or because it has
    logged more since, is completed.

    Args:
        store: Where from, open.
        run_ids: Which, by their whole ids.
        api: Where to.
        experiment: One experiment for all; each project has its own when not given.
        with_artifacts: Whether files go too.
        progress: Told after each run how many of all are done.
    """
    done = Exported()
    experiments: dict[str, str] = {}
    runs = sorted((store.run(run_id) for run_id in run_ids), key=lambda run: (run.started_ms, run.id))
    for number, run in enumerate(runs, start=1):
        name = experiment or run.project
        if name not in experiments:
            experiments[name] = _experiment(api, name)
        sender = _Sender(api, store, experiments[name], run, with_artifacts=with_artifacts)
        there, is_new = sender.send(done.runs | done.known_already)
        (done.runs if is_new else done.known_already)[run.id] = there
        if sender.left_out:
            done.left_out[run.id] = sender.left_out
        progress(number, len(runs))
    return done


def _experiment(api: Api, name: str) -> str:
    try:
        facts = object_of(api.get("experiments/get-by-name", {"experiment_name": name}), "experiment")
    except AbsentError:
        try:
            return text_of(api.post("experiments/create", {"name": name}), "experiment_id")
        except RefusedError:
            # Somebody else may have made it a moment ago.
            facts = object_of(api.get("experiments/get-by-name", {"experiment_name": name}), "experiment")
    if facts.get("lifecycle_stage") == "deleted":
        raise TrackingError(f"The experiment {name!r} of {api.url} is deleted; restore it there, or name another one.")
    return text_of(facts, "experiment_id")


class _Sender:
    """Brings one run over."""

    def __init__(self, api: Api, store: Store, experiment_id: str, run: Run, *, with_artifacts: bool) -> None:
        self._api, self._store, self._experiment_id, self._run = api, store, experiment_id, run
        self._with_artifacts = with_artifacts
        self._records = len(store.records(run.id))
        self._kept: dict[str, dict[str, object]] = {"params": {}, "tags": {}}
        self.left_out: list[str] = []

    def send(self, known: dict[str, str]) -> tuple[str, bool]:
        """Return MLflow's id of the run, and whether anything was written."""
        run, api = self._run, self._api
        found = self._find(run.id)
        if found is not None and tags_of(found).get(words.EXPORTED) == self._mark():
            return id_of(found), False
        if found is None:
            head = [{"key": words.RUN_ID, "value": run.id}]
            facts: dict[str, Any] = {
                "experiment_id": self._experiment_id, "start_time": run.started_ms, "run_name": run.name, "tags": head,
            }  # fmt: skip
            try:
                found = object_of(api.post("runs/create", facts, repeats=False), "run")
            except TrackingError:
                # Its answer may have been lost: a second run of this name would be worse than none.
                found = self._find(run.id)
                if found is None:
                    raise
        there = id_of(found)
        self._values(there, found, known)
        if self._with_artifacts:
            self._artifacts(there, found)
        self._end(there)
        return there, True

    def _find(self, run_id: str) -> dict[str, Any] | None:
        where = f"tags.`{words.RUN_ID}` = '{run_id}'"
        asked = {"experiment_ids": [self._experiment_id], "filter": where, "max_results": 2}
        answer = self._api.post("runs/search", asked)
        return next(iter(objects(answer.get("runs"))), None)

    def _mark(self) -> str:
        # A run that was sent without its files is not whole once they are asked for.
        return f"{self._records}" if self._with_artifacts else f"{self._records} without artifacts"

    def _values(self, there: str, found: dict[str, Any], known: dict[str, str]) -> None:
        params = list(self._params())
        tags = list(self._tags(known))
        metrics = self._new_metrics(there, found)
        for batch in _batches(metrics, params, tags):
            self._api.post("runs/log-batch", {"run_id": there, **batch})

    def _params(self) -> Iterator[dict[str, str]]:
        for param in self._run.params.values():
            key, value = words.name_there(param.name), words.param_there(param.value)
            if len(key) > words.LONGEST_NAME or len(value) > words.LONGEST_PARAM:
                self._kept["params"][param.name] = param.value
            else:
                yield {"key": key, "value": value}

    def _tags(self, known: dict[str, str]) -> Iterator[dict[str, str]]:
        run = self._run
        tags = {words.NOTE if name == words.OUR_NOTE else name: value for name, value in run.tags.items()}
        facts = {f"{words.FACT}{name}": getattr(run, name) for name in _FACTS}
        facts |= {f"{words.SHA256}{name}": artifact.sha256 for name, artifact in run.artifacts.items()}
        if run.archived:
            facts[f"{words.FACT}archived"] = "true"
        stepless = sorted({metric.name for metric in run.metrics} - {m.name for m in run.metrics if m.step is not None})
        if stepless:
            facts[words.STEPLESS] = json.dumps(stepless, ensure_ascii=False)
        facts[words.MADE_FROM] = " ".join(other.id for other in self._store.lineage(run.id).made_from)
        parent = known.get(run.parent_id or "") or (self._parent_there() if run.parent_id else None)
        if parent:
            facts[words.PARENT] = parent
        for name, value in {**tags, **facts}.items():
            if not value:
                # No server keeps an empty tag for sure.
                if name in tags:
                    self._kept["tags"][name] = value
                continue
            key = words.name_there(name)
            if len(key) > words.LONGEST_NAME or len(value) > words.LONGEST_TAG:
                self._kept["tags"][name] = value
            else:
                yield {"key": key, "value": value}

    def _parent_there(self) -> str | None:
        found = self._find(self._run.parent_id or "")
        return None if found is None else id_of(found)

    def _new_metrics(self, there: str, found: dict[str, Any]) -> list[dict[str, object]]:
        """Return the points that the server does not have: it may keep what is sent twice."""
        names = {text_of(each, "key") for each in data_of(found, "metrics")}
        points = [point for metric in self._run.metrics if (point := self._point(metric)) is not None]
        known = sorted(names & {str(point["key"]) for point in points})
        had = {name: list(history(self._api, there, name)) for name in known}
        seen = Counter(_same(point) for of_name in had.values() for point in of_name)
        new = []
        for point in points:
            if seen[_same(point)] == 0:
                new.append(point)
                # A second one of the same name, step, time and value is the same to it.
                seen[_same(point)] += 1
        again = len(points) - len({_same(point) for point in points})
        if again:
            self.left_out.append(f"{again} points that repeat the name, step, time and value of another")
        return new

    def _point(self, metric: LoggedMetric) -> dict[str, object] | None:
        key = words.name_there(metric.name)
        if len(key) > words.LONGEST_NAME:
            self.left_out.append(f"metric {metric.name!r}, whose name is too long")
            return None
        if metric.step is None and any(m.step is not None for m in self._run.metrics if m.name == metric.name):
            self.left_out.append(f"that a point of metric {metric.name!r} has no step, while others have one")
        value = words.metric_there(metric.value)
        return {"key": key, "value": value, "timestamp": metric.time_ms, "step": metric.step or 0}

    def _artifacts(self, there: str, found: dict[str, Any]) -> None:
        root = proxied(found)
        wanted = [*self._run.artifacts.values()]
        kept = {name: values for name, values in self._kept.items() if values}
        if root is None:
            place = text_of(object_of(found, "info"), "artifact_uri")
            reason = f"which the server keeps at {place!r:.200} and does not pass on (start it with --serve-artifacts)"
            if wanted or kept:
                values = sum(map(len, kept.values()))
                self.left_out.append(f"{len(wanted)} artifacts and {values} long values, {reason}")
            return
        has = dict(listing(self._api, there))
        for artifact in wanted:
            self._artifact(root, artifact, has)
        if kept:
            text = json.dumps(kept, ensure_ascii=False).encode()
            self._api.upload(f"{root}/{words.KEPT}", io.BytesIO(text), len(text))

    def _artifact(self, root: str, artifact: LoggedArtifact, has: dict[str, int]) -> None:
        place = f"{artifact.name}/{artifact.file_name}"
        if artifact.is_folder and not artifact.size_bytes and next(artifact.files(), None) is None:
            self.left_out.append(f"artifact {artifact.name!r}, an empty folder")
        try:
            files = artifact.files() if artifact.is_folder else iter([("", artifact.open())])
            for name, file in files:
                path, size = f"{place}/{name}".rstrip("/"), os.fstat(file.fileno()).st_size
                with file:
                    if has.get(path) != size:
                        self._api.upload(f"{root}/{path}", file, size)
        except RefusedError as error:
            self.left_out.append(f"artifact {artifact.name!r}: {error}")
        except OSError as error:
            raise TrackingError(f"Artifact {artifact.name!r} of run {self._run.id} cannot be read: {error}.") from error

    def _end(self, there: str) -> None:
        run = self._run
        ended = {"status": run.status.value, "end_time": run.ended_ms, "run_name": run.name}
        self._api.post("runs/update", {"run_id": there, **ended})
        kept = sum(map(len, self._kept.values()))
        if kept and not self._with_artifacts:
            self.left_out.append(f"{kept} values that are too long, or whose names are, and would go into a file")
        self._api.post("runs/set-tag", {"run_id": there, "key": words.EXPORTED, "value": self._mark()})


def _same(point: dict[str, Any]) -> tuple[object, ...]:
    value = words.metric_here(point["value"])
    return point["key"], str(value), int(point["timestamp"]), int(point["step"])


def _batches(
    metrics: list[dict[str, object]], params: list[dict[str, str]], tags: list[dict[str, str]]
) -> Iterator[dict[str, list[Any]]]:
    """Yield what one request may hold: so many of each kind, and not too many bytes."""
    for name, items, most in (("metrics", metrics, _METRICS), ("params", params, _OTHERS), ("tags", tags, _OTHERS)):
        batch: list[Any] = []
        size = 0
        for item in items:
            length = len(json.dumps(item))
            if batch and (len(batch) == most or size + length > _LARGEST_BATCH):
                yield {name: batch}
                batch, size = [], 0
            batch.append(item)
            size += length
        if batch:
            yield {name: batch}
