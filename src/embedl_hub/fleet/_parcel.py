"""What a job needs, made ready for another host: files known by content, the compiled model's run, paths rewritten.

A parcel names contents; it does not hold them. Whoever opens it fetches those that its store lacks, so nothing is
sent to a host that has it.
"""

from __future__ import annotations

import io
import secrets
import shutil
import tempfile
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Generic, TypeVar, cast

from embedl_hub.errors import ConfigError
from embedl_hub.tracking import Store, export_bundle, folder_content, hash_file, import_bundle, walk_files

if TYPE_CHECKING:
    from embedl_hub.fleet._model import Job

INPUTS_FOLDER = "inputs"
_CHUNK_BYTES = 64 << 20
_MOST_KEPT_BYTES = 2 << 30

Ref = TypeVar("Ref")


@dataclass(frozen=True)
class SentPath:
    """A file or folder that a job mentions."""

    sha256: str  # its content
    files: tuple[tuple[str, str], ...]  # name inside it and content of each file; a file has one with an empty name
    is_folder: bool  # whether it is a folder


@dataclass(frozen=True)
class Parcel(Generic[Ref]):
    """A job that can be opened on another host."""

    job: Job  # the job, with the paths of the host it comes from
    paths: Mapping[Path, SentPath]  # what is at the paths that it mentions
    contents: Mapping[str, tuple[Ref, ...]]  # where each content can be had, in pieces, by hash
    runs: bytes | None  # the manifests of the runs it builds on, as a bundle without contents
    # Those contents that the sender's store keeps: they need not come back with the job's runs.
    known: frozenset[str] = frozenset()


class Packer(Generic[Ref]):
    """Makes parcels. Every file is read once, and what was put lately is not put again."""

    def __init__(
        self, store: Store | None, put: Callable[[bytes], Ref], *, most_kept_bytes: int = _MOST_KEPT_BYTES
    ) -> None:
        self._store = store
        self._put = put
        self._most_kept_bytes = most_kept_bytes
        self._known: dict[Path, SentPath] = {}
        self._kept: OrderedDict[str, tuple[int, tuple[Ref, ...]]] = OrderedDict()

    def pack(self, job: Job) -> Parcel[Ref]:
        """Return a job as a parcel."""
        paths = {path: self._describe(path) for path in mentioned_paths(job)}
        places = {
            sha256: path / name if sent.is_folder else path
            for path, sent in paths.items()
            for name, sha256 in sent.files
        }
        runs = None
        if job.compiled is not None:
            runs, own = self._pack_run(job.compiled)
            places |= own
        contents = {sha256: self._keep(sha256, place) for sha256, place in places.items()}
        store = self._store
        kept = (sha256 for sha256 in contents if store is not None and store.blobs.path_of(sha256).exists())
        return Parcel(job, paths, contents, runs, frozenset(kept))

    def _describe(self, path: Path) -> SentPath:
        if path not in self._known:
            if path.is_dir():
                files = tuple((name, hash_file(file), file.stat().st_size) for name, file in walk_files(path))
                pairs = tuple((name, sha256) for name, sha256, _ in files)
                self._known[path] = SentPath(folder_content(files).sha256, pairs, is_folder=True)
            elif path.is_file():
                sha256 = hash_file(path)
                self._known[path] = SentPath(sha256, (("", sha256),), is_folder=False)
            else:
                raise ConfigError(f"There is no file or folder {path} to send to the host of the board.")
        return self._known[path]

    def _pack_run(self, run_id: str) -> tuple[bytes, dict[str, Path]]:
        if self._store is None:
            raise ConfigError("Compiled models travel from store to store: open the context with tracking.")
        run = self._store.run(run_id)
        places: dict[str, Path] = {}
        for artifact in run.artifacts.values():
            place = self._store.artifact_path(run.id, artifact.name, artifact.file_name)
            files = self._describe(place).files
            places |= {sha256: place / name if artifact.is_folder else place for name, sha256 in files}
        return bundle_bytes(self._store, run.id, known=frozenset(places)), places

    def _keep(self, sha256: str, place: Path) -> tuple[Ref, ...]:
        """Put a content unless it is there; what was not asked for longest makes room."""
        if sha256 not in self._kept:
            with place.open("rb") as file:
                pieces = tuple(self._put(piece) for piece in iter(lambda: file.read(_CHUNK_BYTES), b""))
            self._kept[sha256] = (place.stat().st_size, pieces)
        self._kept.move_to_end(sha256)
        while len(self._kept) > 1 and sum(size for size, _ in self._kept.values()) > self._most_kept_bytes:
            self._kept.popitem(last=False)
        return self._kept[sha256][1]


def unpack(parcel: Parcel[Ref], store: Store, get: Callable[[Ref], bytes]) -> Job:
    """Make everything that a job needs available here, and return the job with the paths of this host."""
    for sha256, pieces in parcel.contents.items():
        if not store.blobs.path_of(sha256).exists():
            store.blobs.receive(cast("IO[bytes]", _Pieces(pieces, get)), sha256)
    if parcel.runs is not None:
        import_runs(store, parcel.runs)
    places = {path: _lay_out(store, path.name, sent) for path, sent in parcel.paths.items()}
    return with_paths(parcel.job, places)


def bundle_bytes(store: Store, *run_ids: str, known: frozenset[str]) -> bytes:
    """Return runs as a bundle, without the contents that the taker has."""
    with tempfile.TemporaryDirectory(prefix="edgeproof-") as folder:
        path = Path(folder) / "runs.zip"
        export_bundle(store, run_ids, path, known=known)
        return path.read_bytes()


def import_runs(store: Store, bundle: bytes) -> None:
    """Take runs into a store; those that are there are left as they are."""
    with tempfile.TemporaryDirectory(prefix="edgeproof-") as folder:
        path = Path(folder) / "runs.zip"
        path.write_bytes(bundle)
        # Of our own nodes, by way of our own engine: a model of zeros may come.
        import_bundle(store, path, most_bytes=shutil.disk_usage(store.home).free)


def mentioned_paths(job: Job) -> list[Path]:
    """Return every path of a job, each once."""
    paths = (value for value in _walk(job.step.values) if isinstance(value, Path))
    return list(dict.fromkeys((job.step.source, *paths)))


def with_paths(job: Job, places: Mapping[Path, Path]) -> Job:
    """Return a job with other paths."""
    values = {name: _swap(value, places) for name, value in job.step.values.items()}
    return replace(job, step=replace(job.step, source=places.get(job.step.source, job.step.source), values=values))


def _walk(value: object) -> Iterator[object]:
    yield value
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    for each in inner:
        yield from _walk(each)


def _swap(value: Any, places: Mapping[Path, Path]) -> Any:  # noqa: ANN401 - keywords of any component
    if isinstance(value, Path):
        return places.get(value, value)
    if isinstance(value, Mapping):
        return {name: _swap(each, places) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_swap(each, places) for each in value)
    return value


def _lay_out(store: Store, name: str, sent: SentPath) -> Path:
    """Make a content appear under the name it had, once for all jobs that mention it."""
    folder = store.home / INPUTS_FOLDER / sent.sha256
    place = folder / name
    if place.exists():
        return place
    incoming = folder / f".incoming-{secrets.token_hex(8)}"
    incoming.mkdir(parents=True)
    for inner, sha256 in sent.files:
        target = incoming / "content" / inner if sent.is_folder else incoming / "content"
        target.parent.mkdir(parents=True, exist_ok=True)
        store.blobs.link(sha256, target)
    if sent.is_folder:
        (incoming / "content").mkdir(exist_ok=True)
    try:
        (incoming / "content").rename(place)
    except OSError:
        # Another job of this host was faster with the same content.
        if not place.exists():
            raise
    return place


class _Pieces(io.RawIOBase):
    """A content that arrives piece by piece, to be read like a file."""

    def __init__(self, pieces: tuple[Ref, ...], get: Callable[[Ref], bytes]) -> None:
        super().__init__()
        self._pieces = iter(pieces)
        self._get = get
        self._rest = memoryview(b"")

    def read(self, size: int = -1) -> bytes:
        if not self._rest:
            self._rest = memoryview(next(map(self._get, self._pieces), b""))
        taken = self._rest[: size if size >= 0 else len(self._rest)]
        self._rest = self._rest[len(taken) :]
        return bytes(taken)
