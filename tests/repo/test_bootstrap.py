"""What the setup of .venv does about other Pythons."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

TOOL = Path(__file__).resolve().parents[2] / "tools/bootstrap.py"


@pytest.fixture
def bootstrap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The tool, with a .venv of its own and no pip to call."""
    spec = importlib.util.spec_from_file_location("bootstrap_under_test", TOOL)
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    monkeypatch.setattr(tool, "VENV", tmp_path / "venv")
    monkeypatch.setattr(tool.subprocess, "run", lambda *_, **__: pytest.fail("something was installed"))
    return tool


def test_an_environment_of_another_python_is_not_filled(bootstrap: Any) -> None:
    """Its packages would be of one Python and the pins of another."""
    (bootstrap.VENV / "lib/python3.9/site-packages").mkdir(parents=True)
    with pytest.raises(SystemExit, match=r"\.venv was made with Python 3\.9, this is 3\.\d+: remove the folder .*venv"):
        bootstrap.prepare("test")


def test_the_pins_bind_the_python_they_were_tested_with(
    bootstrap: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Any other is told once what it gets instead."""
    assert bootstrap.made_with() is None
    monkeypatch.setattr(bootstrap, "NEEDED", sys.version_info[:2])
    assert bootstrap.constraints() == ["--constraint", "requirements/constraints.txt"]
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(bootstrap, "NEEDED", (3, 1))
    assert bootstrap.constraints() == []
    assert "was tested with 3.1; taking the newest in range" in capsys.readouterr().err


def test_the_environment_links_to_its_python(bootstrap: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of a Python that lies beside its shared library does not start."""
    calls: list[list[str]] = []
    real = bootstrap.venv.create
    monkeypatch.setattr(bootstrap.venv, "create", lambda folder, **how: real(folder, **{**how, "with_pip": False}))
    monkeypatch.setattr(bootstrap.subprocess, "run", lambda argv, **_: calls.append(argv))
    bootstrap.prepare("test")
    assert (bootstrap.VENV / "bin/python").is_symlink()
    assert bootstrap.made_with() == sys.version_info[:2]
    assert [call[0] for call in calls] == [str(bootstrap.VENV / "bin/python")] * 2
    monkeypatch.undo()
    assert subprocess.run([calls[0][0], "-c", ""], check=False).returncode == 0
