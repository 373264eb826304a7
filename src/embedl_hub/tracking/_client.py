"""The tracking client: what runs are alive here, and what they log.

``log_*`` on the client goes to the run that is active in the calling thread; ``log_*`` on an
:class:`ActiveRun` goes to that run from any thread.
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
from dataclasses import asdict, is_dataclass
from enum import Enum
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from embedl_hub.errors import ConfigError, TrackingError, known
from embedl_hub.tracking._journal import FORMAT, new_run_id, now_ms
from embedl_hub.tracking._models import LoggedArtifact, LoggedMetric, LoggedParam, Run, RunStatus, RunType
from embedl_hub.tracking._redact import Redactor
from embedl_hub.tracking._sink import Indexer, MemorySink, Sink, StoreSink

if TYPE_CHECKING:
    from collections.abc import Iterator

    from embedl_hub.tracking._models import ArtifactCarrier, Value
    from embedl_hub.tracking._store import Store

_LONGEST_NAME_BYTES = 200
_LONGEST_TEXT = 100_000


class ActiveRun:
    """A run that is going on in this process. Safe to log to from several threads."""

    def __init__(self, run: Run, sink: Sink, redactor: Redactor) -> None:
        self.id = run.id
        self._run = run
        self._sink = sink
        self._redactor = redactor
        self._lock = threading.RLock()
        self._seq = 0
        self._params: dict[str, LoggedParam] = {}
        self._metrics: list[LoggedMetric] = []
        self._tags: dict[str, str] = {}
        self._artifacts: dict[str, LoggedArtifact] = {}
        self._ended = False

    @property
    def artifact_dir(self) -> Path:
        """The run's own folder for files, on this machine."""
        return self._sink.work_dir()

    def snapshot(self) -> Run:
        """Return the run with everything logged so far."""
        with self._lock:
            return Run(
                **{
                    **{name: getattr(self._run, name) for name in self._run.__dataclass_fields__},
                    "params": dict(self._params),
                    "metrics": tuple(self._metrics),
                    "tags": dict(self._tags),
                    "artifacts": dict(self._artifacts),
                }
            )

    def log_param(self, name: str, value: object) -> LoggedParam:
        """Record a parameter; a second value under the same name replaces the first."""
        _check_name("parameter", name)
        param = LoggedParam(name, self._redactor.value(name, plain_value(value)))
        with self._lock:
            self._write("param", name=name, value=param.value)
            self._params[name] = param
        return param

    def log_metric(self, name: str, value: float, step: int | None = None) -> LoggedMetric:
        """Record a number; give ``step`` to make a series."""
        _check_name("metric", name)
        try:
            number = float(value)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"Metric {name!r} must be a number, not {value!r}; use log_param for text.") from error
        metric = LoggedMetric(name, number, None if step is None else int(step), now_ms())
        with self._lock:
            self._write("metric", name=name, value=number if math.isfinite(number) else str(number), step=metric.step)
            self._metrics.append(metric)
        return metric

    def log_tag(self, name: str, value: object) -> None:
        """Record a label to find the run by; a second value replaces the first."""
        _check_name("tag", name)
        text = str(self._redactor.value(name, str(value)))
        with self._lock:
            self._write("tag", name=name, value=text)
            self._tags[name] = text

    def log_artifact(
        self,
        source: str | os.PathLike[str] | LoggedArtifact,
        name: str | None = None,
        file_name: str | None = None,
        ctx: ArtifactCarrier | None = None,
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
        _check_file_name("artifact name", name)
        _check_file_name("file name", file_name)
        with self._lock:
            return self._keep(path, name, file_name)

    def _keep(self, path: Path, name: str, file_name: str) -> LoggedArtifact:
        self._check_alive()
        if name in self._artifacts:
            raise ConfigError(
                f"This run already has an artifact {name!r} ({self._artifacts[name].file_name}); "
                f"log the second one under another name. Logged so far: {known(self._artifacts)}."
            )
        content, place = self._sink.keep(path, name, file_name)
        artifact = LoggedArtifact(
            name, file_name, content.size_bytes, content.sha256, content.is_folder, self.id, local_path=place
        )
        record: dict[str, Any] = {
            "name": name,
            "file_name": file_name,
            "sha256": content.sha256,
            "size_bytes": content.size_bytes,
        }
        if content.is_folder:
            record["files"] = [list(file) for file in content.files]
        self._write("artifact", **record)
        self._artifacts[name] = artifact
        return artifact

    def finish(
        self, status: RunStatus = RunStatus.FINISHED, *, error: str | None = None, traceback: str | None = None
    ) -> None:
        """End the run; only the first end counts."""
        with self._lock:
            if self._ended:
                return
            end: dict[str, Any] = {"status": RunStatus(status).value}
            for key, text in (("error", error), ("traceback", traceback)):
                if text is not None:
                    end[key] = self._redactor.text(text)[-_LONGEST_TEXT:]
            try:
                self._write("end", **end)
            finally:
                self._ended = True
                self._sink.close()

    def begin(self, **facts: object) -> None:
        """Write the run's first record."""
        self._write("start", format=FORMAT, **{key: value for key, value in facts.items() if value is not None})

    def _write(self, kind: str, **facts: object) -> None:
        self._check_alive()
        self._sink.write({"seq": self._seq, "kind": kind, "time_ms": now_ms(), **facts})
        self._seq += 1

    def _check_alive(self) -> None:
        if self._ended:
            raise TrackingError(f"Run {self.id} has ended; nothing more can be logged to it.")


class Client:
    """Starts runs and logs to them. Made by a context; never None, tracked or not.

    With a store, every acknowledged value survives a killed process. Without one, runs live in memory and
    their files in a temporary folder that goes when the client closes.
    """

    def __init__(self, project: str, store: Store | None = None, redactor: Redactor | None = None) -> None:
        _check_name("project name", project)
        self.project = project
        self.store = store
        self.redactor = redactor or Redactor()
        self._indexer = Indexer(store) if store is not None else None
        self._active = threading.local()
        self._alive: set[ActiveRun] = set()
        self._scratch: Path | None = None
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

    def has_run(self) -> bool:
        """Tell whether a run is active in this thread."""
        return bool(self._stack())

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
        run = self._begin(
            type=str(run_type),
            name=name or str(run_type).lower(),
            parent_id=stack[-1].id if stack else None,
            component=component,
            provider=provider,
            device=device,
        )
        stack.append(run)
        try:
            yield run
        except BaseException as error:
            # The one place, besides translation at a library's edge, that sees every exception: it goes on unchanged.
            killed = isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit)
            run.finish(
                RunStatus.KILLED if killed else RunStatus.FAILED,
                error=f"{type(error).__name__}: {error}",
                traceback="".join(traceback_module.format_exception(error)),
            )
            raise
        else:
            run.finish()
        finally:
            stack.remove(run)
            self._alive.discard(run)

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
        self,
        source: str | os.PathLike[str] | LoggedArtifact,
        name: str | None = None,
        file_name: str | None = None,
        ctx: ArtifactCarrier | None = None,
    ) -> LoggedArtifact:
        """Record a file, a folder or another run's artifact on this thread's run."""
        return self.run.log_artifact(source, name, file_name, ctx)

    def close(self) -> None:
        """End what is still alive and let go of every resource."""
        for run in list(self._alive):
            run.finish(RunStatus.KILLED, error="The context closed while the run was active.")
        if self._indexer is not None:
            self._indexer.close()
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)
            self._scratch = None

    def _begin(self, **facts: Any) -> ActiveRun:  # noqa: ANN401 - the fields of Run
        run = Run(id=new_run_id(), project=self.project, status=RunStatus.RUNNING, started_ms=now_ms(), **facts)
        sink: Sink
        if self.store is not None and self._indexer is not None:
            sink = StoreSink(self.store, self._indexer, run.id)
        else:
            sink = MemorySink(self._scratch_folder)
        active = ActiveRun(run, sink, self.redactor)
        active.begin(project=self.project, host=_HOST, pid=os.getpid(), **facts)
        self._alive.add(active)
        return active

    def _scratch_folder(self) -> Path:
        with self._lock:
            if self._scratch is None:
                self._scratch = Path(tempfile.mkdtemp(prefix="edgeproof-"))
        return Path(tempfile.mkdtemp(dir=self._scratch))

    def _stack(self) -> list[ActiveRun]:
        try:
            stack: list[ActiveRun] = self._active.stack
        except AttributeError:
            stack = self._active.stack = []
        return stack


_HOST = socket.gethostname()


def plain_value(value: object) -> Value:
    """Return a value as JSON can hold it; what it cannot hold is described, never pickled."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, Enum):
        return plain_value(value.value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(value)
    if isinstance(value, PurePath):
        return str(value)
    return _plain_container(value)


def _plain_container(value: object) -> Value:
    if is_dataclass(value) and not isinstance(value, type):
        return plain_value(asdict(value))
    if isinstance(value, dict):
        return {str(key): plain_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        items = sorted(value, key=str) if isinstance(value, set | frozenset) else value
        return [plain_value(item) for item in items]
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if shape == () and hasattr(value, "item"):
        return plain_value(value.item())
    if shape is not None and dtype is not None:
        return f"<array {dtype}{list(shape)}>"
    return str(value)


def _check_name(what: str, name: object) -> None:
    if not isinstance(name, str) or not name.strip() or len(name.encode("utf-8", "replace")) > _LONGEST_NAME_BYTES:
        raise ConfigError(f"A {what} must be text of 1 to {_LONGEST_NAME_BYTES} bytes, not {name!r:.300}.")
    if any(ord(character) < 32 or ord(character) == 127 for character in name):
        raise ConfigError(f"A {what} must not hold control characters: {name!r}.")


def _check_file_name(what: str, name: str) -> None:
    _check_name(what, name)
    if name in {".", ".."} or "/" in name or "\\" in name:
        raise ConfigError(f"The {what} {name!r} must be a plain name, without folders.")
