"""Files over SSH when something goes wrong: an error or a whole file, never a part of one."""

import hashlib
import os
import random
import secrets
import shutil
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from support.faults import fault
from support.processes import open_files, wait_until
from support.sshd import SSHServer

from embedl_hub.core.device import SSHCommandRunner, _ssh_transfer
from embedl_hub.core.device._ssh_transfer import _FollowingHash
from embedl_hub.errors import ConnectError, TransferError

NewServer: TypeAlias = Callable[..., SSHServer]
Connect: TypeAlias = Callable[..., SSHCommandRunner]

LARGE_BYTES = 200_000_000


@pytest.fixture(scope="session")
def large_file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A file that takes a moment to move."""
    path = tmp_path_factory.mktemp("large") / "large.bin"
    path.write_bytes(secrets.token_bytes(LARGE_BYTES // 200) * 200)
    yield path
    path.unlink()


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def parts(folder: Path) -> list[Path]:
    """Return what a transfer that is under way, or was cut off, has in a folder."""
    return [path for path in folder.iterdir() if path.suffix in {".part", ".stream"}] if folder.is_dir() else []


def moved_bytes(folder: Path) -> int:
    """Return how far a transfer into a folder is."""
    size = 0
    for path in parts(folder):
        try:
            size += path.stat().st_size
        except FileNotFoundError:
            continue
    return size


@pytest.mark.parametrize("way", ["put", "get"])
@pytest.mark.parametrize("moment", random.Random(3).sample(range(5, 95), 3))  # noqa: S311 - moments, not secrets
def test_a_server_killed_in_the_middle_leaves_no_part(
    new_server: NewServer, connect: Connect, tmp_path: Path, large_file: Path, way: str, moment: int
) -> None:
    """A clear error in time; no file under the final name, and no leftovers on either side."""
    server = new_server()
    runner = connect(server)
    runner.run(["true"], hide=True)
    folder = tmp_path / "target"

    def kill_at_the_moment() -> None:
        wait_until(lambda: moved_bytes(folder) > LARGE_BYTES * moment // 100, 60)
        server.kill()

    killer = threading.Thread(target=kill_at_the_moment)
    killer.start()
    with fault(ConnectError, "was lost during a transfer", "Is sshd running there", within_s=30):
        getattr(runner, way)(large_file, folder / "file")
    killer.join()

    assert not (folder / "file").exists()
    # The watch on the board does it by itself; how soon, a busy machine decides.
    wait_until(lambda: not parts(folder), 30)


@pytest.mark.parametrize("way", ["put", "get"])
@pytest.mark.parametrize("moment", random.Random(4).sample(range(5, 95), 2))  # noqa: S311 - moments, not secrets
def test_a_transfer_is_completed_when_the_server_comes_back(
    new_server: NewServer, connect: Connect, tmp_path: Path, large_file: Path, way: str, moment: int
) -> None:
    """A connection lost in the middle is made anew, and the file arrives whole."""
    server = new_server()
    runner = connect(server)
    runner.run(["true"], hide=True)
    folder = tmp_path / "target"

    def restart_at_the_moment() -> None:
        wait_until(lambda: moved_bytes(folder) > LARGE_BYTES * moment // 100, 60)
        server.kill()
        server.start()

    restarter = threading.Thread(target=restart_at_the_moment)
    restarter.start()
    getattr(runner, way)(large_file, folder / "file")
    restarter.join()

    assert digest(folder / "file") == digest(large_file)
    wait_until(lambda: not parts(folder), 30)


@pytest.mark.parametrize("way", ["put", "get"])
def test_a_folder_cut_off_in_the_middle_is_completed(
    new_server: NewServer, connect: Connect, tmp_path: Path, large_file: Path, way: str
) -> None:
    """Folders are tried again as files are."""
    server = new_server()
    runner = connect(server)
    source, folder = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    shutil.copyfile(large_file, source / "large")
    (source / "small").write_text("small")

    def drop_at_the_moment() -> None:
        wait_until(lambda: _size_below(folder) > LARGE_BYTES // 2, 60)
        server.drop_sessions()

    dropper = threading.Thread(target=drop_at_the_moment)
    dropper.start()
    getattr(runner, way)(source, folder / "copy")
    dropper.join()

    for path in source.iterdir():
        assert digest(folder / "copy" / path.name) == digest(path)
    wait_until(lambda: not parts(folder), 30)


def _size_below(folder: Path) -> int:
    size = 0
    for path in folder.rglob("*"):
        try:
            size += path.stat().st_size
        except FileNotFoundError:
            continue
    return size


def test_a_failed_transfer_leaves_no_thread_and_no_file_open(
    new_server: NewServer, connect: Connect, tmp_path: Path, large_file: Path
) -> None:
    """What followed the file along ends with the transfer."""
    runner = connect(new_server())
    runner.run(["true"], hide=True)
    (tmp_path / "file").write_bytes(b"in the way")
    threads, files = threading.active_count(), open_files()
    for _ in range(3):
        with pytest.raises(TransferError):
            runner.put(large_file, tmp_path / "file/below")
        with pytest.raises(TransferError):
            runner.get("/nowhere", tmp_path / "back")

    assert (threading.active_count(), open_files()) == (threads, files)


def test_an_interrupt_ends_a_transfer(
    new_server: NewServer, connect: Connect, tmp_path: Path, large_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C in the middle leaves no part on either side."""
    runner = connect(new_server())
    runner.run(["true"], hide=True)
    folder = tmp_path / "target"

    def interrupt(_: object) -> None:
        if moved_bytes(folder) > LARGE_BYTES // 10:
            raise KeyboardInterrupt

    def watched(self: Any, session: Any, position: Callable[[], int], *_: object) -> object:
        return finish(self, session, position, interrupt)

    finish = _ssh_transfer.Transfer._finish
    monkeypatch.setattr(_ssh_transfer.Transfer, "_finish", watched)
    for transfer in (runner.put, runner.get):
        started = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            transfer(large_file, folder / "file")
        assert time.monotonic() - started < 10
        wait_until(lambda: not parts(folder), 30)
        assert not (folder / "file").exists()


def test_a_transfer_that_does_not_move_is_ended(
    new_server: NewServer, connect: Connect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A board that stops reading is given up after a while."""
    monkeypatch.setattr(_ssh_transfer, "_STALLED_S", 1.0)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/cat").write_text("#!/bin/sh\nsleep 60\n")
    (tmp_path / "bin/cat").chmod(0o755)
    server = new_server(environment={"PATH": f"{tmp_path}/bin:/usr/bin:/bin"})
    (tmp_path / "file").write_bytes(bytes(1 << 24))
    with fault(TransferError, "has hardly moved for 1 s", "overloaded", within_s=15):
        connect(server).put(tmp_path / "file", tmp_path / "there")


@pytest.mark.parametrize("size", [9 << 20, 40 << 20], ids=["small", "large"])
def test_a_full_disk_is_said_so(board: SSHCommandRunner, small_disk: Path, tmp_path: Path, size: int) -> None:
    """The message says what to do, the old file stays, and the disk is free again."""
    (tmp_path / "file").write_bytes(bytes(size))
    (small_disk / "file").write_bytes(b"old")
    with fault(TransferError, "No space left on device", "df -h", "artifact_root", within_s=20):
        board.put(tmp_path / "file", small_disk / "file")

    assert {path.name: path.read_bytes() for path in small_disk.iterdir()} == {"file": b"old"}


def test_a_full_disk_is_said_so_for_a_folder(board: SSHCommandRunner, small_disk: Path, tmp_path: Path) -> None:
    """Nothing of the folder stays."""
    (tmp_path / "folder").mkdir()
    for number in range(10):
        (tmp_path / "folder" / str(number)).write_bytes(bytes(1 << 20))
    with fault(TransferError, "No space left on device", "df -h", within_s=20):
        board.put(tmp_path / "folder", small_disk / "folder")

    assert list(small_disk.iterdir()) == []


def test_a_full_disk_here_is_said_so(board: SSHCommandRunner, small_disk: Path, tmp_path: Path) -> None:
    """Fetching more than fits is an error of the transfer, and leaves nothing."""
    (tmp_path / "file").write_bytes(bytes(9 << 20))
    with fault(TransferError, "no space left here", "df -h", within_s=20):
        board.get(tmp_path / "file", small_disk / "file")

    assert list(small_disk.iterdir()) == []


@pytest.mark.parametrize("size", [1000, 40 << 20], ids=["small", "large"])
def test_a_damaged_file_never_gets_its_name(new_server: NewServer, connect: Connect, tmp_path: Path, size: int) -> None:
    """Bytes that arrive differently are noticed, both ways."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/cat").write_text("#!/bin/sh\nexec tr '\\000' '\\001'\n")
    (tmp_path / "bin/cat").chmod(0o755)
    server = new_server(environment={"PATH": f"{tmp_path}/bin:/usr/bin:/bin"})
    runner = connect(server)
    (tmp_path / "file").write_bytes(bytes(size))
    folder = tmp_path / "target"
    with fault(TransferError, "arrived", "again", within_s=20):
        runner.put(tmp_path / "file", folder / "file")
    with fault(TransferError, "arrived", "again", within_s=20):
        runner.get(tmp_path / "file", folder / "file")

    assert list(folder.iterdir()) == []


def test_a_damaged_folder_never_gets_its_name(new_server: NewServer, connect: Connect, tmp_path: Path) -> None:
    """A tar that loses something is noticed, both ways."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/tar").write_text('#!/bin/sh\n/usr/bin/tar --exclude=two "$@"\n')
    (tmp_path / "bin/tar").chmod(0o755)
    server = new_server(environment={"PATH": f"{tmp_path}/bin:/usr/bin:/bin"})
    runner = connect(server)
    source, folder = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    for name in ("one", "two"):
        (source / name).write_text(name)
    with fault(TransferError, "damaged or incomplete", "again", within_s=20):
        runner.put(source, folder / "copy")
    with fault(TransferError, "sent", "arrived", "again", within_s=20):
        runner.get(source, folder / "copy")

    assert list(folder.iterdir()) == []


# Another user may have left a file of any other name there.
OUTSIDE = f"/tmp/edgeproof-hostile-{os.getuid()}"
HOSTILE = {
    "../x": tarfile.REGTYPE,
    OUTSIDE: tarfile.REGTYPE,
    "link out": tarfile.SYMTYPE,
    "hard link out": tarfile.LNKTYPE,
    "device": tarfile.CHRTYPE,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_is_refused(new_server: NewServer, connect: Connect, tmp_path: Path, name: str) -> None:
    """End to end: a board whose tar lies writes nothing outside of the target, and nothing inside either."""
    stream = BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        entry = tarfile.TarInfo(name)
        entry.type, entry.linkname = HOSTILE[name], "../../secret"
        entry.size = 4 if entry.isreg() else 0
        archive.addfile(entry, BytesIO(b"evil"))
    (tmp_path / "stream.tar").write_bytes(stream.getvalue())
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/tar").write_text(f"#!/bin/sh\nexec cat '{tmp_path}/stream.tar'\n")
    (tmp_path / "bin/tar").chmod(0o755)
    (tmp_path / "work").mkdir()
    runner = connect(new_server(environment={"PATH": f"{tmp_path}/bin:/usr/bin:/bin"}))
    with fault(TransferError, "refused", within_s=10):
        runner.get(tmp_path / "bin", tmp_path / "work/target")

    assert list((tmp_path / "work").iterdir()) == []
    assert not Path(OUTSIDE).exists()


@pytest.mark.parametrize(
    ("aim", "kept"),
    [("file", True), ("sub", True), (".", True), ("sub/../file", True), ("../outside", False), ("/etc", False)],
)
def test_links_of_a_boards_folder(board: SSHCommandRunner, tmp_path: Path, aim: str, kept: bool) -> None:
    """Links that stay inside of the folder are kept as links, loops included; those that lead out are refused."""
    source = tmp_path / "source"
    (source / "sub").mkdir(parents=True)
    (source / "file").write_text("data")
    (source / "link").symlink_to(aim)
    target = tmp_path / "target"
    if kept:
        board.get(source, target)
        assert (target / "link").readlink() == Path(aim)
        assert (target / "file").read_text() == "data"
    else:
        with fault(TransferError, "leads out", "refused", within_s=10):
            board.get(source, target)
        assert not target.exists()


def test_a_board_without_tar_takes_files_and_says_so_for_folders(
    new_server: NewServer, connect: Connect, tmp_path: Path
) -> None:
    """The message tells the way out."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for path in Path("/usr/bin").iterdir():
        if path.name not in {"tar", "bsdtar"}:
            (programs / path.name).symlink_to(path)
    runner = connect(new_server(environment={"PATH": str(programs)}))
    (tmp_path / "file").write_text("data")
    runner.put(tmp_path / "file", tmp_path / "there")
    assert (tmp_path / "there").read_text() == "data"
    with fault(TransferError, "no tar on the board", "one by one", within_s=10):
        runner.put(programs, tmp_path / "folder")


def test_a_folder_that_may_not_be_used_is_said_so(board: SSHCommandRunner, tmp_path: Path) -> None:
    """A place that takes no files at all, whoever asks."""
    (tmp_path / "file").write_text("data")
    with fault(TransferError, "/proc/edgeproof/file", within_s=10):
        board.put(tmp_path / "file", "/proc/edgeproof/file")


def test_following_a_file_hashes_what_comes(tmp_path: Path) -> None:
    """The hash of a file that grows is that of its whole content."""
    path = tmp_path / "file"
    with path.open("wb", buffering=0) as file:
        following = _FollowingHash(path)
        for _ in range(20):
            file.write(b"x" * 100_000)
        result = following.result()

    assert result == digest(path)
