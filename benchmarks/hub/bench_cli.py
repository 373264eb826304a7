"""How long does a user wait for the command line?

Fresh processes in turns: ours, ours listing runs from a store of many, and an opponent's. Opponents are measured at
their lightest: their version, not a listing. A first start of each is not counted; it leaves the bytecode behind.

    python benchmarks/hub/bench_cli.py [--without-peers] [--rounds 15] [--json FILE]
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from embedl_hub.core import HubContext

sys.path.insert(0, str(Path(__file__).parents[1]))
import environments
from figures import Figure, against, alone
from report import Session, parser

LIMITS_S = {"embedl-hub --version": 0.25, "embedl-hub run list": 0.4}
WORDS = ("--version", "--help", "run list", "run list --json")
EMPTY, OPPONENT = "an empty Python", "mlflow --version"
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
    # Bytecode is kept, as with installed packages: without it our files alone would be compiled anew at every start.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    environment |= {"EMBEDL_HUB_HOME": str(home), "PYTHONPYCACHEPREFIX": str(home / "bytecode")}
    start = time.perf_counter()
    subprocess.run(argv, check=True, capture_output=True, env=environment)
    return time.perf_counter() - start


def figures(data: dict[str, Any]) -> list[Figure]:
    """Return what is quoted."""
    times, theirs = data["times_s"], data["times_s"].get(OPPONENT)
    made = [
        against(f"`{way}`", "s", times[way], f"`{OPPONENT}`", theirs, why=data["opponent"])
        for way in times
        if way.startswith("embedl-hub")
    ]
    return [*(figure.in_short() if figure.what == "`embedl-hub --version`" else figure for figure in made),
            *(_waited(way, times[way], limit) for way, limit in LIMITS_S.items()),
            alone("an empty Python", "s", times[EMPTY])]  # fmt: skip


def _waited(way: str, values: list[float], limit: float) -> Figure:
    return alone(f"`{way}`, seconds", "s", values, tolerance=0.3).at_most(limit)


def main() -> None:
    """Measure in turns and report."""
    options = parser(__doc__)
    options.add_argument("--rounds", type=int, default=15)
    options.add_argument("--without-peers", action="store_true", help="measure our side alone")
    arguments = options.parse_args()
    session = Session("cli", options, arguments)
    python, version = environments.find(environments.MLFLOW, wanted=not arguments.without_peers)
    program = str(Path(sys.executable).with_name("embedl-hub"))
    ways = {f"embedl-hub {words}": [program, *words.split()] for words in WORDS}
    ways[EMPTY] = [sys.executable, "-c", ""]
    if python is not None:
        ways[OPPONENT] = [str(python.with_name("mlflow")), "--version"]
    times: dict[str, list[float]] = {way: [] for way in ways}
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        make_store(home, _RUNS)
        for argv in ways.values():
            time_s(argv, home)
        for _ in range(arguments.rounds):
            for way, argv in ways.items():
                times[way].append(time_s(argv, home))
    data = {"runs_in_store": _RUNS, "times_s": times, "opponent": version}
    session.finish(data, figures(data), peers={"MLflow": version})


if __name__ == "__main__":
    main()
