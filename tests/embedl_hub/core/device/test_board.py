"""The hub's folders on a board: run folders, and contents that are sent once."""

import hashlib
import os
import stat
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.names import NAMES
from support.sshd import SSHServer

from embedl_hub.core.device import Board, CommandResult, CommandRunner, Device, DeviceSpec, SSHCommandRunner
from embedl_hub.errors import CommandError, HubError, TransferError
from embedl_hub.paths import RemotePath

MIB = 1 << 20


class Counting:
    """A runner that counts what goes through it."""

    def __init__(self, runner: CommandRunner) -> None:
        self._runner = runner
        self.commands = self.puts = 0

    def run(
        self,
        argv: Sequence[str | os.PathLike[str]],
        cwd: str | os.PathLike[str] | None = None,
        *,
        hide: bool = False,
        timeout_s: float | None = None,
    ) -> CommandResult:
        self.commands += 1
        return self._runner.run(argv, cwd, hide=hide, timeout_s=timeout_s)

    def put(self, local: str | os.PathLike[str], remote: str | os.PathLike[str]) -> None:
        self.puts += 1
        self._runner.put(local, remote)

    def get(self, remote: str | os.PathLike[str], local: str | os.PathLike[str]) -> None:
        self._runner.get(remote, local)

    def reset(self) -> None:
        self.commands = self.puts = 0


@pytest.fixture
def counting(runner: CommandRunner) -> Counting:
    """Both runners that ship, in turn, counted."""
    return Counting(runner)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The artifact root on the board."""
    return tmp_path / "artifact root"


def board_at(root: Path, runner: CommandRunner, **changes: object) -> Board:
    device = Device("board", runner=runner, artifact_root=root, **changes)  # type: ignore[arg-type]
    return Board(device, runner)


def content(path: Path, data: bytes) -> tuple[Path, str]:
    """Write a file and return it with its hash."""
    path.write_bytes(data)
    return path, hashlib.sha256(data).hexdigest()


def test_the_root_is_made_and_private(counting: Counting, root: Path) -> None:
    """It is made at first use, for this account alone, and asked for once."""
    board = board_at(root, counting)
    assert counting.commands == 0
    assert board.root() == board.root() == RemotePath(root)
    assert stat.S_IMODE(root.stat().st_mode) == 0o700
    assert counting.commands == 1


def test_the_board_is_asked_once_what_it_is(counting: Counting, root: Path) -> None:
    """The same question as for the root; what the user said stays."""
    board = board_at(root, counting, spec=DeviceSpec(device_name="Mine"))
    spec = board.spec()
    board.spec()
    board.root()

    assert (spec.device_name, counting.commands) == ("Mine", 1)
    assert spec.architecture
    assert spec.cores


def test_the_root_is_in_the_accounts_cache_when_not_given(ssh_server: SSHServer, board: SSHCommandRunner) -> None:
    """Nothing is left lying about in a home folder."""
    assert Board(Device("board", runner=board), board).root() == RemotePath(ssh_server.home / ".cache/edgeproof")


def test_a_root_that_cannot_be_is_said_so(counting: Counting, tmp_path: Path) -> None:
    """The message has the path."""
    (tmp_path / "file").touch()
    with pytest.raises(CommandError, match="file/root"):
        board_at(tmp_path / "file/root", counting).root()


def test_run_folders_are_made_once_and_removed(counting: Counting, root: Path) -> None:
    """clean() takes what this board made, and nothing else."""
    board = board_at(root, counting)
    folder = board.run_dir("one")
    assert folder == board.run_dir("one") == RemotePath(root) / "runs/one"
    assert counting.commands == 2
    board.run_dir("two")
    (root / "runs/somebody-elses").mkdir()
    (root / "runs/one/sub").mkdir()
    (root / "runs/one/sub/-rf $(x)").touch()
    board.clean()

    assert [path.name for path in (root / "runs").iterdir()] == ["somebody-elses"]
    counting.reset()
    board.clean()
    assert counting.commands == 0
    board.run_dir("one")
    assert (root / "runs/one").is_dir()


def test_run_folders_are_private(counting: Counting, root: Path) -> None:
    """Other accounts of the board do not see a user's models."""
    board_at(root, counting).run_dir("one")

    assert stat.S_IMODE((root / "runs/one").stat().st_mode) == 0o700


def test_a_content_is_sent_once(counting: Counting, root: Path, tmp_path: Path) -> None:
    """The first time it is uploaded; after that it costs one question."""
    path, sha256 = content(tmp_path / "model.onnx", b"weights" * 1000)
    board = board_at(root, counting)
    target = board.send(path, sha256, "model.onnx")
    assert target == RemotePath(root) / "store" / sha256 / "model.onnx"
    assert Path(target).read_bytes() == path.read_bytes()
    assert counting.puts == 1

    counting.reset()
    assert board.send(path, sha256, "model.onnx") == target
    assert (counting.commands, counting.puts) == (1, 0)

    counting.reset()
    board_at(root, counting).send(path, sha256, "model.onnx")
    assert (counting.commands, counting.puts) == (2, 0)


def test_another_name_for_a_content_is_not_sent(counting: Counting, root: Path, tmp_path: Path) -> None:
    """The bytes are there; a second name costs a link."""
    path, sha256 = content(tmp_path / "model.onnx", b"weights" * 1000)
    board = board_at(root, counting)
    board.send(path, sha256, "model.onnx")
    counting.reset()
    for name in NAMES:
        target = board.send(path, sha256, name)
        assert Path(target).read_bytes() == path.read_bytes()

    assert (counting.commands, counting.puts) == (len(NAMES), 0)
    assert {path.name for path in (root / "store" / sha256).iterdir()} == {*NAMES, "model.onnx"}


@pytest.mark.parametrize("name", NAMES, ids=lambda name: ascii(name[:30]))
def test_a_content_of_any_name_is_sent(board: SSHCommandRunner, root: Path, tmp_path: Path, name: str) -> None:
    """And found again under it."""
    path, sha256 = content(tmp_path / "file", b"data")
    counting = Counting(board)
    sender = board_at(root, counting)
    assert Path(sender.send(path, sha256, name)) == root / "store" / sha256 / name
    assert (root / "store" / sha256 / name).read_bytes() == b"data"
    sender.send(path, sha256, name)
    assert counting.puts == 1


def test_a_folder_is_a_content_too(counting: Counting, root: Path, tmp_path: Path) -> None:
    """A model with external data is sent whole, once."""
    (tmp_path / "model").mkdir()
    for name in ("model.onnx", "model.data"):
        (tmp_path / "model" / name).write_text(name)
    board = board_at(root, counting)
    target = board.send(tmp_path / "model", "f" * 64, "model")
    assert {path.name for path in Path(target).iterdir()} == {"model.onnx", "model.data"}

    counting.reset()
    board.send(tmp_path / "model", "f" * 64, "model")
    assert (counting.commands, counting.puts) == (1, 0)


def test_an_upload_under_way_is_no_content(counting: Counting, root: Path, tmp_path: Path) -> None:
    """What somebody else is still sending, or left half sent, is never taken for the content."""
    path, sha256 = content(tmp_path / "model.onnx", b"weights" * 1000)
    board = board_at(root, counting)
    board.root()
    other = threading.Event()
    sent_half = threading.Event()

    class Halfway(Counting):
        """A runner that stops in the middle of an upload."""

        def put(self, local: str | os.PathLike[str], remote: str | os.PathLike[str]) -> None:
            part = Path(remote).parent / ".0123456789ab.part"
            part.parent.mkdir(parents=True)
            part.write_bytes(Path(local).read_bytes()[:100])
            sent_half.set()
            other.wait(30)
            super().put(local, remote)

    slow = threading.Thread(target=lambda: board_at(root, Halfway(counting)).send(path, sha256, "slow.onnx"))
    slow.start()
    sent_half.wait(30)
    target = board.send(path, sha256, "model.onnx")
    assert Path(target).read_bytes() == path.read_bytes()
    other.set()
    slow.join()
    assert (root / "store" / sha256 / "slow.onnx").read_bytes() == path.read_bytes()


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_several_senders_of_one_content_do_not_meet(counting: Counting, root: Path, tmp_path: Path, kind: str) -> None:
    """Sent at once from several threads, it is there for all of them."""
    path, sha256 = content(tmp_path / "file", os.urandom(4 * MIB))
    if kind == "folder":
        (tmp_path / "folder").mkdir()
        path.rename(tmp_path / "folder/file")
        path = tmp_path / "folder"
    failures: list[BaseException] = []

    def send() -> None:
        try:
            board_at(root, counting).send(path, sha256, "name")
        except HubError as error:
            failures.append(error)

    threads = [threading.Thread(target=send) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert failures == []
    assert [path.name for path in (root / "store" / sha256).iterdir()] == ["name"]


def test_a_failed_upload_is_an_error(counting: Counting, root: Path, tmp_path: Path) -> None:
    """Nothing is claimed to be there that is not."""
    with pytest.raises(TransferError, match="missing"):
        board_at(root, counting).send(tmp_path / "missing", "0" * 64, "name")

    assert not (root / "store" / ("0" * 64) / "name").exists()


@pytest.fixture
def filled(counting: Counting, root: Path, tmp_path: Path) -> tuple[Board, list[str]]:
    """A store capped at five MiB that holds four contents of one MiB, used hours ago, the first one last."""
    board = board_at(root, counting, store_cap_bytes=5 * MIB)
    hashes = []
    for number in range(4):
        path, sha256 = content(tmp_path / f"file{number}", os.urandom(MIB))
        board.send(path, sha256, "file")
        hashes.append(sha256)
    for hours, number in enumerate([0, 3, 2, 1], start=2):
        subprocess.run(["touch", "-d", f"{hours} hours ago", str(root / "store" / hashes[number])], check=True)
    counting.reset()
    return board, hashes


def stored(root: Path) -> set[str]:
    return {path.name for path in (root / "store").iterdir()}


def test_the_least_recently_used_contents_are_trimmed(
    filled: tuple[Board, list[str]], root: Path, tmp_path: Path
) -> None:
    """Over its cap the store loses what was used longest ago, and only as much as it must."""
    board, hashes = filled
    path, sha256 = content(tmp_path / "new", os.urandom(2 * MIB + 200_000))
    board.send(path, sha256, "file")

    assert stored(root) == {sha256, hashes[0], hashes[3]}


def test_a_content_asked_for_counts_as_used(filled: tuple[Board, list[str]], root: Path, tmp_path: Path) -> None:
    """A hit keeps it from being trimmed next."""
    board, hashes = filled
    board.send(tmp_path / "file1", hashes[1], "file")
    path, sha256 = content(tmp_path / "new", os.urandom(3 * MIB))
    board.send(path, sha256, "file")

    assert hashes[1] in stored(root)
    assert hashes[2] not in stored(root)


def test_what_was_just_sent_is_never_trimmed(filled: tuple[Board, list[str]], root: Path, tmp_path: Path) -> None:
    """A content larger than the cap is there all the same."""
    board, _ = filled
    path, sha256 = content(tmp_path / "new", os.urandom(6 * MIB))
    target = board.send(path, sha256, "file")

    assert Path(target).read_bytes() == path.read_bytes()
    assert stored(root) == {sha256}


def test_what_was_used_within_the_hour_is_never_trimmed(counting: Counting, root: Path, tmp_path: Path) -> None:
    """Another run may be using it right now."""
    board = board_at(root, counting, store_cap_bytes=MIB)
    hashes = set()
    for number in range(3):
        path, sha256 = content(tmp_path / f"file{number}", os.urandom(MIB))
        board.send(path, sha256, "file")
        hashes.add(sha256)

    assert stored(root) == hashes
