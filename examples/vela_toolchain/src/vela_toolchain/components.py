"""The steps of Vela: declarations; ``providers`` carries them out."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from embedl_hub.core.component import CompiledModel, Component, LoggedArtifact, NoProviderError, RunType
from embedl_hub.core.invoke import InvocationResult, Invoker
from embedl_hub.core.profile import Profiler, ProfilingResult

if TYPE_CHECKING:
    from embedl_hub.core import HubContext


@dataclass(frozen=True)
class VelaCompiledModel(CompiledModel):
    """A TFLite model whose operators for the NPU are one command stream; ``input`` is the model it was made from."""

    accelerator: str | None = None  # what the command stream is for
    vela_version: str | None = None  # which Vela made it, and the estimate
    npu_operators: int | None = None  # how many of Vela's operators go to the NPU
    cpu_operators: int | None = None  # and how many stay on the CPU
    cpu_reasons: Mapping[str, str] = field(default_factory=dict)  # why, by the tensor that each makes
    sram_kib: float | None = None  # the memory that the NPU's part needs
    layers: LoggedArtifact | None = None  # what Vela estimates for each operator, as it wrote it
    summary: LoggedArtifact | None = None  # and for the whole
    report: LoggedArtifact | None = None  # everything it printed


class VelaCompiler(Component):
    """Turns an INT8 TFLite model into one with a command stream for an Ethos-U."""

    run_type = RunType.COMPILE

    def run(
        self,
        ctx: HubContext,
        tflite_path: str | os.PathLike[str],
        *,
        device: str | None = None,
        accelerator: str | None = None,
        system_config: str | None = None,
        memory_mode: str | None = None,
        optimize: str | None = None,
    ) -> VelaCompiledModel:
        """Compile a model.

        Args:
            ctx: An open context.
            tflite_path: An INT8 TFLite file.
            device: A device on the context; the first compatible one when not given.
            accelerator: Such as ethos-u55-128; the device's own if not given.
            system_config: Clock and memories, by a name in Vela's configuration; the device's, or Vela's choice.
            memory_mode: What lies in which memory, by a name in Vela's configuration; likewise.
            optimize: For Performance, or for Size; Performance if not given.
        """
        raise NoProviderError


@dataclass(frozen=True)
class VelaProfilingResult(ProfilingResult):
    """How fast Vela thinks the NPU's part of a model is."""


class VelaProfiler(Profiler[VelaCompiledModel, VelaProfilingResult]):
    """Tells what Vela estimates for a compiled model; nothing is run."""


@dataclass(frozen=True)
class VelaInvocationResult(InvocationResult):
    """What the model answers, before it was compiled, in tflite-micro."""


class VelaInvoker(Invoker[VelaCompiledModel, VelaInvocationResult]):
    """Runs the INT8 model that was compiled in tflite-micro on this machine's CPU; no CPU runs the command stream."""
