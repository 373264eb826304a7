"""The steps of TFLite: declarations; providers carry them out."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from embedl_hub.core.compile import CalibrationData
from embedl_hub.core.component import CompiledModel, Component, NoProviderError, RunType
from embedl_hub.core.invoke import InvocationResult, Invoker
from embedl_hub.core.profile import PairedProfiler, Profiler, ProfilingResult

if TYPE_CHECKING:
    from embedl_hub.core.context import HubContext


@dataclass(frozen=True)
class TFLiteCompiledModel(CompiledModel):
    """A TFLite model, with what its tensors were before."""

    # The compiled names of inputs by their original ones, where the compiler renamed them
    input_name_mapping: Mapping[str, str] = field(default_factory=dict)
    output_name_mapping: Mapping[str, str] = field(default_factory=dict)  # likewise for outputs
    # ``inputs`` and ``outputs``: name, type, shape and order of axes before and after, scale, zero point
    tensors: Mapping[str, Any] = field(default_factory=dict)
    # For INT8: scheme, operators left float, and the difference from the source, of a Q/DQ file in steps of its scales
    quantization: Mapping[str, Any] = field(default_factory=dict)
    source_of_tensors: Mapping[str, str] = field(default_factory=dict)  # the source's nodes by the tensors they became
    from_cache: bool = False  # whether the same conversion had been made before


class TFLiteCompiler(Component):
    """Turns an ONNX model into a TFLite one."""

    run_type = RunType.COMPILE

    def run(
        self,
        ctx: HubContext,
        onnx_path: str | os.PathLike[str],
        *,
        device: str | None = None,
        input_shape: tuple[int, ...] | None = None,
        calibration_data: CalibrationData | None = None,
        quantize_io: bool = False,
    ) -> TFLiteCompiledModel:
        """Compile a model.

        Args:
            ctx: An open context.
            onnx_path: An ONNX file, or a folder that holds one with its external data. One with Q/DQ becomes INT8 with
                its own scales and integers.
            device: A device on the context; the first compatible one when not given.
            input_shape: Fixes the shape of the model's input.
            calibration_data: Given: INT8, from a path or a mapping of input names to arrays. Not given: as the file is.
            quantize_io: Inputs and outputs of the model are integers too.
        """
        raise NoProviderError


@dataclass(frozen=True)
class TFLiteProfilingResult(ProfilingResult):
    """How fast a model is in TFLite."""


class TFLiteProfiler(Profiler[TFLiteCompiledModel, TFLiteProfilingResult]):
    """Measures a compiled model in TFLite on a device."""

    def run(
        self, ctx: HubContext, model: TFLiteCompiledModel, *, device: str | None = None, until: str | None = None
    ) -> TFLiteProfilingResult:
        """Measure a model.

        Args:
            ctx: An open context.
            model: A compiled model.
            device: A device on the context; the first compatible one when not given.
            until: Measure until the samples support the 99 % bound of p90, p95 or p99, or by MLPerf's rules for single
                stream (mlperf); what the device says when not given.
        """
        raise NoProviderError


class TFLitePairedProfiler(PairedProfiler[TFLiteCompiledModel]):
    """Measures compiled models in turns in TFLite on a device."""


@dataclass(frozen=True)
class TFLiteInvocationResult(InvocationResult):
    """What a model answered in TFLite."""


class TFLiteInvoker(Invoker[TFLiteCompiledModel, TFLiteInvocationResult]):
    """Runs a compiled model in TFLite on a device, on the user's data."""
