"""Forking a process that logs. Each test forks a process of its own, never the one that runs the tests."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from embedl_hub.tracking import RunStatus, Store, reindex

SCRIPT = Path(__file__).parent / "scripts" / "fork_while_logging.py"


def fork(home: Path, way: str) -> str:
    """Run the script in a way of its own and return what it printed."""
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(home), way], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_a_forked_child_can_log_a_run_of_its_own(home: Path) -> None:
    """Even after its parent has closed the store, what the child logs is in the index, as the parent's child."""
    fork(home, "own_run")
    with Store(home) as store:
        runs = {run.name: store.run(run.id) for run in store.runs()}
        assert {name: run.status for name, run in runs.items()} == dict.fromkeys(
            ["parent", "early child", "child"], RunStatus.FINISHED
        )
        assert runs["child"].parent_id == runs["parent"].id
        assert {name: param.value for name, param in runs["child"].params.items()} == {"from": "child"}
        assert runs["child"].artifacts["file"].local().read_text() == "from the child"
        assert {name: param.value for name, param in runs["parent"].params.items()} == {"before": 1, "after": 2}


def test_a_child_that_leaves_the_block_does_not_end_its_parents_run(home: Path) -> None:
    """The run goes on in the process that started it, and ends there."""
    fork(home, "leave_block")
    for _ in range(2):
        with Store(home) as store:
            (run,) = store.runs()
            assert run.status == RunStatus.FINISHED
            assert sorted(store.run(run.id).params) == ["after", "before"]
        reindex(home)


def test_a_child_that_logs_to_its_parents_run_is_told_what_to_do(home: Path) -> None:
    """The message names the run, both processes and the way out."""
    match = re.fullmatch(r"(\w+) (\d+) (\d+) (.*)", fork(home, "parents_run"), re.DOTALL)
    assert match is not None
    run_id, parent, child, message = match.groups()
    assert f"Run {run_id} belongs to process {parent}; this is process {child}" in message
    assert "client.start_run(...)" in message


def test_a_dead_parents_run_is_marked_while_its_child_lives(home: Path) -> None:
    """A child does not keep its parent's run alive."""
    with subprocess.Popen(
        [sys.executable, str(SCRIPT), str(home), "outlive"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        assert parent.stdin is not None
        assert parent.stdout.readline() == "child lives\n"
        parent.wait(timeout=30)
        with Store(home) as store:
            (run,) = store.runs()
            assert run.status == RunStatus.KILLED
            assert store.run(run.id).params["before"].value == 1
        parent.stdin.close()


def test_forks_in_the_middle_of_writing_lose_nothing(home: Path) -> None:
    """Twenty forks while others log and read: no child hangs, every row is there."""
    fork(home, "many")
    with Store(home) as store:
        runs = store.runs()
        assert {run.status for run in runs} == {RunStatus.FINISHED}
        numbers = [store.run(run.id).params["number"].value for run in runs if run.name == "child"]
        assert numbers == list(reversed(range(20)))
        (thread,) = (store.run(run.id) for run in runs if run.name == "thread")
        assert [metric.step for metric in thread.metrics] == list(range(len(thread.metrics)))


def test_a_child_does_not_remove_the_files_of_a_client_in_memory(home: Path) -> None:
    """The scratch folder belongs to the process that made it."""
    assert fork(home, "memory") == "kept"
