"""Clients and a server: everything arrives once, whatever breaks on the way."""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.hub_server import cuttable
from support.postgres import Cluster
from support.processes import wait_until

from embedl_hub.credentials import Server
from embedl_hub.tracking import Client, Redactor, RunStatus, Store, Uplink, project_id

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from support.hub_server import HubServer

PROJECT = "project"


@contextlib.contextmanager
def client_of(home: Path, server: Server, *, wait_s: float = 20.0) -> Iterator[Client]:
    with Store(home) as store:
        uplink = Uplink(store, server)
        client = Client(PROJECT, store, Redactor({}), uplink)
        try:
            yield client
        finally:
            uplink.close(wait_s)
            client.close()


def log_something(client: Client, folder: Path, *, metrics: int = 20) -> str:
    """Make a run with one of everything."""
    with client.start_run("EVAL", "run") as run:
        run.log_param("precision", "int8")
        run.log_tag("stage", "ci \0 <b>")
        for step in range(metrics):
            run.log_metric("latency", step / 7, step=step)
        run.log_metric("odd", float("nan"))
        model = folder / "model.bin"
        model.write_bytes(os.urandom(100_000))
        run.log_artifact(model, name="path")
        inner = folder / "data"
        (inner / "deep").mkdir(parents=True, exist_ok=True)
        (inner / "deep" / "a.txt").write_text("a")
        (inner / "empty").touch()
        run.log_artifact(inner, name="data")
    return run.id


def assert_same(client_home: Path, server_home: Path, run_ids: list[str]) -> None:
    """The server's manifests are the clients', byte by byte, and the contents are there."""
    for run_id in run_ids:
        own = (client_home / "runs" / run_id / "manifest.jsonl").read_bytes()
        assert (server_home / "runs" / run_id / "manifest.jsonl").read_bytes() == own
        for path in (client_home / "runs" / run_id / "artifacts").rglob("*"):
            if path.is_file():
                there = server_home / path.relative_to(client_home)
                assert there.read_bytes() == path.read_bytes()


def served_run(server: HubServer, run_id: str) -> dict[str, Any]:
    key = server.key()
    status, document, _ = server.ask("GET", f"/api/projects/{project_id(PROJECT)}/runs/{run_id}?include=all", key)
    assert status == 200, document
    return dict(document["data"])


def ids_served(server: HubServer) -> list[str]:
    status, document, _ = server.ask("GET", f"/api/projects/{project_id(PROJECT)}/runs", server.key())
    return [run["id"] for run in document["data"]["items"]] if status == 200 else []


def waiting(home: Path) -> list[str]:
    return [path.name for path in home.glob("outbox/*/*")]


def test_a_run_goes_over_while_it_is_logged(new_server: Callable[..., HubServer], tmp_path: Path) -> None:
    """Everything arrives as it was written, and nothing is left to send."""
    server = new_server()
    with client_of(tmp_path / "home", server.server(PROJECT)) as client:
        run_id = log_something(client, tmp_path)
    assert not waiting(tmp_path / "home")
    assert_same(tmp_path / "home", server.home, [run_id])
    run = served_run(server, run_id)
    assert run["status"] == "FINISHED"
    assert run["params"] == [{"name": "precision", "value": "int8"}]
    assert len(run["metrics"]) == 21
    assert {artifact["name"]: artifact["isFolder"] for artifact in run["artifacts"]} == {"data": True, "path": False}


def test_a_planted_outbox_is_not_sent(new_server: Callable[..., HubServer], tmp_path: Path) -> None:
    """Runs that came with a folder, marked for sending, do not go out with the user's key; the user's own do."""
    server, home = new_server(), tmp_path / "home"
    with Store(home) as store:
        client = Client(PROJECT, store)
        planted = log_something(client, tmp_path)
        client.close()
    for name in ("0" * 16, hashlib.sha256(server.url.encode()).hexdigest()[:16]):
        (home / "outbox" / name).mkdir(parents=True)
        (home / "outbox" / name / planted).touch()
    with client_of(home, server.server()) as client:
        own = log_something(client, tmp_path)
    assert ids_served(server) == [own]
    with Store(home) as store:
        sent = Uplink(store, server.server()).send_all()
    assert (sent.runs, sent.elsewhere) == (0, 2)
    assert ids_served(server) == [own]


def test_values_are_there_before_the_run_ends(new_server: Callable[..., HubServer], tmp_path: Path) -> None:
    """A team sees a run while it goes on."""
    server = new_server()
    with client_of(tmp_path / "home", server.server()) as client, client.start_run("EVAL", "live") as run:
        run.log_metric("loss", 1.0)
        manifest = server.home / "runs" / run.id / "manifest.jsonl"
        wait_until(lambda: manifest.exists() and b"loss" in manifest.read_bytes(), 20)
        # The manifest is written before the index.
        wait_until(lambda: run.id in ids_served(server), 20)
        wait_until(lambda: served_run(server, run.id)["metrics"], 20)
        assert served_run(server, run.id)["status"] == "RUNNING"


def test_a_server_that_is_away_gets_the_runs_later(
    new_server: Callable[..., HubServer], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The client goes on, says so, and the next one sends what was left."""
    server = new_server()
    known = server.server()
    server.kill()
    with client_of(tmp_path / "home", known) as client:
        first = log_something(client, tmp_path)
    assert waiting(tmp_path / "home") == [first]
    assert "1 runs are still to be sent" in caplog.text
    server.start()
    with client_of(tmp_path / "home", known) as client:
        second = log_something(client, tmp_path)
    assert not waiting(tmp_path / "home")
    assert_same(tmp_path / "home", server.home, [first, second])


@pytest.mark.slow
def test_a_server_killed_again_and_again_loses_nothing(new_server: Callable[..., HubServer], tmp_path: Path) -> None:
    """Records and uploads are interrupted anywhere; all of it is there once in the end."""
    server = new_server()
    with client_of(tmp_path / "home", server.server(), wait_s=60) as client:
        runs = []
        for round_ in range(4):
            runs.append(log_something(client, tmp_path, metrics=300))
            big = tmp_path / f"big{round_}"
            big.write_bytes(os.urandom(30_000_000))
            with client.start_run("EVAL", "big") as run:
                run.log_artifact(big, name="path")
            runs.append(run.id)
            time.sleep(0.2 + 0.15 * round_)
            server.kill()
            server.start()
        wait_until(lambda: not waiting(tmp_path / "home"), 60)
    assert_same(tmp_path / "home", server.home, runs)
    for run_id in runs:
        assert served_run(server, run_id)["status"] == "FINISHED"


def test_a_killed_client_is_finished_by_the_next(new_server: Callable[..., HubServer], tmp_path: Path) -> None:
    """What a client acknowledged and did not send goes over later, with the mark that it died."""
    server = new_server()
    known = server.server()
    script = (
        "import sys, time; from embedl_hub.core import HubContext\n"
        "with HubContext('project', home=sys.argv[1]) as ctx, ctx.client.start_run('EVAL', 'x') as run:\n"
        "    print(run.id, flush=True)\n"
        "    for step in range(10**9):\n"
        "        run.log_metric('m', step, step=step)\n"
    )
    assert known.key is not None
    environment = {**os.environ, "EMBEDL_HUB_API_BASE_URL": known.url, "EMBEDL_HUB_API_KEY": known.key}
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "home")], env=environment, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    run_id = process.stdout.readline().strip()
    wait_until((server.home / "runs" / run_id / "manifest.jsonl").exists, 30)
    time.sleep(0.5)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    done = subprocess.run(
        [sys.executable, "-m", "embedl_hub", "sync", "--home", str(tmp_path / "home")],
        env=environment, capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    assert "Runs sent: 1. Still to be sent: 0." in done.stdout
    own = [line for line in (tmp_path / "home/runs" / run_id / "manifest.jsonl").read_bytes().split(b"\n") if line]
    there = (server.home / "runs" / run_id / "manifest.jsonl").read_bytes().split(b"\n")[:-1]
    # A line that the kill tore is no record; it stays behind.
    assert there == [line for line in own if line.endswith(b"}")]
    assert served_run(server, run_id)["status"] == "KILLED"


def test_a_cut_network_only_delays(new_server: Callable[..., HubServer], tmp_path: Path) -> None:
    """Nothing moves for some seconds, in the middle of everything; then all of it arrives."""
    server = new_server()
    with cuttable(server.port) as wire, client_of(tmp_path / "home", Server(wire.url, server.key())) as client:
        first = log_something(client, tmp_path)
        wait_until(lambda: wire.passed > 20_000, 20)
        wire.cut()
        second = log_something(client, tmp_path)
        time.sleep(3)
        third = log_something(client, tmp_path)
        assert len(waiting(tmp_path / "home")) >= 2
        wire.mend()
        wait_until(lambda: not waiting(tmp_path / "home"), 60)
    assert_same(tmp_path / "home", server.home, [first, second, third])


@pytest.mark.slow
def test_a_restarted_database_only_delays(new_server: Callable[..., HubServer], tmp_path: Path) -> None:
    """The server answers 503 while its database is away and finds it again by itself."""
    cluster = Cluster().start()
    try:
        server = new_server("--database", cluster.database("hub"))
        with client_of(tmp_path / "home", server.server(), wait_s=60) as client:
            first = log_something(client, tmp_path)
            wait_until(lambda: not waiting(tmp_path / "home"), 30)
            cluster.stop()
            second = log_something(client, tmp_path)
            time.sleep(1)
            assert waiting(tmp_path / "home") == [second]
            cluster.start()
            third = log_something(client, tmp_path)
            wait_until(lambda: not waiting(tmp_path / "home"), 60)
        assert_same(tmp_path / "home", server.home, [first, second, third])
        for run_id in (first, second, third):
            assert len(served_run(server, run_id)["metrics"]) == 21
    finally:
        cluster.end()


def test_a_run_that_the_server_deleted_is_not_sent_again(new_server: Callable[..., HubServer], tmp_path: Path) -> None:
    """Deleting is for good, also while its client still writes."""
    server = new_server()
    key = server.key()
    with client_of(tmp_path / "home", Server(server.url, key)) as client, client.start_run("EVAL", "x") as run:
        address = f"/api/projects/{project_id(PROJECT)}/runs/{run.id}"
        wait_until(lambda: server.ask("GET", address, key)[0] == 200, 20)
        assert server.ask("DELETE", address, key)[0] == 204
        run.log_metric("m", 1)
    assert server.ask("GET", address, key)[0] == 404
    assert not waiting(tmp_path / "home")


def test_a_key_that_is_revoked_keeps_the_runs_here(
    new_server: Callable[..., HubServer], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The runs stay in the outbox and the reason is said."""
    server = new_server()
    with client_of(tmp_path / "home", Server(server.url, "eh_wrong")) as client:
        run_id = log_something(client, tmp_path)
    assert waiting(tmp_path / "home") == [run_id]
    assert "answers 401" in caplog.text
    with Store(tmp_path / "home") as store:
        sent = Uplink(store, server.server()).send_all()
    assert (sent.runs, sent.waiting, sent.refused) == (1, 0, {})
    assert_same(tmp_path / "home", server.home, [run_id])


def test_a_project_that_the_key_does_not_open_is_said_once(
    new_server: Callable[..., HubServer], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With run and project; the next client goes on without it, and a deleted run is not counted as sent."""
    server = new_server()
    known = server.server("another")
    with client_of(tmp_path / "home", known) as client:
        run_id = log_something(client, tmp_path)
    (said,) = [record.getMessage() for record in caplog.records if record.name == "embedl_hub"]
    assert f"Run {run_id} cannot be sent: the key does not open project 'project'" in said
    caplog.clear()
    with Store(tmp_path / "home") as store:
        sent = Uplink(store, known).send_all()
        assert (sent.runs, list(sent.refused)) == (0, [run_id])
        store.delete(run_id)
        sent = Uplink(store, known).send_all()
    assert (sent.runs, sent.waiting, sent.refused) == (0, 0, {})
    assert not waiting(tmp_path / "home")


def test_another_run_under_the_same_id_is_refused(new_server: Callable[..., HubServer], tmp_path: Path) -> None:
    """The server keeps what it has, and the client says what is wrong."""
    server = new_server()
    known = server.server()
    with client_of(tmp_path / "home", known) as client:
        run_id = log_something(client, tmp_path)
    manifest = tmp_path / "home/runs" / run_id / "manifest.jsonl"
    before = (server.home / "runs" / run_id / "manifest.jsonl").read_bytes()
    manifest.write_bytes(manifest.read_bytes().replace(b'"int8"', b'"fp32"'))
    with Store(tmp_path / "home") as store:
        sent = Uplink(store, known).send_all(also=[run_id])
    assert list(sent.refused) == [run_id]
    assert "Other records are here already" in sent.refused[run_id]
    assert (server.home / "runs" / run_id / "manifest.jsonl").read_bytes() == before


def test_a_server_restored_from_a_backup_gets_the_rest_again(
    new_server: Callable[..., HubServer], tmp_path: Path
) -> None:
    """It says how far it is, and the client goes back."""
    server = new_server()
    with client_of(tmp_path / "home", server.server()) as client, client.start_run("EVAL", "x") as run:
        for step in range(50):
            run.log_metric("m", step, step=step)
        manifest = server.home / "runs" / run.id / "manifest.jsonl"
        wait_until(lambda: manifest.exists() and len(manifest.read_bytes().splitlines()) == 51, 20)
        server.kill()
        manifest.write_bytes(b"".join(manifest.read_bytes().splitlines(keepends=True)[:20]))
        for path in server.home.glob("hub.db*"):
            path.unlink()
        server.start()
        run.log_metric("m", 50, step=50)
    assert not waiting(tmp_path / "home")
    assert_same(tmp_path / "home", server.home, [run.id])
    assert [metric["step"] for metric in served_run(server, run.id)["metrics"]] == list(range(51))


def test_a_run_without_a_process_is_sent_piece_by_piece(
    new_server: Callable[..., HubServer], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Started by one client, logged to and finished by others; nobody is told of runs that wait."""
    server = new_server()
    known = server.server()
    with client_of(tmp_path / "home", known) as client:
        run_id = client.start_detached("EVAL", "x")
    assert served_run(server, run_id)["status"] == "RUNNING"
    with client_of(tmp_path / "home", known) as client, client.attach(run_id) as run:
        run.log_metric("m", 1)
    assert len(served_run(server, run_id)["metrics"]) == 1
    with client_of(tmp_path / "home", known) as client, client.attach(run_id) as run:
        run.finish()
    assert served_run(server, run_id)["status"] == "FINISHED"
    assert not waiting(tmp_path / "home")
    assert "still to be sent" not in caplog.text
    assert_same(tmp_path / "home", server.home, [run_id])


def test_a_forked_child_sends_its_own_runs(new_server: Callable[..., HubServer], tmp_path: Path) -> None:
    """Parent and child both send, each its own."""
    server = new_server()
    with client_of(tmp_path / "home", server.server()) as client, client.start_run("EVAL", "parent") as parent:
        parent.log_metric("m", 1)
        child = os.fork()
        if child == 0:
            try:
                with client.start_run("EVAL", "child") as run:
                    run.log_metric("m", 2)
                client.close()
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        parent.log_metric("m", 3)
    assert not waiting(tmp_path / "home")
    with Store(tmp_path / "home") as store:
        runs = [run.id for run in store.runs()]
    assert len(runs) == 2
    assert_same(tmp_path / "home", server.home, runs)


def test_a_servers_home_keeps_its_runs_alive(new_server: Callable[..., HubServer], tmp_path: Path) -> None:
    """Another program that opens the server's home does not take runs that go on elsewhere for dead."""
    server = new_server()
    with client_of(tmp_path / "home", server.server()) as client, client.start_run("EVAL", "x") as run:
        wait_until((server.home / "runs" / run.id / "manifest.jsonl").exists, 20)
        wait_until(lambda: run.id in ids_served(server), 20)
        with Store(server.home) as store:
            assert store.run(run.id).status is RunStatus.RUNNING
    assert_same(tmp_path / "home", server.home, [run.id])
