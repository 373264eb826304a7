"""The steps of TensorRT: declarations; providers carry them out."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from embedl_hub.core.component import CompiledModel, Component, NoProviderError, RunType
from embedl_hub.core.invoke import InvocationResult, Invoker
from embedl_hub.core.profile import Profiler, ProfilingResult

if TYPE_CHECKING:
    from embedl_hub.core.context import HubContext


@dataclass(frozen=True)
class TensorRTCompiledModel(CompiledModel):
    """A TensorRT engine; it runs only on the kind of GPU and the version it was built for."""

    # What it was built for and of: TensorRT's version, GPU, precision, inputs, outputs and their shapes
    engine: Mapping[str, Any] = field(default_factory=dict)


class TensorRTCompiler(Component):
    """Builds a TensorRT engine from an ONNX model, on the target itself."""

    run_type = RunType.COMPILE

    def run(
        self,
        ctx: HubContext,
        onnx_path: str | os.PathLike[str],
        *,
        device: str | None = None,
        input_shape: tuple[int, ...] | None = None,
    ) -> TensorRTCompiledModel:
        """Build an engine.

        Args:
            ctx: An open context.
            onnx_path: An ONNX file, or a folder that holds one with its external data.
            device: A device on the context; the first compatible one when not given.
            input_shape: Fixes the shape of the model's input.
        """
        raise NoProviderError


@dataclass(frozen=True)
class TensorRTProfilingResult(ProfilingResult):
    """How fast a model is in TensorRT."""


class TensorRTProfiler(Profiler[TensorRTCompiledModel, TensorRTProfilingResult]):
    """Measures a compiled model in TensorRT on a device."""


@dataclass(frozen=True)
class TensorRTInvocationResult(InvocationResult):
    """What a model answered in TensorRT."""


class TensorRTInvoker(Invoker[TensorRTCompiledModel, TensorRTInvocationResult]):
    """Runs a compiled model in TensorRT on a device, on the user's data."""
