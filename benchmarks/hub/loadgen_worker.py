"""Let MLPerf's LoadGen measure given latencies in single stream, and print what it says of them.

Runs in LoadGen's environment with the virtual clock loaded: a query moves the clock by its latency and is done.

    LD_PRELOAD=CLOCK.so python loadgen_worker.py CLOCK.so CASES.bin

The file has, for each case, a number of latencies and the latencies, in ns, as 64-bit integers. One line comes back for
each, in JSON: the early-stopping estimates of p90 and p99 in ns, null where LoadGen gives none, and the slowest query.
"""

from __future__ import annotations

import array
import ctypes
import json
import re
import sys
import tempfile
from pathlib import Path

import mlperf_loadgen as loadgen  # type: ignore[import-not-found,unused-ignore]


def cases(path: Path) -> list[list[int]]:
    """Return the latencies of each case."""
    numbers = array.array("q", path.read_bytes())
    found, place = [], 0
    while place < len(numbers):
        count = numbers[place]
        found.append(list(numbers[place + 1 : place + 1 + count]))
        place += 1 + count
    return found


def measure(latencies: list[int], clock: ctypes.CDLL, folder: Path) -> dict[str, int | None]:
    """Run one test and return LoadGen's answers."""
    given = iter(latencies)

    def issue(queries: list[loadgen.QuerySample]) -> None:
        for query in queries:
            clock.advance(ctypes.c_longlong(next(given)))
            loadgen.QuerySamplesComplete([loadgen.QuerySampleResponse(query.id, 0, 0)])

    settings = loadgen.TestSettings()
    settings.scenario = loadgen.TestScenario.SingleStream
    settings.mode = loadgen.TestMode.PerformanceOnly
    settings.single_stream_target_latency_percentile = 0.9
    settings.min_query_count = settings.max_query_count = len(latencies)
    settings.min_duration_ms = 0
    output = loadgen.LogOutputSettings()
    output.outdir = str(folder)
    output.copy_summary_to_stdout = False
    log = loadgen.LogSettings()
    log.log_output = output
    log.enable_trace = False
    system = loadgen.ConstructSUT(issue, lambda: None)
    library = loadgen.ConstructQSL(1024, 128, lambda _: None, lambda _: None)
    loadgen.StartTestWithLogSettings(system, library, settings, log, "")
    loadgen.DestroyQSL(library)
    loadgen.DestroySUT(system)
    text = (folder / "mlperf_log_summary.txt").read_text()
    estimate = r"stopping {}.0th percentile estimate: (\d+)"
    answers = {f"p{percent}": _number(estimate.format(percent), text) for percent in (90, 99)}
    return {**answers, "max": _number(r"Max latency \(ns\)\s*: (\d+)", text)}


def _number(pattern: str, text: str) -> int | None:
    found = re.search(pattern, text)
    return None if found is None else int(found[1])


def main() -> None:
    """Answer every case."""
    clock = ctypes.CDLL(sys.argv[1])
    with tempfile.TemporaryDirectory(prefix="loadgen-") as folder:
        for latencies in cases(Path(sys.argv[2])):
            print(json.dumps(measure(latencies, clock, Path(folder))), flush=True)


if __name__ == "__main__":
    main()
