"""Runs that were recorded elsewhere, on their way into a store: they come in whole, all of them or none."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Self

from embedl_hub.errors import TrackingError
from embedl_hub.tracking import _journal
from embedl_hub.tracking._records import check_record
from embedl_hub.tracking._redact import Redactor

if TYPE_CHECKING:
    from embedl_hub.tracking._models import LoggedMetric, Run
    from embedl_hub.tracking._store import Store


class Staging:
    """A block in which runs are made ready; at its end they are in the store, or, on an error, none is.

    Nothing of a run is believed: its records are checked as a server checks them, and secrets are taken out.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting = store.home / "runs" / f".incoming-{secrets.token_hex(8)}"
        self._records: dict[str, list[_journal.Record]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None and self._records:
                self._bring_in()
        finally:
            shutil.rmtree(self._waiting, ignore_errors=True)

    def add(self, run: Run, artifacts: Mapping[str, Path]) -> None:
        """Make a run ready, with its artifacts as paths here by the names that the run gives them.

        Raises:
            ConfigError: The run holds what no store takes; says which.
            TrackingError: There is a run with this id.
        """
        store = self._store
        if run.id in self._records or store.run_dir(run.id).exists():
            raise TrackingError(f"Run {run.id} is here already.")
        folder = self._waiting / run.id
        records = _records_of(run)
        # Before anything is written: an id that is none could be a path.
        for record in records:
            check_record(record)
        with store.translated():
            folder.mkdir(parents=True)
            kept = []
            for name, path in artifacts.items():
                file_name = run.artifacts[name].file_name
                fact = {"kind": "artifact", "name": name, "file_name": file_name, "time_ms": run.started_ms}
                check_record({**fact, "seq": 1, "sha256": "0" * 64, "size_bytes": 0})
                content = store.blobs.add(path, folder / "artifacts" / name / file_name)
                files = {"files": [list(file) for file in content.files]} if content.is_folder else {}
                kept.append({**fact, "sha256": content.sha256, "size_bytes": content.size_bytes, **files})
            # Artifacts come before the end, as in a run that was recorded here.
            at = next((place for place, each in enumerate(records) if each["kind"] == "end"), len(records))
            records[at:at] = kept
            records = [{**record, "seq": seq} for seq, record in enumerate(records)]
            for record in records:
                check_record(record)
            (folder / _journal.MANIFEST_NAME).write_bytes(b"".join(map(_journal.encode, records)))
        self._records[run.id] = records

    def _bring_in(self) -> None:
        store = self._store
        with store.translated():
            for run_id in self._records:
                (self._waiting / run_id).rename(store.run_dir(run_id))
        store.apply(self._records)


def _records_of(run: Run) -> list[_journal.Record]:
    """Return a run as the records that a manifest has, without its artifacts."""
    given = {"component": run.component, "provider": run.provider, "device": run.device, "parent_id": run.parent_id}
    records: list[_journal.Record] = [
        {
            "kind": "start", "format": _journal.FORMAT, "project": run.project, "type": run.type, "name": run.name,
            "time_ms": run.started_ms, **{name: value for name, value in given.items() if value is not None},
        },
        *({"kind": "param", "name": each.name, "value": each.value} for each in run.params.values()),
        *map(_metric, run.metrics),
        *({"kind": "tag", "name": name, "value": value} for name, value in run.tags.items()),
    ]  # fmt: skip
    if run.ended_ms is not None:
        end = {"kind": "end", "status": run.status.value, "time_ms": run.ended_ms}
        records.append({**end, "error": run.error, "traceback": run.traceback})
    if run.archived:
        records.append({"kind": "archive", "archived": True, "time_ms": run.ended_ms or run.started_ms})
    records = [{"seq": seq, "time_ms": run.started_ms, **record} for seq, record in enumerate(records)]
    Redactor().clean(records)
    return records


def _metric(metric: LoggedMetric) -> _journal.Record:
    value = metric.value if abs(metric.value) < float("inf") else str(metric.value)
    return {"kind": "metric", "name": metric.name, "value": value, "step": metric.step, "time_ms": metric.time_ms}
