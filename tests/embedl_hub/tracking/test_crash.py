"""Processes that are killed, and processes that all come at once."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from support.acknowledged import SCRIPTS, Fact, is_there

from embedl_hub.tracking import RunStatus, Store, reindex


def killed_while_logging(home: Path, seed: int, moment: random.Random) -> list[Fact]:
    """Start a process that logs, kill it at some moment, and return what it had been told is logged."""
    with subprocess.Popen(
        [sys.executable, str(SCRIPTS / "log_until_killed.py"), str(home), str(seed)],
        stdout=subprocess.PIPE,
        # communicate() reads past a buffer: what readline() had taken in beyond its line would be lost.
        bufsize=0,
    ) as victim:
        assert victim.stdout is not None
        # Every tenth is killed while it opens the store, the others once they have begun to log.
        first = b"".join(victim.stdout.readline() for _ in ("ready", "start")) if seed % 10 else b""
        try:
            said, _ = victim.communicate(timeout=moment.uniform(0.0, 0.12))
        except subprocess.TimeoutExpired:
            victim.kill()
            said, _ = victim.communicate()
        assert victim.returncode == -9
    lines = (first + said).split(b"\n")[:-1]
    return [tuple(json.loads(line)) for line in lines if b'"ready"' not in line]


def check(home: Path, facts: list[Fact]) -> Counter[str]:
    """Open the store and check that no run is left alive and that every acknowledged fact is there."""
    with Store(home) as store:
        assert store.runs("status = 'RUNNING'") == []
        runs = {run_id: store.run(run_id) for run_id, *_ in facts}
    assert {run.status for run in runs.values()} <= {RunStatus.KILLED, RunStatus.FINISHED}
    missing = [fact for fact in facts if not is_there(runs[fact[0]], fact)]
    assert missing == []
    return Counter(run.status for run in runs.values())


@pytest.mark.parametrize("kills", [15, pytest.param(50, marks=pytest.mark.slow)])
def test_killed_processes_lose_nothing_that_was_acknowledged(home: Path, kills: int) -> None:
    """After each kill -9 the store opens, the run is marked, and all is there, before and after a rebuild."""
    moment = random.Random(20260411)  # noqa: S311 - a repeatable choice of moments
    facts: list[Fact] = []
    for seed in range(kills):
        of_this = killed_while_logging(home, seed, moment)
        check(home, of_this)
        facts += of_this
        if seed % 5 == 0:
            reindex(home)
            check(home, of_this)
    reindex(home)
    statuses = check(home, facts)
    # The kills hit runs in the middle, and the test is not about empty runs.
    assert statuses[RunStatus.KILLED] >= kills // 2
    assert len(facts) > kills * 5
    with Store(home) as store:
        killed = store.runs("status = 'KILLED'")
        assert all("process ended without finishing" in str(run.error) for run in killed)
        assert all(run.ended_ms is not None and run.ended_ms >= run.started_ms - 10 for run in killed)


def test_eight_processes_fill_one_new_store_at_once(home: Path) -> None:
    """All eight create the store together and log 200 runs each: every row is there, nobody sees an error."""
    workers = [
        subprocess.Popen(
            [sys.executable, str(SCRIPTS / "log_many_runs.py"), str(home), "200", f"worker-{number}"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for number in range(8)
    ]  # fmt: skip
    for worker in workers:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()
    outcomes = [(worker.communicate(timeout=120)[1], worker.returncode) for worker in workers]
    assert outcomes == [("", 0)] * 8
    with Store(home) as store:
        assert store.counts() == {"project": 1, "run": 1600, "param": 1600, "metric": 1600, "tag": 1600, "artifact": 0}
        assert Counter(run.name for run in store.runs()) == {f"worker-{number}": 200 for number in range(8)}
        assert len(store.runs("status = 'FINISHED'")) == 1600
