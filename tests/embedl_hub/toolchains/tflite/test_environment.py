"""The converter's environment: which Python it is made from, and what is said when it cannot be."""

from __future__ import annotations

import stat
import sys
from pathlib import Path

import pytest

from embedl_hub.errors import ConfigError
from embedl_hub.toolchains.tflite.config import check_converter, install_converter
from embedl_hub.toolchains.tflite.environment import (
    CACHE_VARIABLE,
    _candidates,
    choose_python,
    find_environment,
    need_environment,
)


def _python(folder: Path, name: str, version: str) -> str:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{version}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_the_python_that_the_converter_declares_comes_first(tmp_path: Path) -> None:
    """Before one that merely works; a shim that runs nothing is passed over."""
    shim = _python(tmp_path, "shim", "echo 'command not found' >&2; exit 127")
    old = _python(tmp_path, "old", "echo 3 9 1")
    eleven = _python(tmp_path, "eleven", "echo 3 11 7")
    twelve = _python(tmp_path, "twelve", "echo 3 12 1")
    assert choose_python([shim, old, eleven, twelve]) == (Path(twelve), "3.12.1")
    assert choose_python([shim, old, eleven]) == (Path(eleven), "3.11.7")
    with pytest.raises(ConfigError, match=r"needs Python 3\.11, 3\.12, 3\.13; this machine has 3\.9\.1"):
        choose_python([shim, old])


def test_pythons_in_a_folder_that_may_not_be_read_are_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that is too long stands for it, since root may read every folder."""
    locked = tmp_path / ("x" * 300)
    monkeypatch.setenv("PYENV_ROOT", str(locked))
    monkeypatch.setenv("PATH", f"{locked}:/usr/bin:/bin")
    assert not any(path.startswith(str(locked)) for path in _candidates())


def test_an_installation_that_fails_leaves_nothing_that_looks_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next try starts anew, and the error has pip's own words."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    broken = _python(tmp_path, "pip", "echo 'No matching distribution' >&2; exit 1")
    monkeypatch.setattr("embedl_hub.toolchains.tflite.environment._PIP", (broken,))
    monkeypatch.setattr("embedl_hub.toolchains.tflite.environment._candidates", lambda: [sys.executable])
    said: list[str] = []
    with pytest.raises(ConfigError, match=r"(?s)cannot be set up.*No matching distribution.*doctor --install tflite"):
        need_environment(said.append)
    assert [line[:5] for line in said[1:]] == ["[1/3]", "[2/3]"]
    assert find_environment() is None
    assert check_converter()[0].is_ok is None


def test_what_is_there_is_found_again(
    converter: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is installed a second time."""
    monkeypatch.setattr("embedl_hub.toolchains.tflite.environment._make", lambda _: pytest.fail("made again"))
    install_converter()
    assert "is ready: onnx2tf==2.6.9" in capsys.readouterr().err
    assert check_converter()[0].is_ok
