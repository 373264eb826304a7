"""Sessions on a real master, and sockets that are none."""

import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.processes import open_files, running, unique_sleep, wait_until

from embedl_hub.core.device import SSHCommandRunner, _ssh_mux
from embedl_hub.core.device._ssh_mux import MasterGoneError, Session, ask_to_exit, is_alive


@pytest.fixture
def master(board: SSHCommandRunner) -> str:
    """The control socket of a master that is connected."""
    board.run(["true"], hide=True)
    return board._connection._socket_path


@pytest.fixture
def false_socket(tmp_path: Path) -> Iterator[str]:
    """A socket that accepts and never answers."""
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        yield str(path)


def close(session: Session) -> None:
    for stream in (session.stdin, session.stdout, session.stderr):
        if stream is not None:
            stream.close()


def test_a_session_is_a_process(master: str) -> None:
    """It reads, prints, complains and ends with a code."""
    session = Session(master, "cat; echo err >&2; exit 7")
    assert session.poll() is None
    assert session.stdin is not None
    assert session.stdout is not None
    assert session.stderr is not None
    session.stdin.write(b"through")
    session.stdin.close()

    assert (session.stdout.read(), session.stderr.read()) == (b"through", b"err\n")
    assert session.wait(10) == session.wait() == session.poll() == session.returncode == 7
    assert not session.is_lost
    close(session)


def test_a_session_reads_and_writes_files_by_itself(master: str, tmp_path: Path) -> None:
    """The master uses our files directly; how far it is shows in their offset."""
    (tmp_path / "in").write_bytes(b"content")
    with (tmp_path / "in").open("rb") as source, (tmp_path / "out").open("wb") as target:
        session = Session(master, "cat", stdin=source, stdout=target)
        assert session.wait(10) == 0
        assert os.lseek(source.fileno(), 0, os.SEEK_CUR) == len(b"content")
    close(session)

    assert (tmp_path / "out").read_bytes() == b"content"
    assert (session.stdin, session.stdout) == (None, None)


def test_waiting_has_a_limit(master: str) -> None:
    """As for a process."""
    session = Session(master, "sleep 60", stdin=subprocess.DEVNULL)
    started = time.monotonic()
    with pytest.raises(subprocess.TimeoutExpired):
        session.wait(0.1)
    assert 0.05 < time.monotonic() - started < 2
    session.kill()
    assert (session.returncode, session.is_lost, session.wait()) == (255, True, 255)
    close(session)


def test_a_killed_sessions_input_ends_on_the_board(master: str) -> None:
    """Closing our end is what a watch on the other side notices."""
    sleep = unique_sleep()
    session = Session(master, f"{' '.join(sleep)} & child=$!; cat; kill $child")
    wait_until(lambda: running(sleep), 10)
    session.kill()
    wait_until(lambda: not running(sleep), 5)
    close(session)


def test_a_session_leaves_no_file_open(master: str) -> None:
    """Neither a good one nor a failed one."""
    before = open_files()
    for _ in range(5):
        session = Session(master, "true")
        session.wait(10)
        close(session)
        with pytest.raises(MasterGoneError):
            Session(f"{master}-gone", "true")
    assert open_files() == before


@pytest.mark.parametrize("kind", ["missing", "left behind"])
def test_a_socket_without_a_master_is_told(tmp_path: Path, kind: str) -> None:
    """A master that is gone cannot have started anything."""
    path = str(tmp_path / "s")
    if kind == "left behind":
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
    with pytest.raises(MasterGoneError):
        Session(path, "true")
    assert not is_alive(path)
    ask_to_exit(path)


def test_a_master_that_hangs_is_as_good_as_gone(false_socket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits forever for a stopped ssh process."""
    monkeypatch.setattr(_ssh_mux, "_ANSWER_S", 0.2)
    started = time.monotonic()
    with pytest.raises(MasterGoneError):
        Session(false_socket, "true")
    assert not is_alive(false_socket)
    ask_to_exit(false_socket)
    assert time.monotonic() - started < 5


def test_another_protocol_is_told(tmp_path: Path) -> None:
    """A future ssh with another control protocol gives a reason, not a riddle."""
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(100)
                connection.sendall(bytes([0, 0, 0, 8, 0, 0, 0, 1, 0, 0, 0, 5]))

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(MasterGoneError, match="another control protocol than 4"):
            Session(path, "true")
        thread.join()


def test_a_master_answers(master: str) -> None:
    """It can be asked whether it is there."""
    assert is_alive(master)
