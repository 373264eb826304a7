"""Runs that go on elsewhere: their records arrive in pieces, some twice, and are written down once.

The manifest says how far a run has come; the index follows it. A record that is here already is compared and passed
over, one that leaves a hole is not taken, so any piece may be sent again at any time.
"""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from embedl_hub.errors import TrackingError
from embedl_hub.tracking import _journal

if TYPE_CHECKING:
    from embedl_hub.tracking._store import Store

_LOCKS = 256
_WAIT_S = 30.0
_MOST_REMEMBERED = 20_000
_LARGEST_MANIFEST = 1 << 30


@dataclass(frozen=True)
class Arrived:
    """How far a run has come, and why not further."""

    last: int  # the number of its last record here; -1 when there is none
    has_hole: bool = False  # records before the ones sent are missing
    differs: bool = False  # A record sent is not the one that is here under its number
    waits: _journal.Record | None = None  # the record that was not admitted; those after it wait with it
    is_full: bool = False  # the run has logged as much as there is room for
    is_foreign: bool = False  # the run is not one of those that the sender may write to
    has_no_start: bool = False  # A run begins with its start, which says whose it is


@dataclass(frozen=True)
class _Tail:
    """The end of a manifest, remembered for as long as the file stays what it was."""

    signature: tuple[int, ...]
    last: int
    project: str | None


_EMPTY = _Tail((), -1, None)


class Receiver:
    """Writes down what arrives for the runs of a store. Safe for many threads and processes."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._locks = [threading.Lock() for _ in range(_LOCKS)]
        self._tails: dict[str, _Tail] = {}
        self._deleted = store.home / "deleted"

    def project_of(self, run_id: str) -> str | None:
        """Return the project that a run belongs to; None when there is no such run."""
        return self._tail(run_id).project

    def is_deleted(self, run_id: str) -> bool:
        """Tell whether there was such a run and somebody deleted it."""
        return (self._deleted / run_id).exists()

    def delete(self, run_id: str) -> None:
        """Delete a run for good: what its client still sends is not taken."""
        with self._store.translated(), self.holding(run_id):
            self._deleted.mkdir(exist_ok=True)
            (self._deleted / run_id).touch()
            self._store.delete(run_id)

    @contextlib.contextmanager
    def holding(self, run_id: str) -> Iterator[None]:
        """Keep other threads of this process away from a run."""
        with self._locks[hash(run_id) % _LOCKS]:
            yield

    def append(
        self,
        run_id: str,
        after: int,
        records: Sequence[_journal.Record],
        *,
        is_ours: Callable[[str | None], bool],
        admit: Callable[[_journal.Record], bool],
    ) -> Arrived:
        """Write records down that are in order and checked, and follow the record ``after``; -1 at the start.

        ``is_ours`` is asked about the project of a run that is here. ``admit`` is asked about each new record just
        before it is written; False leaves it and the rest out.
        """
        with self._store.translated(), self.holding(run_id):
            tail = self._tail(run_id)
            # Here and not before: somebody else may have begun the run a moment ago.
            if tail.last >= 0 and not is_ours(tail.project):
                return Arrived(-1, is_foreign=True)
            if tail.last < 0 and after < 0 and records and records[0]["kind"] != "start":
                return Arrived(-1, has_no_start=True)
            if after > tail.last or (tail.last < 0 and not records):
                return Arrived(tail.last, has_hole=after > tail.last)
            if not self._agree(run_id, tail, records):
                return Arrived(tail.last, differs=True)
            new = [record for record in records if record["seq"] > tail.last]
            if not new:
                self._store.apply({run_id: records} if records else {})
                return Arrived(tail.last)
            return self._take(run_id, tail, records, new, admit)

    def catch_up(self, since_ns: int) -> int:
        """Bring manifests written since a moment into the index, as a killed server may not have; return how many."""
        count = 0
        with self._store.translated():
            for manifest in self._store.home.glob(f"runs/[!.]*/{_journal.MANIFEST_NAME}"):
                if manifest.stat().st_mtime_ns >= since_ns and (records := _journal.read(manifest)):
                    count += len(self._store.apply_readable({manifest.parent.name: records}))
        return count

    def _take(
        self,
        run_id: str,
        tail: _Tail,
        records: Sequence[_journal.Record],
        new: Sequence[_journal.Record],
        admit: Callable[[_journal.Record], bool],
    ) -> Arrived:
        folder, manifest = self._store.run_dir(run_id), self._store.manifest(run_id)
        folder.mkdir(parents=True, exist_ok=True)
        try:
            journal = _journal.Journal(manifest, durable=self._store.durable, wait_s=_WAIT_S)
        except BlockingIOError:
            raise TrackingError(f"Run {run_id} is being written by another process.") from None
        try:
            if self._tail(run_id).last != tail.last:
                raise TrackingError(f"Run {run_id} was written by another process meanwhile.")  # noqa: TRY301 - cleaned up below
            if manifest.stat().st_size > _LARGEST_MANIFEST:
                return Arrived(tail.last, is_full=True)
            waits = next((record for record in new if not admit(record)), None)
            taken = [record for record in new if waits is None or record["seq"] < waits["seq"]]
            if taken:
                journal.append(*taken)
                journal.sync()
                project = tail.project or taken[0].get("project")
                self._keep(run_id, _Tail(_signature(manifest), taken[-1]["seq"], project))
        except BaseException:
            if manifest.stat().st_size == 0:
                # A run that never began leaves nothing behind.
                shutil.rmtree(folder, ignore_errors=True)
            raise
        finally:
            journal.close()
        last = taken[-1]["seq"] if taken else tail.last
        self._store.apply({run_id: [record for record in records if record["seq"] <= last]} if last >= 0 else {})
        return Arrived(last, waits=waits)

    def _agree(self, run_id: str, tail: _Tail, records: Sequence[_journal.Record]) -> bool:
        again = [record for record in records if record["seq"] <= tail.last]
        manifest = _journal.read(self._store.manifest(run_id)) if again else []
        here = {record["seq"]: record for record in manifest}
        return all(here.get(record["seq"]) == record for record in again)

    def _tail(self, run_id: str) -> _Tail:
        manifest = self._store.manifest(run_id)
        try:
            signature = _signature(manifest)
        except FileNotFoundError:
            return _EMPTY
        known = self._tails.get(run_id)
        if known is not None and known.signature == signature:
            return known
        records = _journal.read(manifest)
        if not records:
            return _EMPTY
        return self._keep(run_id, _Tail(signature, records[-1]["seq"], records[0].get("project")))

    def _keep(self, run_id: str, tail: _Tail) -> _Tail:
        if len(self._tails) >= _MOST_REMEMBERED:
            self._tails.clear()
        self._tails[run_id] = tail
        return tail


def _signature(path: Path) -> tuple[int, ...]:
    facts = path.stat()
    return (facts.st_ino, facts.st_size, facts.st_mtime_ns)
