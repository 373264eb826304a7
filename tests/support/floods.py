"""Floods that a server must outlive: heavy questions, and how long others wait for their answers meanwhile."""

import contextlib
import http.client
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from embedl_hub.tracking import Store, project_id

PROJECT = "flooded"
# As slow to search as a text can be: nearly a match at every letter.
_NOTE = "a" * 1000
_PART = "a" * 199


def fill(store: Store, runs: int) -> None:
    """Bring runs with texts into an index, as fast as it goes; no folders, since nothing here opens one."""
    now_ms = 1_700_000_000_000
    with store._transaction() as connection:
        connection.execute("INSERT INTO project (name, created_ms) VALUES (?, 0)", (PROJECT,))
        connection.execute(
            f"""WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < CAST(? AS BIGINT))
            INSERT INTO run (id, project, type, name, status, started_ms, ended_ms, device, applied)
            SELECT 'a' || CAST(1000000000000000 + i AS TEXT), (SELECT key FROM project), 'EVAL',
            'run ' || CAST(i AS TEXT), 'FINISHED', {now_ms} + i, {now_ms} + i + 5, 'pi' || CAST(i % 50 AS TEXT), 6
            FROM n""",  # noqa: S608 - our own words
            (runs,),
        )
        texts = "SELECT key, ?, ? FROM run"
        connection.execute(f"INSERT INTO param (run, name, value) {texts}", ("note", f'"{_NOTE}"'))
        connection.execute(f"INSERT INTO tag (run, name, value) {texts}", ("stage", "ci"))
        connection.execute(
            """INSERT INTO metric (run, name, seq, value, time_ms, latest)
            SELECT key, 'latency', 3, key / 7.0, 0, 1 FROM run"""
        )


def heaviest() -> str:
    """Return the address of the heaviest list of runs that a key for reading may ask for."""
    endings = "bcdefghijklmnopqrstuvwxyz0123456789"
    # 17 of them are as long as a filter may be; none is met by any run, so that every one is looked at.
    where = " and ".join(f"not params.note ~ '{_PART}{ending}'" for ending in endings[:17])
    return f"{runs_of()}?order=params.note&include=all&limit=500&where={quote(where)}"


def runs_of() -> str:
    return f"/api/projects/{project_id(PROJECT)}/runs"


@dataclass(frozen=True)
class Answered:
    """One answer: its status, its error's code, if it has one, and how long it took."""

    status: int
    code: str
    seconds: float


class Asker:
    """A client that keeps its connection."""

    def __init__(self, port: int, key: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        self._headers = {"Authorization": f"Bearer {key}"}

    def ask(self, path: str, body: dict[str, Any] | None = None) -> Answered:
        sent = None if body is None else json.dumps(body).encode()
        headers = self._headers | ({} if body is None else {"Content-Type": "application/json"})
        started = time.perf_counter()
        self._connection.request("GET" if body is None else "POST", path, sent, headers)
        answer = self._connection.getresponse()
        document = json.loads(answer.read())
        seconds = time.perf_counter() - started
        code = document["errors"][0]["code"] if "errors" in document else ""
        return Answered(answer.status, code, seconds)

    def close(self) -> None:
        self._connection.close()


@contextlib.contextmanager
def asking(port: int, key: str, path: str, threads: int) -> Iterator[list[Answered]]:
    """Ask for something over and over, from some threads at once, for as long as a block lasts."""
    over, answers = threading.Event(), list[Answered]()

    def work() -> None:
        with contextlib.closing(Asker(port, key)) as asker:
            while not over.is_set():
                answers.append(asker.ask(path))

    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    try:
        yield answers
    finally:
        over.set()
        for worker in workers:
            worker.join()


def colleague(port: int, key: str, seconds: float, run_id: str) -> list[float]:
    """Look at runs and log to one for some time, and return how long each answer took, in milliseconds."""
    times, seq, path = [], 0, f"{runs_of()}/{run_id}/records"
    start = {"seq": 0, "kind": "start", "time_ms": 0, "format": 1, "project": PROJECT, "type": "EVAL", "name": "x"}
    with contextlib.closing(Asker(port, key)) as asker:
        assert asker.ask(path, {"after": -1, "records": [start]}).status == 200
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            seq += 1
            metric = {"seq": seq, "kind": "metric", "time_ms": 0, "name": "m", "value": seq}
            for answer in (
                asker.ask(f"{runs_of()}?limit=20&include=metrics"),
                asker.ask(path, {"after": seq - 1, "records": [metric]}),
            ):
                assert answer.status == 200, answer
                times.append(answer.seconds * 1000)
            # As a person or a logging client would, not as a benchmark.
            time.sleep(0.02)
    return times


def quantile(values: list[float], share: float) -> float:
    """Return the nearest rank."""
    ordered = sorted(values)
    return ordered[max(0, min(len(ordered) - 1, round(share * len(ordered)) - 1))]
