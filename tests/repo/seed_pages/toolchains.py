"""The facts of the page on toolchains of one's own: names, signatures, and the order in which they are registered."""

from __future__ import annotations

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
from embedl_hub.core.device import Device, DeviceSpec


@dataclass(frozen=True)
class MyCompiledModel(CompiledModel):
    optimization_level: int | None = None


class MyCompiler(Component):
    run_type = RunType.COMPILE

    def __init__(self, *, name: str | None = None, device: str | None = None, optimize: bool = True) -> None:
        super().__init__(name=name, device=device, optimize=optimize)

    def run(
        self, ctx: HubContext, model_path: Path, *, device: str | None = None, optimize: bool = True
    ) -> MyCompiledModel:
        raise NoProviderError


@MyCompiler.provider(ProviderType.LOCAL)
def _compile_local(
    ctx: HubContext, model_path: Path, *, device: str | None = None, optimize: bool = True
) -> MyCompiledModel:
    made = ctx.artifact_dir / "made"
    made.write_bytes(model_path.read_bytes())
    ctx.client.log_artifact(made, name="path")
    return MyCompiledModel.from_current_run(ctx)


@MyCompiler.provider(ProviderType.LOCAL)
def _compile_local(ctx, model_path, *, device=None, optimize=True): ...


@MyCompiler.provider("my_remote_backend")
def _compile_remote(ctx, model_path, *, device=None, optimize=True): ...


with HubContext(project_name="My Project") as ctx:
    compiler = MyCompiler(optimize=True)
    result = compiler.run(ctx, Path("model.onnx"))

device = Device(
    name="my-device",
    runner=my_ssh_runner,
    spec=DeviceSpec(device_name="My Device"),
    provider_type="my_remote_backend",
)
with HubContext(project_name="My Project", devices=[device]) as ctx:
    compiler = MyCompiler(device="my-device", optimize=True)
    result = compiler.run(ctx, Path("model.onnx"))


@dataclass(frozen=True)
class MyProfilingResult(ComponentOutput):
    latency: float | None = None
    memory_mb: float | None = None


class MyProfiler(Component):
    run_type = RunType.PROFILE

    def __init__(self, *, name=None, device=None):
        super().__init__(name=name, device=device)

    def run(self, ctx: HubContext, model: MyCompiledModel, *, device=None):
        raise NoProviderError


@MyProfiler.provider(ProviderType.LOCAL)
def _profile_local(ctx: HubContext, model, *, device=None): ...
