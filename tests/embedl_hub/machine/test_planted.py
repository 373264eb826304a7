"""A folder with modules that carry the names of others: nothing of it runs, whatever is done in it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from support.models import residual_net

from embedl_hub.core.device import Device, LocalCommandRunner, find_device_kind
from embedl_hub.errors import DeviceError
from embedl_hub.machine.install import BoardPython, _wheels, need_packages
from embedl_hub.testing import temporary_context

NAMES = ("numpy", "pip", "onnxruntime", "platform", "json", "embedl_device")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the current folder, with a module for every name that a child imports; each leaves a file when it runs."""
    for name in NAMES:
        package = tmp_path / name
        package.mkdir()
        for file in ("__init__.py", "__main__.py"):
            (package / file).write_text(f"open({str(tmp_path / 'ran')!r}, 'a').write('{name} ')\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def ran(folder: Path) -> str:
    path = folder / "ran"
    return path.read_text() if path.exists() else ""


def test_a_profile_on_this_machine(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The command as it is installed, in the folder of a model somebody sent."""
    onnx.save(residual_net(), folder / "net.onnx")
    home = tmp_path_factory.mktemp("home")
    program = Path(sys.executable).with_name("embedl-hub")
    words = ["profile", "onnxruntime", "net.onnx", "--here", "--home", str(home)]
    done = subprocess.run([program, *words], capture_output=True, text=True, timeout=120, check=False)
    assert ran(folder) == ""
    assert done.returncode == 0, done.stderr


def test_packages_for_a_board(folder: Path) -> None:
    """Neither this machine's pip nor the board's Python, which may be this machine's."""
    board = Device(
        "board", LocalCommandRunner(), provider_type="embedl_onnxruntime", artifact_root=folder / "root", lease_dir=None
    )
    with temporary_context([board]) as ctx:
        found = need_packages(ctx, "board", ("numpy",), python=sys.executable)
    assert found.is_complete
    python = BoardPython("python3", (3, 11), "x86_64", ("glibc", "2.36"), 64, {})
    with pytest.raises(DeviceError, match="cannot get no-such-package"):
        _wheels(python, ["no-such-package-of-ours"], None, folder / "wheels", "board")
    assert ran(folder) == ""


@pytest.mark.parametrize("kind", ["embedl_onnxruntime", "embedl_litert", "embedl_openvino"])
def test_the_checks_of_a_board_that_is_this_machine(folder: Path, kind: str) -> None:
    """Each says a version, of what is installed."""
    for argv in find_device_kind(kind).checks(Device("board", LocalCommandRunner(), provider_type=kind)).values():
        subprocess.run([sys.executable, *argv[1:]], capture_output=True, check=True, timeout=60)
    assert ran(folder) == ""
