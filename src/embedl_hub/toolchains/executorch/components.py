"""The steps of ExecuTorch: declarations; providers carry them out."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from embedl_hub.core.component import CompiledModel, Component, NoProviderError, RunType
from embedl_hub.core.invoke import InvocationResult, Invoker
from embedl_hub.core.profile import PairedProfiler, Profiler, ProfilingResult
from embedl_hub.tracking import LoggedArtifact

if TYPE_CHECKING:
    from embedl_hub.core.context import HubContext


@dataclass(frozen=True)
class ExecuTorchCompiledModel(CompiledModel):
    """An ExecuTorch program, with what became of each operator of its source."""

    delegation: LoggedArtifact | None = None  # which operators the backend took, which not, and why
    delegated: int = 0  # how many operators the backend took
    left: int = 0  # how many run in the runtime's own kernels


class ExecuTorchCompiler(Component):
    """Turns an exported PyTorch program or an ONNX model into an ExecuTorch program."""

    run_type = RunType.COMPILE

    def run(
        self,
        ctx: HubContext,
        model_path: str | os.PathLike[str],
        *,
        device: str | None = None,
        input_shape: tuple[int, ...] | None = None,
        backend: str = "xnnpack",
    ) -> ExecuTorchCompiledModel:
        """Compile a model. One that holds Q/DQ runs in integers where the backend has kernels for them.

        Args:
            ctx: An open context.
            model_path: A .pt2 file of torch.export.save; or an ONNX file, or a folder that holds one with its external
                data.
            device: A device on the context; the first compatible one when not given.
            input_shape: Fixes the shape of an ONNX model's input.
            backend: What takes the operators it can: xnnpack, or portable for the runtime's own kernels alone.
        """
        raise NoProviderError


@dataclass(frozen=True)
class ExecuTorchProfilingResult(ProfilingResult):
    """How fast a model is in ExecuTorch."""


class ExecuTorchProfiler(Profiler[ExecuTorchCompiledModel, ExecuTorchProfilingResult]):
    """Measures a compiled model in ExecuTorch on a device."""

    def run(
        self, ctx: HubContext, model: ExecuTorchCompiledModel, *, device: str | None = None, until: str | None = None
    ) -> ExecuTorchProfilingResult:
        """Measure a model.

        Args:
            ctx: An open context.
            model: A compiled model.
            device: A device on the context; the first compatible one when not given.
            until: Measure until the samples support the 99 % bound of p90, p95 or p99, or by MLPerf's rules for single
                stream (mlperf); what the device says when not given.
        """
        raise NoProviderError


class ExecuTorchPairedProfiler(PairedProfiler[ExecuTorchCompiledModel]):
    """Measures compiled models in turns in ExecuTorch on a device."""


@dataclass(frozen=True)
class ExecuTorchInvocationResult(InvocationResult):
    """What a model answered in ExecuTorch."""


class ExecuTorchInvoker(Invoker[ExecuTorchCompiledModel, ExecuTorchInvocationResult]):
    """Runs a compiled model in ExecuTorch on a device, on the user's data."""
