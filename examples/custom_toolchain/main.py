"""A toolchain of one's own, end to end: a compiler and a profiler for a made-up format.

The format is small but real: `.edgez` is a file of weights, packed by zlib in one stream. "Compiling" packs it, on
this machine or on a board over SSH; "profiling" times the unpacking, which is what a loader on the board would do.

    python examples/custom_toolchain/main.py                  on this machine
    python examples/custom_toolchain/main.py user@board[:port]  the same on a board, by SSH
"""

from __future__ import annotations

import statistics
import sys
import time
import zlib
from dataclasses import dataclass
from pathlib import Path

from embedl_hub.core import HubContext
from embedl_hub.core.component import (
    CompiledModel,
    Component,
    ComponentOutput,
    NoProviderError,
    ProviderType,
    RunType,
)
from embedl_hub.core.device import Device, DeviceSpec, SSHCommandRunner, SSHConfig
from embedl_hub.errors import CompileError, HubError, ProfileError

# 1. What the steps give back. Fields are filled by name from what a run logged.


@dataclass(frozen=True)
class MyCompiledModel(CompiledModel):
    """Output of MyCompiler."""

    optimization_level: int | None = None


@dataclass(frozen=True)
class MyProfilingResult(ComponentOutput):
    """Output of MyProfiler."""

    latency: float | None = None
    memory_mb: float | None = None


# 2. The steps themselves: declarations. Dispatch takes the place of the bodies.


class MyCompiler(Component):
    """Packs a model into the `.edgez` format."""

    run_type = RunType.COMPILE

    def __init__(self, *, name: str | None = None, device: str | None = None, optimize: bool = True) -> None:
        """Set defaults for run."""
        super().__init__(name=name, device=device, optimize=optimize)

    def run(
        self, ctx: HubContext, model_path: Path, *, device: str | None = None, optimize: bool = True
    ) -> MyCompiledModel:
        """Pack a model; ``optimize`` takes longer and packs tighter."""
        raise NoProviderError


class MyProfiler(Component):
    """Times the unpacking of a packed model."""

    run_type = RunType.PROFILE

    def __init__(self, *, name: str | None = None, device: str | None = None) -> None:
        """Set defaults for run."""
        super().__init__(name=name, device=device)

    def run(self, ctx: HubContext, model: MyCompiledModel, *, device: str | None = None) -> MyProfilingResult:
        """Time a model."""
        raise NoProviderError


# 3. How they are done on this machine.


@MyCompiler.provider(ProviderType.LOCAL)
def _compile_local(
    ctx: HubContext, model_path: Path, *, device: str | None = None, optimize: bool = True
) -> MyCompiledModel:
    """Pack with Python's zlib."""
    if not model_path.is_file():
        raise CompileError(f"There is no model {model_path}.")
    level = 9 if optimize else 1
    output_path = ctx.artifact_dir / (model_path.stem + ".edgez")
    output_path.write_bytes(zlib.compress(model_path.read_bytes(), level))
    ctx.client.log_artifact(model_path, name="input")
    ctx.client.log_artifact(output_path, name="path")
    ctx.client.log_param("optimization_level", level)
    return MyCompiledModel.from_current_run(ctx)


@MyProfiler.provider(ProviderType.LOCAL)
def _profile_local(ctx: HubContext, model: MyCompiledModel, *, device: str | None = None) -> MyProfilingResult:
    """Unpack a few times and take the median."""
    packed = model.path.to_local(ctx).local().read_bytes()
    times_ms = []
    unpacked = b""
    for _ in range(20):
        start = time.perf_counter_ns()
        unpacked = zlib.decompress(packed)
        times_ms.append((time.perf_counter_ns() - start) / 1e6)
    ctx.client.log_artifact(model.path, name="input", ctx=ctx)
    ctx.client.log_metric("latency", statistics.median(times_ms))
    ctx.client.log_metric("memory_mb", len(unpacked) / 1e6)
    return MyProfilingResult.from_current_run(ctx)


# 4. How they are done on a board that has nothing but Python.

_PACK = "import sys,zlib; i,o,l=sys.argv[1:]; open(o,'wb').write(zlib.compress(open(i,'rb').read(),int(l)))"
_TIME = """
import statistics, sys, time, zlib
packed = open(sys.argv[1], "rb").read()
times = []
for _ in range(20):
    start = time.perf_counter()
    unpacked = zlib.decompress(packed)
    times.append((time.perf_counter() - start) * 1e3)
print(statistics.median(times), len(unpacked) / 1e6)
"""


@MyCompiler.provider("my_remote_backend")
def _compile_remote(
    ctx: HubContext, model_path: Path, *, device: str | None = None, optimize: bool = True
) -> MyCompiledModel:
    """Pack on the board; the model goes there once, whatever the number of runs."""
    if not model_path.is_file():
        raise CompileError(f"There is no model {model_path}.")
    board = ctx.devices[device or ""]
    assert board.runner is not None
    level = 9 if optimize else 1
    source = ctx.client.log_artifact(model_path, name="input").to_remote(ctx, device_name=board.name).remote()
    target = board.artifact_dir / (model_path.stem + ".edgez")
    board.runner.run(["python3", "-c", _PACK, source, target, str(level)], hide=True)
    output_path = ctx.artifact_dir / target.name
    board.runner.get(target, output_path)
    ctx.client.log_artifact(output_path, name="path")
    ctx.client.log_param("optimization_level", level)
    return MyCompiledModel.from_current_run(ctx)


@MyProfiler.provider("my_remote_backend")
def _profile_remote(ctx: HubContext, model: MyCompiledModel, *, device: str | None = None) -> MyProfilingResult:
    """Time on the board."""
    board = ctx.devices[device or ""]
    assert board.runner is not None
    remote_model = model.path.to_remote(ctx, device_name=board.name).remote()
    answer = board.runner.run(["python3", "-c", _TIME, remote_model], hide=True).stdout.split()
    if len(answer) != 2:
        raise ProfileError(f"The board answered {answer!r}, not a time and a size.")
    ctx.client.log_artifact(model.path, name="input", ctx=ctx)
    ctx.client.log_metric("latency", float(answer[0]))
    ctx.client.log_metric("memory_mb", float(answer[1]))
    return MyProfilingResult.from_current_run(ctx)


def get_board(address: str) -> Device:
    """Return a device for ``user@host[:port]``."""
    user, _, rest = address.rpartition("@")
    host, _, port = rest.partition(":")
    config = SSHConfig(host=host, username=user or None, port=int(port) if port else None)
    return Device(
        name="my-device",
        runner=SSHCommandRunner(config),
        spec=DeviceSpec(device_name="My Device"),
        provider_type="my_remote_backend",
    )


def run_all(model_path: Path, devices: list[Device], home: Path | None = None) -> MyProfilingResult:
    """Compile and profile a model on the first device, or here; tell what happened and where it is kept."""
    with HubContext(project_name="My Project", devices=devices, home=home) as ctx:
        compiled = MyCompiler(optimize=True).run(ctx, model_path)
        profile = MyProfiler().run(ctx, compiled)
        assert compiled.input is not None
        place = devices[0].name if devices else "this machine"
        print(f"{model_path.name}: {compiled.input.size_bytes} -> {compiled.path.size_bytes} bytes on {place}")
        print(f"unpacks in {profile.latency:.3f} ms (median of 20) to {profile.memory_mb:.2f} MB")
        print(f"runs stored in {ctx.home}")
        print(f"see them with: embedl-hub run list --home {ctx.home}")
        print(f"compiled model: {compiled.path.local()}")
    return profile


def make_model(folder: Path) -> Path:
    """Write a model file to work on: a few layers of quantized weights."""
    rows = b"".join(bytes((row * column) % 61 for column in range(512)) for row in range(2048))
    path = folder / "weights.bin"
    path.write_bytes(rows)
    return path


def main() -> None:
    """Run the example here, or on the board named on the command line."""
    folder = Path(".embedl")
    folder.mkdir(exist_ok=True)
    try:
        run_all(make_model(folder), [get_board(address) for address in sys.argv[1:2]], home=folder)
    except HubError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
