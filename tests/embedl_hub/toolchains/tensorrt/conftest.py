"""Boards with a stand-in trtexec, and models for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support import trtexec
from support.models import residual_net, save
from support.sshd import SSHServer

from embedl_hub.core.device import Device, LocalCommandRunner, SSHCommandRunner, TrtexecConfig

QUICK: dict[str, Any] = {"iterations": 12, "min_seconds": 0.02, "warmup_seconds": 0.01}

MakeDevice = Callable[..., Device]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A small net with a fixed batch."""
    return save(residual_net(), tmp_path / "net.onnx")


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The stand-ins by version, in folders of their own with a stand-in GPU."""
    root = tmp_path_factory.mktemp("trtexec")
    trtexec.install_gpu(root / "gpu")
    return {version: trtexec.install(root / version, version) for version in trtexec.VERSIONS}


@pytest.fixture(scope="session")
def gpu_server(tmp_path_factory: pytest.TempPathFactory, programs: dict[str, Path]) -> Iterator[SSHServer]:
    """A board with a GPU: nvidia-smi is on its PATH."""
    gpu = programs["8.6.1"].parents[1] / "gpu"
    server = SSHServer(tmp_path_factory.mktemp("gpu"), environment={"PATH": f"{gpu}:/usr/bin:/bin"}).start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def gpu_board(gpu_server: SSHServer) -> Iterator[SSHCommandRunner]:
    """One runner for all tests of a worker."""
    runner = SSHCommandRunner(gpu_server.config())
    yield runner
    runner.close()


@pytest.fixture
def make_board(gpu_board: SSHCommandRunner, programs: dict[str, Path], tmp_path: Path) -> MakeDevice:
    """Make a board over SSH with a trtexec of a version, or with another program."""

    def make(version: str = "10.16.0", *, path: object = None, **changes: Any) -> Device:
        config = TrtexecConfig(str(path or programs[version]), **{**QUICK, **changes})
        return Device(
            "board",
            gpu_board,
            provider_type="trtexec",
            provider_config=config,
            artifact_root=tmp_path / "board",
            lease_dir=str(tmp_path / "lock"),
        )

    return make


@pytest.fixture
def make_here(programs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeDevice:
    """Make this machine a device with a trtexec, the quick way: no SSH between."""
    monkeypatch.setenv("PATH", f"{programs['8.6.1'].parents[1] / 'gpu'}:/usr/bin:/bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def make(version: str = "10.16.0", *, path: object = None, **changes: Any) -> Device:
        return Device(
            "here",
            LocalCommandRunner(),
            provider_type="trtexec",
            provider_config=TrtexecConfig(str(path or programs[version]), **{**QUICK, **changes}),
            artifact_root=tmp_path / "here",
            lease_dir=None,
        )

    return make


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory, programs: dict[str, Path]) -> dict[str, dict[str, str]]:
    """What the stand-ins write for one net, by version and file."""
    found = {}
    for version, program in programs.items():
        folder = tmp_path_factory.mktemp("written")
        save(residual_net(), folder / "net.onnx")
        files = {"times": "Times", "profile": "Profile", "layers": "LayerInfo", "outputs": "Output"}
        build = ["--onnx=net.onnx", "--saveEngine=net.engine", "--profilingVerbosity=detailed", "--skipInference"]
        words = ["--loadEngine=net.engine", "--duration=0", "--warmUp=0", "--separateProfileRun"]
        words += [f"--export{option}={name}" for name, option in files.items()]
        runner = LocalCommandRunner()
        runner.run([program, *build], folder, hide=True)
        log = runner.run([program, *words], folder, hide=True).stdout
        found[version] = {**{name: (folder / name).read_text() for name in files}, "log": log}
    return found
