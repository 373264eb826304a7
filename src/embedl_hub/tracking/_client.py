"""The tracking client: what runs are alive here, and what they log.

``log_*`` on the client goes to the run that is active in the calling thread; on an :class:`ActiveRun`, from any thread.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import socket
import tempfile
import threading
import traceback as traceback_module
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from embedl_hub.errors import ConfigError, TrackingError, quoted_list
from embedl_hub.tracking._journal import FORMAT, Record, has_ended, is_detached, new_run_id, now_ms
from embedl_hub.tracking._models import LoggedArtifact, LoggedMetric, LoggedParam, Run, RunStatus, RunType
from embedl_hub.tracking._redact import Redactor, without_known_secrets
from embedl_hub.tracking._sink import Indexer, MemorySink, Sink, StoreSink
from embedl_hub.tracking._values import (
    check_file_name,
    check_name,
    encodable,
    plain_value,
    whole_step,
    without_nuls,
)

if TYPE_CHECKING:
    from embedl_hub.tracking._models import ArtifactCarrier
    from embedl_hub.tracking._store import Store
    from embedl_hub.tracking._uplink import Uplink

_LONGEST_TEXT = 100_000
_HOST = socket.gethostname()
Source: TypeAlias = str | os.PathLike[str] | LoggedArtifact


class ActiveRun:
    """A run that is going on in this process. Safe to log to from several threads."""

    def __init__(self, run: Run, sink: Sink, redactor: Redactor, *, seq: int = 0) -> None:
        self.id = run.id
        self._run = run
        self._sink = sink
        self._redactor = redactor
        self._lock = threading.RLock()
        self._seq = seq
        self._params = dict(run.params)
        self._metrics = list(run.metrics)
        self._tags = dict(run.tags)
        self._artifacts = dict(run.artifacts)
        self._ended = False
        self._process = os.getpid()

    @property
    def artifact_dir(self) -> Path:
        """The run's own folder for files, on this machine."""
        with self._lock:
            return self._sink.work_dir()

    def snapshot(self) -> Run:
        """Return the run with everything logged so far."""
        with self._lock:
            return replace(
                self._run,
                params=dict(self._params),
                metrics=tuple(self._metrics),
                tags=dict(self._tags),
                artifacts=dict(self._artifacts),
            )

    def log_param(self, name: str, value: object) -> LoggedParam:
        """Record a parameter; a second value under the same name replaces the first."""
        fact = _param_facts(name, value)
        with self._alive():
            (record,) = self._write_all([fact])
            param = self._params[record["name"]] = LoggedParam(record["name"], record["value"])
        return param

    def log_metric(self, name: str, value: float, step: int | None = None) -> LoggedMetric:
        """Record a number; give ``step`` to make a series."""
        metric = _metric(name, value, step)
        with self._alive():
            (record,) = self._write_all([_metric_facts(metric)])
            metric = _as_written(metric, record)
            self._metrics.append(metric)
        return metric

    def log_batch(
        self,
        params: Mapping[str, object] | None = None,
        metrics: Mapping[str, float] | Iterable[tuple[str, float, int | None]] = (),
        tags: Mapping[str, object] | None = None,
    ) -> None:
        """Record many values at once: all of them, or none when one cannot be recorded.

        Args:
            params: Parameters by name.
            metrics: Numbers by name; or name, value and step, or None, of each number.
            tags: Labels by name.
        """
        new_metrics = [_metric(*metric) for metric in _triples(metrics)]
        facts: list[Mapping[str, object]] = [
            *(_param_facts(name, value) for name, value in (params or {}).items()),
            *map(_metric_facts, new_metrics),
            *(_tag_facts(name, value) for name, value in (tags or {}).items()),
        ]
        if not facts:
            return
        with self._alive():
            records = iter(self._write_all(facts))
            for _, record in zip(params or (), records, strict=False):
                self._params[record["name"]] = LoggedParam(record["name"], record["value"])
            self._metrics += [_as_written(metric, record) for metric, record in zip(new_metrics, records, strict=False)]
            self._tags |= {record["name"]: record["value"] for record in records}

    def log_tag(self, name: str, value: object) -> None:
        """Record a label to find the run by; a second value replaces the first."""
        fact = _tag_facts(name, value)
        with self._alive():
            (record,) = self._write_all([fact])
            self._tags[record["name"]] = record["value"]

    def log_artifact(
        self, source: Source, name: str | None = None, file_name: str | None = None, ctx: ArtifactCarrier | None = None
    ) -> LoggedArtifact:
        """Record a file or folder, or an artifact of another run; its content is kept once.

        Args:
            source: A path on this machine, or an artifact.
            name: What this run calls it; the file's name when not given.
            file_name: The name to keep it under; its own when not given.
            ctx: The context that can bring an artifact here, needed when it is not here.
        """
        if isinstance(source, LoggedArtifact):
            if source.local_path is None and ctx is not None:
                source = source.to_local(ctx)
            path, own_name = source.local(), source.file_name
        else:
            path = Path(source)
            own_name = path.absolute().name
        name, file_name = name or own_name, file_name or own_name
        check_file_name("artifact name", name)
        check_file_name("file name", file_name)
        # Before it is kept: the record and the file on the disk go by one name.
        name, file_name = self._redactor.text(name), self._redactor.text(file_name)
        with self._alive():
            return self._keep(path, name, file_name)

    def _keep(self, path: Path, name: str, file_name: str) -> LoggedArtifact:
        if name in self._artifacts:
            raise ConfigError(
                f"This run already has an artifact {name!r} ({self._artifacts[name].file_name}); "
                f"log the second one under another name. Logged so far: {quoted_list(self._artifacts)}."
            )
        content, place = self._sink.keep(path, name, file_name)
        artifact = LoggedArtifact(
            name, file_name, content.size_bytes, content.sha256, content.is_folder, self.id, local_path=place
        )
        facts = {"name": name, "file_name": file_name, "sha256": content.sha256, "size_bytes": content.size_bytes}
        files = {"files": [list(file) for file in content.files]} if content.is_folder else {}
        self._write("artifact", **facts, **files)
        self._artifacts[name] = artifact
        return artifact

    def finish(
        self, status: RunStatus = RunStatus.FINISHED, *, error: str | None = None, traceback: str | None = None
    ) -> None:
        """End the run; only the first end counts, and only in the process that started it."""
        if self._process != os.getpid():
            return
        with self._lock:
            if self._ended:
                return
            status, ended_ms = RunStatus(status), now_ms()
            error, traceback = self._kept_text(error), self._kept_text(traceback)
            try:
                self._write("end", status=status.value, time_ms=ended_ms, error=error, traceback=traceback)
                self._run = replace(self._run, status=status, ended_ms=ended_ms, error=error, traceback=traceback)
            finally:
                self._ended = True
                self._sink.close()

    def let_go(self) -> None:
        """Leave the run to whoever attaches to it next."""
        with self._lock:
            self._ended = True
            self._sink.close()

    def _kept_text(self, text: str | None) -> str | None:
        return None if text is None else without_nuls(encodable(self._redactor.text(text)))[-_LONGEST_TEXT:]

    def begin(self, **facts: object) -> None:
        """Write the run's first record."""
        given = {key: value for key, value in facts.items() if value is not None}
        self._write("start", format=FORMAT, time_ms=self._run.started_ms, **given)

    @contextlib.contextmanager
    def _alive(self) -> Iterator[None]:
        """Hold the run for writing; refuse a forked child before it waits for a lock that its parent may hold."""
        if self._process != os.getpid():
            raise TrackingError(
                f"Run {self.id} belongs to process {self._process}; this is process {os.getpid()}, forked from it. "
                "Log to a run of its own: `with ctx.client.start_run(...)`."
            )
        with self._lock:
            if self._ended:
                raise TrackingError(f"Run {self.id} has ended; nothing more can be logged to it.")
            yield

    def _write(self, kind: str, **facts: object) -> None:
        self._write_all([{"kind": kind, **facts}])

    def _write_all(self, facts: Sequence[Mapping[str, object]]) -> list[Record]:
        """Write records and return them as they were written: the one way to the sink, and no secret passes it."""
        # Counted first: whatever interrupts the writing, no two records share a number.
        first, self._seq = self._seq, self._seq + len(facts)
        now = now_ms()
        records: list[Record] = [{"seq": first + place, "time_ms": now, **fact} for place, fact in enumerate(facts)]
        self._redactor.clean(records)
        self._sink.write(*records)
        return records


def _param_facts(name: str, value: object) -> dict[str, object]:
    check_name("parameter name", name)
    return {"kind": "param", "name": name, "value": plain_value(value)}


def _tag_facts(name: str, value: object) -> dict[str, object]:
    check_name("tag name", name)
    return {"kind": "tag", "name": name, "value": plain_value(value)}


def _metric(name: str, value: float, step: int | None) -> LoggedMetric:
    check_name("metric name", name)
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise ConfigError(f"Metric {name!r} must be a number, not {value!r:.300}; use log_param for text.") from error
    return LoggedMetric(name, number, whole_step(name, step), now_ms())


def _as_written(metric: LoggedMetric, record: Record) -> LoggedMetric:
    return metric if metric.name == record["name"] else replace(metric, name=record["name"])


def _triples(metrics: Mapping[str, float] | Iterable[Any]) -> Iterator[tuple[str, float, int | None]]:
    if isinstance(metrics, Mapping):
        yield from ((name, value, None) for name, value in metrics.items())
        return
    for metric in metrics:
        if not isinstance(metric, tuple | list) or len(metric) != 3:
            raise ConfigError(
                f"{metric!r} is no metric: log_batch takes numbers by name, or (name, value, step) of each number."
            )
        name, value, step = metric
        yield name, value, step


def _metric_facts(metric: LoggedMetric) -> dict[str, object]:
    plain = metric.value if math.isfinite(metric.value) else str(metric.value)
    return {"kind": "metric", "name": metric.name, "value": plain, "step": metric.step, "time_ms": metric.time_ms}


class LabeledRuns:
    """The runs that a block of one thread started, with the tags that they were given."""

    def __init__(self, tags: Mapping[str, object]) -> None:
        self.tags = tags
        self.started: list[ActiveRun] = []

    @property
    def last(self) -> ActiveRun | None:
        """The run that was started last; None before the first."""
        return self.started[-1] if self.started else None


class Client:
    """Starts runs and logs to them. Made by a context; never None, tracked or not.

    With a store, every acknowledged value survives a killed process. Without one, runs live in memory and
    their files in a temporary folder that goes when the client closes.
    """

    def __init__(
        self, project: str, store: Store | None = None, redactor: Redactor | None = None, uplink: Uplink | None = None
    ) -> None:
        check_name("project name", project)
        if without_known_secrets(project) != project:
            # Not replaced as in other texts: two projects would become one.
            raise ConfigError(
                f"The project name holds a secret, by its looks: {without_known_secrets(project)!r}. It is written "
                "with every run; give another one."
            )
        self.project = project
        self.store = store
        self._uplink = uplink
        self.redactor = redactor or Redactor()
        self._indexer = Indexer(store) if store is not None else None
        self._active = threading.local()
        self._alive: set[ActiveRun] = set()
        self._scratch: dict[int, Path] = {}  # by process: a forked child must not remove its parent's files
        self._lock = threading.Lock()

    @property
    def run(self) -> ActiveRun:
        """The run that is active in this thread."""
        stack = self._stack()
        if not stack:
            raise TrackingError(
                f"No run is active in thread {threading.current_thread().name!r}. Log inside a provider, inside "
                "`with ctx.client.start_run(...)`, or hand the run to your thread: run = ctx.client.run; "
                "run.log_metric(...)."
            )
        return stack[-1]

    @contextlib.contextmanager
    def start_run(
        self,
        run_type: RunType | str = RunType.CUSTOM,
        name: str | None = None,
        *,
        component: str | None = None,
        provider: str | None = None,
        device: str | None = None,
    ) -> Iterator[ActiveRun]:
        """Start a run that ends with the block: FINISHED, FAILED on an exception, KILLED on Ctrl-C.

        A run started while another is active in this thread becomes its child.
        """
        stack = self._stack()
        facts = self._facts(run_type, name, component=component, provider=provider, device=device)
        run = self._begin(parent_id=stack[-1].id if stack else None, **facts)
        stack.append(run)
        try:
            if (labeled := self._labeled()) is not None and len(stack) == 1:
                labeled.started.append(run)
                run.log_batch(tags=labeled.tags)
            yield run
        except BaseException as error:
            # The one place, besides translation at a library's edge, that sees every exception: it goes on unchanged.
            killed = isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit)
            try:
                run.finish(
                    RunStatus.KILLED if killed else RunStatus.FAILED,
                    error=f"{type(error).__name__}: {error}",
                    traceback="".join(traceback_module.format_exception(error)),
                )
            except TrackingError as second:
                error.add_note(f"The end of run {run.id} could not be recorded: {second}")
            raise
        else:
            run.finish()
        finally:
            stack.remove(run)
            self._alive.discard(run)

    @contextlib.contextmanager
    def labeling(self, tags: Mapping[str, object]) -> Iterator[LabeledRuns]:
        """Give these tags to every run that this thread starts in the block, parts of another run left out.

        Yields what lists those runs: whoever calls a component learns which run it made, also when it failed.
        """
        before, labeled = self._labeled(), LabeledRuns(tags)
        self._active.labeled = labeled
        try:
            yield labeled
        finally:
            self._active.labeled = before

    def start_detached(self, run_type: RunType | str = RunType.CUSTOM, name: str | None = None) -> str:
        """Start a run that no process holds, and return its id: it goes on until :meth:`attach` finishes it."""
        facts = self._facts(run_type, name)
        if self.store is None:
            raise TrackingError("A run without a process needs a store: open the context with tracking.")
        run = self._begin(parent_id=None, detached=True, **facts)
        self._alive.discard(run)
        run.let_go()
        return run.id

    @contextlib.contextmanager
    def attach(self, run_id: str) -> Iterator[ActiveRun]:
        """Log to a run that :meth:`start_detached` began, from any process; others wait their turn."""
        if self.store is None or self._indexer is None:
            raise TrackingError("A run is attached to in a store: open the context with tracking.")
        recorded = self.store.run(run_id)
        sink = StoreSink(self.store, self._indexer, recorded.id, self._uplink, attached=True)
        try:
            records = sink.records()
            if not is_detached(records):
                why = f"is {recorded.status}" if has_ended(records) else "belongs to the process that started it"
                raise TrackingError(
                    f"Run {recorded.id} {why}; values can be logged to a run that `embedl-hub run start` began and "
                    "that has not been finished."
                )
            # Another command may have written since the index was read.
            yield ActiveRun(self.store.run(recorded.id), sink, self.redactor, seq=records[-1]["seq"] + 1)
        finally:
            sink.close()

    def log_param(self, name: str, value: object) -> LoggedParam:
        """Record a parameter on this thread's run. Names starting with ``$`` are for the page."""
        return self.run.log_param(name, value)

    def log_metric(self, name: str, value: float, step: int | None = None) -> LoggedMetric:
        """Record a number on this thread's run."""
        return self.run.log_metric(name, value, step)

    def log_tag(self, name: str, value: object) -> None:
        """Record a label on this thread's run."""
        self.run.log_tag(name, value)

    def log_artifact(
        self, source: Source, name: str | None = None, file_name: str | None = None, ctx: ArtifactCarrier | None = None
    ) -> LoggedArtifact:
        """Record a file, a folder or another run's artifact on this thread's run."""
        return self.run.log_artifact(source, name, file_name, ctx)

    def close(self) -> None:
        """End what is still alive and let go of every resource."""
        with contextlib.ExitStack() as closing:
            if self._uplink is not None:
                closing.callback(self._uplink.close)
            if (scratch := self._scratch.pop(os.getpid(), None)) is not None:
                closing.callback(shutil.rmtree, scratch, ignore_errors=True)
            if self._indexer is not None:
                closing.callback(self._indexer.close)
            for run in list(self._alive):
                closing.callback(run.finish, RunStatus.KILLED, error="The context closed while the run was active.")

    def _facts(self, run_type: RunType | str, name: str | None, **texts: str | None) -> dict[str, Any]:
        if str(run_type) not in RunType.__members__:
            raise ConfigError(f"There is no run type {str(run_type)!r}; known: {quoted_list(RunType)}.")
        texts = {"type": str(run_type), "name": name or str(run_type).lower(), **texts}
        for what, text in texts.items():
            if text is not None:
                check_name(f"run's {what}", text)
        return {what: text and self.redactor.text(text) for what, text in texts.items()}

    def _begin(self, *, detached: bool | None = None, **facts: Any) -> ActiveRun:  # noqa: ANN401 - the fields of Run
        run = Run(id=new_run_id(), project=self.project, status=RunStatus.RUNNING, started_ms=now_ms(), **facts)
        sink: Sink
        if self.store is not None and self._indexer is not None:
            sink = StoreSink(self.store, self._indexer, run.id, self._uplink)
        else:
            sink = MemorySink(self._scratch_folder)
        active = ActiveRun(run, sink, self.redactor)
        active.begin(project=self.project, host=_HOST, pid=os.getpid(), detached=detached, **facts)
        self._alive.add(active)
        return active

    def _scratch_folder(self) -> Path:
        with self._lock:
            if (scratch := self._scratch.get(os.getpid())) is None:
                scratch = self._scratch[os.getpid()] = Path(tempfile.mkdtemp(prefix="edgeproof-"))
        return Path(tempfile.mkdtemp(dir=scratch))

    def _labeled(self) -> LabeledRuns | None:
        return getattr(self._active, "labeled", None)

    def _stack(self) -> list[ActiveRun]:
        stack: list[ActiveRun] = self._active.__dict__.setdefault("stack", [])
        return stack
