"""The facts of the page on providers of one's own: names, signatures, and the order in which they are registered."""

from dataclasses import dataclass, field
from pathlib import Path

from embedl_hub.core import HubContext
from embedl_hub.core.compile import ONNXRuntimeCompiler, TFLiteCompiledModel, TFLiteCompiler
from embedl_hub.core.component import ProviderType
from embedl_hub.core.device import Device, DeviceSpec, ProviderConfig, SSHCommandRunner, SSHConfig
from embedl_hub.core.profile import ONNXRuntimeProfiler


@ONNXRuntimeCompiler.provider("my_custom_backend")
def _compile_on_my_backend(
    ctx: HubContext,
    onnx_path: Path,
    *,
    device: str | None = None,
    input_shape: tuple[int, ...] | None = None,
    calibration_data=None,
    calibration_method=None,
    per_channel: bool = False,
    quantize_io: bool = False,
): ...


@dataclass(frozen=True)
class MyBackendConfig(ProviderConfig):
    backend_path: str = "/usr/local/bin/my-backend"
    cli_args: tuple[str, ...] = field(default_factory=tuple)


def get_my_device(
    host: str, username: str, *, name: str = "main", config: MyBackendConfig = MyBackendConfig()
) -> Device:
    runner = SSHCommandRunner(SSHConfig(host=host, username=username))
    return Device(
        name=name,
        runner=runner,
        spec=DeviceSpec(device_name="My Custom Device"),
        provider_type="my_custom_backend",
        provider_config=config,
    )


@ONNXRuntimeCompiler.provider("my_custom_backend")
def _compile_on_my_backend(ctx, onnx_path, *, device=None, **kwargs):
    board = ctx.devices[device or "main"]
    config = board.get_provider_config(MyBackendConfig, ONNXRuntimeCompiler)
    board.runner.run([config.backend_path, str(onnx_path)])


overrides = dict()
overrides[ONNXRuntimeProfiler] = MyBackendConfig(backend_path="/usr/bin/profile-tool")
device = Device(
    name="my-device",
    runner=runner,
    spec=DeviceSpec(device_name="My Device"),
    provider_type="my_custom_backend",
    provider_config=MyBackendConfig(backend_path="/usr/bin/compile-tool"),
    provider_config_overrides=overrides,
)


@MyCompiler.provider(ProviderType.LOCAL)
def _local(ctx, model_path, **kwargs): ...


@MyCompiler.provider("my_custom_backend")
def _custom(ctx, model_path, **kwargs): ...


@TFLiteCompiler.provider("my_tflite_device")
def _compile_tflite_ssh(
    ctx: HubContext,
    onnx_path: Path,
    *,
    device: str | None = None,
    input_shape: tuple[int, ...] | None = None,
    calibration_data=None,
    quantize_io: bool = False,
):
    board = ctx.devices[device or "main"]
    sent, made = f"/tmp/{onnx_path.name}", f"/tmp/{onnx_path.stem}.tflite"
    board.runner.put(onnx_path, sent)
    board.runner.run(["my-tflite-compiler", sent, "-o", made])
    fetched = ctx.artifact_dir / Path(made).name
    board.runner.get(made, fetched)
    ctx.client.log_artifact(onnx_path, name="input")
    ctx.client.log_artifact(fetched, name="path")
    return TFLiteCompiledModel.from_current_run(ctx)
