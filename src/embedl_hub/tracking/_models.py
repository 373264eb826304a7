"""What a run is made of. Frozen: a change is a new value."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol, Self, TypeAlias

from embedl_hub import notebook
from embedl_hub.errors import TrackingError
from embedl_hub.paths import check_plain, open_plain, walk_plain

if TYPE_CHECKING:
    from embedl_hub.paths import RemotePath

Value: TypeAlias = str | int | float | bool | list["Value"] | dict[str, "Value"] | None


class RunType(StrEnum):
    """What a run does. Components use the first three, the rest are for tracking."""

    COMPILE = "COMPILE"
    PROFILE = "PROFILE"
    INFERENCE = "INFERENCE"
    EVAL = "EVAL"
    GRAPH = "GRAPH"
    CUSTOM = "CUSTOM"


class RunStatus(StrEnum):
    """Where a run stands."""

    SCHEDULED = "SCHEDULED"
    RUNNING = "RUNNING"
    FINISHED = "FINISHED"
    FAILED = "FAILED"
    KILLED = "KILLED"


SAME_AS = "$run"
"""The key of a parameter's value that names the run which has the value, under the same name: ``{"$run": id}``."""


@dataclass(frozen=True)
class LoggedParam:
    """A parameter of a run."""

    name: str
    value: Value


@dataclass(frozen=True)
class LoggedMetric:
    """A measured number of a run; several with one name form a series by step."""

    name: str
    value: float
    step: int | None = None
    time_ms: int = 0


class ArtifactCarrier(Protocol):
    """Whoever can bring an artifact somewhere: a context."""

    def bring_here(self, artifact: LoggedArtifact) -> Path:
        """Return a path on this machine that holds the artifact."""

    def send_to(self, artifact: LoggedArtifact, device_name: str) -> RemotePath:
        """Return a path on the device that holds the artifact."""


@dataclass(frozen=True)
class LoggedArtifact:
    """A file or folder that a run read or wrote, known by its content."""

    name: str  # what the run calls it: ``input``, ``path``, ``output_file`` or any other name
    file_name: str  # the name of the file or folder itself
    size_bytes: int  # its size; of a folder, of all files in it
    sha256: str  # the hash of its content; of a folder, of its sorted listing of names and hashes
    is_folder: bool = False  # whether it is a folder
    run_id: str = ""  # the run that logged it
    local_path: Path | None = field(default=None, compare=False)
    remote_paths: Mapping[str, RemotePath] = field(default_factory=dict, compare=False)

    @property
    def title(self) -> str:
        """The file's name as its user knows it; a run keeps the model it reads as ``input_NAME``."""
        return self.file_name.removeprefix("input_") if self.name.startswith("input") else self.file_name

    def to_local(self, ctx: ArtifactCarrier) -> Self:
        """Make sure the content is on this machine; bytes move only if they are not here."""
        return replace(self, local_path=ctx.bring_here(self))

    def to_remote(self, ctx: ArtifactCarrier, *, device_name: str) -> Self:
        """Make sure the content is on the device; bytes move only if they are not there."""
        places = {**self.remote_paths, device_name: ctx.send_to(self, device_name)}
        return replace(self, remote_paths=places)

    def local(self) -> Path:
        """Return the path on this machine."""
        if self.local_path is None:
            raise TrackingError(
                f"Artifact {self.name!r} ({self.file_name}) is not known to be on this machine; "
                "call .to_local(ctx).local()."
            )
        if (folder := self._run_folder()) is not None:
            try:
                check_plain(self.local_path, folder)
            except FileNotFoundError:
                pass  # whoever opens it says so
            except OSError as error:
                raise TrackingError(f"Artifact {self.name!r} of run {self.run_id} is not read: {error}.") from error
        return self.local_path

    def open(self, inner: str = "") -> BinaryIO:
        """Open the file on this machine, of a folder the one inside it: a plain file, reached over no link.

        Raises:
            OSError: It is not there, or not plain.
        """
        if self.local_path is None:
            raise FileNotFoundError(errno.ENOENT, "It is not on this machine", self.file_name)
        return open_plain(self.local_path / inner if inner else self.local_path, below=self._run_folder())

    def files(self) -> Iterator[tuple[str, BinaryIO]]:
        """Yield the plain files of a folder on this machine, each open and with its name inside it."""
        below = self._run_folder()
        yield from walk_plain(self.local(), below=self.local() if below is None else below)

    def _run_folder(self) -> Path | None:
        """Return the run's own folder, if the artifact is kept there: what is there may come from elsewhere."""
        parts = () if self.local_path is None or not self.run_id else self.local_path.parts[:-1]
        return Path(*parts[: parts.index(self.run_id) + 1]) if self.run_id in parts else None

    def remote(self, device_name: str | None = None) -> RemotePath:
        """Return the path on the device it was sent to; name the device if it went to several."""
        if device_name is None and len(self.remote_paths) == 1:
            return next(iter(self.remote_paths.values()))
        if device_name is None or device_name not in self.remote_paths:
            places = ", ".join(sorted(self.remote_paths)) or "no device"
            raise TrackingError(
                f"Artifact {self.name!r} ({self.file_name}) is on {places}; "
                f"call .to_remote(ctx, device_name={device_name!r}).remote()."
            )
        return self.remote_paths[device_name]


@dataclass(frozen=True, repr=False)
class Run:
    """One recorded execution, as the store knows it."""

    id: str
    project: str
    type: str
    name: str
    status: RunStatus
    started_ms: int
    ended_ms: int | None = None
    parent_id: str | None = None
    component: str | None = None
    provider: str | None = None
    device: str | None = None
    error: str | None = None
    traceback: str | None = None
    params: Mapping[str, LoggedParam] = field(default_factory=dict)
    metrics: tuple[LoggedMetric, ...] = ()
    tags: Mapping[str, str] = field(default_factory=dict)
    artifacts: Mapping[str, LoggedArtifact] = field(default_factory=dict)
    archived: bool = False

    def __repr__(self) -> str:
        where = f"on {self.device}" if self.device else "on this machine"
        numbers = [f"{metric.name}={notebook.short(metric.value)}" for metric in self.metrics]
        return notebook.line("Run", (self.id, self.type, self.name, str(self.status), where, *numbers))

    def _repr_html_(self) -> str:
        facts = {
            "status": self.status, "component": self.component, "provider": self.provider, "device": self.device,
            "error": self.error,
        }  # fmt: skip
        rows: list[tuple[str, object]] = [(name, value) for name, value in facts.items() if value]
        rows += [(metric.name, metric.value) for metric in self.metrics if metric.step is None]
        rows += [(name, artifact.file_name) for name, artifact in self.artifacts.items()]
        return notebook.table(f"Run {self.id}: {self.type} {self.name}", rows)

    def metric(self, name: str) -> LoggedMetric | None:
        """Return the last value logged under a name, or None."""
        return next((metric for metric in reversed(self.metrics) if metric.name == name), None)
