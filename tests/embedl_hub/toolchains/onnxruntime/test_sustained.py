"""A model under load, here and on a board: kept, cut off, collected; and boards that lie about it."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.processes import wait_until
from support.sshd import SSHServer

from embedl_device.interpreter import python_argv
from embedl_hub.core import HubContext
from embedl_hub.core.compile import ONNXRuntimeCompiler
from embedl_hub.core.device import Device, LocalCommandRunner, SSHCommandRunner
from embedl_hub.core.document import find_metric
from embedl_hub.core.profile import ProfileError, Progress, SustainedProfiler, SustainedResult, watching
from embedl_hub.errors import ConnectError, DeviceError
from embedl_hub.machine import program, sustained
from embedl_hub.testing import temporary_context
from embedl_hub.tracking import Run, RunStatus, Store

MakeDevice = Callable[..., Device]
_SHORT: dict[str, Any] = {"seconds": 1.5, "idle_seconds": 0.3}


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep this machine's own folder of loads out of the user's cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(sustained, "_POLL_S", 0.1)
    monkeypatch.setattr(sustained, "_LOST_S", 1.0)


def test_a_sustained_load_is_recorded(device: Device, model: Path, tmp_path: Path) -> None:
    """Its metrics have rows in the table, the result can be built again, and nothing is left on the device."""
    seen: list[Progress] = []
    with temporary_context([device]) as ctx, watching(seen.append):
        compiled = ONNXRuntimeCompiler().run(ctx, model)
        result = SustainedProfiler(**_SHORT).run(ctx, compiled)
        assert ctx.client.store is not None
        run = ctx.client.store.run(str(result.output_file.run_id))
        assert SustainedResult.from_run(run) == result
        metrics = {metric.name: metric.value for metric in run.metrics}
        assert metrics["steady_ratio"] == pytest.approx(metrics["steady_latency"] / metrics["fresh_latency"])
        assert metrics["iterations"] > 10
        assert metrics["latency_median"] > 0
        assert {"energy", "mean_power"} & set(metrics) or result.energy_problem
        assert [find_metric(key).unit for key in ("energy", "onset", "mean_power")] == ["mJ", "s", "W"]
        assert result.stopped == "after 1.5 s, as asked"
        document = json.loads(result.output_file.local().read_text())
        assert document["sustained"]["is_complete"]
        job: Any = run.params[sustained.JOB].value
        folder = Path(job["folder"])
        assert not folder.exists()
        assert tmp_path in folder.parents
    assert seen[-1].state == "done"
    assert {"under load"} & {progress.state for progress in seen}
    assert "of 2 s" in str(next(each for each in seen if each.at_s is not None))


def _started(store: Store) -> Run | None:
    return next((run for run in store.runs() if run.component == "SustainedProfiler"), None)


def _is_under_load(board: Path) -> bool:
    for path in board.glob("sustained/*/progress.json"):
        content = json.loads(path.read_text())
        assert content["state"] != "failed", content
        return bool(content.get("inferences"))
    return False


def test_a_connection_lost_at_the_start_says_how_to_collect(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command that starts the load had begun it, and its answer did not arrive."""
    real = program.call_program

    def cut_off(*args: Any, **kwargs: Any) -> None:
        real(*args, **kwargs)
        raise ConnectError("The connection was lost.")

    with HubContext("p", home=tmp_path) as ctx:
        compiled = ONNXRuntimeCompiler().run(ctx, model)
        monkeypatch.setattr(program, "call_program", cut_off)
        with pytest.raises(ConnectError, match=r"If it began, the load goes on.*sustain --collect \w+") as found:
            SustainedProfiler(seconds=1, idle_seconds=0).run(ctx, compiled)
        monkeypatch.undo()
        result = SustainedProfiler().run(ctx, compiled, collect=str(found.value).split()[-1])
        assert result.stopped == "after 1 s, as asked"


def test_a_lost_connection_ends_nothing(
    new_server: Callable[..., SSHServer],
    connect: Callable[..., SSHCommandRunner],
    make_board: MakeDevice,
    model: Path,
    tmp_path: Path,
) -> None:
    """The step fails with the words that bring the result; the load goes on, and its result is whole."""
    server = new_server()
    errors: list[Exception] = []
    home = tmp_path / "home"

    def measure() -> None:
        with HubContext("p", [make_board(connect(server))], home=home) as ctx:
            compiled = ONNXRuntimeCompiler().run(ctx, model)
            try:
                SustainedProfiler(seconds=4, idle_seconds=0).run(ctx, compiled)
            except DeviceError as error:
                errors.append(error)

    thread = threading.Thread(target=measure)
    thread.start()
    wait_until(lambda: _is_under_load(tmp_path / "board"), 60)
    server.kill()
    thread.join(60)
    server.start()
    (error,) = errors
    with HubContext("p", [make_board(connect(server))], home=home) as ctx:
        assert ctx.client.store is not None
        cut_off = _started(ctx.client.store)
        assert cut_off is not None
        assert f"embedl-hub sustain --collect {cut_off.id}" in str(error)
        assert cut_off.status is RunStatus.FAILED
        compiled = ONNXRuntimeCompiler().run(ctx, model)
        result = SustainedProfiler().run(ctx, compiled, collect=cut_off.id)
        assert result.stopped == "after 4 s, as asked"
        assert ctx.client.store.run(cut_off.id).tags["collected_by"] == result.output_file.run_id
        with pytest.raises(ProfileError, match="it was collected already"):
            SustainedProfiler().run(ctx, compiled, collect=cut_off.id)


_HUB = """
import sys
from embedl_hub.core import HubContext
from embedl_hub.core.compile import ONNXRuntimeCompiler
from embedl_hub.core.device import Device, EmbedlONNXRuntimeConfig, LocalCommandRunner
from embedl_hub.core.profile import SustainedProfiler
home, model, program, root, lock = sys.argv[1:]
device = Device("board", LocalCommandRunner(), provider_type="embedl_onnxruntime", artifact_root=root, lease_dir=lock,
                provider_config=EmbedlONNXRuntimeConfig(program, threads=1, max_warmup_seconds=0.2))
with HubContext("p", [device], home=home) as ctx:
    SustainedProfiler(seconds=4, idle_seconds=0).run(ctx, ONNXRuntimeCompiler().run(ctx, model))
"""


@pytest.mark.slow
def test_a_killed_hub_ends_nothing(make_board: MakeDevice, model: Path, tmp_path: Path) -> None:
    """The load goes on, holds the board's lease by itself, and the command line brings its result."""
    device = make_board(LocalCommandRunner())
    home, board = tmp_path / "home", tmp_path / "board"
    program = str(Path(sys.executable).with_name("embedl-onnxruntime"))
    words = [str(home), str(model), program, str(board), str(tmp_path / "lock")]
    with subprocess.Popen([*python_argv(code=_HUB), *words]) as hub:
        wait_until(lambda: _is_under_load(board), 60)
        hub.send_signal(signal.SIGKILL)
    wait_until(lambda: any("sustained run" in each.read_text() for each in (tmp_path / "lock").glob("holder.*")), 20)
    with HubContext("p", [device], home=home) as ctx:
        assert ctx.client.store is not None
        cut_off = _started(ctx.client.store)
        assert cut_off is not None
        assert cut_off.status is RunStatus.KILLED
        # Waits for the lease that the load holds, so that nothing disturbs it.
        result = SustainedProfiler().run(ctx, ONNXRuntimeCompiler().run(ctx, model), collect=cut_off.id)
        document = json.loads(result.output_file.local().read_text())
        assert document["sustained"]["is_complete"]
        assert document["sustained"]["lease"]["own_from_s"] > 0
        assert document["sustained"]["seconds"] == pytest.approx(4, abs=0.5)


def test_who_says_stop_ends_the_load(here: Device, model: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Unlike a lost connection; what was measured until then can be collected."""

    def interrupt(progress: Progress) -> None:
        if (progress.at_s or 0) > 0.5:
            raise KeyboardInterrupt

    with temporary_context([here]) as ctx:
        compiled = ONNXRuntimeCompiler().run(ctx, model)
        with pytest.raises(KeyboardInterrupt), watching(interrupt):
            SustainedProfiler(seconds=60.0, idle_seconds=0.3).run(ctx, compiled)
        assert ctx.client.store is not None
        (stopped,) = ctx.client.store.runs("name = 'SustainedProfiler'")
        assert f"embedl-hub sustain --collect {stopped.id}" in caplog.text
        result = SustainedProfiler(seconds=60.0, idle_seconds=0.3).run(ctx, compiled, collect=stopped.id)
        assert result.steady_latency.value > 0


def test_a_load_that_is_killed_counts_as_far_as_it_came(make_board: MakeDevice, model: Path, tmp_path: Path) -> None:
    """A board that runs out of memory, or is switched off: what was written is the result, and that is said."""
    device = make_board(LocalCommandRunner())
    board = tmp_path / "board"

    def kill() -> None:
        wait_until(lambda: _is_under_load(board), 60)
        (path,) = board.glob("sustained/*/progress.json")
        wait_until(lambda: path.with_name("journal.jsonl").read_text().count('{"b"') > 3, 30)
        os.kill(json.loads(path.read_text())["pid"], signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    with temporary_context([device]) as ctx:
        compiled = ONNXRuntimeCompiler().run(ctx, model)
        result = SustainedProfiler(seconds=600, idle_seconds=0).run(ctx, compiled)
    thread.join()
    assert "without a word" in str(result.stopped)
    assert result.steady_latency.value > 0


def test_a_model_that_cannot_be_loaded_is_said(here: Device, model: Path) -> None:
    """The device program's own words, though nobody was connected to it when it said them."""
    with temporary_context([here]) as ctx:
        compiled = ONNXRuntimeCompiler().run(ctx, model)
        step = SustainedProfiler(**_SHORT, power_source="no such meter")
        with pytest.raises(ProfileError, match="There is no power source no such meter; this board has"):
            step.run(ctx, compiled)


def test_what_cannot_be_is_refused(here: Device, model: Path) -> None:
    """By the device program, before anything is loaded."""
    with temporary_context([here]) as ctx:
        compiled = ONNXRuntimeCompiler().run(ctx, model)
        with pytest.raises(ProfileError, match=r"--duty is 2; it must be from 0\.001 to 1"):
            SustainedProfiler(duty=2.0).run(ctx, compiled)


def test_a_run_that_put_nothing_under_load_has_nothing_to_collect(here: Device, model: Path) -> None:
    """A run of another step, or none."""
    with temporary_context([here]) as ctx:
        compiled = ONNXRuntimeCompiler().run(ctx, model)
        with pytest.raises(ProfileError, match="put nothing under load"):
            SustainedProfiler().run(ctx, compiled, collect=str(compiled.path.run_id))
        with pytest.raises(ProfileError, match="nosuchrun"):
            SustainedProfiler().run(ctx, compiled, collect="nosuchrun")


_START = {
    "kind": "start", "format": 1, "channels": [], "program": "x", "version": "1", "clock_s": 1.0,
    "plan": {"seconds": 5.0, "idle_seconds": 1.0}, "model": {"file_name": "m"},
}  # fmt: skip
_DONE = '{"state": "done", "pid": 1}'


@pytest.mark.parametrize(
    ("progress", "journal", "said"),
    [
        ("[]", "", "the progress is"),
        ('{"state": 5}', "", "the progress.state is 5"),
        ('{"state": "failed", "error": "' + 5000 * "x" + '"}', "", "xxx"),
        (_DONE, "rubbish\n", "cannot be used"),
        (_DONE, json.dumps({**_START, "power_problems": 7}) + "\n", "its first line.power_problems is 7"),
        (_DONE, json.dumps(_START) + "\n", "no inference was timed"),
        (_DONE, json.dumps({**_START, "channels": [["nonsense", "x"]]}) + "\n", "a channel"),
        (_DONE, json.dumps(_START) + '\n{"b": [1, 0.5, 1e9, 1e-300, 1, 1, 1e17]}\n{"kind": "end"}\n', "stopped"),
    ],
)
def test_a_board_that_lies_is_refused(
    make_board: MakeDevice, model: Path, tmp_path: Path, progress: str, journal: str, said: str
) -> None:
    """Whatever it leaves in its folder, the hub says one sentence and keeps no number."""
    program = tmp_path / "liar"
    (tmp_path / "p").write_text(progress)
    (tmp_path / "j").write_text(journal)
    program.write_text(
        '#!/bin/sh\nwhile [ $# -gt 0 ]; do [ "$1" = --folder ] && folder=$2; shift; done\n'
        f'mkdir -p "$folder"; cp {tmp_path}/p "$folder/progress.json"; cp {tmp_path}/j "$folder/journal.jsonl"\n'
        "echo '{\"pid\": 1}'\n"
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    honest = make_board(LocalCommandRunner())
    liar = make_board(LocalCommandRunner(), embedl_onnxruntime_path=str(program))
    home = tmp_path / "home"
    with HubContext("p", [honest], home=home) as ctx:
        compiled = ONNXRuntimeCompiler().run(ctx, model)
    with HubContext("p", [liar], home=home) as ctx, pytest.raises(ProfileError, match=said) as raised:
        SustainedProfiler().run(ctx, compiled)
    assert len(str(raised.value)) < 1500
