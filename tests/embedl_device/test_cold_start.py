"""Fresh processes: what counts as a start without the page cache, and what a start reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from embedl_device import cold_start as cold


def start(read_bytes: int | None) -> dict[str, Any]:
    return {"read_bytes": read_bytes}


@pytest.mark.parametrize(
    ("cached", "dropped", "told"),
    [
        (0, 10_000_000, None),
        (0, 400_000, "read 0.4 MB more from storage, and the model alone has 1.0 MB"),
        (9_000_000, 9_400_000, "the files stayed in the page cache"),
        (None, None, "does not tell what a process read"),
    ],
)
def test_a_cold_start_counts_only_if_files_were_read(
    cached: int | None, dropped: int | None, told: str | None, tmp_path: Path
) -> None:
    """What was read from storage is the evidence; without it there is a sentence and no number."""
    files = [(tmp_path / "net.onnx", 1_000_000)]
    found = cold._not_dropped([start(cached)] * 3, [start(dropped)] * 3, files)
    assert (found is None) if told is None else (told in (found or ""))


def test_the_files_of_a_start(tmp_path: Path) -> None:
    """The model first, its weights beside it, and what was mapped and is still there."""
    model, weights, library = tmp_path / "net.onnx", tmp_path / "net.onnx.data", tmp_path / "lib.so"
    for path, size in ((model, 3), (weights, 5), (library, 7), (tmp_path / "other.onnx", 9)):
        path.write_bytes(b"x" * size)
    found = cold._files_of(model, [str(library), str(tmp_path / "deleted.so")])
    assert found == [(model, 3), (weights, 5), (library, 7)]
    cold._drop([*found, (tmp_path / "deleted.so", 1)])


def test_what_the_kernel_says_of_a_process(tmp_path: Path) -> None:
    """Maps with and without files, a path with spaces; nothing where there is no such file."""
    maps, told = tmp_path / "maps", tmp_path / "io"
    maps.write_text(
        "7f00-7f01 r-xp 00000000 08:01 12 /usr/lib/lib one.so\n7f01-7f02 rw-p 00000000 00:00 0\n"
        "7f02-7f03 rw-p 00000000 00:00 0 [heap]\n7f03-7f04 r--p 00000000 08:01 12 /usr/lib/lib one.so\n"
    )
    told.write_text("rchar: 3\nread_bytes: 4096\nwrite_bytes: 0\n")
    assert cold._mapped(maps) == ["/usr/lib/lib one.so"]
    assert cold._read_bytes(told) == 4096
    assert cold._mapped(tmp_path / "none") == []
    assert cold._read_bytes(tmp_path / "none") is None
