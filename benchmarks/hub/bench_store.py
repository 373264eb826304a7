"""What does recording a run cost?

One run with 10 parameters and 10 metrics, start to finish: our store at its default sync and durable (SQLite FULL and
fsync), against MLflow 3 with ``MlflowClient.create_run``, ``log_batch`` and ``set_terminated`` on SQLite: as it comes,
and with our default sync settings forced on it; against FastTrackML, a server on this machine asked by MLflow's client;
and against MLtraq, which keeps an experiment in memory until it is persisted, on SQLite. Each side is a process of its
own that times itself; they take turns on one disk: one run at a time, which finds the caches cold, and then bursts of
five, which are one experiment of five runs to MLtraq. Then 100 values one at a time into a run that goes on, 1,000
values in one call, the first use of a new store, and eight processes that fill one store of ours.

What is safe when a call returns is tried: after 100 values one at a time the process, with its server if it has one, is
killed, and what is left is counted.

    python benchmarks/hub/bench_store.py [--without-peers] [--folder DIR] [--json FILE]
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import functools
import importlib.metadata
import os
import signal
import socket
import sqlite3
import subprocess
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
    from collections.abc import Callable, Mapping, Sequence

OURS, OURS_DURABLE = "ours, default", "ours, durable"
MLFLOW, MLFLOW_RELAXED = "MLflow, as it comes", "MLflow, our default sync"
MLTRAQ, FASTTRACKML = "MLtraq", "FastTrackML"
PEERS = {"MLflow": (MLFLOW, MLFLOW_RELAXED), "MLtraq": (MLTRAQ,), "FastTrackML": (FASTTRACKML,)}
LIMITS = {OURS: 15.0, OURS_DURABLE: 1.0}
VALUES = 10
SINGLE, AT_ONCE = 100, 1000
PROCESSES, RUNS_EACH = 8, 200
WARM_UP = 10
BURSTS = (1, 5)


class Side(Protocol):
    """A way to record a run, in the process that times it."""

    def some_runs(self, count: int) -> None:
        """Record so many runs, start to finish."""
        ...

    def begin(self) -> None:
        """Begin a run that values are logged to."""
        ...

    def log_singly(self, count: int) -> None:
        """Log so many values to it, one call each."""
        ...

    def log_at_once(self, count: int) -> None:
        """Log so many values to it in one call."""
        ...

    def save(self) -> None:
        """Do what is needed before a kill loses nothing; most have done so already."""
        ...

    def settings(self) -> dict[str, object]:
        """Return what decides how safe, and so how slow, a write is."""
        ...

    def rows(self) -> list[int]:
        """Return how many parameters and metrics of whole runs are kept."""
        ...

    def die(self) -> None:
        """End as by a kill, with every process that belongs to it."""
        ...


class Ours:
    """The hub's store."""

    def __init__(self, folder: Path, *, durable: bool) -> None:
        from embedl_hub.tracking import Client, Store  # noqa: PLC0415 - the opponent's environment lacks it

        self._store = Store(folder, durable=durable)
        self._store.open()
        self._client = Client("bench", self._store)
        self._open = contextlib.ExitStack()

    def some_runs(self, count: int) -> None:
        """Record runs, start to finish."""
        for _ in range(count):
            with self._client.start_run() as run:
                for number in range(VALUES):
                    run.log_param(f"param {number}", number)
                for number in range(VALUES):
                    run.log_metric(f"metric {number}", number / 7)

    def begin(self) -> None:
        """Begin a run."""
        self._open.close()
        self._run = self._open.enter_context(self._client.start_run())

    def log_singly(self, count: int) -> None:
        """Log values one by one."""
        for step in range(count):
            self._run.log_metric("single", step / 7, step)

    def log_at_once(self, count: int) -> None:
        """Log values in one call."""
        self._run.log_batch(metrics=[("at once", step / 7, step) for step in range(count)])

    def save(self) -> None:
        """Do nothing: they are in the manifest."""

    def die(self) -> None:
        """End as by a kill."""
        os.kill(os.getpid(), signal.SIGKILL)

    def settings(self) -> dict[str, object]:
        """Return the sync settings."""
        with self._store._reading() as connection:  # noqa: SLF001 - the settings of this very connection
            return {**_pragmas(connection), "fsync of manifests": self._store.durable}

    def rows(self) -> list[int]:
        """Return how many values there are."""
        return _count(self._store.home / "hub.db", "param", "metric")


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
        self._database = folder / "mlflow.db"
        self._entities = entities
        self._client = MlflowClient(tracking_uri=f"sqlite:///{self._database}")
        self._experiment = self._client.create_experiment("bench", artifact_location=str(folder / "artifacts"))

    def some_runs(self, count: int) -> None:
        """Record runs, start to finish."""
        for _ in range(count):
            run_id = self._client.create_run(self._experiment).info.run_id
            now_ms = time.time_ns() // 1_000_000
            metrics = [self._entities.Metric(f"metric {number}", number / 7, now_ms, 0) for number in range(VALUES)]
            params = [self._entities.Param(f"param {number}", str(number)) for number in range(VALUES)]
            self._client.log_batch(run_id, metrics=metrics, params=params)
            self._client.set_terminated(run_id)

    def begin(self) -> None:
        """Begin a run."""
        self._run_id = self._client.create_run(self._experiment).info.run_id

    def log_singly(self, count: int) -> None:
        """Log values one by one."""
        for step in range(count):
            self._client.log_metric(self._run_id, "single", step / 7, step=step)

    def log_at_once(self, count: int) -> None:
        """Log values in one call."""
        now_ms = time.time_ns() // 1_000_000
        metrics = [self._entities.Metric("at once", step / 7, now_ms, step) for step in range(count)]
        self._client.log_batch(self._run_id, metrics=metrics)

    def save(self) -> None:
        """Do nothing: they are committed."""

    def die(self) -> None:
        """End as by a kill."""
        os.kill(os.getpid(), signal.SIGKILL)

    def settings(self) -> dict[str, object]:
        """Return the sync settings and the versions."""
        versions = {name: importlib.metadata.version(name) for name in ("mlflow", "sqlalchemy")}
        return {**self._pragmas, **versions}

    def rows(self) -> list[int]:
        """Return how many values there are."""
        return _count(self._database, "params", "metrics")


class FastTrackML(MLflow):
    """The opponent that is a server: its program on a SQLite file, asked by MLflow's client over loopback."""

    def __init__(self, folder: Path) -> None:
        os.environ |= {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true"}
        from mlflow import entities  # noqa: PLC0415 - only there
        from mlflow.tracking import MlflowClient  # noqa: PLC0415 - only there

        folder.mkdir(parents=True)
        self._database = folder / "fasttrackml.db"
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        program = str(Path(sys.executable).with_name("fml"))
        places = ["--database-uri", f"sqlite://{self._database}", "--default-artifact-root", str(folder / "artifacts")]
        argv = [program, "server", *places, "--listen-address", f"127.0.0.1:{port}", "--log-level", "error"]
        self._server = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        atexit.register(self._server.kill)
        self._wait(port)
        self._entities = entities
        self._client = MlflowClient(tracking_uri=f"http://127.0.0.1:{port}")
        self._experiment = self._client.create_experiment("bench")

    def _wait(self, port: int) -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and self._server.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                return
            time.sleep(0.01)
        raise RuntimeError("FastTrackML's server does not start")

    def settings(self) -> dict[str, object]:
        """Return what the database says of itself; how it syncs is the server's own affair."""
        with contextlib.closing(sqlite3.connect(self._database)) as connection:
            (journal,) = connection.execute("PRAGMA journal_mode").fetchone()
        versions = {name: importlib.metadata.version(name) for name in ("fasttrackml", "mlflow")}
        return {"journal_mode": journal, "python": sys.version.split()[0], **versions}

    def die(self) -> None:
        """End as by a kill, the server first."""
        self._server.kill()
        self._server.wait()
        super().die()


class MLtraq:
    """The opponent that keeps an experiment in memory until it is persisted."""

    def __init__(self, folder: Path) -> None:
        import mltraq  # type: ignore[import-not-found]  # noqa: PLC0415 - only there

        folder.mkdir(parents=True, exist_ok=True)
        self._mltraq = mltraq
        self._database = folder / "mltraq.db"
        self._session = mltraq.create_session(f"sqlite:///{self._database}")
        self._made = 0

    def _experiment(self) -> Any:  # noqa: ANN401 - MLtraq's
        self._made += 1
        return self._session.create_experiment(f"experiment {self._made}")

    def some_runs(self, count: int) -> None:
        """Record runs, start to finish: one experiment, persisted once."""
        experiment = self._experiment()
        for _ in range(count):
            with experiment.run() as run:
                for number in range(VALUES):
                    run.fields[f"param {number}"] = number
                for number in range(VALUES):
                    run.fields[f"metric {number}"] = number / 7
        experiment.persist()

    def begin(self) -> None:
        """Begin a run: an experiment that has it, with a series for each way to log."""
        self._going_on = self._experiment()
        with self._going_on.run() as run:
            run.fields.single = self._mltraq.Sequence()
            run.fields.at_once = self._mltraq.Sequence()
            self._run = run

    def log_singly(self, count: int) -> None:
        """Add values to the series, in memory."""
        for step in range(count):
            self._run.fields.single.append(step=step, value=step / 7)

    def log_at_once(self, count: int) -> None:
        """Add values to the series; it has no call for many."""
        for step in range(count):
            self._run.fields.at_once.append(step=step, value=step / 7)

    def save(self) -> None:
        """Persist the experiment."""
        self._going_on.persist(if_exists="replace")

    def settings(self) -> dict[str, object]:
        """Return the sync settings, which are SQLite's own, and the versions."""
        with contextlib.closing(sqlite3.connect(self._database)) as connection:
            pragmas = _pragmas(connection)
        return {**pragmas, **{name: importlib.metadata.version(name) for name in ("mltraq", "sqlalchemy")}}

    def rows(self) -> list[int]:
        """Return how many values there are: a table for each experiment, a column for each value of a run."""
        with contextlib.closing(sqlite3.connect(self._database)) as connection:
            tables = connection.execute("SELECT name FROM sqlite_master WHERE name LIKE 'experiment_%'").fetchall()
            found = [0, 0]
            for (table,) in tables:
                (runs,) = connection.execute(f'SELECT count(*) FROM "{table}"').fetchone()  # noqa: S608 - its own names
                names = [column[1] for column in connection.execute(f'PRAGMA table_info("{table}")')]
                for place, kind in enumerate(("param", "metric")):
                    found[place] += runs * sum(name.startswith(kind) for name in names)
        return found

    def survivors(self) -> int:
        """Return how many values of the series that went on are kept."""
        with contextlib.suppress(Exception):  # an experiment that was never persisted is an error of its own there
            return len(self._session.load_experiment("experiment 1").runs.first().fields.single)
        return 0

    def die(self) -> None:
        """End as by a kill."""
        os.kill(os.getpid(), signal.SIGKILL)


def make_side(name: str, folder: Path) -> Side:
    """Open a side's store in a folder that does not exist yet, or, for ours, that others use as well."""
    if name in {OURS, OURS_DURABLE}:
        return Ours(folder, durable=name == OURS_DURABLE)
    if name == MLTRAQ:
        return MLtraq(folder)
    return FastTrackML(folder) if name == FASTTRACKML else MLflow(folder, relaxed=name == MLFLOW_RELAXED)


def count_survivors(name: str, folder: Path) -> int:
    """Return how many values a side has of the series that was going on when it was killed."""
    if name in {OURS, OURS_DURABLE}:
        from embedl_hub.tracking import Store  # noqa: PLC0415 - the opponent's environment lacks it

        with Store(folder):  # which marks the run of the process that was killed
            return _count(folder / "hub.db", "param", "metric")[1]
    if name == MLTRAQ:
        return MLtraq(folder).survivors()
    database = folder / ("fasttrackml.db" if name == FASTTRACKML else "mlflow.db")
    return _count(database, "params", "metrics")[1]


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
        if request["do"] == "survivors":
            return {"values": count_survivors(name, folder / request["folder"])}
        if request["do"] in {"log_singly", "log_at_once"}:
            sides[0].begin()
        start = time.perf_counter_ns()
        if request["do"] == "open":
            sides[:] = [make_side(name, folder / request["folder"])]
        if request.get("runs"):
            sides[0].some_runs(request["runs"])
        if request["do"] in {"log_singly", "log_at_once"}:
            getattr(sides[0], request["do"])(request["values"])
        took: dict[str, object] = {"ns": time.perf_counter_ns() - start}
        if request.get("die"):
            sides[0].die()
        if request["do"] in {"log_singly", "log_at_once"}:
            sides[0].save()
            took["saved_ns"] = time.perf_counter_ns() - start
        if request["do"] == "describe":
            took |= {"settings": sides[0].settings(), "rows": sides[0].rows()}
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


def measure_values(sides: Sequence[Worker], rounds: int) -> dict[str, dict[str, dict[str, list[float]]]]:
    """Return the times in ms to log values to a run that goes on, all sides in turns: the calls, and until saved."""
    found: dict[str, dict[str, dict[str, list[float]]]] = {}
    for do, values in (("log_singly", SINGLE), ("log_at_once", AT_ONCE)):
        times = found[do] = {kind: {side.name: [] for side in sides} for kind in ("calls_ms", "saved_ms")}
        for number in range(rounds):
            first = number % len(sides)
            for side in (*sides[first:], *sides[:first]):
                took = side.ask(do, values=values)
                times["calls_ms"][side.name].append(took["ns"] / 1e6)
                times["saved_ms"][side.name].append(took["saved_ns"] / 1e6)
    return found


def measure_survivors(pythons: Mapping[str, Path], folder: Path) -> dict[str, int]:
    """Return how many of the values that were logged one at a time are left after a kill."""
    left = {}
    for name, python in pythons.items():
        place = f"killed {name}"
        with Worker(python, __file__, name, folder) as worker:
            worker.ask("open", folder=place)
            worker.send("log_singly", values=SINGLE, die=True)
        with Worker(python, __file__, name, folder) as worker:
            left[name] = worker.ask("survivors", folder=place)["values"]
    return left


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
        for opponent in (FASTTRACKML, MLTRAQ):
            why = data["opponents"][opponent]
            made.append(
                against(
                    f"{what}{at_once}, against {opponent}", "ms", times[OURS], opponent, times.get(opponent), why=why
                )
            )
    made += _value_figures(data)
    first = data["first_use_ms"]
    for opponent, why in (
        (MLFLOW, data["opponent"]),
        *((name, data["opponents"][name]) for name in (FASTTRACKML, MLTRAQ)),
    ):
        one = against(
            f"first run in a new store, against {opponent}", "ms", first[OURS], opponent, first.get(opponent), why=why
        )
        made.append(one.in_short() if opponent == MLFLOW else one)
    made.append(declared(f"{PROCESSES} processes into one new store", "runs/s", data["crowd"]["runs_per_s"], 0.5))
    lacking = declared("stores that lack a value", "", 2 - data["crowd"]["complete"] - data["complete"], 0)
    return [*made, lacking.at_most(0)]


def _value_figures(data: dict[str, Any]) -> list[Figure]:
    """Return what is quoted of values logged to a run that goes on, and of what a kill leaves of them."""
    made = []
    for do, what in (
        ("log_singly", f"{SINGLE} values, one call each"),
        ("log_at_once", f"{AT_ONCE:,} values, one call"),
    ):
        calls, saved = (data["values"][do][kind] for kind in ("calls_ms", "saved_ms"))
        for opponent in (MLFLOW, FASTTRACKML, MLTRAQ):
            why = data["opponents"][opponent]
            name = f"{opponent}, in memory" if opponent == MLTRAQ else opponent
            made.append(against(f"log {what}, against {name}", "ms", calls[OURS], name, calls.get(opponent), why=why))
        persisted = saved.get(MLTRAQ)
        name = f"{MLTRAQ}, persisted once at the end"
        made.append(
            against(f"log {what}, against {name}", "ms", calls[OURS], name, persisted, why=data["opponents"][MLTRAQ])
        )
    ours = data["survivors"][OURS]
    for name, left in data["survivors"].items():
        if name not in {OURS, OURS_DURABLE}:
            what = f"left of {SINGLE} values, logged one by one, after a kill, against {name}"
            made.append(declared(what, "", ours, 0, name, left))
    return [*made, declared("acknowledged values that a kill took from ours", "", SINGLE - ours, 0).at_most(0)]


def main() -> None:
    """Measure and report."""
    options = parser(__doc__)
    options.add_argument("--without-peers", action="store_true", help="measure our side alone")
    # Not the temporary folder: where others delete files by the thousand, making one can take several times as long.
    options.add_argument("--folder", type=Path, default=Path.home(), help="where the stores are made for the while")
    options.add_argument("--rounds", type=int, default=60)
    options.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = options.parse_args()
    if arguments.worker:
        answer_requests(lambda: answering(arguments.worker, arguments.folder))
        return
    session = Session("store", options, arguments)
    pythons = dict.fromkeys((OURS, OURS_DURABLE), Path(sys.executable))
    versions: dict[str, str] = {}
    for peer, names in PEERS.items():
        python, versions[peer] = environments.find(environments.ALL[peer], wanted=not arguments.without_peers)
        if python is not None:
            pythons |= dict.fromkeys(names, python)
    opponents = {name: versions[peer] for peer, names in PEERS.items() for name in names}
    data: dict[str, Any] = {
        "rounds": arguments.rounds, "warm_up": WARM_UP, "opponent": versions["MLflow"], "opponents": opponents,
    }  # fmt: skip
    with tempfile.TemporaryDirectory(dir=arguments.folder, prefix="bench-store-") as name:
        folder = Path(name)
        with workers(pythons, __file__, folder) as sides:
            for side in sides:
                side.ask("open", folder=f"runs of {side.name}", runs=WARM_UP)
            data["run_ms"] = {str(burst): measure_runs(sides, arguments.rounds, burst) for burst in BURSTS}
            data["values"] = measure_values(sides, max(2, arguments.rounds // 10))
            described = {side.name: side.ask("describe") for side in sides}
            data["first_use_ms"] = measure_first_use(sides, max(2, arguments.rounds // 30))
        data["survivors"] = measure_survivors(pythons, folder)
        data["crowd"] = measure_crowd(folder)
    expected = [(arguments.rounds * sum(BURSTS) + WARM_UP) * VALUES] * 2
    extra = max(2, arguments.rounds // 10) * (SINGLE + AT_ONCE)
    data["sides"] = {side: answer["settings"] for side, answer in described.items()}
    data["complete"] = all(
        answer["rows"] == [expected[0], expected[1] + (name != MLTRAQ) * extra] for name, answer in described.items()
    )
    session.finish(data, figures(data), peers=versions)


if __name__ == "__main__":
    main()
