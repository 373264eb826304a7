"""What the setup of .venv does about other Pythons."""

from __future__ import annotations

import importlib
import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

TOOL = Path(__file__).resolve().parents[2] / "tools/bootstrap.py"


@pytest.fixture
def installing() -> Any:
    """The tool as it is."""
    spec = importlib.util.spec_from_file_location("bootstrap_under_test", TOOL)
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    return tool


@pytest.fixture
def bootstrap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installing: Any) -> Any:
    """The tool, with a .venv of its own and no pip to call."""
    tool = installing
    monkeypatch.setattr(tool, "VENV", tmp_path / "venv")
    monkeypatch.setattr(tool, "install", lambda *_: pytest.fail("something was installed"))
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
    monkeypatch.setattr(bootstrap, "install", lambda argv, _log: calls.append(argv))
    bootstrap.prepare("test")
    assert (bootstrap.VENV / "bin/python").is_symlink()
    assert bootstrap.made_with() == sys.version_info[:2]
    assert [call[0] for call in calls] == [str(bootstrap.VENV / "bin/python")] * 2
    monkeypatch.undo()
    assert subprocess.run([calls[0][0], "-c", ""], check=False).returncode == 0


@pytest.mark.parametrize("name", ["run", "test"])
def test_what_will_be_downloaded_is_said_before(name: str, bootstrap: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """The count is that of the environment that the tests run in, so that an old file does not pass."""
    said = bootstrap.size_of(name)
    found = re.fullmatch(r"(\d+) packages, about (\d+) MB to download .*, (\d+) MB on disk; .*", said)
    assert found is not None
    sys.path.insert(0, str(TOOL.parent))
    try:
        sizes = importlib.import_module("sizes")
    finally:
        sys.path.remove(str(TOOL.parent))
    assert int(found[1]) == len(sizes.packages(name))
    assert 100 < int(found[2]) < int(found[3])


def pip(bootstrap: Any, log: Path, *arguments: str) -> None:
    bootstrap.install([sys.executable, "-m", "pip", "install", "--no-index", *arguments], log)


@pytest.mark.slow
def test_the_warnings_of_pip_go_to_a_file(tmp_path: Path, installing: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Here of a folder of wheels that is not there, with a real pip."""
    pip(installing, tmp_path / "log", "--find-links", "not-here", "pip")
    assert capsys.readouterr().err == ""
    assert "not-here" in (tmp_path / "log").read_text()


def test_a_failed_set_up_shows_the_reason_and_where_the_rest_is(
    tmp_path: Path, installing: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """The reason is pip's own line."""
    with pytest.raises(subprocess.CalledProcessError):
        pip(installing, tmp_path / "log", "--find-links", "not-here", "edgeproof-of-nobody")
    said = capsys.readouterr().err
    assert "No matching distribution found for edgeproof-of-nobody" in said
    assert f"All that pip said is in {tmp_path / 'log'}." in said
    assert "WARNING" not in said


def test_large_files_and_the_unpacking_are_shown(bootstrap: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """What takes the minutes has a line even where no terminal shows progress."""
    progress = bootstrap.Progress()
    for line in (
        "Collecting torch==2.13.0", "Downloading torch-2.13.0-cp311-cp311-linux_x86_64.whl (190.2 MB)",
        "Downloading click-8.3.0-py3-none-any.whl (107 kB)", "Downloading odd (x MB)",
        "Installing collected packages: a, b, c",
    ):  # fmt: skip
        progress.line(line)
    said = [line.partition(" s  ")[2] for line in capsys.readouterr().err.splitlines()]
    assert said == ["downloading torch-2.13.0-cp311-cp311-linux_x86_64.whl (190.2 MB)", "unpacking 3 packages"]
