"""A toolchain that does nothing but what a test says: its steps wait, hang, fail, or run a command on their device."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from embedl_hub.core.component import CompiledModel, Component, ComponentOutput, LoggedMetric, NoProviderError, RunType
from embedl_hub.core.device import Device
from embedl_hub.errors import CompileError, ProfileError
from embedl_hub.fleet import StepKind, Sweep, SweepModel, SweepOption

if TYPE_CHECKING:
    from embedl_hub.core import HubContext

PROVIDER = "plain"


@dataclass(frozen=True)
class PlainModel(CompiledModel):
    """A model that is its file."""


@dataclass(frozen=True)
class PlainProfile(ComponentOutput):
    """A number."""

    latency_median: LoggedMetric


class PlainCompiler(Component):
    """Takes a file as it is."""

    run_type = RunType.COMPILE

    def __init__(self, *, name: str | None = None, device: str | None = None, fail: str | None = None) -> None:
        """Set defaults for :meth:`run`."""
        super().__init__(name=name, device=device, fail=fail)

    def run(self, ctx: HubContext, path: Path, *, device: str | None = None, fail: str | None = None) -> PlainModel:
        """Take a file."""
        raise NoProviderError


class PlainProfiler(Component):
    """Waits and says so."""

    run_type = RunType.PROFILE

    def __init__(
        self,
        *,
        name: str | None = None,
        device: str | None = None,
        wait_s: float = 0.0,
        command: tuple[str, ...] = (),
        fail: str | None = None,
        hang: bool = False,
        note: str | None = None,
        value: float = 1.0,
    ) -> None:
        """Set defaults for :meth:`run`."""
        super().__init__(
            name=name, device=device, wait_s=wait_s, command=command, fail=fail, hang=hang, note=note, value=value
        )

    def run(
        self,
        ctx: HubContext,
        model: PlainModel,
        *,
        device: str | None = None,
        wait_s: float = 0.0,
        command: tuple[str, ...] = (),
        fail: str | None = None,
        hang: bool = False,
        note: str | None = None,
        value: float = 1.0,
    ) -> PlainProfile:
        """Wait, run a command on the device, hang or fail; write a line into a file first, where asked."""
        raise NoProviderError


def _compile(ctx: HubContext, path: Path, *, device: str | None, fail: str | None) -> PlainModel:
    ctx.client.log_artifact(path, name="input")
    if fail:
        raise CompileError(fail)
    ctx.client.log_artifact(path, name="path")
    return PlainModel.from_current_run(ctx)


def _profile(
    ctx: HubContext,
    model: PlainModel,
    *,
    device: str | None,
    wait_s: float,
    command: tuple[str, ...],
    fail: str | None,
    hang: bool,
    note: str | None,
    value: float,
) -> PlainProfile:
    if note:
        with Path(note).open("a") as file:
            file.write(f"{model.path.sha256} {device} {os.getpid()}\n")
    if command and device is not None:
        runner = ctx.find_device(device).runner
        assert runner is not None
        runner.run(list(command), hide=True)
    while hang:
        time.sleep(0.05)
    time.sleep(wait_s)
    if fail:
        raise ProfileError(fail)
    ctx.client.log_metric("latency_median", value)
    ctx.client.log_param("verdict", "stable")
    return PlainProfile.from_current_run(ctx)


for _type in (PROVIDER, "local"):
    PlainCompiler.provider(_type, replace=True)(_compile)
    PlainProfiler.provider(_type, replace=True)(_profile)


def plain_device(name: str, **settings: object) -> Device:
    """Return a device that needs no board."""
    return Device(name, provider_type=PROVIDER, **settings)  # type: ignore[arg-type]


def model_files(folder: Path, count: int) -> tuple[SweepModel, ...]:
    """Write files that differ, and return them as models."""
    folder.mkdir(parents=True, exist_ok=True)
    models = []
    for number in range(count):
        path = folder / f"m{number}.onnx"
        path.write_text(f"model {number}")
        models.append(SweepModel(f"m{number}", path))
    return tuple(models)


def plain_sweep(
    models: tuple[SweepModel, ...], *, options: dict[str, dict[str, object]] | None = None, **settings: object
) -> Sweep:
    """Return a sweep of the plain toolchain; options are keywords of its profiler."""
    made = tuple(SweepOption(name, {StepKind.PROFILE: values}) for name, values in (options or {"default": {}}).items())
    return Sweep("plain", "plain", models, made, **settings)  # type: ignore[arg-type]
