"""The power goes: nothing that was acknowledged as durable is lost, and the store opens."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.acknowledged import SCRIPTS, Fact, is_there
from support.hub_server import HubServer
from support.power_cut import Record, RecordedDisk, loop_mounted

from embedl_hub.tracking import Client, Redactor, RunStatus, Store, Uplink, reindex

RUNS = 12


@dataclass(frozen=True)
class Logged:
    """What a process logged on a disk: the disk's record, and each fact with the disk's clock when it was told."""

    record: Record
    facts: tuple[tuple[int, Fact], ...]


def logged(folder: Path, seed: int, *words: str) -> Logged:
    """Log some runs on a recorded disk."""
    disk, facts = RecordedDisk(folder), []
    with disk.mounted():
        argv = [sys.executable, str(SCRIPTS / "log_until_killed.py"), str(disk.home / "home"), str(seed), *words]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, bufsize=0) as process:
            assert process.stdout is not None
            ended = 0
            while ended < RUNS:
                fact = json.loads(process.stdout.readline())
                facts.append((disk.log.stat().st_size, tuple(fact)))
                ended += fact[1] == "end"
            process.kill()
    return Logged(disk.record(), tuple(facts))


def check_after_cut(folder: Path, done: Logged, position: int, choice: random.Random, *, durable: bool) -> int:
    """Mount what a cut left, open the store there, and return how many acknowledged facts had to be there and were."""
    image, place = folder / "after", folder / "there"
    image.write_bytes(done.record.after_cut(position, choice))
    place.mkdir(exist_ok=True)
    told = [fact for at, fact in done.facts if at <= position and fact[1] != "ready"]
    ended = {fact[0] for fact in told if fact[1] == "end"}
    with loop_mounted(image, place):
        home = place / "home"
        home.mkdir(exist_ok=True)
        for again in (False, True):
            if again:
                # From the run folders alone, as after a damaged index.
                reindex(home)
            with Store(home) as store:
                runs = {run.id: store.run(run.id) for run in store.runs()}
                # A server's runs go on elsewhere.
                over = {RunStatus.FINISHED, RunStatus.KILLED} | ({RunStatus.RUNNING} if store.is_served else set())
                assert {run.status for run in runs.values()} <= over
                if durable:
                    missing = [fact for fact in told if fact[0] in ended and not is_there(runs[fact[0]], fact)]
                    assert not missing
                # What is there is whole: metrics without a gap, contents that are what they are said to be.
                for run in runs.values():
                    steps = [metric.step or 0 for metric in run.metrics]
                    assert steps == sorted(set(steps))
    return sum(fact[0] in ended for fact in told)


def cut(folder: Path, count: int, *, durable: bool) -> None:
    """Cut the power so many times, at random points."""
    words = ("durable",) if durable else ()
    done = logged(folder, 7, *words)
    choice = random.Random(11)  # noqa: S311 - a choice of moments
    kept = 0
    for _ in range(count):
        position = choice.randrange(len(done.record.log) + 1)
        kept += check_after_cut(folder, done, position, choice, durable=durable)
    assert not durable or kept > count


@pytest.mark.parametrize("durable", [True, False], ids=["durable", "default"])
def test_the_power_goes(tmp_path: Path, durable: bool) -> None:
    """A few cuts each."""
    cut(tmp_path, 4, durable=durable)


def test_a_cut_loses_what_was_not_flushed(tmp_path: Path) -> None:
    """The disk does lose things: without durable, acknowledged facts are gone after some cut."""
    done, choice = logged(tmp_path, 7), random.Random(3)  # noqa: S311 - a choice of moments
    with pytest.raises((AssertionError, KeyError)):
        check_after_cut(tmp_path, done, done.facts[-1][0], choice, durable=True)


@pytest.mark.slow
def test_the_power_of_a_server_goes(tmp_path: Path) -> None:
    """What a server has taken is there after every cut: clients forget what was acknowledged."""
    disk, facts, sent = RecordedDisk(tmp_path), [], tmp_path / "client"
    with disk.mounted():
        server = HubServer(disk.home / "home").start()
        try:
            for number in range(RUNS):
                with Store(sent) as store:
                    uplink = Uplink(store, server.server())
                    client = Client("cut", store, Redactor({}), uplink)
                    with client.start_run(name=str(number)) as run:
                        run.log_metric("series", number / 3, step=number)
                        (run.artifact_dir / "model").write_bytes(bytes([number]) * 50_000)
                        artifact = run.log_artifact(run.artifact_dir / "model")
                    uplink.close(60)
                    client.close()
                assert not list(sent.glob("outbox/*/*"))
                told = disk.log.stat().st_size
                facts += [
                    (told, (run.id, "metric", "series", [number / 3, number])),
                    (told, (run.id, "artifact", "model", artifact.sha256)),
                    (told, (run.id, "end", "", None)),
                ]
        finally:
            server.kill()
    choice = random.Random(5)  # noqa: S311 - a choice of moments
    done = Logged(disk.record(), tuple(facts))
    kept = sum(
        check_after_cut(tmp_path, done, choice.randrange(len(done.record.log) + 1), choice, durable=True)
        for _ in range(50)
    )
    assert kept > 50


@pytest.mark.slow
@pytest.mark.parametrize("durable", [True, False], ids=["durable", "default"])
def test_the_power_goes_two_hundred_times(tmp_path: Path, durable: bool) -> None:
    """At both settings what each promises: all that was acknowledged, or a store that opens."""
    cut(tmp_path, 200, durable=durable)
