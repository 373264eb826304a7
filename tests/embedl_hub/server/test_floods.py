"""Heavy questions: cut off in time, few at once, and others hardly notice."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest
from support import floods
from support.hub_server import HubServer

from embedl_hub.errors import TooSlowError
from embedl_hub.tracking import Store
from embedl_hub.tracking._sql import database

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from support.postgres import Cluster


@pytest.fixture(params=["sqlite", "postgresql"])
def address(request: pytest.FixtureRequest) -> Iterator[str | None]:
    """Each database in turn: nothing for a file, else an empty database's address."""
    if request.param == "sqlite":
        yield None
        return
    cluster: Cluster = request.getfixturevalue("cluster")
    name = f"floods{time.time_ns()}"
    yield cluster.database(name)


def _serve(
    new_server: Callable[..., HubServer], home: Path, address: str | None, runs: int, *options: str
) -> HubServer:
    with Store(home, database=address) as store:
        floods.fill(store, runs)
    return new_server(*options, *(() if address is None else ("--database", address)), home=home)


def test_the_heaviest_question_is_cut_off(
    new_server: Callable[..., HubServer], tmp_path: Path, address: str | None
) -> None:
    """With an error that says why and what to do; the page the same; the next question is answered."""
    server = _serve(new_server, tmp_path / "home", address, 2000, "--query-limit", "0.5")
    key = server.key(access="read")
    for path in (floods.heaviest(), floods.heaviest() + "&offset=1900"):
        started = time.monotonic()
        status, document, headers = server.ask("GET", path, key)
        assert time.monotonic() - started < 2
        assert (status, document["errors"][0]["code"]) == (503, "too_slow")
        assert "Ask for less" in document["errors"][0]["message"]
        assert "retry-after" in headers
    assert server.ask("GET", f"{floods.runs_of()}?limit=1", key)[0] == 200


def test_a_filter_has_so_many_conditions(shared: HubServer) -> None:
    """And a text that must be contained is not longer than names are."""
    key = shared.key()
    start = {
        "seq": 0,
        "kind": "start",
        "time_ms": 0,
        "format": 1,
        "project": floods.PROJECT,
        "type": "EVAL",
        "name": "x",
    }
    body = {"after": -1, "records": [start]}
    assert shared.ask("POST", f"{floods.runs_of()}/{'a' * 16}/records", key, body)[0] == 200

    def ask(where: str) -> tuple[int, str]:
        status, document, _ = shared.ask("GET", f"{floods.runs_of()}?where={quote(where)}", key)
        return status, document["errors"][0]["message"] if status != 200 else ""

    assert ask(" or ".join(["name ~ 'x'"] * 30))[0] == 200
    devices = ", ".join(["'pi'"] * 31)
    for where in (" or ".join(["name ~ 'x'"] * 31), f"device in ({devices})"):
        status, message = ask(where)
        assert status == 400
        assert "more than 30 conditions" in message
    assert ask(f"name ~ '{'x' * 200}'")[0] == 200
    assert ask(f"name ~ '{'x' * 201}'") == (400, "What a text must contain may have 200 characters, not 201.")


def test_questions_of_one_request_share_its_time(tmp_path: Path, address: str | None) -> None:
    """One after the other they do not get the limit anew; writing has none."""
    with Store(tmp_path / "home", database=address, limit_s=0.6) as store:
        floods.fill(store, 100)
        store.run_dir("0" * 16).mkdir(parents=True)
        store.manifest("0" * 16).write_text('{"seq": 0, "kind": "start", "time_ms": 0}\n')
        with store.one_question():
            store.find(limit=1)
            time.sleep(0.65)
            with pytest.raises(TooSlowError):
                store.find(limit=1)
            # Looking through a long manifest is a part of it.
            with pytest.raises(TooSlowError):
                store.folder_files("0" * 16)
        store.find(limit=1)
        with store._transaction() as connection:
            connection.execute("SELECT count(*) FROM run AS a CROSS JOIN run AS b CROSS JOIN run AS c").fetchone()
            time.sleep(0.65)
            assert connection.execute("SELECT count(*) FROM run").fetchone()[0] == 100


def test_remembered_statements_are_bounded() -> None:
    """Whoever writes filters writes statements; no two need be alike."""
    for number in range(2000):
        database._percent(f"SELECT {number}")
    assert database._percent.cache_info().currsize <= 256


@pytest.mark.slow
def test_others_hardly_notice_the_heaviest_questions(
    new_server: Callable[..., HubServer], tmp_path: Path, address: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    """At 100,000 runs, asked by four clients of a key for reading at once, for twenty seconds."""
    server = _serve(new_server, tmp_path / "home", address, 100_000)
    good, bad = server.key(), server.key(access="read")
    floods.colleague(server.port, good, 2, "a" * 16)
    alone = floods.colleague(server.port, good, 20, "b" * 16)
    with floods.asking(server.port, bad, floods.heaviest(), 4) as answers:
        time.sleep(0.5)
        beside = floods.colleague(server.port, good, 20, "c" * 16)
    figures = [[round(floods.quantile(times, share), 1) for share in (0.5, 0.99)] for times in (alone, beside)]
    with capsys.disabled():
        name = "SQLite" if address is None else "PostgreSQL"
        sys.stdout.write(f"\n{name}: p50 and p99 in ms, alone and beside: {figures}, {len(answers)} heavy questions\n")
    assert {(answer.status, answer.code) for answer in answers} <= {(503, "too_slow"), (429, "too_many_at_once")}
    assert max(answer.seconds for answer in answers) < 6.5
    assert figures[1][1] <= max(2 * figures[0][1], 50)
