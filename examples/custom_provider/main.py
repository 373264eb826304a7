"""Providers of one's own on the hub's components: a new kind of device for formats the hub already knows.

    python examples/custom_provider/main.py                   this machine plays the board
    python examples/custom_provider/main.py user@board[:port]   a board, by SSH

The backend is `my_backend.py` beside this file; the example sends it to the board by itself.
"""

from __future__ import annotations

import getpass
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from embedl_hub.core import HubContext
from embedl_hub.core.compile import (
    CompileError,
    ONNXRuntimeCompiledModel,
    ONNXRuntimeCompiler,
    TFLiteCompiledModel,
    TFLiteCompiler,
)
from embedl_hub.core.device import (
    CommandRunner,
    Device,
    DeviceSpec,
    LocalCommandRunner,
    ProviderConfig,
    SSHCommandRunner,
    SSHConfig,
)
from embedl_hub.core.profile import ONNXRuntimeProfiler, ONNXRuntimeProfilingResult
from embedl_hub.errors import HubError

BACKEND = Path(__file__).with_name("my_backend.py")


# 1. Settings of the provider: they hang on the device.


@dataclass(frozen=True)
class MyBackendConfig(ProviderConfig):
    """Where the backend is on the board, and what else to tell it."""

    backend_path: str = "/usr/local/bin/my-backend"
    cli_args: tuple[str, ...] = field(default_factory=tuple)


# 2. Devices with these settings.


def get_my_device(
    host: str,
    username: str | None,
    *,
    port: int | None = None,
    name: str = "main",
    config: MyBackendConfig | None = None,
) -> Device:
    """Return a board by SSH."""
    runner = SSHCommandRunner(SSHConfig(host=host, username=username, port=port))
    return get_device_on(runner, name=name, config=config or MyBackendConfig())


def get_device_on(runner: CommandRunner, *, name: str, config: MyBackendConfig) -> Device:
    """Return a device that compiles with one setting and profiles with another."""
    overrides = {ONNXRuntimeProfiler: MyBackendConfig(backend_path=config.backend_path, cli_args=())}
    return Device(
        name=name,
        runner=runner,
        spec=DeviceSpec(device_name="My Custom Device"),
        provider_type="my_custom_backend",
        provider_config=config,
        provider_config_overrides=overrides,
    )


# 3. Providers. The first names every keyword of run, the second takes those it does not need as **kwargs.


@ONNXRuntimeCompiler.provider("my_custom_backend")
def _compile_on_my_backend(
    ctx: HubContext,
    onnx_path: Path,
    *,
    device: str | None = None,
    input_shape: tuple[int, ...] | None = None,
    calibration_data: object = None,
    calibration_method: str | None = None,
    per_channel: bool = False,
    quantize_io: bool = False,
) -> ONNXRuntimeCompiledModel:
    """Compile on the board; what the backend cannot do is refused, not ignored."""
    if calibration_data is not None or quantize_io or per_channel or calibration_method or input_shape:
        raise CompileError("my_custom_backend compiles float models as they are; leave the other options out.")
    board, runner, config = _board(ctx, device, ONNXRuntimeCompiler)
    source = ctx.client.log_artifact(onnx_path, name="input").to_remote(ctx, device_name=board.name).remote()
    packed = board.artifact_dir / f"{onnx_path.stem}.edgez"
    runner.run([config.backend_path, "compile", source, packed, *config.cli_args], hide=True)
    runner.get(packed, ctx.artifact_dir / packed.name)
    ctx.client.log_artifact(ctx.artifact_dir / packed.name, name="path")
    return ONNXRuntimeCompiledModel.from_current_run(ctx)


@ONNXRuntimeProfiler.provider("my_custom_backend")
def _profile_on_my_backend(
    ctx: HubContext, model: ONNXRuntimeCompiledModel, *, device: str | None = None, **_: Any
) -> ONNXRuntimeProfilingResult:
    """Time on the board; the compiled model is there already if it was sent before."""
    board, runner, config = _board(ctx, device, ONNXRuntimeProfiler)
    remote_model = model.path.to_remote(ctx, device_name=board.name).remote()
    latency_ms, memory_mb = runner.run([config.backend_path, "profile", remote_model], hide=True).stdout.split()
    ctx.client.log_artifact(model.path, name="input", ctx=ctx)
    ctx.client.log_metric("latency", float(latency_ms))
    ctx.client.log_metric("peak_memory_mb", float(memory_mb))
    ctx.client.log_param("verdict", "indicative")
    ctx.client.log_param("verdict_reason", "one sample")
    return ONNXRuntimeProfilingResult.from_current_run(ctx)


@TFLiteCompiler.provider("my_custom_backend")
def _compile_tflite_ssh(
    ctx: HubContext,
    onnx_path: Path,
    *,
    device: str | None = None,
    input_shape: tuple[int, ...] | None = None,
    calibration_data: object = None,
    quantize_io: bool = False,
) -> TFLiteCompiledModel:
    """Do every step by hand: send, run, fetch, log."""
    if calibration_data is not None or quantize_io or input_shape:
        raise CompileError("my_custom_backend compiles float models as they are; leave the other options out.")
    board, runner, config = _board(ctx, device, TFLiteCompiler)
    remote_path = board.artifact_dir / onnx_path.name
    runner.put(onnx_path, remote_path)
    output_remote = board.artifact_dir / f"{onnx_path.stem}.tflite"
    runner.run([config.backend_path, "compile", remote_path, output_remote], hide=True)
    local_output = ctx.artifact_dir / output_remote.name
    runner.get(output_remote, local_output)
    ctx.client.log_artifact(onnx_path, name="input")
    ctx.client.log_artifact(local_output, name="path")
    return TFLiteCompiledModel.from_current_run(ctx)


def _board(ctx: HubContext, device: str | None, component: type) -> tuple[Device, CommandRunner, MyBackendConfig]:
    """Return the device, its runner and its settings for a component."""
    board = ctx.devices[device or "main"]
    if board.runner is None:
        raise CompileError(f"Device {board.name!r} needs a runner.")
    return board, board.runner, board.get_provider_config(MyBackendConfig, component) or MyBackendConfig()


def install_backend(device: Device, folder: str) -> str:
    """Send the backend to the board and return its path there."""
    assert device.runner is not None
    path = f"{folder}/my_backend.py"
    device.runner.put(BACKEND, path)
    return path


def run_all(model: Path, device: Device, home: Path | None = None) -> None:
    """Compile and profile a model on a device, and tell what came out."""
    with HubContext(project_name="My Project", devices=[device], home=home) as ctx:
        compiled = ONNXRuntimeCompiler(device=device.name).run(ctx, model)
        profile = ONNXRuntimeProfiler().run(ctx, compiled)
        tflite = TFLiteCompiler().run(ctx, model)
        print(f"{device.name}: {ctx.device_spec(device.name)}")
        print(
            f"compiled to {compiled.path.file_name} ({compiled.path.size_bytes} bytes), and to {tflite.path.file_name}"
        )
        print(f"latency {profile.latency.value:.3f} ms, {profile.verdict}: {profile.verdict_reason}")
        print(f"runs stored in {ctx.home}")


def main() -> None:
    """Run on the board named on the command line, or on this machine."""
    folder = Path(".embedl")
    folder.mkdir(exist_ok=True)
    model = folder / "weights.onnx"
    model.write_bytes(bytes(range(256)) * 4096)
    user, _, rest = sys.argv[1].rpartition("@") if len(sys.argv) > 1 else ("", "", "")
    # The example's own folder on the board, one for each account: nobody can write to another's.
    where = f"/tmp/edgeproof-example-{user or getpass.getuser()}"  # noqa: S108
    config = MyBackendConfig(backend_path=f"{where}/my_backend.py")
    if rest:
        host, _, port = rest.partition(":")
        device = get_my_device(host, user or None, port=int(port) if port else None, config=config)
    else:
        device = get_device_on(LocalCommandRunner(), name="main", config=config)
    try:
        install_backend(device, where)
        run_all(model, device, home=folder)
    except HubError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
