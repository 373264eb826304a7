"""How long does a browser wait for the run list of a store with 100,000 runs, and for a graph of 2,000 nodes?

Fills a store, serves the page as ``embedl-hub ui`` does in a process of its own, and measures the time from the
request to the first byte of the answer over one kept connection, all addresses in turns. A file of a few hundred bytes
is asked for as well: what the server itself takes. Graphs are opened in Chromium, see graph_paint.py.

    python benchmarks/hub/bench_page.py --json page.json
"""

from __future__ import annotations

import contextlib
import http.client
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embedl_hub.tracking import Store

sys.path.insert(0, str(Path(__file__).parents[1]))
import graph_paint
from figures import Figure, alone
from report import Session, parser

if TYPE_CHECKING:
    from collections.abc import Iterator

RUNS = 100_000
VALUES = 10
BATCH = 2000
WARM_UP = 20
LIMIT_MS = 50.0
PAINT_LIMIT_MS = 2000.0
DEVICES = ("pi", "jetson", "phone", "laptop")
FIRST = "run list, newest first"
ADDRESSES = {
    FIRST: "/runs",
    "one project": "/runs?project=project%203",
    "sorted by a metric": "/runs?sort=metrics.latency",
    "metric and tag": "/runs?q=metrics.latency%20%3C%205%20and%20tags.stage%20%3D%20%27ci%27",
    "status and device": "/runs?status=FAILED&device=pi",
    "a chart over time": "/charts?metric=latency",
    "a file, for scale": "/static/icon.svg",
}


def records(number: int) -> list[dict[str, Any]]:
    """Return the records of one run."""
    start_ms = 1_780_000_000_000 + number * 60_000
    facts = {"project": f"project {number % 7}", "type": "PROFILE", "name": f"profile {number % 40}", "format": 1}
    made: list[dict[str, Any]] = [{"kind": "start", **facts, "device": DEVICES[number % 4], "provider": "local"}]
    made += [
        {"kind": "param", "name": f"param {index}", "value": (number * 7 + index) % 50} for index in range(VALUES - 1)
    ]
    made.append({"kind": "param", "name": "verdict", "value": "stable" if number % 9 else "noisy"})
    made += [
        {"kind": "metric", "name": f"metric {index}", "value": (number * 31 + index) % 1000 / 7, "step": None}
        for index in range(VALUES - 1)
    ]
    made.append({"kind": "metric", "name": "latency", "value": 2 + (number * 7919 % 10_007) / 500, "step": None})
    made.append({"kind": "tag", "name": "stage", "value": "ci" if number % 3 else "dev"})
    made.append({"kind": "artifact", "name": "input", "file_name": f"model {number % 40}.onnx", "size_bytes": 4_000_000,
                 "sha256": f"{number % 40:064x}"})  # fmt: skip
    made.append({"kind": "end", "status": "FINISHED" if number % 20 else "FAILED", "error": None, "traceback": None})
    return [{"seq": seq, "time_ms": start_ms + seq, **record} for seq, record in enumerate(made)]


def fill(home: Path, runs: int) -> None:
    """Put runs into the index, without folders: the list shows what the index holds."""
    with Store(home) as store:
        for first in range(0, runs, BATCH):
            store.apply({f"{number:021x}": records(number) for number in range(first, min(first + BATCH, runs))})


@contextlib.contextmanager
def served(home: Path) -> Iterator[tuple[int, str]]:
    """Serve the page and give its port, and the token that lets in."""
    argv = [sys.executable, "-m", "embedl_hub", "ui", "--no-browser", "--port", "0", "--home", str(home)]
    server = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        address = server.stdout.readline().rpartition("http://127.0.0.1:")[2].split()[0]
        port, _, token = address.partition("/?token=")
        yield int(port), token
    finally:
        server.terminate()
        server.wait(timeout=30)


def first_byte_ms(connection: http.client.HTTPConnection, address: str, token: str) -> float:
    """Return the time to the first byte of an answer."""
    start = time.perf_counter_ns()
    connection.request("GET", address, headers={"Accept": "text/html", "Authorization": f"Bearer {token}"})
    answer = connection.getresponse()
    taken = time.perf_counter_ns() - start
    answer.read()
    assert answer.status == 200, (address, answer.status)
    return taken / 1e6


def measure(port: int, token: str, rounds: int) -> dict[str, list[float]]:
    """Ask for all addresses in turns."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    times: dict[str, list[float]] = {name: [] for name in ADDRESSES}
    for number in range(WARM_UP + rounds):
        for name, address in ADDRESSES.items():
            taken = first_byte_ms(connection, address, token)
            if number >= WARM_UP:
                times[name].append(taken)
    connection.close()
    return times


def figures(data: dict[str, Any]) -> list[Figure]:
    """Return what is quoted."""
    made = {
        what: alone(f"first byte of a page of {data['runs']:,} runs: {what}", "ms", times)
        for what, times in data["first_byte_ms"].items()
    }
    made[FIRST] = made[FIRST].at_most(LIMIT_MS).in_short()
    return [*made.values(), *_painted(data.get("painted_ms", {}))]


def _painted(painted_ms: dict[str, dict[str, list[float]]]) -> list[Figure]:
    """Return when a graph is there; the first paint has a limit."""
    made = []
    for what, times in painted_ms.items():
        of = f"graph of {graph_paint.NODES:,} nodes, {what}"
        first = alone(f"{of}: first paint", "ms", times["first"])
        made.append(first.required(f"at most {PAINT_LIMIT_MS:,.0f}", first.ours <= PAINT_LIMIT_MS))
        made.append(alone(f"{of}: all of it", "ms", times["whole"]))
    return made


def main() -> None:
    """Measure and report."""
    options = parser(__doc__)
    options.add_argument("--runs", type=int, default=RUNS)
    options.add_argument("--rounds", type=int, default=100)
    options.add_argument("--paints", type=int, default=15, help="how often each graph is opened")
    options.add_argument("--folder", type=Path, default=Path.home(), help="where the store is made for the while")
    arguments = options.parse_args()
    session = Session("page", options, arguments)
    with tempfile.TemporaryDirectory(dir=arguments.folder, prefix="bench-page-") as name:
        fill(Path(name), arguments.runs)
        with served(Path(name)) as (port, token):
            times = measure(port, token, arguments.rounds)
        painted = graph_paint.measure(Path(name), arguments.paints)
    data = {"runs": arguments.runs, "rounds": arguments.rounds, "warm_up": WARM_UP, "first_byte_ms": times,
            "painted_ms": painted}  # fmt: skip
    session.finish(data, figures(data), packages=("starlette", "uvicorn", "jinja2", "playwright"))


if __name__ == "__main__":
    main()
