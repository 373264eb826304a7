"""A board that sends more than anybody asked for: what it costs here is bounded, and the error is one."""

import io
import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest
from support.faults import fault
from support.sshd import SSHServer

from embedl_hub.core.device import LocalCommandRunner, SSHCommandRunner, _bounded, _ssh_transfer, _tar
from embedl_hub.core.device._device import parse_probe, spec_of
from embedl_hub.core.device._tree import unpack
from embedl_hub.errors import CommandError, ConnectError, TransferError

NewServer: TypeAlias = Callable[..., SSHServer]
Connect: TypeAlias = Callable[..., SSHCommandRunner]


def header(name: bytes, kind: bytes, size: int, link: bytes = b"") -> bytes:
    """Return a header that no honest tar would write."""
    fields = (name.ljust(100, b"\0"), b"0000644\0" * 3, b"%011o\0" % size, b"0" * 11 + b"\0", b" " * 8, kind)
    block = b"".join((*fields, link.ljust(100, b"\0"), b"ustar  \0")).ljust(512, b"\0")
    return block[:148] + b"%06o\0 " % sum(block) + block[156:]


def padded(content: bytes) -> bytes:
    return content + bytes(-len(content) % 512)


def record(key: str, value: str) -> bytes:
    """Return one record of a pax header."""
    text = f" {key}={value}\n"
    size = len(text) + 1
    while len(str(size)) + len(text) != size:
        size += 1
    return f"{size}{text}".encode()


def pax(*records: bytes) -> bytes:
    return header(b"pax", b"x", len(b"".join(records))) + padded(b"".join(records))


def holes_of_gnu(size: int) -> bytes:
    """Return the header of a file that is one hole, as GNU tar writes it: 512 bytes for any size."""
    block = bytearray(header(b"holes", b"S", 0))
    block[483:495] = b"%011o\0" % size
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


HOLES = {
    "gnu": holes_of_gnu(1 << 32),
    "pax 0.1": pax(record("GNU.sparse.map", "0,1"), record("GNU.sparse.size", str(1 << 40)))
    + header(b"holes", b"0", 0),
    "pax 1.0": pax(record("GNU.sparse.major", "1"), record("GNU.sparse.realsize", str(1 << 40)))
    + header(b"holes", b"0", 512) + padded(b"0\n"),
}  # fmt: skip


@pytest.mark.parametrize("stream", HOLES.values(), ids=HOLES)
def test_a_file_with_holes_is_refused(tmp_path: Path, stream: bytes) -> None:
    """Half a kilobyte becomes a terabyte."""
    with pytest.raises(TransferError, match="a file with holes, which may be endless; refused"):
        unpack(io.BytesIO(stream + bytes(1024)), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_many_names_of_one_file_cost_one_file(tmp_path: Path) -> None:
    """A name is 512 bytes in the stream, whatever the size of the file."""
    data = bytes(1 << 20)
    names = b"".join(header(b"name%d" % number, b"1", 0, b"file") for number in range(500))
    stream = io.BytesIO(header(b"file", b"0", len(data)) + data + names + bytes(1024))
    hashes = unpack(stream, tmp_path)
    assert len(hashes) == 501
    assert (
        sum(path.stat().st_blocks for path in {path.stat().st_ino: path for path in tmp_path.iterdir()}.values()) < 4096
    )
    assert (tmp_path / "name499").read_bytes() == data


REFUSED = {
    "a name without end": (header(b"long", b"L", (1 << 33) - 1), "a name of 8589934591 bytes; refused"),
    "a pax header without end": (header(b"pax", b"x", (1 << 33) - 1), "a name of 8589934591 bytes; refused"),
    "folders without end": (pax(record("path", "a/" * 3000)) + header(b"x", b"5", 0), "folders in each other; refused"),
    "a size that is none": (pax(record("size", "9" * 5000)) + header(b"x", b"0", 0), "has the size"),
    "a negative size": (pax(record("size", "-1")) + header(b"x", b"0", 0), "has the size"),
    "a pax header that is none": (header(b"pax", b"x", 512) + padded(b"9" * 512), "cannot be read"),
    "more than there is": (header(b"x", b"0", 1 << 32), "ends in the middle of 'x'"),
    "another name of nothing": (header(b"x", b"1", 0, b"y"), "another name of nothing that it sent; refused"),
    "a volume": (header(b"x", b"V", 0), "neither a file, a folder nor a link; refused"),
    "noise": (os.urandom(4096), "a header of it"),
    "nothing": (b"", "it ends too early"),
}


@pytest.mark.parametrize(("stream", "says"), REFUSED.values(), ids=REFUSED)
def test_what_no_tar_writes_is_refused(tmp_path: Path, stream: bytes, says: str) -> None:
    with pytest.raises(TransferError, match=says):
        unpack(io.BytesIO(stream), tmp_path)


def test_files_without_end_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is a file here, an entry there."""
    monkeypatch.setattr(_tar, "_MOST_ENTRIES", 50)
    stream = b"".join(header(b"f%d" % number, b"0", 0) for number in range(60))
    with pytest.raises(TransferError, match="more than 50 files; refused"):
        unpack(io.BytesIO(stream), tmp_path)


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT])
def test_every_form_of_tar_is_read(tmp_path: Path, form: int) -> None:
    """What GNU tar, bsdtar and the standard write for long and odd names."""
    names = ["short", "folder/" * 9 + "file", "d" * 90 + "/" + "f" * 60]
    if form != tarfile.USTAR_FORMAT:
        names += ["åäö" * 40, "x" * 200, "sub/" + "long" * 50]
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=form) as archive:
        for name in names:
            entry = tarfile.TarInfo(name)
            entry.size = len(name)
            archive.addfile(entry, io.BytesIO(name.encode()[: len(name)]))
    stream.seek(0)
    unpack(stream, tmp_path)
    assert {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()} == set(names)


def flooding(folder: Path, name: str, megabytes: int) -> dict[str, str]:
    """Return the variables of a board on which a program complains without end before it does its work."""
    folder.mkdir()
    (folder / name).write_text(f"#!/bin/sh\nhead -c {megabytes}M /dev/zero | tr '\\0' x >&2\nexec /bin/{name} \"$@\"\n")
    (folder / name).chmod(0o755)
    return {"PATH": f"{folder}:/usr/bin:/bin"}


def test_a_flood_of_complaints_is_cut(tmp_path: Path) -> None:
    """The first and the last are kept; how much was between is said."""
    command = "echo first >&2; head -c 40M /dev/zero | tr '\\0' x >&2; echo; echo last >&2; exit 3"
    with pytest.raises(CommandError) as caught:
        LocalCommandRunner().run(["sh", "-c", command], hide=True)
    assert caught.value.exit_code == 3
    assert len(caught.value.stderr) < (1 << 20) + 100
    assert caught.value.stderr.startswith("first\n")
    assert caught.value.stderr.endswith("last\n")
    assert f"[{(40 << 20) + 11 - (1 << 20)} bytes left out]" in caught.value.stderr


def test_what_is_kept_is_whole_up_to_its_limit() -> None:
    kept = _bounded.BoundedOutput(10)
    for number in range(10):
        kept.add(b"%d" % number)
    assert kept.text() == "0123456789"
    kept.add(b"abc")
    assert kept.text() == "01234\n[3 bytes left out]\n89abc"


def test_a_flood_of_complaints_ends_a_transfer(new_server: NewServer, connect: Connect, tmp_path: Path) -> None:
    """Nobody would read them."""
    board = connect(new_server(environment=flooding(tmp_path / "bin", "cat", 200)))
    (tmp_path / "source").write_bytes(b"content")
    with fault(TransferError, "printed more than 64 MiB and was stopped", within_s=30):
        board.get(tmp_path / "source", tmp_path / "target")
    assert not (tmp_path / "target").exists()


def test_a_file_without_end_does_not_fill_the_disk(
    board: SSHCommandRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is on the disk when it is stopped is removed."""
    monkeypatch.setattr(_ssh_transfer, "_MOST_FETCHED_BYTES", 20 << 20)
    (tmp_path / "board").mkdir()
    with (tmp_path / "board/endless").open("wb") as file:
        # The board goes on hashing what nobody reads: no longer than a second.
        file.truncate(1 << 30)
    with fault(TransferError, "sent more than 20 MiB", "stopped", within_s=20):
        board.get(tmp_path / "board/endless", tmp_path / "here/endless")
    assert list((tmp_path / "here").iterdir()) == []


def test_a_transfer_of_one_byte_at_a_time_ends(
    new_server: NewServer, connect: Connect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It moves, and gets nowhere."""
    monkeypatch.setattr(_ssh_transfer, "_STALLED_S", 1.0)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/cat").write_text("#!/bin/sh\nwhile :; do printf x; sleep 0.1; done\n")
    (tmp_path / "bin/cat").chmod(0o755)
    board = connect(new_server(environment={"PATH": f"{tmp_path}/bin:/usr/bin:/bin"}))
    (tmp_path / "source").touch()
    with fault(TransferError, "has hardly moved for 1 s", within_s=15):
        board.get(tmp_path / "source", tmp_path / "target")


def test_a_shell_that_does_not_stop_talking_is_no_shell(new_server: NewServer, connect: Connect) -> None:
    """Whatever it is asked."""
    with fault(ConnectError, "its shell does not stop talking", within_s=30):
        connect(new_server(settings=["ForceCommand yes"])).run(["true"], hide=True)


def test_a_probe_says_no_more_than_a_board_would() -> None:
    """Numbers that are none, lines and texts without end."""
    said = "cores=" + "9" * 5000 + "\nmemory_kib=²\nos=" + "x" * 10**6 + "\n" + "accelerator=gpu\n" * 10**5
    spec = spec_of(parse_probe(said))
    assert (spec.cores, spec.memory_bytes) == (None, None)
    assert len(spec.os or "") <= 10_000
    assert len(spec.accelerators) <= 500
