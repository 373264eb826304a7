"""Boards as they are: with and without the program, the runtime, Python; and what a step costs on a warm one."""

from __future__ import annotations

import dataclasses
import io
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path
from typing import Any

import pytest
from support.models import images

from embedl_hub.core import HubContext
from embedl_hub.core.compile import CompileError, ONNXRuntimeCompiler
from embedl_hub.core.device import Device, SSHCommandRunner
from embedl_hub.core.device._ssh_connection import SSHConnection
from embedl_hub.core.invoke import ONNXRuntimeInvoker
from embedl_hub.core.profile import ONNXRuntimeProfiler
from embedl_hub.errors import ConfigError, NoProviderError
from embedl_hub.machine.machine import packed_program
from embedl_hub.testing import temporary_context
from embedl_hub.toolchains.onnxruntime.runtime import RUNTIME


@pytest.fixture(scope="module")
def runtime_only(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Python that has numpy and onnxruntime and nothing of ours, as on a plain board."""
    folder = tmp_path_factory.mktemp("python")
    venv.create(folder, symlinks=True)
    site = next((folder / "lib").glob("python*")) / "site-packages"
    installed = Path(sysconfig.get_paths()["purelib"])
    for name in ("numpy", "numpy.libs", "onnxruntime", "flatbuffers", "google", "packaging"):
        if (installed / name).exists():
            (site / name).symlink_to(installed / name)
    return str(folder / "bin" / "python")


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Python with its standard library alone."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder, symlinks=True)
    return str(folder / "bin" / "python")


def test_the_program_is_carried_to_a_board_without_it(
    board: SSHCommandRunner, make_board: Any, runtime_only: str, model: Path, tmp_path: Path
) -> None:
    """Through the content store, once; then all three steps run there."""
    ours = subprocess.run([runtime_only, "-I", "-c", "import embedl_onnxruntime"], capture_output=True, check=False)
    assert ours.returncode == 1
    device = make_board(board, embedl_onnxruntime_path="no-such-program", python_path=runtime_only)
    with HubContext("carried", [device], home=tmp_path / "home") as ctx:
        compiled = ONNXRuntimeCompiler().run(ctx, model)
        ONNXRuntimeProfiler().run(ctx, compiled)
        assert ONNXRuntimeInvoker().run(ctx, compiled, {"x": images(2)}).output["y"].shape == (2, 10)
    assert len(list((tmp_path / "board" / "store").glob("*/embedl-onnxruntime.pyz"))) == 1
    assert list((tmp_path / "board" / "runs").iterdir()) == []


def test_the_carried_program_is_one_small_file_that_never_changes() -> None:
    """Equal sources give equal bytes, so that a board gets it once."""
    packed = packed_program(RUNTIME)
    assert packed == packed_program(RUNTIME)
    assert len(packed) < 150_000
    names = zipfile.ZipFile(io.BytesIO(packed)).namelist()
    assert {"embedl_onnxruntime/cli.py", "embedl_kernels/remedies/scaled.py"} <= set(names)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"embedl_onnxruntime_path": "no-such-program", "python_path": "no-such-python"}, "has no 'no-such-python'"),
        ({"embedl_onnxruntime_path": "/bin/echo"}, "). Is another program of that name installed there?"),
        ({"embedl_onnxruntime_path": "/bin/false"}, "embedl-onnxruntime compile failed on device 'board'"),
        ({"cli_args": ("--no-such-flag",)}, "unrecognized arguments: --no-such-flag"),
        ({"execution_providers": ("CUDAExecutionProvider",)}, "has no CUDAExecutionProvider; it has:"),
        ({"timeout_s": 0.05}, "stopped at its time limit of 0.05 s"),
    ],
)
def test_a_board_that_cannot_says_why(
    changes: dict[str, Any], words: str, board: SSHCommandRunner, make_board: Any, model: Path, tmp_path: Path
) -> None:
    """Each in one message; the board is left clean."""
    with temporary_context([make_board(board, **changes)]) as ctx, pytest.raises(CompileError) as caught:
        ONNXRuntimeCompiler().run(ctx, model)
    assert words in str(caught.value)
    assert list((tmp_path / "board" / "runs").iterdir()) == []


def test_a_board_without_a_runtime_says_what_to_install(
    board: SSHCommandRunner, make_board: Any, bare_python: str, model: Path
) -> None:
    """Float or INT8, before anything long begins."""
    device = make_board(board, embedl_onnxruntime_path="no-such-program", python_path=bare_python)
    with temporary_context([device]) as ctx:
        for data in (None, {"x": images(2)}):
            with pytest.raises(CompileError, match=r"numpy.*pip install numpy onnxruntime|No module named 'numpy'"):
                ONNXRuntimeCompiler().run(ctx, model, calibration_data=data)


def test_a_warm_profile_takes_few_round_trips(
    board: SSHCommandRunner, make_board: Any, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lease, question for the model, folder, measurement, trace: five sessions on the connection."""
    count = 0
    session = SSHConnection.session

    def counting(self: SSHConnection, *args: Any, **kwargs: Any) -> Any:
        nonlocal count
        count += 1
        return session(self, *args, **kwargs)

    with temporary_context([make_board(board)]) as ctx:
        compiled = ONNXRuntimeCompiler().run(ctx, model)
        ONNXRuntimeProfiler().run(ctx, compiled)
        monkeypatch.setattr(SSHConnection, "session", counting)
        ONNXRuntimeProfiler().run(ctx, compiled)
    assert 4 <= count - 1 <= 6  # one more cleans the board when the context closes


def test_a_device_without_a_runner_is_refused(model: Path) -> None:
    """A board must be reachable."""
    lost = Device("lost", provider_type="embedl_onnxruntime")
    with temporary_context([lost]) as ctx, pytest.raises(ConfigError, match=r"'lost' is of type .* and needs a runner"):
        ONNXRuntimeCompiler().run(ctx, model)


def test_a_missing_package_gives_the_line_to_type(model: Path, tmp_path: Path) -> None:
    """In a process that cannot import onnx."""
    code = (
        "import sys\nsys.modules['onnx'] = None\n"
        "from embedl_hub.core import HubContext\nfrom embedl_hub.core.compile import ONNXRuntimeCompiler\n"
        f"with HubContext('x', home={str(tmp_path / 'home')!r}) as ctx:\n"
        f"    ONNXRuntimeCompiler().run(ctx, {str(model)!r})\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "NoProviderError" in done.stderr
    assert "pip install 'edgeproof-hub[onnxruntime]'" in done.stderr


def test_a_missing_program_gives_the_line_to_type(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when only the device program is not there."""
    lost = dataclasses.replace(RUNTIME, module="no_such_module")
    monkeypatch.setattr("embedl_hub.toolchains.onnxruntime.compile.RUNTIME", lost)
    with temporary_context() as ctx, pytest.raises(NoProviderError, match=r"pip install 'edgeproof-hub\[onnxruntime\]"):
        ONNXRuntimeCompiler().run(ctx, model)
    with pytest.raises(NoProviderError, match="pip install 'edgeproof-device"):
        packed_program(lost)
