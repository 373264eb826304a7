"""What goes wrong in one night: the driver dies, a board is unplugged, the store is away."""

from __future__ import annotations

import functools
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.fleet import (
    Heard,
    assert_each_ended_once,
    assert_no_overlap,
    model_files,
    plain_device,
    plain_sweep,
    store_of,
)
from support.postgres import Cluster
from support.processes import wait_until

from embedl_hub.core import HubContext, context
from embedl_hub.core.device import Device
from embedl_hub.fleet import CellState, Listener, Outcome, Step, Target, _work, expand, find_sweep, run_sweep
from embedl_hub.health import HealthWatch
from embedl_hub.tracking import Store
from embedl_hub.tracking._sql import database as _database

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from support.sshd import SSHServer

    from embedl_hub.core.device import SSHCommandRunner

DRIVE = Path(__file__).parent / "scripts" / "drive.py"


def drive(folder: Path, *more: str) -> subprocess.Popen[str]:
    """Start a driver of its own."""
    argv = [sys.executable, str(DRIVE), *(str(folder / name) for name in ("home", "models", "note")), *more]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)


def lines(path: Path) -> int:
    """Return how many steps have begun."""
    return len(path.read_text().splitlines()) if path.exists() else 0


def has_begun(driver: subprocess.Popen[str], note: Path, before: int) -> bool:
    """Tell whether a driver has begun a step, or has ended."""
    return lines(note) > before or driver.poll() is not None


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_driver_that_dies_is_resumed(tmp_path: Path, how: signal.Signals) -> None:
    """Killed again and again at some moment, it comes to its end, and no step that was finished is done twice."""
    moment = random.Random(how)  # noqa: S311 - any moment will do
    sweep_id: list[str] = []
    for _ in range(3):
        before = lines(tmp_path / "note")
        with drive(tmp_path, *sweep_id) as victim:
            wait_until(functools.partial(has_begun, victim, tmp_path / "note", before), 60)
            time.sleep(moment.uniform(0.0, 0.3))
            victim.send_signal(how)
            victim.communicate(timeout=60)
            assert victim.returncode in {-9, -2, 1}
        with Store(tmp_path / "home") as store:
            assert not store.runs("status = 'RUNNING'")
            sweep_id = [find_sweep(store, "p", "plain")]
    with Store(tmp_path / "home") as store:
        finished = {run.tags["step"] for run in store.runs("status = 'FINISHED' and not type = 'CUSTOM'")}
    with drive(tmp_path, *sweep_id) as last:
        said, _ = last.communicate(timeout=120)
    assert said.split() == [sweep_id[0], str(len(finished)), *["done"] * 24]
    with Store(tmp_path / "home") as store:
        done = Counter(run.tags["step"] for run in store.runs("status = 'FINISHED' and not type = 'CUSTOM'"))
        assert set(done.values()) == {1}
        assert len(done) == 12 + 24
        killed = [run for run in store.runs("not status = 'FINISHED'") if "step" in run.tags]
        assert all(run.error for run in killed)


def board_device(name: str, server: SSHServer, connect: Callable[..., SSHCommandRunner], folder: Path) -> Device:
    """Return a real board as a device of the plain toolchain."""
    runner = connect(server, connect_timeout_s=3)
    return Device(name, runner, provider_type="plain", lease_dir=str(folder / f"lease-{name}"))


def test_a_board_that_is_unplugged_in_a_job(
    tmp_path: Path, new_server: Callable[..., SSHServer], connect: Callable[..., SSHCommandRunner]
) -> None:
    """The other board of its pool takes over what it had; it is left alone after three faults, and that is said."""
    servers = [new_server(), new_server()]
    boards = [board_device(f"b{place}", server, connect, tmp_path) for place, server in enumerate(servers)]
    sweep = plain_sweep(model_files(tmp_path, 6), options={"a": {"command": ("sleep", "0.7")}}, retries=2)
    plan = expand(sweep, (Target("pool", ("b0", "b1")),))

    class Unplugging(Heard):
        def step_ended(self, step: Step, outcome: Outcome) -> None:
            super().step_ended(step, outcome)
            if outcome.device == "b0" and step.kind == "profile" and servers[0]._process is not None:
                servers[0].kill()

    heard = Unplugging()
    with HubContext("p", boards, home=tmp_path / "home") as ctx:
        result = run_sweep(ctx, plan, listener=heard)
        store = store_of(ctx)
        assert_no_overlap(store, result.id)
        faults = [run for run in store.tagged("sweep", [result.id]) if run.tags.get("fault") == "board"]
        assert faults
        assert {run.device for run in faults} == {"b0"}
        with boards[1].runner.lease(str(tmp_path / "lease-b1"), "the test", wait_s=0):  # type: ignore[union-attr]
            pass
    assert result.count(CellState.DONE) == 6, [each.reason for each in result.cells]
    assert_each_ended_once(result, heard)
    assert any("is tried again" in text for text in heard.words)


def test_a_board_that_never_answers_ends_its_cells_only(
    tmp_path: Path, new_server: Callable[..., SSHServer], connect: Callable[..., SSHCommandRunner]
) -> None:
    """They are marked with the reason; the other board's cells are done."""
    servers = [new_server(), new_server()]
    boards = [board_device(f"b{place}", server, connect, tmp_path) for place, server in enumerate(servers)]
    servers[0].stop()
    sweep = plain_sweep(model_files(tmp_path, 5), options={"a": {"command": ("true",)}}, retries=1)
    heard = Heard()
    with HubContext("p", boards, home=tmp_path / "home") as ctx:
        result = run_sweep(ctx, sweep, listener=heard)
    states = Counter((each.cell.target, each.state) for each in result.cells)
    assert states[("b1", CellState.DONE)] == 5
    assert states[("b0", CellState.FAILED)] + states[("b0", CellState.SKIPPED)] == 5
    assert all(each.reason for each in result.cells if each.cell.target == "b0")
    assert "Device 'b0' gets no more work: failed 3 times in a row." in heard.words
    assert_each_ended_once(result, heard)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A database server of this test's own."""
    cluster = Cluster().start()
    yield cluster
    cluster.end()


@pytest.mark.slow
def test_a_database_that_is_restarted_is_waited_for(
    tmp_path: Path, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Steps that ended meanwhile count, those that could not begin are begun later; nothing is lost or done twice."""
    address = cluster.database("sweep")
    monkeypatch.setattr(context, "Store", functools.partial(Store, database=address))
    sweep = plain_sweep(model_files(tmp_path, 8), options={"a": {"wait_s": 0.1}})

    class Restarting(Heard):
        is_over = False

        def cell_ended(self, result: object) -> None:
            super().cell_ended(result)  # type: ignore[arg-type]
            if len(self.cells) == 3 and not self.is_over:
                self.is_over = True
                cluster.stop()
                threading.Timer(1.5, cluster.start).start()

    heard = Restarting()
    with HubContext("p", [plain_device("x"), plain_device("y")], home=tmp_path / "home") as ctx:
        result = run_sweep(ctx, sweep, listener=heard)
        store = store_of(ctx)
        ended = Counter(
            run.tags["step"]
            for run in store.tagged("sweep", [result.id])
            if run.status == "FINISHED" and "step" in run.tags
        )
        assert_no_overlap(store, result.id)
        assert len(run_sweep(ctx, sweep, resume=result.id).reused) == len(result.plan.steps)
    assert result.count(CellState.DONE) == 16, [each.reason for each in result.cells]
    assert set(ended) == set(result.plan.steps)
    assert set(ended.values()) == {1}
    assert "Waiting for the store" in caplog.text
    assert_each_ended_once(result, heard)


def test_a_locked_index_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another program holds SQLite's lock for longer than a statement waits."""
    monkeypatch.setattr(_database, "_WAIT_FOR_WRITERS_S", 0.1)
    sweep = plain_sweep(model_files(tmp_path, 3))

    class Locking(Heard):
        def cell_ended(self, result: object) -> None:
            super().cell_ended(result)  # type: ignore[arg-type]
            if len(self.cells) == 1:
                held = sqlite3.connect(tmp_path / "home" / "hub.db", isolation_level=None, check_same_thread=False)
                held.execute("BEGIN IMMEDIATE")
                threading.Timer(1.5, held.close).start()

    heard = Locking()
    with HubContext("p", [plain_device("x")], home=tmp_path / "home") as ctx:
        result = run_sweep(ctx, sweep, listener=heard)
        assert store_of(ctx).count("status = 'FINISHED' and type = 'PROFILE'") == 3
    assert result.count(CellState.DONE) == 3, [each.reason for each in result.cells]
    assert_each_ended_once(result, heard)


def test_a_store_that_stays_away_ends_the_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounded, and said; the runs are safe in their folders."""
    monkeypatch.setattr(_database, "_WAIT_FOR_WRITERS_S", 0.1)
    monkeypatch.setattr(_work, "STORE_WAIT_S", 0.5)
    sweep = plain_sweep(model_files(tmp_path, 2))
    held: list[sqlite3.Connection] = []

    class Locking(Listener):
        def cell_ended(self, result: object) -> None:
            if not held:
                held.append(sqlite3.connect(tmp_path / "home" / "hub.db", isolation_level=None))
                held[0].execute("BEGIN IMMEDIATE")

    with HubContext("p", [plain_device("x")], home=tmp_path / "home") as ctx:
        with pytest.raises(Exception, match="the store does not answer; resume it when it does"):
            run_sweep(ctx, sweep, listener=Locking())
        held[0].close()
    with HubContext("p", [plain_device("x")], home=tmp_path / "home") as ctx:
        resumed = run_sweep(ctx, sweep, resume=find_sweep(store_of(ctx), "p", "plain"))
    assert resumed.count(CellState.DONE) == 2


def test_a_board_that_is_plugged_in_again_goes_on(
    tmp_path: Path, new_server: Callable[..., SSHServer], connect: Callable[..., SSHCommandRunner]
) -> None:
    """Its health check takes it out, a later one brings it back, and its cells are done after all."""
    server = new_server()
    board = board_device("b", server, connect, tmp_path)
    sweep = plain_sweep(model_files(tmp_path, 3), options={"a": {"command": ("sleep", "0.5")}}, retries=1)

    class Unplugging(Heard):
        def step_ended(self, step: Step, outcome: Outcome) -> None:
            super().step_ended(step, outcome)
            if step.kind == "profile" and len(self.cells) == 0:
                server.kill()

        def said(self, text: str) -> None:
            super().said(text)
            if "gets no more work" in text:
                server.start()

    heard = Unplugging()
    with (
        HubContext("p", [board], home=tmp_path / "home") as ctx,
        HealthWatch(ctx, recheck_s=0.5) as health,
    ):
        result = run_sweep(ctx, sweep, listener=heard, health=health, board_wait_s=60)
    assert result.count(CellState.DONE) == 3, [each.reason for each in result.cells]
    assert any(
        said.startswith("Device 'b' gets no more work: did not pass its health check (reach") for said in heard.words
    )
    assert "Device 'b' is back." in heard.words
    assert_each_ended_once(result, heard)
