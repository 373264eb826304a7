"""A lease where other accounts of the board are not friendly: the attacks, on the scripts as they run."""

import contextlib
import os
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.keepers import FORMS, SHELLS, Keeper

from embedl_hub.core import HubContext
from embedl_hub.core.device import Device, LeasingRunner, LocalCommandRunner, SSHCommandRunner, _lease
from embedl_hub.core.device._process import ProcessGroup
from embedl_hub.errors import BusyError, ConnectError, LeaseError

PRIVATE = "PRIVATE KEY 1234"
NewKeeper = Callable[..., Keeper]

every_form = pytest.mark.parametrize("form", FORMS)
every_shell = pytest.mark.parametrize("shell", SHELLS)
# Where a test has to wait, the shell of fewest features stands for the others.
one_shell_first = pytest.mark.parametrize(
    "shell", [pytest.param(shell, marks=() if shell == "dash" else pytest.mark.slow) for shell in SHELLS]
)


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    """The lock folder."""
    return tmp_path / "lease"


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """Something of ours that another account would like to see, or to have overwritten."""
    path = tmp_path / "secret"
    path.write_text(f"{PRIVATE}\n")
    return path


@pytest.fixture
def new_keeper(lock: Path) -> Iterator[NewKeeper]:
    """Start a keeper, ended with the test."""
    with contextlib.ExitStack() as stack:

        def start(form: str, shell: str, who: str, **options: Any) -> Keeper:
            keeper = Keeper(form, shell, lock, who, **options)
            stack.callback(keeper.close)
            return keeper

        yield start


def note_of(lock: Path) -> Path:
    """Return the holder's note, which the test may tamper with."""
    (note,) = (*lock.glob("holder.*"), *lock.glob("lock.*/holder"))
    return note


def shim(folder: Path, name: str, text: str) -> dict[str, str]:
    """Put a program before the real one of that name; ``$real`` in the text is the real one."""
    folder.mkdir(exist_ok=True)
    real = next(path for path in (Path("/usr/bin", name), Path("/bin", name)) if path.exists())
    (folder / name).write_text(f"#!/bin/sh\nreal={real}\n{text}")
    (folder / name).chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}"}


def test_a_note_is_not_read_through_a_link(runner: LeasingRunner, lock: Path, secret: Path) -> None:
    """Nothing of the file behind it is in the error."""
    with LocalCommandRunner().lease(str(lock), "me", wait_s=1):
        note_of(lock).unlink()
        (lock / "holder.1").symlink_to(secret)
        (lock / "holder").symlink_to(secret)
        with pytest.raises(BusyError) as caught, runner.lease(str(lock), "you", wait_s=1):
            pass
    assert PRIVATE not in str(caught.value)
    assert caught.value.holder == "an unknown user"


@every_form
@every_shell
def test_a_keeper_does_not_read_a_note_through_a_link(
    new_keeper: NewKeeper, lock: Path, secret: Path, form: str, shell: str
) -> None:
    """Whether the link is there before it looks, or takes the note's place after it looked."""
    assert new_keeper(form, shell, "me").line() == "held"
    note = note_of(lock)
    note.unlink()
    note.symlink_to(secret)
    waits = new_keeper(form, shell, "you")
    assert [waits.line(), waits.line()] == ["busy ", "late "]

    note.unlink()
    note.write_text("me")
    # readlink comes between the opening and the reading; the file it was asked of was a link to the secret.
    swap = f'rm -f "{note}"; "$real" "$@"'
    environment = shim(lock.parent / "bin", "readlink", swap)
    waits = new_keeper(form, shell, "you", environment=environment)
    assert PRIVATE not in waits.line() + waits.line()


@every_form
@every_shell
def test_a_note_cannot_speak_for_the_keeper(new_keeper: NewKeeper, lock: Path, form: str, shell: str) -> None:
    r"""A shell whose echo reads ``\n`` would make a line "held" of it, and two of one holder."""
    assert new_keeper(form, shell, "me").line() == "held"
    note_of(lock).unlink()
    (lock / "holder.1" if form == "flock" else lock / "lock.1/holder").write_text(
        "bert\\nheld\x1b]0;title\x07\nheld\n" + "x" * 5000
    )
    waits = new_keeper(form, shell, "you")
    assert [waits.line(), waits.line()] == [r"busy bert\nheld]0;title", r"late bert\nheld]0;title"]


@pytest.mark.parametrize("text", ["\x1b[31mbert\x1b]0;owned\x07\x9b2J\u202e", "x" * 5000], ids=["escapes", "long"])
def test_a_note_is_shown_in_part(runner: LeasingRunner, lock: Path, text: str) -> None:
    """At most 200 bytes, all of them printable."""
    with LocalCommandRunner().lease(str(lock), "me", wait_s=1):
        note_of(lock).unlink()
        (lock / "holder.1").write_text(text)
        with pytest.raises(BusyError) as caught, runner.lease(str(lock), "you", wait_s=1):
            pass
    assert caught.value.holder.isprintable()
    assert 0 < len(caught.value.holder) <= 200


def test_a_note_that_is_a_pipe_is_not_waited_for(runner: LeasingRunner, lock: Path) -> None:
    """Nobody ever writes into it."""
    with LocalCommandRunner().lease(str(lock), "me", wait_s=1):
        note_of(lock).unlink()
        os.mkfifo(lock / "holder.1")
        started = time.monotonic()
        with pytest.raises(BusyError, match="an unknown user"), runner.lease(str(lock), "you", wait_s=1):
            pass
        assert time.monotonic() - started < 5


def test_what_takes_the_folders_place_keeps_its_mode(
    lock: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link to a private folder, put there between the making and the opening of it."""
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    make = os.mkdir

    def make_and_swap(path: str | Path, mode: int = 0o777) -> None:
        make(path, mode)
        if Path(path) == lock:
            lock.rmdir()
            lock.symlink_to(private)

    monkeypatch.setattr(os, "mkdir", make_and_swap)
    with pytest.raises(LeaseError), LocalCommandRunner().lease(str(lock), "me", wait_s=1):
        pass
    assert stat.S_IMODE(private.stat().st_mode) == 0o700
    assert list(private.iterdir()) == []


@every_form
@every_shell
def test_a_keeper_leaves_what_takes_the_folders_place(
    new_keeper: NewKeeper, lock: Path, tmp_path: Path, form: str, shell: str
) -> None:
    """The same on a board."""
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    swap = f'"$real" "$@"; case $* in *{lock}) rmdir "{lock}"; ln -s "{private}" "{lock}" ;; esac'
    # busybox has its own mkdir, which nothing on PATH replaces.
    environment = shim(tmp_path / "bin", "mkdir", swap)
    keeper = new_keeper(form, shell, "me", environment=environment)
    said = keeper.line()
    assert said == f"refused: {lock} is a link" or (shell == "busybox" and said == "held")
    assert stat.S_IMODE(private.stat().st_mode) == 0o700
    assert list(private.iterdir()) == []


@every_form
@one_shell_first
def test_the_folder_is_open_to_all_and_sticky(new_keeper: NewKeeper, lock: Path, form: str, shell: str) -> None:
    """Whatever the umask; one of an earlier version gets the bit, one that is private stays so."""
    for mode in (None, 0o777, 0o700):
        if mode is not None:
            lock.chmod(mode)
        keeper = new_keeper(form, shell, "me", wait_s=5)
        assert keeper.line() == "held"
        keeper.let_go()
        assert stat.S_IMODE(lock.stat().st_mode) == (0o700 if mode == 0o700 else 0o1777)


@one_shell_first
def test_nothing_is_written_where_a_lease_was(new_keeper: NewKeeper, lock: Path, tmp_path: Path, shell: str) -> None:
    """The owner of the lock folder may rename what is in it, and put links to folders of ours there."""
    private = tmp_path / "private"
    private.mkdir()
    (private / "holder").write_text("precious")
    keeper = new_keeper("folder", shell, "me")
    assert keeper.line() == "held"
    (lock / "lock.1").rename(lock / "gone")
    (lock / "lock.1").symlink_to(private)
    keeper.beat()
    keeper.line()
    keeper.let_go()
    again = new_keeper("folder", shell, "me", wait_s=5, limit_s=1)
    assert [again.line(), again.line()] == ["busy ", "held"]
    assert [path.name for path in private.iterdir()] == ["holder"]
    assert (private / "holder").read_text() == "precious"


@every_shell
def test_a_number_that_begins_with_zero_is_none(new_keeper: NewKeeper, lock: Path, shell: str) -> None:
    """It would be octal, and 08 the end of the script."""
    for name in ("lock.08", "lock.0", "lock.007", "lock.9999999999999", "lock.x", "lock."):
        (lock / name).mkdir(parents=True)
    lock.chmod(0o1777)
    keeper = new_keeper("folder", shell, "me")
    assert keeper.line() == "held"
    assert (lock / "lock.1/holder").exists()
    assert (lock / "lock.08").exists()


@every_form
@one_shell_first
def test_a_clock_that_jumps_takes_nothing_from_a_holder(
    new_keeper: NewKeeper, lock: Path, tmp_path: Path, form: str, shell: str
) -> None:
    """Each look at the board's clock finds it an hour later."""
    count = tmp_path / "count"
    jump = f'echo x >> "{count}"; exec "$real" -d "@$(( $("$real" +%s) + 3600 * $(wc -l < "{count}") ))" "$@"'
    environment = shim(tmp_path / "bin", "date", jump)
    assert new_keeper(form, shell, "me").line() == "held"
    waits = new_keeper(form, shell, "you", wait_s=1, environment=environment)
    assert [waits.line()[:7], waits.line()[:7]] == ["busy me", "late me"]


@every_shell
def test_who_waited_for_a_folder_that_is_gone_does_not_hold_it(new_keeper: NewKeeper, lock: Path, shell: str) -> None:
    """Somebody cleaned up meanwhile, and another has the lease on the folder that is there now."""
    holds = new_keeper("flock", shell, "me")
    assert holds.line() == "held"
    waits = new_keeper("flock", shell, "you", wait_s=20)
    assert waits.line().startswith("busy me")
    lock.rename(lock.with_name("old"))
    other = new_keeper("flock", shell, "other")
    assert other.line() == "held"
    holds.let_go()
    assert waits.line() == f"refused: {lock} was replaced by another"


def test_who_waited_here_for_a_folder_that_is_gone_waits_for_the_new_one(lock: Path) -> None:
    """The same on this machine."""
    lock.mkdir()
    old = _lease._locked_folder(lock, 0)
    try:
        lock.rename(lock.with_name("old"))
        with (
            LocalCommandRunner().lease(str(lock), "other", wait_s=1),
            pytest.raises(BusyError, match="other since"),
            LocalCommandRunner().lease(str(lock), "me", wait_s=0.3),
        ):
            pass
    finally:
        os.close(old)


def test_a_holder_that_stood_still_knows_at_once(
    board: SSHCommandRunner, lock: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the board gives the lease away, and before any beat of its own can tell."""
    with board.lease(str(lock), "me", wait_s=1) as lease:
        assert not lease.is_lost
        now_s = _lease._now_s()
        monkeypatch.setattr(_lease, "_now_s", lambda: now_s + 18.5)
        seen = [lease.is_lost]
        monkeypatch.undo()
        assert [*seen, lease.is_lost] == [True, True]


@every_form
@one_shell_first
def test_a_silent_client_frees_the_board(new_keeper: NewKeeper, lock: Path, form: str, shell: str) -> None:
    """By the keeper's own limit, by its guard where read has none, or for want of beats."""
    keeper = new_keeper(form, shell, "me", limit_s=1)
    assert keeper.line() == "held"
    for _ in range(2):
        keeper.beat()
        assert keeper.line() == "beat"
    waits = new_keeper(form, shell, "you", wait_s=8, limit_s=1)
    assert waits.line().startswith("busy me since")
    assert waits.line() == "held"


@every_form
@one_shell_first
def test_a_board_that_has_just_started_settles(new_keeper: NewKeeper, tmp_path: Path, form: str, shell: str) -> None:
    """Whoever held it before may not know yet that it was cut off."""
    uptime = tmp_path / "uptime"
    uptime.write_text("1.52 3.04\n")
    keeper = new_keeper(form, shell, "me", limit_s=3, uptime=uptime)
    time.sleep(0.7)
    assert keeper.has_said() == []
    uptime.write_text("3.01 6.02\n")
    assert keeper.line() == "held"


@pytest.mark.parametrize(
    "answer",
    ["busy\n" * 5000, "x" * 100_000, "\x1b]0;x\x07\n", "held\n" * 9],
    ids=["busy without end", "a line without end", "an escape sequence", "held without a beat"],
)
def test_a_keeper_that_lies_is_an_error(answer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither memory nor patience without end, and nothing that a terminal would obey."""
    monkeypatch.setattr(_lease, "_START_S", 1.0)
    (tmp_path / "answer").write_text(answer)
    command = ["sh", "-c", 'cat "$1"; exec cat >&2', "keeper", str(tmp_path / "answer")]
    started = time.monotonic()
    with (
        pytest.raises((LeaseError, ConnectError)) as caught,
        _lease.keep_remote_lease(lambda: ProcessGroup(command), place="pi", wait_s=1),
    ):
        pass
    assert time.monotonic() - started < 9
    assert len(str(caught.value)) < 1000
    assert "\x1b" not in str(caught.value)


@pytest.mark.parametrize("pipe", ["1", "2"])
def test_a_keeper_that_has_ended_is_still_heard(pipe: str, tmp_path: Path) -> None:
    """Where it refused before the first beat could be sent, as on a busy machine, on either of its pipes."""

    def started() -> ProcessGroup:
        keeper = ProcessGroup(["sh", "-c", f"echo 'refused: {tmp_path} is a link' >&{pipe}"])
        keeper.wait(10)
        return keeper

    with (
        pytest.raises(LeaseError, match=r"could not be taken: refused: .* is a link"),
        _lease.keep_remote_lease(started, place="pi", wait_s=1),
    ):
        pass


def test_a_lease_that_was_lost_stops_the_holder(tmp_path: Path, board: SSHCommandRunner) -> None:
    """Nothing more is run on a board that may be somebody else's by now."""
    device = Device("pi", runner=board, lease_dir=str(tmp_path / "lease"), artifact_root=str(tmp_path / "root"))

    def use_and_lose(ctx: HubContext) -> None:
        with ctx.claim("pi") as held:
            assert held.runner is not None
            held.runner.run(["true"], hide=True)
            ctx._leases["pi"].lose()
            held.runner.run(["touch", str(tmp_path / "used")], hide=True)

    with HubContext("test", [device], home=tmp_path / "home") as ctx, pytest.raises(LeaseError, match="was lost"):
        use_and_lose(ctx)
    assert not (tmp_path / "used").exists()
