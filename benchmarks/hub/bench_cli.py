"""How long does a user wait for the command line?

Fresh processes in turns: ours, ours listing runs from a store of many, and an opponent's. Opponents are measured at
their lightest: their version, not a listing.

    python benchmarks/hub/bench_cli.py [--opponent-program .venv-mlflow/bin/mlflow] [--rounds 15] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from embedl_hub.core import HubContext

sys.path.insert(0, str(Path(__file__).parents[1]))
from report import machine, print_table

LIMITS_S = {"embedl-hub --version": 0.25, "embedl-hub run list": 0.4}
LEAST_RATIO = 5.0
_RUNS = 500


def make_store(home: Path, runs: int) -> None:
    """Fill a store with finished runs."""
    with HubContext("bench", home=home) as ctx:
        for number in range(runs):
            with ctx.client.start_run("PROFILE", f"run {number}") as run:
                run.log_metric("latency", number)
                run.log_param("threads", 1)


def time_s(argv: list[str], home: Path) -> float:
    """Return how long a process takes from start to end."""
    environment = {**os.environ, "EMBEDL_HUB_HOME": str(home)}
    start = time.perf_counter()
    subprocess.run(argv, check=True, capture_output=True, env=environment)
    return time.perf_counter() - start


def main() -> None:
    """Measure in turns and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--opponent-program", type=Path, help="another tracker's program, such as mlflow")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    program = str(Path(sys.executable).with_name("embedl-hub"))
    ways = {
        "embedl-hub --version": [program, "--version"],
        "embedl-hub --help": [program, "--help"],
        "embedl-hub run list": [program, "run", "list"],
        "embedl-hub run list --json": [program, "run", "list", "--json"],
        "an empty Python": [sys.executable, "-c", ""],
    }
    opponent = None
    if arguments.opponent_program is not None:
        opponent = f"{arguments.opponent_program.name} --version"
        ways[opponent] = [str(arguments.opponent_program), "--version"]
    times: dict[str, list[float]] = {way: [] for way in ways}
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        make_store(home, _RUNS)
        for argv in ways.values():
            time_s(argv, home)
        for _ in range(arguments.rounds):
            for way, argv in ways.items():
                times[way].append(time_s(argv, home))
    medians = {way: statistics.median(values) for way, values in times.items()}
    ratios = {}
    if opponent is not None:
        for way, values in times.items():
            ratios[way] = statistics.median(theirs / ours for theirs, ours in zip(times[opponent], values, strict=True))
    print_table(
        ("command", "median", "range", "limit", "opponent takes"),
        [
            (
                way, f"{medians[way]:.3f} s", f"{min(values):.3f} to {max(values):.3f} s",
                f"{LIMITS_S[way]} s" if way in LIMITS_S else "-", f"× {ratios[way]:.1f}" if way in ratios else "-",
            )
            for way, values in times.items()
        ],
    )  # fmt: skip
    if arguments.json:
        report = {"machine": machine(), "runs_in_store": _RUNS, "medians_s": medians, "ratios": ratios}
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")
    is_quick = all(medians[way] <= limit for way, limit in LIMITS_S.items())
    sys.exit(0 if is_quick and all(ratios.get(way, LEAST_RATIO) >= LEAST_RATIO for way in LIMITS_S) else 1)


if __name__ == "__main__":
    main()
