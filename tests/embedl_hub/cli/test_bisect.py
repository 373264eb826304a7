"""``embedl-hub bisect``: refusals with their exit code, before anything is measured."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from support.bisection_nets import device, profiled
from support.models import residual_net

from embedl_hub.bisection import BISECTION
from embedl_hub.cli.bisect import command
from embedl_hub.core import HubContext
from embedl_hub.tracking import Store


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--alpha", "2"], "--alpha"),
        (["--least", "5"], "--least"),
        (["--python", "1.20.1"], "KEY=VALUE"),
        ([], "nothing"),
    ],
)
def test_wrong_usage_is_two(tmp_path: Path, words: list[str], said: str) -> None:
    """Every slip, an unknown run too, is told in words, and is neither a cause nor a failure to measure."""
    with HubContext("bisect", [device("good")], home=tmp_path / "home") as ctx:
        profiled(ctx, residual_net(), "good", tmp_path)
    done = CliRunner().invoke(command, ["nothing", "other", "--here", "--home", str(tmp_path / "home"), *words])

    assert done.exit_code == 2, done.output
    assert said in done.output


def test_no_store_is_made_for_runs_that_are_not_there(tmp_path: Path) -> None:
    """A wrong --home is told; so is a file."""
    done = CliRunner().invoke(command, ["good", "bad", "--here", "--home", str(tmp_path / "typo")])
    assert (done.exit_code, "There is no store at" in done.output) == (2, True), done.output
    assert not (tmp_path / "typo").exists()
    (tmp_path / "file").touch()
    done = CliRunner().invoke(command, ["good", "bad", "--here", "--home", str(tmp_path / "file")])
    assert (done.exit_code, "is a file; a store is a folder" in done.output) == (2, True), done.output


def test_runs_that_differ_in_nothing_are_wrong_usage(tmp_path: Path) -> None:
    """There is nothing to switch between two profiles of the same file with the same settings."""
    with HubContext("bisect", [device("good")], home=tmp_path / "home") as ctx:
        run = profiled(ctx, residual_net(), "good", tmp_path)
        other = profiled(ctx, residual_net(), "good", tmp_path)

    done = CliRunner().invoke(command, [run, other, "--here", "--home", str(tmp_path / "home")])

    assert done.exit_code == 2, done.output
    assert "differ in nothing that could be a cause" in done.output
    assert "compare --paired" in done.output
    assert "Recorded: latency_median" in done.output
    with Store(tmp_path / "home") as store:
        assert not store.runs(f"component = '{BISECTION}'")


def test_a_device_that_is_gone_could_not_be_measured(tmp_path: Path) -> None:
    """As the gate has it: code 3, where the words of the command are right; a device that is named must be there."""
    with HubContext("bisect", [device("lab")], home=tmp_path / "home") as ctx:
        good = profiled(ctx, residual_net(), "lab", tmp_path)
        bad = profiled(ctx, residual_net(size=24), "lab", tmp_path)

    done = CliRunner().invoke(command, [good, bad, "--home", str(tmp_path / "home")])
    named = CliRunner().invoke(command, [good, bad, "--device", "lab", "--home", str(tmp_path / "home")])

    assert done.exit_code == 3, done.output
    assert "was measured on device 'lab', which is not there any more" in " ".join(done.output.split())
    assert "Usage:" not in done.output
    assert named.exit_code == 2, named.output
