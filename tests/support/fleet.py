"""A toolchain that does nothing but what a test says: its steps wait, hang, fail, or run a command on their device."""

from __future__ import annotations

import itertools
import os
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from embedl_hub.core.component import CompiledModel, Component, ComponentOutput, LoggedMetric, NoProviderError, RunType
from embedl_hub.core.device import Device
from embedl_hub.core.toolchain import Toolchain, register_toolchain
from embedl_hub.errors import CompileError, ProfileError
from embedl_hub.fleet import (
    CellResult,
    Listener,
    Outcome,
    Step,
    StepKind,
    Sweep,
    SweepModel,
    SweepOption,
    SweepResult,
)

if TYPE_CHECKING:
    from embedl_hub.core import HubContext
    from embedl_hub.tracking import Store

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


register_toolchain(Toolchain("plain", "Plain", PlainCompiler, PlainModel, profiler=PlainProfiler))


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
    # Longer than any test waits; not for ever, as its thread cannot be ended.
    time.sleep(30 if hang else wait_s)
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


@dataclass
class Heard(Listener):
    """Keeps all that a listener hears."""

    steps: list[Outcome] = field(default_factory=list)
    cells: list[CellResult] = field(default_factory=list)
    words: list[str] = field(default_factory=list)

    def step_ended(self, step: Step, outcome: Outcome) -> None:
        assert step.key == outcome.step
        self.steps.append(outcome)

    def cell_ended(self, result: CellResult) -> None:
        self.cells.append(result)

    def said(self, text: str) -> None:
        self.words.append(text)


def store_of(ctx: HubContext) -> Store:
    """Return the store of a context that has one."""
    assert ctx.client.store is not None
    return ctx.client.store


def assert_each_ended_once(result: SweepResult, heard: Heard) -> None:
    """Every cell of the plan was heard of once, and stands in the result as it was heard."""
    assert Counter(each.cell.id for each in heard.cells) == Counter(cell.id for cell in result.plan.cells)
    assert {each.cell.id: each.state for each in heard.cells} == {each.cell.id: each.state for each in result.cells}


def assert_no_overlap(store: Store, sweep_id: str) -> int:
    """From the recorded times: no two runs had one device at once. Return how many had one."""
    spans: dict[str, list[tuple[int, int]]] = {}
    for run in store.tagged("sweep", [sweep_id], params=["$claimed"]):
        if "$claimed" in run.params and run.device is not None:
            times = run.params["$claimed"].value
            assert isinstance(times, dict)
            if times.keys() == {"waits_from_ms"}:
                continue  # it never got the device
            assert isinstance(times["from_ms"], int)
            assert isinstance(times["until_ms"], int)
            spans.setdefault(run.device, []).append((times["from_ms"], times["until_ms"]))
    for of_device in spans.values():
        of_device.sort()
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(of_device))
    return sum(map(len, spans.values()))
