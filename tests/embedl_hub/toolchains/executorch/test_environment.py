"""Where ExecuTorch is: the Python that a device names, this one, or an environment of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from embedl_hub.core import HubContext
from embedl_hub.core.device import ExecuTorchConfig
from embedl_hub.core.profile import ExecuTorchProfiler
from embedl_hub.errors import ConfigError
from embedl_hub.locked import OFFLINE_VARIABLE
from embedl_hub.machine.environment import CACHE_VARIABLE, Environment
from embedl_hub.machine.machine import open_machine
from embedl_hub.toolchains.executorch.config import check_packages
from embedl_hub.toolchains.executorch.environment import ENVIRONMENT, interpreter, own_version
from embedl_hub.toolchains.executorch.runtime import RUNTIME

_OWN = "embedl_hub.toolchains.executorch.environment.own_version"


def test_a_setting_comes_first_then_this_python_then_an_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is made where there is one."""
    made = Environment(Path("/cache/bin/python"), "3.11.7", "key")
    monkeypatch.setattr("embedl_hub.machine.environment.Recipe.need", lambda _: made)
    assert interpreter(ExecuTorchConfig(executorch_python="/opt/python")) == "/opt/python"
    assert own_version() is not None
    assert interpreter(ExecuTorchConfig()) is None
    monkeypatch.setattr(_OWN, lambda: None)
    assert interpreter(ExecuTorchConfig()) == "/cache/bin/python"


def test_the_program_runs_where_the_runtime_is(tmp_path: Path) -> None:
    """In one file that any Python runs, this one for instance."""
    with (
        HubContext("where", home=tmp_path) as ctx,
        open_machine(ctx, None, ExecuTorchProfiler, ExecuTorchConfig) as machine,
    ):
        assert "embedl_executorch" in machine.program(RUNTIME)
        machine.config = ExecuTorchConfig(executorch_python=sys.executable)
        argv = machine.program(RUNTIME)
        assert argv[1].endswith("embedl-executorch.pyz")
        answer = json.loads(subprocess.run([*argv, "doctor"], capture_output=True, check=True).stdout)
    assert answer["executorch"] == own_version()
    assert "XnnpackBackend" in answer["backends"]


def test_doctor_says_which_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """And how to make the environment where there is none."""
    assert check_packages()[0].message.endswith("in this Python")
    monkeypatch.setattr(_OWN, lambda: None)
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    (check,) = check_packages()
    assert check.is_ok is None
    assert check.advice == "embedl-hub doctor --install executorch"


def test_where_no_files_are_known_the_other_ways_are_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """And nothing is downloaded where the user forbids it."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    with pytest.raises(ConfigError, match=r"no packages whose hashes we know\. Install executorch .*executorch_python"):
        ENVIRONMENT.need(lambda _: None)
    monkeypatch.setenv(OFFLINE_VARIABLE, "1")
    with pytest.raises(ConfigError, match=r"OFFLINE=1 forbids it.*doctor --install executorch"):
        ENVIRONMENT.need(lambda _: None)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_environment_has_all_that_compiling_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Made from the lock alone: the check imports what the compiler and the runtime import."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    made = ENVIRONMENT.need(lambda _: None)
    assert ENVIRONMENT.find() == made
    with (
        HubContext("own", home=tmp_path / "home") as ctx,
        open_machine(ctx, None, ExecuTorchProfiler, ExecuTorchConfig) as machine,
    ):
        machine.config = ExecuTorchConfig(executorch_python=str(made.python))
        done = subprocess.run([*machine.program(RUNTIME), "doctor"], capture_output=True, check=True)
    assert "XnnpackBackend" in json.loads(done.stdout)["backends"]
