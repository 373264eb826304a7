"""The converter's environment: which Python it is made from, and what is said when it cannot be."""

from __future__ import annotations

import json
import platform
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from support.wheels import planted_index

from embedl_hub.errors import ConfigError
from embedl_hub.locked import OFFLINE_VARIABLE, find_lock, version_pair
from embedl_hub.machine.environment import CACHE_VARIABLE, _candidates
from embedl_hub.toolchains.tflite.config import check_converter, install_converter
from embedl_hub.toolchains.tflite.environment import CONVERTER, ENVIRONMENT, REQUIREMENTS


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
    assert ENVIRONMENT.choose_python([shim, old, eleven, twelve]) == (Path(twelve), "3.12.1")
    assert ENVIRONMENT.choose_python([shim, old, eleven]) == (Path(eleven), "3.11.7")
    with pytest.raises(ConfigError, match=r"needs Python 3\.11, 3\.12, 3\.13; this machine has 3\.9\.1"):
        ENVIRONMENT.choose_python([shim, old])


def test_pythons_in_a_folder_that_may_not_be_read_are_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that is too long stands for it, since root may read every folder."""
    locked = tmp_path / ("x" * 300)
    monkeypatch.setenv("PYENV_ROOT", str(locked))
    monkeypatch.setenv("PATH", f"{locked}:/usr/bin:/bin")
    assert not any(path.startswith(str(locked)) for path in _candidates(ENVIRONMENT.pythons))


def test_an_installation_that_fails_leaves_nothing_that_looks_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next try starts anew, and the error has pip's own words."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    broken = _python(tmp_path, "pip", "echo 'No matching distribution' >&2; exit 1")
    monkeypatch.setattr("embedl_hub.machine.environment._PIP", (broken,))
    monkeypatch.setattr("embedl_hub.machine.environment._candidates", lambda _: [sys.executable])
    said: list[str] = []
    with pytest.raises(ConfigError, match=r"(?s)cannot be set up.*No matching distribution.*doctor --install tflite"):
        ENVIRONMENT.need(said.append)
    assert [line[:5] for line in said[2:]] == ["[1/2]", "[2/2]"]
    assert ENVIRONMENT.find() is None
    assert check_converter()[0].is_ok is None


def test_what_is_there_is_found_again(
    converter: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is installed a second time."""
    monkeypatch.setattr("embedl_hub.machine.environment.Recipe._make", lambda *_: pytest.fail("made again"))
    install_converter()
    assert "is ready: onnx2tf==2.6.9" in capsys.readouterr().err
    assert check_converter()[0].is_ok


def test_a_tampered_package_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An index that serves its own code under the right names and versions: none of it is installed or run."""
    lock = find_lock("tflite", (sys.version_info.major, sys.version_info.minor), platform.machine())
    known = {wheel.name: wheel.version for wheel in lock.wheels} if lock else {}
    pins = dict(pin.split("==") for pin in (CONVERTER, *REQUIREMENTS))
    proof = tmp_path / "ran"
    code = f"open({str(proof)!r}, 'w').close()\ndef convert(): pass\n"
    planted_index(tmp_path / "index", {**known, **pins}, monkeypatch, code)
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr("embedl_hub.machine.environment._candidates", lambda _: [sys.executable])
    with pytest.raises(ConfigError, match=r"(?s)HASHES.*has changed it.*Try again with: embedl-hub doctor --install"):
        ENVIRONMENT.need(lambda _: None)
    assert not proof.exists()
    assert ENVIRONMENT.find() is None


def test_what_is_downloaded_is_said_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Count, size and names, how to do it at another time and how to forbid it; then pip starts."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    monkeypatch.setattr("embedl_hub.machine.environment._candidates", lambda _: [sys.executable])
    said: list[str] = []

    def stop(_: object, argv: list[str], *_more: object) -> None:
        said.append(" ".join(argv))
        raise ConfigError("stopped")

    monkeypatch.setattr("embedl_hub.machine.environment.Recipe._run", stop)
    with pytest.raises(ConfigError, match="stopped"):
        ENVIRONMENT.need(said.append)
    assert "'venv'" in said[-1] or "-m venv" in said[-1]
    for words in ("25 packages, ", " MB: absl-py ", "onnx2tf 2.6.9 (2.6 MB)", "doctor --install tflite", "OFFLINE=1"):
        assert words in said[1]


def test_offline_nothing_is_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the error says what to run, and where."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    monkeypatch.setenv(OFFLINE_VARIABLE, "1")
    monkeypatch.setattr("embedl_hub.machine.environment.Recipe._run", lambda *_: pytest.fail("something was run"))
    with pytest.raises(ConfigError, match=r"OFFLINE=1 forbids it.*run where pip.*doctor --install tflite"):
        ENVIRONMENT.need(lambda _: pytest.fail("something was said"))


def test_a_machine_without_a_lock_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is installed that we have no hashes of."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    with pytest.raises(
        ConfigError, match=r"riscv64 with Python 3.*no packages whose hashes we know.*x86_64 or aarch64"
    ):
        ENVIRONMENT.need(lambda _: None)


_INSTALLED = """
import importlib.metadata as m, json
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name as name
here = {name(one.metadata["Name"]): one.version for one in m.distributions()}
needs = {
    need.name: [str(need.specifier), here.get(name(need.name))]
    for one in m.distributions() if one.metadata["Name"] != "onnx2tf"
    for need in map(Requirement, one.requires or ()) if need.marker is None or need.marker.evaluate({"extra": ""})
    if name(need.name) not in here or here[name(need.name)] not in need.specifier
}
print(json.dumps([here, needs]))
"""


def test_the_environment_is_the_lock(converter: Path, cache: Path) -> None:
    """No package more, none less, no other version; and what they need of each other is there."""
    made = ENVIRONMENT.find()
    assert made is not None
    argv = [str(made.python), "-I", "-c", _INSTALLED]
    here, needs = json.loads(subprocess.run(argv, capture_output=True, text=True, check=True).stdout)
    lock = find_lock("tflite", version_pair(made.version), platform.machine())
    assert lock is not None
    assert here == {wheel.name: wheel.version for wheel in lock.wheels}
    assert needs == {}
