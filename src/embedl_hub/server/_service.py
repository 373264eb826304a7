"""What the API does, one method per route; everything here may block and runs in a thread."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any

from embedl_hub.paths import NotPlainError
from embedl_hub.server import _shapes as shapes
from embedl_hub.server._contents import BucketContents, Contents, HomeContents, Uploads
from embedl_hub.server._records import Record, check_records, contents_of
from embedl_hub.server._refusal import Refusal, bad_request, not_found
from embedl_hub.server._usage import Quota, Usage
from embedl_hub.tracking import LoggedArtifact, Receiver, Run, RunStatus, RunType, Store, equal
from embedl_hub.tracking import project_id as id_of

if TYPE_CHECKING:
    from embedl_hub.server._keys import Key
    from embedl_hub.server._settings import Settings
    from embedl_hub.server._telemetry import Metrics

_CLEAN_STOP = "clean-stop"
_SLACK_NS = 10_000_000_000


@dataclass(frozen=True)
class Call:
    """A request, checked as far as its table goes."""

    key: Key
    values: Mapping[str, Any]
    body: Any = None
    size: int = 0  # of the body, in bytes


@dataclass(frozen=True)
class File:
    """A file to send."""

    name: str
    size: int
    open: Callable[[], IO[bytes]]


@dataclass(frozen=True)
class Answer:
    """What is sent back."""

    document: object = None
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    file: File | None = None
    text: str | None = None


class Service:
    """A server's store and what can be asked of it: the handlers are the methods that ROUTES describes."""

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self.store = Store(
            settings.home,
            durable=settings.durable,
            database=settings.database,
            recovers=False,
            limit_s=settings.query_s,
        )
        self.contents: Contents = (
            HomeContents(self.store) if settings.artifacts is None else BucketContents(settings.artifacts, self.store)
        )
        self.uploads = Uploads(settings.home / "uploads", self.contents, settings.largest_artifact_bytes)
        self.usage = Usage(settings.home, Quota(settings.key_runs, settings.key_bytes))
        self._receiver = Receiver(self.store)
        self._metrics = metrics
        self._names: dict[str, str] = {}
        self.handlers: dict[str, Callable[[Call], Answer]] = {
            "listProjects": self.list_projects,
            "getProject": self.get_project,
            "listRuns": self.list_runs,
            "getRun": self.get_run,
            "changeRun": self.change_run,
            "deleteRun": self.delete_run,
            "sendRecords": self.send_records,
            "getArtifact": self.get_artifact,
            "contentProgress": self.content_progress,
            "getMetrics": lambda _: Answer(text=metrics.text()),
        }

    def open(self) -> None:
        """Open the store and make good what an unclean stop left."""
        self.store.open()
        self.store.mark_served()
        mark = self.store.home / _CLEAN_STOP
        self._receiver.catch_up(mark.stat().st_mtime_ns - _SLACK_NS if mark.exists() else 0)
        self.uploads.forget_old()

    def close(self) -> None:
        """Close the store, and write down that nothing is left to make good."""
        with self.store.translated():
            self.usage.close()
            (self.store.home / _CLEAN_STOP).touch()
        self.store.close()

    def seen_by(self, key: Key) -> Store:
        return self.store if key.opens_all else self.store.for_projects(key.projects)

    def health(self) -> Answer:
        """Tell whether the store can be used; raises when it cannot."""
        self.store.find(limit=1)
        return Answer({"data": {"status": "ok"}})

    def check_project(self, key: Key, project_id: str) -> None:
        if not key.opens_all and project_id not in map(id_of, key.projects):
            raise not_found()

    def list_projects(self, call: Call) -> Answer:
        limit, offset = call.values["limit"], call.values["offset"]
        projects = self.seen_by(call.key).projects()
        items = [shapes.project(summary) for summary in projects[offset : offset + limit]]
        more = offset + len(items) < len(projects)
        return Answer({"data": shapes.page(items, limit=limit, offset=offset, total=len(projects), more=more)})

    def get_project(self, call: Call) -> Answer:
        name = self._name(call)
        summary = next(summary for summary in self.seen_by(call.key).projects() if summary.name == name)
        return Answer({"data": shapes.project(summary)})

    def list_runs(self, call: Call) -> Answer:
        values, where, include = call.values, _conditions(call.values), _include(call.values)
        store = self.store.for_projects([self._name(call)])
        archived = {"false": False, "true": True, "any": None}[values["archived"]]
        place = {"limit": values["limit"], "offset": values["offset"]}
        page = store.find(where, order=values["order"], archived=archived, after=values.get("after"), **place)
        total, more = store.count(where, archived=archived), page.after is not None
        runs = [store.run(run.id) for run in page.runs] if "artifacts" in include else page.runs
        items = [shapes.run(run, include, self._files(run, include)) for run in runs]
        return Answer({"data": shapes.page(items, **place, total=total, more=more, after=page.after)})

    def get_run(self, call: Call) -> Answer:
        run, include = self._run(call), _include(call.values)
        return Answer({"data": shapes.run(run, include, self._files(run, include))})

    def change_run(self, call: Call) -> Answer:
        run = self._run(call)
        records = _annotations(call.body)
        if run.status in {RunStatus.RUNNING, RunStatus.SCHEDULED}:
            raise Refusal(409, "not_ended", "The run has not ended; its own client writes to it.")
        with self._receiver.holding(run.id):
            for record in records:
                self.store.annotate(run.id, record)
        return Answer({"data": shapes.run(self._run(call), shapes.INCLUDES, self._files(run, shapes.INCLUDES))})

    def delete_run(self, call: Call) -> Answer:
        run_id = self._run(call).id
        self._receiver.delete(run_id)
        self.usage.end_run(run_id)
        return Answer(status=204)

    def send_records(self, call: Call) -> Answer:
        run_id, project_id = call.values["run"], call.values["project"]
        after, records = _records(call.body)
        if self._receiver.is_deleted(run_id):
            raise Refusal(410, "deleted", "The run was deleted; nothing more is taken for it.")
        missing: dict[str, int] = {}
        with self.usage.sending(call.key, call.size) as sending:
            arrived = self._receiver.append(
                run_id,
                after,
                records,
                # A run without a start says of no project that it is its own.
                is_ours=lambda project: project is not None and id_of(project) == project_id,
                admit=lambda record: self._admit(call, record, missing),
            )
            sending.size_bytes = call.size
        if arrived.is_foreign:
            raise not_found()
        if arrived.has_no_start:
            raise bad_request("The first record of a run is its start, with seq 0.")
        if arrived.is_full:
            raise Refusal(413, "run_is_full", "The run has logged as much as there is room for.")
        if arrived.has_hole or arrived.differs:
            code = "hole" if arrived.has_hole else "differs"
            message = "Records before these are missing." if arrived.has_hole else "Other records are here already."
            raise Refusal(409, code, message, details={"last": arrived.last})
        self._metrics.add("records_received_total", len(records))
        needed = [{"sha256": sha256, "sizeBytes": size} for sha256, size in missing.items()]
        return Answer({"data": {"last": arrived.last, "missing": needed}})

    def content_progress(self, call: Call) -> Answer:
        return Answer(headers=self.uploads.progress(call.values["project"], call.values["sha256"]).headers())

    def get_artifact(self, call: Call) -> Answer:
        run, path = self._run(call), call.values.get("path")
        artifact = run.artifacts.get(call.values["name"])
        if artifact is None:
            raise not_found()
        if not artifact.is_folder and path is None:
            return self._file(run, artifact, "", artifact.sha256, artifact.size_bytes)
        if path is None:
            raise Refusal(409, "is_a_folder", "The artifact is a folder; ask for one of its files with path=.")
        for inner, sha256, size in self.store.folder_files(run.id).get(artifact.name, []):
            if inner == path:
                return self._file(run, artifact, inner, sha256, size)
        raise not_found()

    def _file(self, run: Run, artifact: LoggedArtifact, inner: str, sha256: str, size: int) -> Answer:
        name = inner.rpartition("/")[2] or artifact.file_name
        try:
            with artifact.open(inner) as file:
                here = os.fstat(file.fileno()).st_size
            return Answer(file=File(name, here, lambda: artifact.open(inner)))
        except NotPlainError:
            raise not_found() from None
        except OSError:
            pass  # it is kept elsewhere
        project_id = id_of(run.project)
        if self.contents.size(project_id, sha256) != size:
            raise not_found()
        return Answer(file=File(name, size, lambda: self.contents.open(project_id, sha256)))

    def _admit(self, call: Call, record: Record, missing: dict[str, int]) -> bool:
        """Tell whether a record can be written: an artifact needs its contents first."""
        run_id, project_id = call.values["run"], call.values["project"]
        if record["kind"] == "start":
            if id_of(record["project"]) != project_id:
                raise bad_request("The run's project is not the one of this address.")
            self.usage.begin_run(call.key, run_id)
        if record["kind"] != "artifact":
            return True
        for sha256, size in contents_of(record).items():
            here = self.contents.size(project_id, sha256)
            if here is None:
                missing[sha256] = size
            elif here != size:
                raise Refusal(422, "wrong_size", f"The content {sha256} has {here} bytes, not {size}.")
        if not missing:
            self._place(run_id, record)
        return not missing

    def _place(self, run_id: str, record: Record) -> None:
        target = self.store.artifact_path(run_id, record["name"], record["file_name"])
        shutil.rmtree(target.parent, ignore_errors=True)
        if "files" not in record:
            self.contents.place(record["sha256"], target)
            return
        target.mkdir(parents=True)
        for inner, sha256, _ in record["files"]:
            self.contents.place(sha256, target / inner)

    def _run(self, call: Call) -> Run:
        """Return the run of a call, if the key may see it and it is in the project of the address."""
        store = self.store.for_projects([self._name(call)])
        run_id = call.values["run"]
        if store.count(f"id = '{run_id}'", archived=None) == 0:
            raise not_found()
        return store.run(run_id)

    def _name(self, call: Call) -> str:
        """Return the name of a call's project, if there is one that the key may see."""
        project_id = call.values["project"]
        self.check_project(call.key, project_id)
        if project_id not in self._names:
            self._names = {id_of(summary.name): summary.name for summary in self.store.projects()}
        if project_id not in self._names:
            raise not_found()
        return self._names[project_id]

    def _files(self, run: Run, include: tuple[str, ...]) -> dict[str, list[shapes.Document]]:
        if "artifacts" not in include or not any(artifact.is_folder for artifact in run.artifacts.values()):
            return {}
        return {
            name: [{"path": path, "sha256": sha256, "sizeBytes": size} for path, sha256, size in files]
            for name, files in self.store.folder_files(run.id).items()
        }


def _include(values: Mapping[str, Any]) -> tuple[str, ...]:
    text = values.get("include", "")
    return shapes.INCLUDES if text == "all" else tuple(filter(None, text.split(",")))


def _conditions(values: Mapping[str, Any]) -> str:
    parts = [f"({values['where']})"] if values.get("where", "").strip() else []
    parts += [f"{name} = '{values[name]}'" for name in ("status", "type") if name in values]
    if "customType" in values:
        parts.append(f"type = '{RunType.CUSTOM}' and {equal('name', values['customType'])}")
    return values["where"] if parts == [f"({values.get('where')})"] else " and ".join(parts)


def _records(body: object) -> tuple[int, list[Record]]:
    if not isinstance(body, dict) or set(body) != {"after", "records"}:
        raise bad_request("The body is {after: the number of the record before these, records: [...]}.")
    after = body["after"]
    if type(after) is not int or not -1 <= after <= 2**53:
        raise bad_request("after is the number of the record before these; -1 at the start.")
    records = check_records(body["records"])
    if records and records[0]["seq"] <= after:
        raise bad_request("after is the number of the record before these.")
    return after, records


def _annotations(body: object) -> list[Record]:
    if not isinstance(body, dict) or set(body) - {"archived", "tags"}:
        raise bad_request("The body is {archived: true or false, tags: {name: value}}, one of them or both.")
    found: list[Record] = []
    if "archived" in body:
        found.append({"kind": "archive", "archived": body["archived"]})
    tags = body.get("tags", {})
    if not isinstance(tags, dict):
        raise bad_request("tags is an object of names and values.")
    found += [{"kind": "tag", "name": name, "value": value} for name, value in tags.items()]
    check_records([{"seq": number, "time_ms": 0, **record} for number, record in enumerate(found, start=1)])
    return found
