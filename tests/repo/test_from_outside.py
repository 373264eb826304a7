"""What CONTRIBUTING says of additions: each comes from one file outside the tree, and nothing in it is edited."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from support.cli import answer, hub

from embedl_hub import page
from embedl_hub.tracking import Store

ROOT = Path(__file__).resolve().parents[2]

TOOLCHAIN = '''
"""A toolchain whose runtime is zlib: models are packed, times are those of unpacking them."""
import time, zlib
from dataclasses import dataclass
from embedl_hub.core.compile import CompileError
from embedl_hub.core.component import CompiledModel, Component, NoProviderError, RunType
from embedl_hub.core.context import HubContext
from embedl_hub.core.device import CheckResult, DeviceKind, LOCAL, ProviderConfig
from embedl_hub.core.invoke import InvocationResult, Invoker
from embedl_hub.core.profile import Profiler, ProfilingResult
from embedl_hub.core.toolchain import Toolchain

@dataclass(frozen=True)
class ZlibConfig(ProviderConfig):
    repeats: int = 3

@dataclass(frozen=True)
class ZlibCompiledModel(CompiledModel):
    level: int = 6

class ZlibCompiler(Component):
    """Packs a model."""
    run_type = RunType.COMPILE
    def run(
        self, ctx: HubContext, onnx_path: "Path", *, device: str | None = None, level: int = 6
    ) -> ZlibCompiledModel:
        """Pack.

        Args:
            level: How hard to try.
        """
        raise NoProviderError

@dataclass(frozen=True)
class ZlibProfilingResult(ProfilingResult):
    """How fast it unpacks."""

class ZlibProfiler(Profiler[ZlibCompiledModel, ZlibProfilingResult]):
    """Times the unpacking."""

@ZlibCompiler.provider(LOCAL)
@ZlibCompiler.provider("zlib_board")
def _compile(ctx, onnx_path, *, device=None, level=6):
    ctx.client.log_artifact(onnx_path, name="input")
    made = ctx.artifact_dir / f"{onnx_path.stem}.zz"
    made.write_bytes(zlib.compress(onnx_path.read_bytes(), level))
    ctx.client.log_artifact(made, name="path")
    return ZlibCompiledModel.from_current_run(ctx)

@ZlibProfiler.provider(LOCAL)
@ZlibProfiler.provider("zlib_board")
def _profile(ctx, model, *, device=None):
    ctx.client.log_artifact(model.path, name="input", ctx=ctx)
    packed = model.path.to_local(ctx).local().read_bytes()
    config = device and ctx.find_device(device).get_provider_config(ZlibConfig, ZlibProfiler)
    start = time.perf_counter()
    for _ in range((config or ZlibConfig()).repeats):
        zlib.decompress(packed)
    ctx.client.log_metric("latency", (time.perf_counter() - start) * 1e3)
    return ZlibProfilingResult.from_current_run(ctx)

TOOLCHAIN = Toolchain(
    "zlib", "zlib", ZlibCompiler, ZlibCompiledModel, suffixes=(".zz",), profiler=ZlibProfiler,
    providers={LOCAL: __name__, "zlib_board": __name__},
    device_kinds=(DeviceKind("zlib_board", "A board with zlib.", ZlibConfig),), local_config=ZlibConfig,
    doctor=lambda: [CheckResult("zlib", is_ok=True, message=zlib.ZLIB_VERSION)],
)
'''
RUNNER = '''
"""A way to reach devices: a folder of this machine stands for the board."""
from dataclasses import dataclass
from embedl_hub.core.device import LocalCommandRunner, RunnerKind

@dataclass(frozen=True)
class FolderConfig:
    path: str

class FolderRunner(LocalCommandRunner):
    def __init__(self, config):
        super().__init__()
        self.config = config
    @property
    def address(self):
        return f"folder {self.config.path}"

KIND = RunnerKind("folder", "A folder.", FolderRunner, FolderConfig, "{ path = '...' }")
'''
COMMAND = '''
"""``embedl-hub count-runs``: count the runs of the home."""
import click
from embedl_hub.tracking import Store, find_home

@click.command()
def command():
    """Count the runs of the home."""
    with Store(find_home(None)) as store:
        click.echo(store.counts()["run"])
'''


@pytest.fixture
def outside(tmp_path: Path) -> dict[str, str]:
    """A folder on the import path with a toolchain, a runner and a command, one file each."""
    package = tmp_path / "outside-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: outside\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text(
        "[embedl_hub.toolchains]\nzlib = zlib_toolchain:TOOLCHAIN\n"
        "[embedl_hub.runners]\nfolder = folder_runner:KIND\n"
        "[embedl_hub.commands]\ncount-runs = count_runs:command\n"
        "[embedl_deploy.commands]\ncount-runs = count_runs:command\n"
    )
    for name, text in (("zlib_toolchain", TOOLCHAIN), ("folder_runner", RUNNER), ("count_runs", COMMAND)):
        (tmp_path / f"{name}.py").write_text(text)
    (tmp_path / "net.onnx").write_bytes(b"weights" * 4096)
    return {"PYTHONPATH": str(tmp_path), "EMBEDL_HUB_HOME": str(tmp_path / "home")}


def test_a_toolchain_from_outside(outside: dict[str, str], tmp_path: Path) -> None:
    """Compiled and profiled by the command line, listed by doctor, imported from the faces, typed by its own names."""
    assert "zlib" in hub("compile", "--help", **outside).stdout
    assert "How hard to try." in hub("compile", "zlib", "--help", **outside).stdout
    assert hub("compile", "zlib", tmp_path / "net.onnx", **outside).stderr == ""
    made = answer("compile", "zlib", tmp_path / "net.onnx", "--level", "9", **outside)
    assert made["artifacts"]["path"].endswith("net.zz")
    profiled = answer("profile", "zlib", made["run"], **outside)
    assert profiled["metrics"]["latency"] > 0
    assert hub("profile", "zlib", tmp_path / "net.onnx", **outside).returncode == 1
    with Store(tmp_path / "home") as store:
        visitor = TestClient(page.app(lambda: store))
        shown = visitor.get(f"/runs/{profiled['run']}").text
        assert "ZlibProfiler" in shown
        assert "net.zz" in shown
    checks = {check["title"]: check for check in json.loads(hub("doctor", "--json", **outside).stdout)}
    assert checks["zlib"]["is_ok"]
    assert checks["provider zlib_board"]["is_ok"]
    code = (
        "from embedl_hub.core.compile import ZlibCompiler, ZlibCompiledModel\n"
        "from embedl_hub.core.profile import ZlibProfilingResult\n"
        "from embedl_hub.core.device import LocalConfig, ZlibConfig\n"
        "from embedl_hub.core.component import ProviderType\n"
        "print(ProviderType.ZLIB_BOARD, LocalConfig(repeats=2).repeats)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **outside}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.stdout.strip() == "zlib_board 2", done.stderr


@pytest.mark.slow
def test_a_runner_from_outside(outside: dict[str, str], tmp_path: Path) -> None:
    """A device that is reached by it is added, tested, listed and used by the command line."""
    added = hub("device", "add", "shelf", "--type", "zlib_board", "--runner", "folder", **outside)
    assert added.returncode == 1
    assert "needs its settings: folder = { path" in added.stderr
    settings = ("--runner", "folder", "--runner-set", f"path={tmp_path}", "--set", "repeats=2")
    assert answer("device", "add", "shelf", "--type", "zlib_board", *settings, **outside)["folder"]["path"]
    assert answer("device", "test", "shelf", **outside)["is_ok"]
    listed = answer("list-devices", **outside)["devices"]
    assert [(row["name"], row["reached_by"]) for row in listed] == [("shelf", f"folder {tmp_path}")]
    made = answer("compile", "zlib", tmp_path / "net.onnx", "--device", "shelf", **outside)
    assert made["provider"] == "zlib_board"
    profiled = answer("profile", "zlib", made["run"], "--device", "shelf", **outside)
    assert profiled["device"] == "shelf"
    with Store(tmp_path / "home") as store:
        visitor = TestClient(page.app(lambda: store))
        assert profiled["run"] in visitor.get("/device?name=shelf").text


def test_a_command_from_outside(outside: dict[str, str]) -> None:
    """It stands in the help and runs, of the hub and of deploy."""
    assert "count-runs" in hub("--help", **outside).stdout
    assert hub("count-runs", **outside).stdout.strip() == "0"
    for args, words in ((["--help"], "count-runs"), (["count-runs"], "0")):
        argv = [sys.executable, "-m", "embedl_deploy", *args]
        done = subprocess.run(
            argv, env={**os.environ, **outside}, capture_output=True, text=True, timeout=60, check=False
        )
        assert words in done.stdout, done.stderr


def test_the_core_knows_no_vendor() -> None:
    """No runtime's, vendor's or service's name stands in it; the stubs of the faces are generated."""
    names = re.compile(
        r"onnx ?runtime|\bort\b|tflite|litert|tensor ?rt|trtexec|qualcomm|qai|snapdragon|\baws\b|amazon|nvidia|jetson"
        r"|google|hailo|openvino|executorch",
        re.IGNORECASE,
    )
    found = {
        f"{path.relative_to(ROOT)}:{number}": line.strip()
        for path in sorted((ROOT / "src/embedl_hub/core").rglob("*.py"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if names.search(line)
    }
    assert found == {}


def test_the_stubs_are_fresh() -> None:
    """Type checkers see the names that are found on use."""
    done = subprocess.run(
        [sys.executable, ROOT / "tools/stubs.py", "--check"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
