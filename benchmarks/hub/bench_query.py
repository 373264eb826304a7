"""How quickly is the right run found among 100,000?

The same 100,000 runs with 10 parameters, 10 metrics and a tag each, in our store and in MLflow 3 on SQLite, asked the
same questions in turns, each side in a process of its own that times itself. Ours are written through the store; those
of MLflow by SQL, as its own calls would take hours, and then analyzed, which favors it. Every answer is compared: both
sides must name the same runs in the same order.

    python benchmarks/hub/bench_query.py [--without-peers] [--runs N] [--json FILE]
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import sqlite3
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

OURS, MLFLOW = "ours", "MLflow"
VALUES = 10
STAGES = ("ci", "dev", "nightly", "release")
PAGED = 20_000
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
        for number in range(count):
            run_id, (params, metrics, stage), moment = _id(number).rjust(32, "0"), example(number), FIRST_MS + number
            connection.execute(
                "INSERT INTO runs (run_uuid, name, source_type, source_name, entry_point_name, user_id, status, "
                "start_time, end_time, source_version, lifecycle_stage, artifact_uri, experiment_id) VALUES "
                "(?, ?, 'UNKNOWN', '', '', 'unknown', 'FINISHED', ?, ?, '', 'active', ?, ?)",
                (run_id, f"r{number}", moment, moment + 1, f"{self._database.parent}/{run_id}", int(self._experiment)),
            )
            rows = [(f"p{index}", str(value), run_id) for index, value in enumerate(params)]
            connection.executemany("INSERT INTO params (key, value, run_uuid) VALUES (?, ?, ?)", rows)
            values = [(f"m{index}", value, moment, run_id, 0, 0) for index, value in enumerate(metrics)]
            for table in ("metrics", "latest_metrics"):
                connection.executemany(
                    f"INSERT INTO {table} (key, value, timestamp, run_uuid, step, is_nan) VALUES (?, ?, ?, ?, ?, ?)",  # noqa: S608 - two names
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
            "newest 50 with all values": ("", "start_time DESC"),
            "metric filter, tag, order by metric": ("metrics.m1 < 5 and tags.stage = 'ci'", "metrics.m2 ASC"),
            "order by metric": ("", "metrics.m3 ASC"),
            "parameter filter": ("params.p4 = '77'", "start_time DESC"),
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
    side: Side = Ours(folder / name) if name == OURS else MLflow(folder / name)
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
    times[f"page through {paged:,} runs"] = {side.name: [side.ask("page", value=paged)["ms"]] for side in sides}
    sizes = {side.name: side.ask("size")["said"] for side in sides}
    return {"ms": times, "size_bytes": sizes, "answers_agree": agree}


def figures(data: dict[str, Any]) -> list[Figure]:
    """Return what is quoted."""
    made, runs, opponent = [], f"{data['runs']:,}", "MLflow on SQLite"
    for question, times in data["ms"].items():
        least = QUESTIONS.get(question, LIMIT_PAGING)
        what = question if question.startswith("page through") else f"{question}, of {runs}"
        # Paging is timed once: it takes the opponent a minute.
        tolerance = 0.25 if len(times[OURS]) == 1 else 0.0
        one = against(what, "ms", times[OURS], opponent, times.get(MLFLOW), why=data["opponent"], tolerance=tolerance)
        made.append((one.at_most(1 / least) if one.ratio else one).in_short())
    sizes = data["size_bytes"]
    theirs = sizes[MLFLOW] / 1e6 if MLFLOW in sizes else None
    size = declared(f"database of {runs} runs", "MB", sizes[OURS] / 1e6, 0.05, opponent, theirs)
    return [*made, (size.at_most(LIMIT_SIZE) if theirs else replace(size, failed=data["opponent"])).in_short(),
            declared("questions whose answers differ", "", int(not data["answers_agree"]), 0).at_most(0)]  # fmt: skip


def main() -> None:
    """Measure and report."""
    options = parser(__doc__)
    options.add_argument("--without-peers", action="store_true", help="measure our side alone")
    options.add_argument("--folder", type=Path, default=Path.home(), help="where the stores are made for the while")
    options.add_argument("--runs", type=int, default=100_000)
    options.add_argument("--rounds", type=int, default=7)
    options.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = options.parse_args()
    if arguments.worker:
        answer_requests(lambda: answering(arguments.worker, arguments.folder))
        return
    session = Session("query", options, arguments)
    python, version = environments.find(environments.MLFLOW, wanted=not arguments.without_peers)
    pythons = {OURS: Path(sys.executable)} | ({MLFLOW: python} if python is not None else {})
    with (
        tempfile.TemporaryDirectory(dir=arguments.folder, prefix="bench-query-") as folder,
        workers(pythons, __file__, Path(folder)) as sides,
    ):
        data = {"runs": arguments.runs, "opponent": version, **measure(sides, arguments.runs, arguments.rounds)}
    session.finish(data, figures(data), peers={"MLflow": version})


if __name__ == "__main__":
    main()
