"""How quickly is the right run found among 100,000?

The same 100,000 runs with 10 parameters, 10 metrics and a tag each, in our store, in MLflow 3, FastTrackML and MLtraq,
all on SQLite, asked the same questions in turns, each side in a process of its own that times itself. Ours are written
through the store; those of MLflow and FastTrackML by SQL, as their own calls would take hours, and then analyzed, which
favors them; those of MLtraq as one experiment, which is one table with a column for each value. FastTrackML is a
server on this machine, asked by MLflow's client. MLtraq has no questions of its own: it is asked by SQL through its
session. Every answer is compared: all sides must name the same runs in the same order.

    python benchmarks/hub/bench_query.py [--without-peers] [--runs N] [--json FILE]
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import os
import random
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import environments
from figures import Figure, against, declared
from report import Session, parser
from workers import Worker, answer_requests, workers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

OURS, MLFLOW, MLTRAQ, FASTTRACKML = "ours", "MLflow", "MLtraq", "FastTrackML"
PEERS = (MLFLOW, FASTTRACKML, MLTRAQ)
VALUES = 10
STAGES = ("ci", "dev", "nightly", "release")
PAGED, PAGED_BY_FASTTRACKML = 20_000, 9_500
NO_FURTHER = "refuses its own page token from the 10,000th run on (unexpected EOF)"
FIRST_MS = 1_790_000_000_000
QUESTIONS = {
    "newest 50 with all values": 10.0,
    "metric filter, tag, order by metric": 15.0,
    "order by metric": 50.0,
    "parameter filter": 20.0,
}
"""What is asked, and how many times faster than MLflow the answer must come."""
LIMIT_PAGING, LIMIT_SIZE = 15.0, 0.4


def example(number: int) -> tuple[list[int], list[float], str]:
    """Return the parameters, metrics and stage of a run: the same on both sides."""
    chance = random.Random(number)  # noqa: S311 - data
    params = [chance.randrange(1000) for _ in range(VALUES)]
    return params, [chance.random() * 10 for _ in range(VALUES)], STAGES[chance.randrange(len(STAGES))]


class Side(Protocol):
    """A store that is asked."""

    def fill(self, count: int) -> None:
        """Write the runs."""
        ...

    def ask(self, question: str) -> list[str]:
        """Answer a question with the names of 50 runs."""
        ...

    def page(self, count: int) -> int:
        """Read so many runs with their values, newest first, page by page."""
        ...

    def size_bytes(self) -> int:
        """Return the size of the database."""
        ...


class Ours:
    """The hub's store."""

    def __init__(self, folder: Path) -> None:
        from embedl_hub.tracking import Store  # noqa: PLC0415 - the opponent's environment lacks it

        self._folder = folder
        self._store = Store(folder, recovers=False)
        self._store.open()

    def fill(self, count: int) -> None:
        """Bring the records of the runs into the index, as their processes would."""
        for start in range(0, count, 2000):
            batch = {_id(number): list(_records(number)) for number in range(start, min(start + 2000, count))}
            self._store.apply(batch)

    def ask(self, question: str) -> list[str]:
        """Answer a question."""
        where, order = {
            "newest 50 with all values": ("", "-started"),
            "metric filter, tag, order by metric": ("metrics.m1 < 5 and tags.stage = 'ci'", "metrics.m2"),
            "order by metric": ("", "metrics.m3"),
            "parameter filter": ("params.p4 = 77", "-started"),
        }[question]
        found = self._store.find(f"project = 'bench'{' and ' if where else ''}{where}", order=order, limit=50)
        assert all(len(run.params) == VALUES == len(run.metrics) for run in found.runs)
        return [run.name for run in found.runs]

    def page(self, count: int) -> int:
        """Read runs page by page."""
        seen, after = 0, None
        while seen < count:
            page = self._store.find("project = 'bench'", limit=500, after=after)
            seen, after = seen + len(page.runs), page.after
        return seen

    def size_bytes(self) -> int:
        """Return the size of the database."""
        with contextlib.closing(sqlite3.connect(self._folder / "hub.db")) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return sum(path.stat().st_size for path in self._folder.glob("hub.db*"))


class MLflow:
    """The opponent."""

    def __init__(self, folder: Path) -> None:
        os.environ |= {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_CONFIGURE_LOGGING": "false"}
        from mlflow.tracking import MlflowClient  # type: ignore[import-not-found]  # noqa: PLC0415 - only there

        folder.mkdir(parents=True)
        self._database = folder / "mlflow.db"
        self._client = MlflowClient(tracking_uri=f"sqlite:///{self._database}")
        self._experiment = self._client.create_experiment("bench", artifact_location=str(folder / "artifacts"))

    def fill(self, count: int) -> None:
        """Write the rows its own calls would write."""
        connection = sqlite3.connect(self._database)
        more, context = self._more_columns(connection)
        for number in range(count):
            run_id, (params, metrics, stage), moment = _id(number).rjust(32, "0"), example(number), FIRST_MS + number
            connection.execute(
                "INSERT INTO runs (run_uuid, name, source_type, source_name, entry_point_name, user_id, status, "
                "start_time, end_time, source_version, lifecycle_stage, artifact_uri, experiment_id) VALUES "
                "(?, ?, 'UNKNOWN', '', '', 'unknown', 'FINISHED', ?, ?, '', 'active', ?, ?)",
                (run_id, f"r{number}", moment, moment + 1, f"{self._database.parent}/{run_id}", int(self._experiment)),
            )
            rows = [(f"p{index}", str(value), run_id) for index, value in enumerate(params)]
            connection.executemany(f"INSERT INTO params (key, {self._text}, run_uuid) VALUES (?, ?, ?)", rows)  # noqa: S608 - two names
            values = [(f"m{index}", value, moment, run_id, 0, 0, *context) for index, value in enumerate(metrics)]
            for table in ("metrics", "latest_metrics"):
                connection.executemany(
                    f"INSERT INTO {table} (key, value, timestamp, run_uuid, step, is_nan{more}) "  # noqa: S608 - two names
                    f"VALUES (?, ?, ?, ?, ?, ?{', ?' * len(context)})",
                    values,
                )
            tags = [("stage", stage, run_id), ("mlflow.runName", f"r{number}", run_id)]
            connection.executemany("INSERT INTO tags (key, value, run_uuid) VALUES (?, ?, ?)", tags)
        connection.commit()
        connection.execute("ANALYZE")
        connection.close()

    def ask(self, question: str) -> list[str]:
        """Answer a question."""
        where, order = {
            "newest 50 with all values": ("", "attributes.start_time DESC"),
            "metric filter, tag, order by metric": ("metrics.m1 < 5 and tags.stage = 'ci'", "metrics.m2 ASC"),
            "order by metric": ("", "metrics.m3 ASC"),
            "parameter filter": ("params.p4 = '77'", "attributes.start_time DESC"),
        }[question]
        found = self._client.search_runs([self._experiment], where, order_by=[order], max_results=50)
        assert all(len(run.data.params) == VALUES == len(run.data.metrics) for run in found)
        return [str(run.info.run_name) for run in found]

    def page(self, count: int) -> int:
        """Read runs page by page."""
        seen, token = 0, None
        while seen < count:
            page = self._client.search_runs([self._experiment], max_results=500, page_token=token)
            seen, token = seen + len(page), page.token
        return seen

    def size_bytes(self) -> int:
        """Return the size of the database."""
        with contextlib.closing(sqlite3.connect(self._database)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return self._database.stat().st_size

    _text = "value"

    def _more_columns(self, _connection: sqlite3.Connection) -> tuple[str, tuple[int, ...]]:
        return "", ()


class FastTrackML(MLflow):
    """The opponent that is a server, with almost the same tables."""

    _text = "value_str"

    def __init__(self, folder: Path) -> None:
        from mlflow.tracking import MlflowClient  # noqa: PLC0415 - only there

        folder.mkdir(parents=True)
        self._database = folder / "fasttrackml.db"
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        program = str(Path(sys.executable).with_name("fml"))
        argv = [program, "server", "--database-uri", f"sqlite://{self._database}", "--listen-address",
                f"127.0.0.1:{port}", "--default-artifact-root", str(folder), "--log-level", "error"]  # fmt: skip
        server = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        atexit.register(server.kill)
        self._client = MlflowClient(tracking_uri=f"http://127.0.0.1:{port}")
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.01)
        self._experiment = self._client.create_experiment("bench")

    def _more_columns(self, connection: sqlite3.Connection) -> tuple[str, tuple[int, ...]]:
        (context,) = connection.execute("SELECT min(id) FROM contexts").fetchone()
        return ", context_id", (context or 1,)


class MLtraq:
    """The opponent whose experiment is a table."""

    def __init__(self, folder: Path) -> None:
        import mltraq  # type: ignore[import-not-found]  # noqa: PLC0415 - only there
        from mltraq.storage.database import pandas_query  # type: ignore[import-not-found]  # noqa: PLC0415 - only there

        mltraq.options().set("tqdm.disable", True)
        folder.mkdir(parents=True)
        self._database = folder / "mltraq.db"
        self._session = mltraq.create_session(f"sqlite:///{self._database}")
        self._pandas_query = pandas_query

    def fill(self, count: int) -> None:
        """Persist the runs as one experiment."""
        experiment = self._session.create_experiment("bench")
        for number in range(count):
            params, metrics, stage = example(number)
            with experiment.run() as run:
                run.fields.name, run.fields.started, run.fields.stage = f"r{number}", FIRST_MS + number, stage
                for index, (param, metric) in enumerate(zip(params, metrics, strict=True)):
                    run.fields[f"p{index}"], run.fields[f"m{index}"] = param, metric
        experiment.persist()

    def _rows(self, words: str) -> Any:  # noqa: ANN401 - a data frame
        with self._session.db.session() as session:
            return self._pandas_query(f"SELECT * FROM experiment_bench {words}", session)  # noqa: S608 - our own words

    def ask(self, question: str) -> list[str]:
        """Answer a question."""
        words = {
            "newest 50 with all values": "ORDER BY started DESC",
            "metric filter, tag, order by metric": "WHERE m1 < 5 AND stage = 'ci' ORDER BY m2",
            "order by metric": "ORDER BY m3",
            "parameter filter": "WHERE p4 = 77 ORDER BY started DESC",
        }[question]
        return [str(name) for name in self._rows(f"{words} LIMIT 50")["name"]]

    def page(self, count: int) -> int:
        """Read runs page by page."""
        seen, before = 0, FIRST_MS * 2
        while seen < count:
            rows = self._rows(f"WHERE started < {before} ORDER BY started DESC LIMIT 500")
            seen, before = seen + len(rows), int(rows["started"].iloc[-1])
        return seen

    def size_bytes(self) -> int:
        """Return the size of the database."""
        return self._database.stat().st_size


def _id(number: int) -> str:
    return f"{number:013x}00000000"


def _records(number: int) -> Iterator[dict[str, Any]]:
    params, metrics, stage = example(number)
    facts: list[dict[str, Any]] = [
        {"kind": "start", "project": "bench", "type": "CUSTOM", "name": f"r{number}", "format": 1},
        *({"kind": "param", "name": f"p{index}", "value": value} for index, value in enumerate(params)),
        *({"kind": "metric", "name": f"m{index}", "value": value} for index, value in enumerate(metrics)),
        {"kind": "tag", "name": "stage", "value": stage},
        {"kind": "end", "status": "FINISHED"},
    ]
    for seq, fact in enumerate(facts):
        yield {"seq": seq, "time_ms": FIRST_MS + number, **fact}


def answering(name: str, folder: Path) -> Callable[[dict[str, Any]], dict[str, object]]:
    """Return what answers as the worker of one side."""
    kinds: dict[str, Callable[[Path], Side]] = {OURS: Ours, MLFLOW: MLflow, MLTRAQ: MLtraq, FASTTRACKML: FastTrackML}
    side = kinds[name](folder / name)
    do: dict[str, Callable[[Any], object]] = {
        "fill": side.fill,
        "ask": side.ask,
        "page": side.page,
        "size": lambda _: side.size_bytes(),
    }

    def answer(request: dict[str, Any]) -> dict[str, object]:
        start = time.perf_counter_ns()
        said = do[request["do"]](request.get("value"))
        return {"ms": (time.perf_counter_ns() - start) / 1e6, "said": said}

    return answer


def measure(sides: list[Worker], runs: int, rounds: int) -> dict[str, Any]:
    """Fill, ask and page, in turns."""
    for side in sides:
        took_ms = side.ask("fill", value=runs)["ms"]
        print(f"{side.name}: {runs:,} runs written in {took_ms / 1000:.0f} s", file=sys.stderr)
    times: dict[str, dict[str, list[float]]] = {}
    agree = True
    for question in QUESTIONS:
        times[question] = {side.name: [] for side in sides}
        for number in range(rounds + 1):
            answers = []
            for side in sides if number % 2 else sides[::-1]:
                answer = side.ask("ask", value=question)
                answers.append(answer["said"])
                # The first round only warms the caches of both.
                if number:
                    times[question][side.name].append(answer["ms"])
            agree &= bool(answers[0]) and all(answer == answers[0] for answer in answers)
    paged = min(PAGED, runs)
    able = [side for side in sides if side.name != FASTTRACKML or paged <= PAGED_BY_FASTTRACKML]
    times[f"page through {paged:,} runs"] = {side.name: [side.ask("page", value=paged)["ms"]] for side in able}
    sizes = {side.name: side.ask("size")["said"] for side in sides}
    return {"ms": times, "size_bytes": sizes, "answers_agree": agree}


def figures(data: dict[str, Any]) -> list[Figure]:
    """Return what is quoted."""
    made, runs = [], f"{data['runs']:,}"
    for question, times in data["ms"].items():
        least = QUESTIONS.get(question, LIMIT_PAGING)
        what = question if question.startswith("page through") else f"{question}, of {runs}"
        # Paging is timed once: it takes an opponent a minute.
        tolerance = 0.25 if len(times[OURS]) == 1 else 0.0
        for peer in PEERS:
            title, why = f"{what}, against {peer} on SQLite", data["opponents"][peer]
            if peer == FASTTRACKML and question.startswith("page through"):
                why = NO_FURTHER
            one = against(title, "ms", times[OURS], f"{peer} on SQLite", times.get(peer), why=why, tolerance=tolerance)
            if peer == MLFLOW:
                one = (one.at_most(1 / least) if one.ratio else one).in_short()
            made.append(one)
    sizes = data["size_bytes"]
    for peer in PEERS:
        theirs, title = sizes[peer] / 1e6 if peer in sizes else None, f"database of {runs} runs, against {peer}"
        size = declared(title, "MB", sizes[OURS] / 1e6, 0.05, f"{peer} on SQLite", theirs)
        size = replace(size, failed=data["opponents"][peer]) if theirs is None else size
        made.append((size.at_most(LIMIT_SIZE) if theirs else size).in_short() if peer == MLFLOW else size)
    return [*made, declared("questions whose answers differ", "", int(not data["answers_agree"]), 0).at_most(0)]


def main() -> None:
    """Measure and report."""
    options = parser(__doc__)
    options.add_argument("--without-peers", action="store_true", help="measure our side alone")
    options.add_argument("--folder", type=Path, default=Path.home(), help="where the stores are made for the while")
    options.add_argument("--runs", type=int, default=100_000)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = options.parse_args()
    if arguments.worker:
        answer_requests(lambda: answering(arguments.worker, arguments.folder))
        return
    session = Session("query", options, arguments)
    pythons, opponents = {OURS: Path(sys.executable)}, dict[str, str]()
    for peer in PEERS:
        python, opponents[peer] = environments.find(environments.ALL[peer], wanted=not arguments.without_peers)
        if python is not None:
            pythons[peer] = python
    with (
        tempfile.TemporaryDirectory(dir=arguments.folder, prefix="bench-query-") as folder,
        workers(pythons, __file__, Path(folder)) as sides,
    ):
        data = {"runs": arguments.runs, "opponents": opponents, **measure(sides, arguments.runs, arguments.rounds)}
    session.finish(data, figures(data), peers=opponents)


if __name__ == "__main__":
    main()
