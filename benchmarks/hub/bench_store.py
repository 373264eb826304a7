"""What does recording a run cost?

One run with 10 parameters and 10 metrics, start to finish: our store at its default sync and durable (SQLite FULL and
fsync), against MLflow 3 with ``MlflowClient.create_run``, ``log_batch`` and ``set_terminated`` on SQLite: as it comes,
and with our default sync settings forced on it. Each side is a process of its own that times itself; they take turns
on one disk: one run at a time, which finds the caches cold, and then bursts of five. Then the first use of a new store,
and eight processes that fill one store of ours.

    python benchmarks/hub/bench_store.py [--without-peers] [--folder DIR] [--json FILE]
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib.metadata
import os
import sqlite3
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import environments
from figures import Figure, against, declared
from report import Session, parser
from workers import Worker, answer_requests, workers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

OURS, OURS_DURABLE = "ours, default", "ours, durable"
MLFLOW, MLFLOW_RELAXED = "MLflow, as it comes", "MLflow, our default sync"
LIMITS = {OURS: 15.0, OURS_DURABLE: 1.0}
VALUES = 10
PROCESSES, RUNS_EACH = 8, 200
WARM_UP = 10
BURSTS = (1, 5)


class Side(Protocol):
    """A way to record a run, in the process that times it."""

    def one_run(self) -> None:
        """Record one run, start to finish."""
        ...

    def settings(self) -> dict[str, object]:
        """Return what decides how safe, and so how slow, a write is."""
        ...

    def database(self) -> tuple[Path, str, str]:
        """Return the database with the names of its tables of parameters and of metrics."""
        ...


class Ours:
    """The hub's store."""

    def __init__(self, folder: Path, *, durable: bool) -> None:
        from embedl_hub.tracking import Client, Store  # noqa: PLC0415 - the opponent's environment lacks it

        self._store = Store(folder, durable=durable)
        self._store.open()
        self._client = Client("bench", self._store)

    def one_run(self) -> None:
        """Record one run, start to finish."""
        with self._client.start_run() as run:
            for number in range(VALUES):
                run.log_param(f"param {number}", number)
            for number in range(VALUES):
                run.log_metric(f"metric {number}", number / 7)

    def settings(self) -> dict[str, object]:
        """Return the sync settings."""
        with self._store._reading() as connection:  # noqa: SLF001 - the settings of this very connection
            return {**_pragmas(connection), "fsync of manifests": self._store.durable}

    def database(self) -> tuple[Path, str, str]:
        """Return the database and its tables."""
        return self._store.home / "hub.db", "param", "metric"


class MLflow:
    """The opponent: MLflow's client on a SQLite file, one batch per run."""

    def __init__(self, folder: Path, *, relaxed: bool) -> None:
        os.environ |= {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_CONFIGURE_LOGGING": "false"}
        from mlflow import entities  # type: ignore[import-not-found]  # noqa: PLC0415 - only there
        from mlflow.tracking import MlflowClient  # type: ignore[import-not-found]  # noqa: PLC0415 - only there
        from sqlalchemy import event  # type: ignore[import-not-found]  # noqa: PLC0415 - only there
        from sqlalchemy.engine import Engine  # type: ignore[import-not-found]  # noqa: PLC0415 - only there

        self._pragmas: dict[str, object] = {}

        def connected(connection: Any, _: object) -> None:  # noqa: ANN401 - SQLAlchemy's
            if relaxed:
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA synchronous = NORMAL")
            self._pragmas = _pragmas(connection)

        event.listen(Engine, "connect", connected)
        folder.mkdir(parents=True)
        self._folder = folder
        self._entities = entities
        self._client = MlflowClient(tracking_uri=f"sqlite:///{folder / 'mlflow.db'}")
        self._experiment = self._client.create_experiment("bench", artifact_location=str(folder / "artifacts"))

    def one_run(self) -> None:
        """Record one run, start to finish."""
        run_id = self._client.create_run(self._experiment).info.run_id
        now_ms = time.time_ns() // 1_000_000
        metrics = [self._entities.Metric(f"metric {number}", number / 7, now_ms, 0) for number in range(VALUES)]
        params = [self._entities.Param(f"param {number}", str(number)) for number in range(VALUES)]
        self._client.log_batch(run_id, metrics=metrics, params=params)
        self._client.set_terminated(run_id)

    def settings(self) -> dict[str, object]:
        """Return the sync settings and the versions."""
        versions = {name: importlib.metadata.version(name) for name in ("mlflow", "sqlalchemy")}
        return {**self._pragmas, **versions}

    def database(self) -> tuple[Path, str, str]:
        """Return the database and its tables."""
        return self._folder / "mlflow.db", "params", "metrics"


def make_side(name: str, folder: Path) -> Side:
    """Open a side's store in a folder that does not exist yet, or, for ours, that others use as well."""
    if name in {OURS, OURS_DURABLE}:
        return Ours(folder, durable=name == OURS_DURABLE)
    return MLflow(folder, relaxed=name == MLFLOW_RELAXED)


def _pragmas(connection: Any) -> dict[str, object]:  # noqa: ANN401 - sqlite3's, or SQLAlchemy's wrapper of it
    (journal,) = connection.execute("PRAGMA journal_mode").fetchone()
    (sync,) = connection.execute("PRAGMA synchronous").fetchone()
    return {
        "journal_mode": journal,
        "synchronous": ("OFF", "NORMAL", "FULL", "EXTRA")[sync],
        "sqlite": sqlite3.sqlite_version,
        "python": sys.version.split()[0],
    }


def answering(name: str, folder: Path) -> Callable[[dict[str, Any]], dict[str, object]]:
    """Return what answers as the worker of one side."""
    sides: list[Side] = []

    def answer(request: dict[str, Any]) -> dict[str, object]:
        start = time.perf_counter_ns()
        if request["do"] == "open":
            sides[:] = [make_side(name, folder / request["folder"])]
        for _ in range(request.get("runs", 0)):
            sides[0].one_run()
        took: dict[str, object] = {"ns": time.perf_counter_ns() - start}
        if request["do"] == "describe":
            took |= {"settings": sides[0].settings(), "rows": _count(*sides[0].database())}
        return took

    return answer


def _count(database: Path, params: str, metrics: str) -> list[int]:
    with contextlib.closing(sqlite3.connect(database)) as connection:
        return [connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in (params, metrics)]  # noqa: S608 - our own names


def measure_runs(sides: Sequence[Worker], rounds: int, burst: int) -> dict[str, list[float]]:
    """Return the mean time of a run in each burst in ms, all sides in turns; who begins changes with every round."""
    times: dict[str, list[float]] = {side.name: [] for side in sides}
    for number in range(rounds):
        first = number % len(sides)
        for side in (*sides[first:], *sides[:first]):
            times[side.name].append(side.ask("run", runs=burst)["ns"] / burst / 1e6)
    return times


def measure_first_use(sides: Sequence[Worker], rounds: int) -> dict[str, list[float]]:
    """Return the time from nothing to the end of a new store's first run in ms; the imports are done already."""
    times: dict[str, list[float]] = {side.name: [] for side in sides}
    for number in range(rounds):
        for side in sides:
            times[side.name].append(side.ask("open", folder=f"{side.name} {number}", runs=1)["ns"] / 1e6)
    return times


def measure_crowd(folder: Path) -> dict[str, object]:
    """Let eight processes create and fill one store of ours at once."""
    start = functools.partial(Worker, Path(sys.executable), __file__, OURS, folder)
    with contextlib.ExitStack() as running:
        crowd = [running.enter_context(start()) for _ in range(PROCESSES)]
        for worker in crowd:
            worker.ask("open", folder="warm up", runs=1)
        began = time.perf_counter_ns()
        for worker in crowd:
            worker.send("open", folder="crowd", runs=RUNS_EACH)
        for worker in crowd:
            worker.receive()
        seconds = (time.perf_counter_ns() - began) / 1e9
        rows = crowd[0].ask("describe")["rows"]
    expected = [PROCESSES * RUNS_EACH * VALUES] * 2
    return {
        "seconds": seconds,
        "runs_per_s": PROCESSES * RUNS_EACH / seconds,
        "rows": rows,
        "complete": rows == expected,
    }


def figures(data: dict[str, Any]) -> list[Figure]:
    """Return what is quoted."""
    made = []
    what = f"record a run: {VALUES} parameters, {VALUES} metrics, start to finish"
    for burst, times in data["run_ms"].items():
        at_once = "" if burst == "1" else f", {burst} in a row"
        for name, said in ((OURS, what), (OURS_DURABLE, f"{what}, surviving a power cut")):
            for opponent in (MLFLOW, MLFLOW_RELAXED):
                title = f"{said}{at_once}, against {opponent}"
                one = against(title, "ms", times[name], opponent, times.get(opponent), why=data["opponent"])
                if opponent == MLFLOW:
                    one = one.at_most(1 / LIMITS[name]) if one.ratio else one
                    one = one.in_short() if burst == "1" else one
                made.append(one)
    first = data["first_use_ms"]
    made.append(
        against(
            "first run in a new store", "ms", first[OURS], MLFLOW, first.get(MLFLOW), why=data["opponent"]
        ).in_short()
    )
    made.append(declared(f"{PROCESSES} processes into one new store", "runs/s", data["crowd"]["runs_per_s"], 0.5))
    lacking = declared("stores that lack a value", "", 2 - data["crowd"]["complete"] - data["complete"], 0)
    return [*made, lacking.at_most(0)]


def main() -> None:
    """Measure and report."""
    options = parser(__doc__)
    options.add_argument("--without-peers", action="store_true", help="measure our side alone")
    # Not the temporary folder: where others delete files by the thousand, making one can take several times as long.
    options.add_argument("--folder", type=Path, default=Path.home(), help="where the stores are made for the while")
    options.add_argument("--rounds", type=int, default=150)
    options.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = options.parse_args()
    if arguments.worker:
        answer_requests(lambda: answering(arguments.worker, arguments.folder))
        return
    session = Session("store", options, arguments)
    python, version = environments.find(environments.MLFLOW, wanted=not arguments.without_peers)
    pythons = dict.fromkeys((OURS, OURS_DURABLE), Path(sys.executable))
    if python is not None:
        pythons |= dict.fromkeys((MLFLOW, MLFLOW_RELAXED), python)
    data: dict[str, Any] = {"rounds": arguments.rounds, "warm_up": WARM_UP, "opponent": version}
    with tempfile.TemporaryDirectory(dir=arguments.folder, prefix="bench-store-") as name:
        folder = Path(name)
        with workers(pythons, __file__, folder) as sides:
            for side in sides:
                side.ask("open", folder=f"runs of {side.name}", runs=WARM_UP)
            data["run_ms"] = {str(burst): measure_runs(sides, arguments.rounds, burst) for burst in BURSTS}
            described = {side.name: side.ask("describe") for side in sides}
            data["first_use_ms"] = measure_first_use(sides, max(2, arguments.rounds // 30))
        data["crowd"] = measure_crowd(folder)
    expected = [(arguments.rounds * sum(BURSTS) + WARM_UP) * VALUES] * 2
    data["sides"] = {side: answer["settings"] for side, answer in described.items()}
    data["complete"] = all(answer["rows"] == expected for answer in described.values())
    session.finish(data, figures(data), peers={"MLflow": version})


if __name__ == "__main__":
    main()
