"""How long does a browser wait for the run list of a store with 100,000 runs?

Fills a store, serves the page as ``embedl-hub ui`` does in a process of its own, and measures the time from the
request to the first byte of the answer over one kept connection, all addresses in turns. A file of a few hundred bytes
is asked for as well: what the server itself takes.

    python benchmarks/hub/bench_page.py --json benchmarks/results/page.json
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embedl_hub.tracking import Store

sys.path.insert(0, str(Path(__file__).parents[1]))
from report import machine, print_table, version_of

if TYPE_CHECKING:
    from collections.abc import Iterator

RUNS = 100_000
VALUES = 10
BATCH = 2000
WARM_UP = 20
LIMIT_MS = 50.0
DEVICES = ("pi", "jetson", "phone", "laptop")
ADDRESSES = {
    "run list, newest first": "/runs",
    "one project": "/runs?project=project%203",
    "sorted by a metric": "/runs?sort=metrics.latency",
    "metric and tag": "/runs?q=metrics.latency%20%3C%205%20and%20tags.stage%20%3D%20%27ci%27",
    "status and device": "/runs?status=FAILED&device=pi",
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
def served(home: Path) -> Iterator[int]:
    """Serve the page and give its port."""
    argv = [sys.executable, "-m", "embedl_hub", "ui", "--no-browser", "--port", "0", "--home", str(home)]
    server = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        line = server.stdout.readline()
        yield int(line.rpartition("http://127.0.0.1:")[2].partition("/")[0])
    finally:
        server.terminate()
        server.wait(timeout=30)


def first_byte_ms(connection: http.client.HTTPConnection, address: str) -> float:
    """Return the time to the first byte of an answer."""
    start = time.perf_counter_ns()
    connection.request("GET", address, headers={"Accept": "text/html"})
    answer = connection.getresponse()
    taken = time.perf_counter_ns() - start
    answer.read()
    assert answer.status == 200, (address, answer.status)
    return taken / 1e6


def measure(port: int, rounds: int) -> dict[str, list[float]]:
    """Ask for all addresses in turns."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    times: dict[str, list[float]] = {name: [] for name in ADDRESSES}
    for number in range(WARM_UP + rounds):
        for name, address in ADDRESSES.items():
            taken = first_byte_ms(connection, address)
            if number >= WARM_UP:
                times[name].append(taken)
    connection.close()
    return times


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--folder", type=Path, default=Path.home(), help="where the store is made for the while")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    result: dict[str, Any] = {"machine": machine(), "runs": arguments.runs, "rounds": arguments.rounds}
    result |= {"warm_up": WARM_UP, "versions": {name: version_of(name) for name in ("starlette", "uvicorn", "jinja2")}}
    with tempfile.TemporaryDirectory(dir=arguments.folder, prefix="bench-page-") as name:
        fill(Path(name), arguments.runs)
        with served(Path(name)) as port:
            result["first_byte_ms"] = measure(port, arguments.rounds)
    rows = []
    for what, times in result["first_byte_ms"].items():
        limit = f"<= {LIMIT_MS:g} ms" if what == "run list, newest first" else "-"
        p90 = statistics.quantiles(times, n=10)[-1]
        rows.append([what, f"{statistics.median(times):.1f} ms", f"{p90:.1f} ms", f"{max(times):.1f} ms", limit])
    print_table([f"first byte, {arguments.runs} runs", "median", "p90", "largest", "limit on the median"], rows)
    print(f"machine: {', '.join(f'{key} {value}' for key, value in result['machine'].items())}")
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
