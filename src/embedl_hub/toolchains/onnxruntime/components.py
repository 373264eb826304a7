"""The steps of ONNX Runtime: declarations; providers carry them out."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embedl_device.readers import UnreadableError, read_npz
from embedl_hub.core.compile import CalibrationData
from embedl_hub.core.component import CompiledModel, Component, NoProviderError, RunType
from embedl_hub.core.context import HubContext
from embedl_hub.core.invoke import InvocationResult, InvokeError, Invoker, Parity, compare_outputs
from embedl_hub.core.profile import PairedProfiler, PairedResult, ProfilingResult
from embedl_hub.errors import ComponentError
from embedl_hub.refusal import needed_packages, refusals_as

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class ONNXRuntimeCompiledModel(CompiledModel):
    """A model ready for ONNX Runtime."""

    # The compiled names of inputs by their original ones, where the compiler renamed them
    input_name_mapping: Mapping[str, str] = field(default_factory=dict)
    output_name_mapping: Mapping[str, str] = field(default_factory=dict)  # likewise for outputs
    # For INT8: method, number format, and scale and zero point of integer inputs and outputs
    quantization: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def gather(cls, path: Path, scratch: Path) -> Path:
        """Return the file, or a folder with it and the weights that are beside it."""
        with needed_packages("ONNX Runtime models", "onnxruntime"), refusals_as(ComponentError):
            from embedl_hub.models.onnx_file import gather  # noqa: PLC0415 - importing a face must not cost onnx

            return gather(path, scratch)


class ONNXRuntimeCompiler(Component):
    """Turns an ONNX model into one that ONNX Runtime runs fast on a device."""

    run_type = RunType.COMPILE

    def run(
        self,
        ctx: HubContext,
        onnx_path: str | os.PathLike[str],
        *,
        device: str | None = None,
        input_shape: tuple[int, ...] | None = None,
        calibration_data: CalibrationData | None = None,
        calibration_method: str | None = None,
        per_channel: bool = False,
        quantize_io: bool = False,
    ) -> ONNXRuntimeCompiledModel:
        """Compile a model.

        Args:
            ctx: An open context.
            onnx_path: An ONNX file, or a folder that holds one with its external data.
            device: A device on the context; the first compatible one when not given.
            input_shape: Fixes the shape of the model's input.
            calibration_data: Given: INT8. A folder of .npy/.npz files, one .npz, or a mapping of input names to arrays
                with samples on axis 0. Not given: float.
            calibration_method: How ranges are found from the data: minmax (the default), entropy or percentile.
            per_channel: One scale per output channel of a weight.
            quantize_io: Inputs and outputs of the model are integers too.
        """
        raise NoProviderError


@dataclass(frozen=True)
class ONNXRuntimeProfilingResult(ProfilingResult):
    """How fast a model is in ONNX Runtime."""


class ONNXRuntimeProfiler(Component):
    """Measures a compiled model in ONNX Runtime on a device."""

    run_type = RunType.PROFILE

    def run(
        self,
        ctx: HubContext,
        model: ONNXRuntimeCompiledModel,
        *,
        device: str | None = None,
        require_provider: str | None = None,
        input_data: Mapping[str, np.ndarray] | None = None,
        until: str | None = None,
    ) -> ONNXRuntimeProfilingResult:
        """Measure a model.

        Args:
            ctx: An open context.
            model: A compiled model.
            device: A device on the context; the first compatible one when not given.
            require_provider: An execution provider of ONNX Runtime; the run fails if a node runs elsewhere.
            input_data: Arrays by input name to measure on; made up from the model's shapes when not given.
            until: Measure until the samples support the 99 % bound of p90, p95 or p99, or by MLPerf's rules for single
                stream (mlperf); what the device says when not given.
        """
        raise NoProviderError


class ONNXRuntimePairedProfiler(PairedProfiler[ONNXRuntimeCompiledModel]):
    """Measures compiled models in turns in ONNX Runtime on a device."""

    def run(
        self,
        ctx: HubContext,
        models: Sequence[ONNXRuntimeCompiledModel],
        *,
        device: str | None = None,
        samples: int = 200,
        require_provider: str | None = None,
        input_data: Mapping[str, np.ndarray] | None = None,
    ) -> PairedResult:
        """Measure models in turns.

        Args:
            ctx: An open context.
            models: Two or more compiled models; the first is the reference.
            device: A device on the context; the first compatible one when not given.
            samples: At least so many rounds; each times every model once.
            require_provider: An execution provider of ONNX Runtime; the run fails if a node runs elsewhere.
            input_data: Arrays by input name that every model is run on; made up from the shapes when not given.
        """
        raise NoProviderError


@dataclass(frozen=True)
class ONNXRuntimeInvocationResult(InvocationResult):
    """What a model answered in ONNX Runtime."""

    def compare(
        self,
        reference: Mapping[str, np.ndarray] | str | os.PathLike[str] | ONNXRuntimeCompiledModel,
        *,
        ctx: HubContext | None = None,
    ) -> Parity:
        """Tell how far the outputs are from a reference, and record it as a run of type EVAL.

        Args:
            reference: Arrays by output name; or a model, compiled or as an ONNX file, that is run on this machine on
                the same data: the float source of an INT8 model, for instance.
            ctx: Where to record it; the context the result was made in, when it is still open.
        """
        if isinstance(reference, Mapping):
            return super().compare(reference, ctx=ctx)
        if self.input_data is None:
            raise InvokeError("The run kept no input_data to run the reference model on; compare with arrays.")
        try:
            data = read_npz(self.input_data.local())
        except (OSError, UnreadableError) as error:
            raise InvokeError(f"The run's input_data cannot be read: {error}; compare with arrays.") from error
        # A context of its own without devices: the reference always runs here and leaves no run behind.
        with HubContext("reference", tracking=False) as quiet:
            if isinstance(reference, ONNXRuntimeCompiledModel):
                model = reference
            else:
                with quiet.client.start_run(RunType.CUSTOM, "reference") as run:
                    model = ONNXRuntimeCompiledModel(path=run.log_artifact(reference, name="path"))
            answer = ONNXRuntimeInvoker().run(quiet, model, data)
            return self._record(compare_outputs(self.output, answer.output), ctx, model.path)


class ONNXRuntimeInvoker(Invoker[ONNXRuntimeCompiledModel, ONNXRuntimeInvocationResult]):
    """Runs a compiled model in ONNX Runtime on a device, on the user's data."""
