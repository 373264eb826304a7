"""Runs of an MLflow server into a store, each whole or not at all; those that are here already are passed over."""

from __future__ import annotations

import contextlib
import hashlib
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from embedl_device.readers import UnreadableError, parse_json, read_json
from embedl_hub.errors import ConfigError, TrackingError
from embedl_hub.mlflow import _words as words
from embedl_hub.mlflow._api import PROXY, AbsentError, Api, text_of, whole_of
from embedl_hub.mlflow._read import data_of, history, id_of, listing, object_of, proxied, tags_of
from embedl_hub.tracking import (
    LoggedArtifact,
    LoggedMetric,
    LoggedParam,
    Run,
    RunStatus,
    RunType,
    Staging,
    check_file_name,
    check_name,
    describe,
)

if TYPE_CHECKING:
    from embedl_hub.tracking import Store

MOST_BYTES = 4 << 30
_PAGE = 200
_MOST_POINTS = 10_000_000
_RUN_ID = re.compile(r"[0-9a-f]{8,64}")
_OVER = {"FINISHED": RunStatus.FINISHED, "FAILED": RunStatus.FAILED, "KILLED": RunStatus.KILLED}


@dataclass(frozen=True)
class Taken:
    """What became of the runs of an experiment; runs that came in go by their ids here, others by MLflow's."""

    runs: list[str] = field(default_factory=list)
    known_already: list[str] = field(default_factory=list)
    still_running: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)  # those that no store can hold, with the reasons
    left_out: dict[str, list[str]] = field(default_factory=dict)  # what of a run could not be taken, in words


def import_runs(
    store: Store,
    api: Api,
    experiment: str,
    *,
    project: str | None = None,
    with_artifacts: bool = True,
    most_bytes: int = MOST_BYTES,
    progress: Callable[[int, int], None] = lambda _done, _all: None,
) -> Taken:
    """Take the runs of an experiment in.

    Args:
        store: Where to, open.
        api: Where from.
        experiment: Its name.
        project: The project here; the one that a run was exported from, else the experiment's name, if not given.
        with_artifacts: Whether files come too.
        most_bytes: How much the files of one run may be.
        progress: Told after each run how many of all are done.
    """
    try:
        facts = object_of(api.get("experiments/get-by-name", {"experiment_name": experiment}), "experiment")
    except AbsentError as error:
        known = [text_of(each, "name") for each in api.pages("experiments/search", "experiments", {"max_results": 50})]
        listed = ", ".join(map(repr, known[:20])) or "none"
        raise ConfigError(f"{api.url} has no experiment {experiment!r}; there are: {listed}.") from error
    asked = {"experiment_ids": [text_of(facts, "experiment_id")], "max_results": _PAGE}
    ordered = {**asked, "order_by": ["attributes.start_time ASC"]}
    found = list(api.pages("runs/search", "runs", ordered, by_post=True))
    here = {id_of(each): _id_here(api, each) for each in found}
    done = Taken()
    for number, each in enumerate(found, start=1):
        there = id_of(each)
        if store.run_dir(here[there]).exists():
            done.known_already.append(here[there])
        elif text_of(object_of(each, "info"), "status") not in _OVER:
            done.still_running.append(there)
        else:
            reader = _Reader(api, each, here, project, experiment)
            try:
                reader.take(store, most_bytes if with_artifacts else None)
            except ConfigError as error:
                done.refused[there] = str(error)
            else:
                done.runs.append(here[there])
            if reader.left_out:
                done.left_out[here[there]] = reader.left_out
        progress(number, len(found))
    return done


def _id_here(api: Api, run: Mapping[str, Any]) -> str:
    """Return the id that a run has here: its own, if it is one of ours, else MLflow's, which has the same form."""
    there, ours = id_of(run), tags_of(run).get(words.RUN_ID, "")
    for given in (ours, there):
        if _RUN_ID.fullmatch(given):
            return given
    return hashlib.sha256(f"{api.url} {there}".encode()).hexdigest()[:32]


class _Reader:
    """Reads one run."""

    def __init__(
        self, api: Api, run: Mapping[str, Any], here: Mapping[str, str], project: str | None, experiment: str
    ) -> None:
        self._api, self._run, self._here = api, run, here
        self._there = id_of(run)
        self._tags = tags_of(run)
        self._is_ours = words.RUN_ID in self._tags
        self._project, self._experiment = project, experiment
        self.left_out: list[str] = []

    def take(self, store: Store, most_bytes: int | None) -> None:
        """Bring the run into the store; without its files when no bytes are allowed."""
        with tempfile.TemporaryDirectory(prefix=".mlflow-", dir=store.home) as folder, Staging(store) as staging:
            files = self._files(Path(folder), most_bytes) if most_bytes is not None else {}
            kept = self._kept(files.pop(words.KEPT, None))
            run = self._read(kept)
            artifacts = dict(self._artifacts(files, Path(folder), run.id))
            self._compare(artifacts)
            paths = {name: path for name, (path, _) in artifacts.items()}
            values = {name: artifact for name, (_, artifact) in artifacts.items()}
            staging.add(replace(run, artifacts=values), paths)

    def _read(self, kept: Mapping[str, Mapping[str, Any]]) -> Run:
        info = object_of(self._run, "info")
        tags = {**self._tags, **{name: str(value) for name, value in kept["tags"].items()}}
        facts = {key.removeprefix(words.FACT): value for key, value in tags.items() if key.startswith(words.FACT)}
        facts = facts if self._is_ours else {}
        started = whole_of(info, "start_time") or 0
        parent = self._tags.get(words.PARENT, "")
        parent_id = facts.get("parent_id") or self._here.get(parent) or (parent if _RUN_ID.fullmatch(parent) else None)
        name = text_of(info, "run_name") or self._tags.get(words.NAME) or self._there
        return Run(
            self._here[self._there],
            self._project or facts.get("project") or self._experiment,
            facts["type"] if facts.get("type") in RunType.__members__ else RunType.CUSTOM,
            _fitting_name(name),
            _OVER[text_of(info, "status")],
            started,
            whole_of(info, "end_time") or started,
            parent_id=parent_id,
            component=facts.get("component"),
            provider=facts.get("provider"),
            device=facts.get("device"),
            error=facts.get("error"),
            traceback=facts.get("traceback"),
            params=dict(self._params(kept["params"])),
            metrics=tuple(self._metrics()),
            tags=dict(self._own_tags(tags)),
            archived=facts.get("archived") == "true",
        )

    def _name(self, name: str, what: str) -> str | None:
        """Return a name as it is here; None, which is said, where it cannot be one."""
        name = words.name_here(name) if self._is_ours else name
        try:
            check_name(what, name)
        except ConfigError as error:
            self.left_out.append(str(error))
            return None
        return name

    def _params(self, kept: Mapping[str, Any]) -> Iterator[tuple[str, LoggedParam]]:
        for each in data_of(self._run, "params"):
            if (name := self._name(text_of(each, "key"), "parameter name")) is not None:
                yield name, LoggedParam(name, words.param_here(text_of(each, "value"), is_ours=self._is_ours))
        for name, value in kept.items():
            yield name, LoggedParam(name, value)

    def _metrics(self) -> Iterator[LoggedMetric]:
        stepless = frozenset[str]()
        if self._is_ours and words.STEPLESS in self._tags:
            with contextlib.suppress(UnreadableError, TypeError):
                stepless = frozenset(parse_json(self._tags[words.STEPLESS]))
        points: list[tuple[int, LoggedMetric]] = []
        for each in data_of(self._run, "metrics"):
            key = text_of(each, "key")
            if (name := self._name(key, "metric name")) is None:
                continue
            for point in history(self._api, self._there, key):
                if len(points) >= _MOST_POINTS:
                    raise TrackingError(f"Run {self._there} of {self._api.url} has more than {_MOST_POINTS} points.")
                value = words.metric_here(point["value"])
                assert value is not None  # noqa: S101 - history yields numbers alone
                step = None if name in stepless else point["step"]
                points.append((point["timestamp"], LoggedMetric(name, value, step, point["timestamp"])))
        # As they were logged, as far as the server tells.
        points.sort(key=lambda point: (point[0], point[1].step or 0))
        yield from (metric for _, metric in points)

    def _own_tags(self, tags: Mapping[str, str]) -> Iterator[tuple[str, str]]:
        for key, value in tags.items():
            # What the facts of a run say is not said twice.
            if key in {words.NAME, words.PARENT} or (self._is_ours and key.startswith(words.OURS)):
                continue
            if key == words.NOTE:
                yield words.OUR_NOTE, value
            elif (name := self._name(key, "tag name")) is not None:
                yield name, value
        if not self._is_ours:
            yield "mlflow.run_id", self._there

    def _files(self, folder: Path, most_bytes: int) -> dict[str, Path]:
        """Bring the artifacts here, within bounds, under names that no server chose."""
        root, left = proxied(self._run), most_bytes
        found = {}
        for number, (path, _) in enumerate(listing(self._api, self._there)):
            query = urlencode({"run_id": self._there, "path": path})
            address = f"/get-artifact?{query}" if root is None else PROXY + quote(f"{root}/{path}")
            target = folder / str(number)
            left -= self._api.download(address, target, left)
            found[path] = target
        return found

    def _kept(self, file: Path | None) -> dict[str, dict[str, Any]]:
        kept: Any = {}
        if file is not None and self._is_ours:
            try:
                kept = read_json(file)
            except UnreadableError as error:
                self.left_out.append(f"the values in {words.KEPT}: {error}")
        return {name: object_of(kept if isinstance(kept, dict) else {}, name) for name in ("params", "tags")}

    def _artifacts(
        self, files: Mapping[str, Path], folder: Path, run_id: str
    ) -> Iterator[tuple[str, tuple[Path, LoggedArtifact]]]:
        """Yield the artifacts that files make up: the first part of a path is the name, of ours the second the file."""
        groups: dict[str, dict[str, Path]] = {}
        for path, file in files.items():
            name, _, rest = path.partition("/")
            groups.setdefault(name, {})[rest] = file
        for number, (name, below) in enumerate(groups.items()):
            file_name, inner = name, below
            heads = {rest.partition("/")[0] for rest in below}
            if self._is_ours and len(heads) == 1 and "" not in heads:
                file_name = heads.pop()
                inner = {rest.partition("/")[2]: file for rest, file in below.items()}
            try:
                check_file_name("artifact name", name)
                check_file_name("file name", file_name)
            except ConfigError as error:
                self.left_out.append(str(error))
                continue
            place = inner[""] if set(inner) == {""} else _gathered(folder / f"folder-{number}", inner)
            yield name, (place, LoggedArtifact(name, file_name, 0, "", place.is_dir(), run_id))

    def _compare(self, artifacts: Mapping[str, tuple[Path, LoggedArtifact]]) -> None:
        """Say which files are not those that were exported."""
        for key, sha256 in self._tags.items():
            name = words.name_here(key).removeprefix(words.SHA256)
            if key.startswith(words.SHA256) and name in artifacts and describe(artifacts[name][0]).sha256 != sha256:
                self.left_out.append(f"artifact {name!r} is not the one that was exported: it has changed over there")


def _gathered(folder: Path, files: Mapping[str, Path]) -> Path:
    """Make a folder of files by their paths in it, which are checked."""
    for name, file in files.items():
        target = folder.joinpath(*name.split("/"))
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            file.rename(target)
        except OSError as error:
            raise ConfigError(f"The artifact {name!r:.200} cannot be kept under its name: {error}.") from error
    return folder


def _fitting_name(name: str) -> str:
    """Return a run's name as one may be here: MLflow's may be longer, and hold line ends."""
    printable = "".join(character if character.isprintable() else " " for character in name)
    return printable.encode()[:200].decode(errors="ignore").strip() or "run"
