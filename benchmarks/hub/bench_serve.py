"""Does a server keep up with a team: 64 clients that log at once, on SQLite and on PostgreSQL?

A real server process and a real PostgreSQL on this machine's loopback, and the clients beside them: everything shares
the cores. Each client sends a piece of records every quarter of a second, as a logging client of ours does, and tries
again when it is told to. In the end every acknowledged record is looked for in the manifests and in the index.

    python benchmarks/hub/bench_serve.py [--seconds 60] [--clients 64] [--json FILE]
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from figures import Figure, declared
from report import Session, parser
from support.hub_server import HubServer
from support.postgres import Cluster

from embedl_hub.tracking import Store, project_id
from embedl_hub.tracking._wire import UnreachableError, Wire

if TYPE_CHECKING:
    from multiprocessing.queues import Queue

    from embedl_hub.credentials import Server

PROJECT = "load"
EVERY_S = 0.25
RECORDS = 10
THREADS_PER_PROCESS = 16


@dataclass(frozen=True)
class Result:
    """What became of a load."""

    database: str
    clients: int
    seconds: float
    requests: int
    records: int
    lost: int
    failed_5xx: int
    other_failures: int
    p50_ms: float
    p90_ms: float
    p99_ms: float
    worst_ms: float


class Sender:
    """One client that logs."""

    def __init__(self, server: Server, number: int) -> None:
        self.run_id = f"{time.time_ns() // 1000:013x}{number:08x}"
        self.acknowledged = 0
        self.times_ms: list[float] = []
        self.failed_5xx = self.other_failures = 0
        self._wire = Wire(server)
        self._path = f"/api/projects/{project_id(PROJECT)}/runs/{self.run_id}/records"

    def work(self, seconds: float) -> None:
        """Log for some seconds."""
        now_ms = time.time_ns() // 1_000_000
        start = {"format": 1, "project": PROJECT, "type": "EVAL", "name": "load"}
        self._send([{"seq": 0, "kind": "start", "time_ms": now_ms, **start}])
        end = time.monotonic() + seconds
        due = time.monotonic()
        while (now := time.monotonic()) < end:
            if now < due:
                time.sleep(due - now)
            due = max(due + EVERY_S, now)
            first = self.acknowledged
            self._send(
                [
                    {
                        "seq": seq,
                        "kind": "metric",
                        "time_ms": now_ms,
                        "name": f"m{seq % 5}",
                        "value": seq / 3,
                        "step": seq,
                    }
                    for seq in range(first, first + RECORDS)
                ]
            )

    def _send(self, records: list[dict[str, object]]) -> None:
        body = json.dumps({"after": self.acknowledged - 1, "records": records}).encode()
        started = time.perf_counter()
        try:
            answer, _ = self._wire.ask("POST", self._path, body, {"Content-Type": "application/json"})
        except UnreachableError as error:
            if error.is_down:
                self.other_failures += 1
            else:
                self.failed_5xx += 1
            return
        self.times_ms.append((time.perf_counter() - started) * 1000)
        self.acknowledged = answer["data"]["last"] + 1


def _process(server: Server, numbers: list[int], seconds: float, results: Queue[list[tuple[object, ...]]]) -> None:
    senders = [Sender(server, number) for number in numbers]
    threads = [threading.Thread(target=sender.work, args=(seconds,)) for sender in senders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    results.put([(s.run_id, s.acknowledged, s.times_ms, s.failed_5xx, s.other_failures) for s in senders])


def load(name: str, server: HubServer, clients: int, seconds: float, database: str | None) -> Result:
    """Put a server under load and look for everything it acknowledged."""
    context = multiprocessing.get_context("spawn")
    results: Queue[list[tuple[object, ...]]] = context.Queue()
    known = server.server()
    groups = [list(range(clients))[at : at + THREADS_PER_PROCESS] for at in range(0, clients, THREADS_PER_PROCESS)]
    processes = [context.Process(target=_process, args=(known, group, seconds, results)) for group in groups]
    for process in processes:
        process.start()
    found = [sender for _ in processes for sender in results.get(timeout=seconds + 120)]
    for process in processes:
        process.join()
    server.stop()
    times = sorted(time_ms for _, _, of_client, _, _ in found for time_ms in of_client)  # type: ignore[attr-defined]
    acknowledged = {str(run_id): int(count) for run_id, count, *_ in found}  # type: ignore[call-overload]
    return Result(
        name, clients, seconds, len(times), sum(acknowledged.values()),
        _lost(server.home, database, acknowledged),
        sum(int(item[3]) for item in found), sum(int(item[4]) for item in found),  # type: ignore[call-overload]
        *(round(_quantile(times, share), 1) for share in (0.5, 0.9, 0.99, 1.0)),
    )  # fmt: skip


def _lost(home: Path, database: str | None, acknowledged: dict[str, int]) -> int:
    """Return how many acknowledged records are missing, in the manifest or in the index."""
    lost = 0
    with Store(home, database=database, recovers=False) as store:
        for run_id, count in acknowledged.items():
            lines = len(store.manifest(run_id).read_bytes().splitlines())
            # The start is no metric.
            indexed = len(store.run(run_id).metrics) + 1
            lost += max(0, count - min(lines, indexed))
    return lost


def _quantile(sorted_values: list[float], share: float) -> float:
    """Return the nearest rank."""
    return sorted_values[max(0, min(len(sorted_values) - 1, round(share * len(sorted_values)) - 1))]


def measure(clients: int, seconds: float) -> list[Result]:
    """Measure both databases, one after the other."""
    results = []
    with tempfile.TemporaryDirectory() as folder:
        server = HubServer(Path(folder) / "sqlite").start()
        results.append(load("SQLite", server, clients, seconds, None))
        cluster = Cluster().start()
        try:
            address = cluster.database("hub")
            server = HubServer(Path(folder) / "postgresql", "--database", address).start()
            results.append(load("PostgreSQL", server, clients, seconds, address))
        finally:
            server.end()
            cluster.end()
    return results


def figures(data: dict[str, Any]) -> list[Figure]:
    """Return what is quoted."""
    made = []
    for row in data["results"]:
        who = f"{row['clients']} clients logging for {row['seconds']:g} s, {row['database']}"
        made += [
            declared(f"{who}: 99 of 100 answers within", "ms", row["p99_ms"], 0.5).in_short(),
            declared(f"{who}: half within", "ms", row["p50_ms"], 0.5),
            declared(f"{who}: records lost", "", row["lost"], 0).at_most(0).in_short(),
            declared(
                f"{who}: answers 5xx and other failures", "", row["failed_5xx"] + row["other_failures"], 0
            ).at_most(0),
            declared(f"{who}: records kept", "", row["records"], 0.3),
        ]
    return made


def main() -> None:
    """Measure and report."""
    options = parser(__doc__)
    options.add_argument("--seconds", type=float, default=60.0)
    options.add_argument("--clients", type=int, default=64)
    arguments = options.parse_args()
    session = Session("serve", options, arguments)
    results = measure(arguments.clients, arguments.seconds)
    data = {"results": [asdict(result) for result in results]}
    session.finish(data, figures(data), packages=("starlette", "uvicorn", "psycopg"))
    if any(result.lost or result.failed_5xx or result.other_failures for result in results):
        sys.exit("Something was lost, or failed.")


if __name__ == "__main__":
    main()
