"""A Python that we start imports nothing from the folder it is started in, whichever Python it is."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from embedl_device.interpreter import python_argv

PLANTED = "import os; os.write(1, b'planted ')\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the current folder, in which somebody left modules with the names of others."""
    for name in ("json", "platform", "runpy"):
        (tmp_path / f"{name}.py").write_text(PLANTED)
    (tmp_path / "venv").mkdir()
    (tmp_path / "venv" / "__init__.py").touch()
    (tmp_path / "venv" / "__main__.py").write_text(PLANTED)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def said(argv: list[str], **variables: str) -> str:
    done = subprocess.run(
        argv, capture_output=True, text=True, timeout=60, check=False, env={**os.environ, **variables}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("python", [None, sys.executable, "/usr/bin/python3"])
def test_code_and_modules_come_from_where_they_are_installed(folder: Path, python: str | None) -> None:
    """The one that runs this, another of any version, and the system's."""
    assert said([*python_argv(python, code="import json, sys; print(json.dumps(sys.argv[1:]))"), "a"]) == '["a"]\n'
    assert "usage: venv" in said([*python_argv(python, module="venv"), "--help"])


def test_the_plain_way_is_open(folder: Path) -> None:
    """What this is against: without it the folder's own modules run."""
    assert said([sys.executable, "-c", "import json"]) == "planted "
    assert said([sys.executable, "-m", "venv"]) == "planted "


def test_pythonpath_is_the_users_own(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Unless the Python is isolated."""
    own = tmp_path_factory.mktemp("own")
    (own / "mine.py").write_text("print('mine')\n")
    for python in (None, sys.executable):
        assert said(python_argv(python, code="import mine"), PYTHONPATH=str(own)) == "mine\n"
    isolated = python_argv(code="import mine", isolated=True)
    assert subprocess.run(isolated, env={"PYTHONPATH": str(own)}, capture_output=True, check=False).returncode == 1


def test_an_archive_imports_from_itself(folder: Path) -> None:
    """As the device program does that is carried to a board."""
    with zipfile.ZipFile(folder / "program.pyz", "w") as archive:
        archive.writestr("__main__.py", "import json, inside\nprint(json.dumps(inside.VALUE))\n")
        archive.writestr("inside.py", "VALUE = 1\n")
    assert said(python_argv(sys.executable, file="program.pyz")) == "1\n"
