"""The manifest of one run."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest

from embedl_hub.tracking._journal import Journal, bury, encode, new_run_id, read

if TYPE_CHECKING:
    from pathlib import Path

Record = dict[str, Any]
END: Record = {"kind": "end", "time_ms": 9, "status": "KILLED"}


def record(seq: int, kind: str = "param", **facts: object) -> Record:
    return {"seq": seq, "kind": kind, "time_ms": 1, **facts}


RECORDS = [
    record(0, "start"),
    record(1, name="größe ✓"),
    record(2, value=[1.5, {"a": None}]),
    record(3, value="\udcff"),
]


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    """The manifest of a run whose process is gone."""
    path = tmp_path / "manifest.jsonl"
    journal = Journal(path, durable=True)
    for item in RECORDS:
        journal.append(item)
    journal.sync()
    journal.close()
    return path


def test_records_come_back_as_they_were(manifest: Path) -> None:
    """What is appended is read, in order, non-ASCII and odd bytes included."""
    assert read(manifest) == RECORDS


def test_a_missing_manifest_has_no_records(tmp_path: Path) -> None:
    """A deleted run folder is not an error."""
    assert read(tmp_path / "absent") == []
    assert bury(tmp_path / "absent", END) == []


def test_a_manifest_cut_at_any_byte_keeps_its_whole_lines(manifest: Path) -> None:
    """Wherever a write was cut off, every complete record is read, and burying adds the end after them."""
    whole = manifest.read_bytes()
    for length in range(len(encode(RECORDS[0])), len(whole)):
        manifest.write_bytes(whole[:length])
        # A record that lacks only its line end is complete.
        complete = [
            item for at, item in enumerate(RECORDS) if len(b"".join(map(encode, RECORDS[: at + 1]))) <= length + 1
        ]
        assert read(manifest) == complete
        assert bury(manifest, END) == [*complete, {**END, "seq": len(complete)}]
        assert read(manifest) == [*complete, {**END, "seq": len(complete)}]
        assert manifest.read_bytes().startswith(whole[:length])


@pytest.mark.parametrize(
    "line",
    [
        b"garbage",
        b"\xff\xfe",
        b"[]",
        b"null",
        b"{}",
        b'{"seq":"2","kind":"param","time_ms":1}',
        b'{"seq":2}',
        b"[" * 5000,
    ],
)
def test_a_damaged_line_costs_only_itself(manifest: Path, line: bytes) -> None:
    """Records around a line that cannot be read are kept, and the file is never cut."""
    lines = manifest.read_bytes().split(b"\n")
    lines[2] = line
    manifest.write_bytes(b"\n".join(lines))
    before = manifest.read_bytes()
    kept = [RECORDS[0], RECORDS[1], RECORDS[3]]
    assert read(manifest) == kept
    assert bury(manifest, END) == [*kept, {**END, "seq": 4}]
    assert manifest.read_bytes() == before + encode({**END, "seq": 4})


def test_a_repeated_number_counts_once(manifest: Path) -> None:
    """The first record of a number is the acknowledged one."""
    with manifest.open("ab") as file:
        file.write(encode(record(3, value="again")) + encode(record(7, value="later")))
    assert read(manifest) == [*RECORDS, record(7, value="later")]


def test_a_finished_run_is_not_buried_again(manifest: Path) -> None:
    """A second burial changes nothing."""
    bury(manifest, END)
    before = manifest.read_bytes()
    assert bury(manifest, {**END, "status": "FAILED"}) == [*RECORDS, {**END, "seq": 4}]
    assert manifest.read_bytes() == before


def test_a_living_run_is_not_buried(tmp_path: Path) -> None:
    """While its process has the manifest open, a run is alive."""
    path = tmp_path / "manifest.jsonl"
    journal = Journal(path, durable=False)
    journal.append(RECORDS[0])
    assert bury(path, END) is None
    journal.close()
    journal.close()
    assert bury(path, END) == [RECORDS[0], {**END, "seq": 1}]


def test_each_record_is_one_line_of_json(manifest: Path) -> None:
    """A manifest can be read by anything: one object per line, text as UTF-8."""
    lines = manifest.read_bytes().splitlines()
    assert len(lines) == len(RECORDS)
    assert json.loads(lines[1])["name"] == "größe ✓"
    assert "größe ✓".encode() in lines[1]


def test_ids_are_unique_and_sort_by_time() -> None:
    """A thousand ids made at once differ, and all begin with the time in microseconds."""
    before_us = time.time_ns() // 1000
    ids = [new_run_id() for _ in range(1000)]
    times = [before_us, *(int(name[:13], 16) for name in ids), time.time_ns() // 1000]
    assert len(set(ids)) == 1000
    assert times == sorted(times)
    assert {len(name) for name in ids} == {21}
