"""Where a run's records go: a store on this machine, or nowhere but memory.

A sink serves one run. It is told each record once, in order, and is the only thing that touches the disk.
"""

from __future__ import annotations

import contextlib
import shutil
import stat
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from embedl_hub.errors import TrackingError
from embedl_hub.tracking import _fork
from embedl_hub.tracking._blobs import Content, describe, hash_file
from embedl_hub.tracking._journal import MANIFEST_NAME, Journal, Record, read

if TYPE_CHECKING:
    from embedl_hub.tracking._store import Store
    from embedl_hub.tracking._uplink import Uplink

_FLUSH_EVERY_S = 0.25
_FLUSH_AT_RECORDS = 500
_ATTACH_WAIT_S = 10.0
# File times can be this coarse: a file changed within this time of being logged may look unchanged.
_COARSEST_CLOCK_NS = 2_000_000_000


class Sink(Protocol):
    """What a run needs from the place that keeps it."""

    def write(self, *records: Record) -> None:
        """Keep records, all or none of them; when this returns they are acknowledged."""

    def keep(self, path: Path, name: str, file_name: str) -> tuple[Content, Path]:
        """Keep a file or folder and return its content and where it is from now on."""

    def work_dir(self) -> Path:
        """Return the run's scratch folder, made on first use."""

    def close(self) -> None:
        """End the run's stay; everything acknowledged is findable afterwards."""


class Indexer(_fork.ForkAware):
    """Brings acknowledged records into the index in batches, for all runs of a client at once."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._start_empty()
        _fork.watch(self)

    def after_fork(self, *, in_child: bool) -> None:
        """Start anew in a child: it has no such thread, and the queue is its parent's to write."""
        if in_child:
            self._start_empty()

    def _start_empty(self) -> None:
        self._pending: dict[str, list[Record]] = defaultdict(list)
        self._count = 0
        self._lock = threading.Lock()
        self._flushing = threading.Lock()
        self._something = threading.Event()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, run_id: str, record: Record) -> None:
        """Queue a record that its manifest already holds."""
        with self._lock:
            self._pending[run_id].append(record)
            self._count += 1
            count = self._count
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="edgeproof-index", daemon=True)
                self._thread.start()
        if count == 1:
            self._something.set()
        elif count % _FLUSH_AT_RECORDS == 0:
            # The record is safe in its manifest; the flush at the end of the run raises what is wrong with the index.
            with contextlib.suppress(TrackingError):
                self.flush()

    def flush(self) -> None:
        """Bring everything queued into the index now."""
        with self._flushing:
            with self._lock:
                batch, self._pending = self._pending, defaultdict(list)
                self._count = 0
            if not batch:
                return
            try:
                self._store.apply(batch)
            except BaseException:
                # The manifests have it all; queue it again in front, so that the next flush repeats it.
                with self._lock:
                    for run_id, records in batch.items():
                        self._pending[run_id][:0] = records
                        self._count += len(records)
                raise

    def close(self) -> None:
        self._stop.set()
        self._something.set()
        if self._thread is not None:
            self._thread.join()
        self.flush()

    def _work(self) -> None:
        while not self._stop.is_set():
            self._something.wait()
            self._something.clear()
            if self._stop.wait(_FLUSH_EVERY_S):
                return
            try:
                self.flush()
            except TrackingError:
                # Nobody is here to hear it; the flush at the end of the run raises it where it can be acted on.
                self._something.set()


@dataclass(frozen=True)
class _Work:
    """A logged file of the run's scratch folder, to be kept once if it is still what was logged."""

    path: Path
    sha256: str
    signature: tuple[int, ...]
    sure: bool

    def is_unchanged(self) -> bool:
        return _signature(self.path) == self.signature and (self.sure or hash_file(self.path) == self.sha256)


class StoreSink:
    """A run in a store: its manifest first, then the index.

    An ``attached`` one goes on with a run that is there; it waits while another process writes to it.
    """

    def __init__(
        self, store: Store, indexer: Indexer, run_id: str, uplink: Uplink | None = None, *, attached: bool = False
    ) -> None:
        self._store = store
        self._indexer = indexer
        self._uplink = uplink
        self._run_id = run_id
        self._folder = store.run_dir(run_id)
        self._logged_work: list[_Work] = []
        if uplink is not None:
            uplink.add(run_id)
        with store.translated():
            if not attached:
                self._folder.mkdir(parents=True)
            try:
                # A new file too: a rebuild of the index may look at it before we hold it; it lets go at once.
                self._journal = Journal(self._folder / MANIFEST_NAME, durable=store.durable, wait_s=_ATTACH_WAIT_S)
            except OSError:
                if not attached:
                    self._folder.rmdir()
                raise

    def records(self) -> list[Record]:
        return read(self._folder / MANIFEST_NAME)

    def write(self, *records: Record) -> None:
        if records[0]["kind"] == "start":
            self._start(records[0])
        else:
            try:
                self._journal.append(*records)
            except OSError as error:
                raise self._store.unusable(error) from error
            for record in records:
                self._indexer.add(self._run_id, record)
        if self._uplink is not None:
            self._uplink.notify()

    def _start(self, record: Record) -> None:
        """Write the first record through to the index: recovery starts from its rows."""
        try:
            with self._store.translated():
                self._journal.append(record)
                self._journal.sync()
                self._store.apply({self._run_id: [record]})
        except BaseException:
            # A run that never began leaves nothing behind.
            self._journal.close()
            shutil.rmtree(self._folder, ignore_errors=True)
            if self._uplink is not None:
                self._uplink.drop(self._run_id)
            raise

    def keep(self, path: Path, name: str, file_name: str) -> tuple[Content, Path]:
        target = self._store.artifact_path(self._run_id, name, file_name)
        before, now_ns = _signature(path), time.time_ns()
        content = self._store.blobs.add(path, target)
        if before is not None and path.is_relative_to(self._folder / "work"):
            sure = now_ns - max(before[-2:]) > _COARSEST_CLOCK_NS
            self._logged_work.append(_Work(path, content.sha256, before, sure))
        return content, target

    def work_dir(self) -> Path:
        folder = self._folder / "work"
        with self._store.translated():
            folder.mkdir(exist_ok=True)
        return folder

    def close(self) -> None:
        try:
            with self._store.translated():
                for work in self._logged_work:
                    # Logged and untouched since: one copy on disk is enough.
                    if work.is_unchanged():
                        self._store.blobs.replace_by_link(work.path, work.sha256)
                self._journal.sync()
            self._logged_work = []
            self._indexer.flush()
        finally:
            self._journal.close()


class MemorySink:
    """A run that leaves nothing behind but, until its client closes, the files it wrote."""

    def __init__(self, make_folder: Callable[[], Path]) -> None:
        self._make_folder = make_folder
        self._folder: Path | None = None

    def write(self, *records: Record) -> None:
        pass

    def keep(self, path: Path, name: str, file_name: str) -> tuple[Content, Path]:  # noqa: ARG002 - the seam's signature
        return describe(path), path.absolute()

    def work_dir(self) -> Path:
        if self._folder is None:
            self._folder = self._make_folder()
        return self._folder

    def close(self) -> None:
        pass


def _signature(path: Path) -> tuple[int, ...] | None:
    try:
        facts = path.stat()
    except OSError:
        return None
    # The change time as well: a copying tool may set the modification time back, nothing sets this one.
    times = (facts.st_mtime_ns, facts.st_ctime_ns)
    return (facts.st_ino, facts.st_size, *times) if stat.S_ISREG(facts.st_mode) else None
