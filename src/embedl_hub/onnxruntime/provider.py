"""The provider functions of ONNX Runtime: the same on this machine and on a board."""

from __future__ import annotations

from typing import TYPE_CHECKING

from embedl_hub.core.compile import ONNXRuntimeCompiler
from embedl_hub.core.invoke import ONNXRuntimeInvoker
from embedl_hub.core.profile import ONNXRuntimePairedProfiler, ONNXRuntimeProfiler
from embedl_hub.toolchain.refusal import needed_packages

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import numpy as np

    from embedl_hub.core.compile import CalibrationData, ONNXRuntimeCompiledModel
    from embedl_hub.core.context import HubContext
    from embedl_hub.core.invoke import ONNXRuntimeInvocationResult
    from embedl_hub.core.profile import ONNXRuntimeProfilingResult, PairedResult

_TOOLS = ("edgeproof-device", "onnx", "onnxruntime", "numpy")
_WHAT = ("ONNX Runtime models", "onnxruntime")


def register(provider_type: str) -> None:
    """Register all of them for a provider type."""
    ONNXRuntimeCompiler.provider(provider_type, tools=_TOOLS)(_compile_onnxruntime)
    ONNXRuntimeProfiler.provider(provider_type, tools=_TOOLS)(_profile_onnxruntime)
    ONNXRuntimePairedProfiler.provider(provider_type, tools=_TOOLS)(_pair_onnxruntime)
    ONNXRuntimeInvoker.provider(provider_type, tools=_TOOLS)(_invoke_onnxruntime)


def _compile_onnxruntime(
    ctx: HubContext,
    onnx_path: Path,
    *,
    device: str | None = None,
    input_shape: tuple[int, ...] | None = None,
    calibration_data: CalibrationData | None = None,
    calibration_method: str | None = None,
    per_channel: bool = False,
    quantize_io: bool = False,
) -> ONNXRuntimeCompiledModel:
    """Quantise here, optimise where the model is to run."""
    with needed_packages(*_WHAT):
        from embedl_hub.onnxruntime.compiling import Wishes, compile_model  # noqa: PLC0415 - vendor packages on use
        from embedl_hub.onnxruntime.place import place_of  # noqa: PLC0415
    wishes = Wishes(input_shape, calibration_data, calibration_method, per_channel, quantize_io)
    with place_of(ctx, device, ONNXRuntimeCompiler) as place:
        return compile_model(ctx, place, onnx_path, wishes)


def _profile_onnxruntime(
    ctx: HubContext,
    model: ONNXRuntimeCompiledModel,
    *,
    device: str | None = None,
    require_provider: str | None = None,
    input_data: Mapping[str, np.ndarray] | None = None,
) -> ONNXRuntimeProfilingResult:
    """Measure in a process of its own."""
    with needed_packages(*_WHAT):
        from embedl_hub.onnxruntime.place import place_of  # noqa: PLC0415 - vendor packages on use
        from embedl_hub.onnxruntime.profiling import profile_model  # noqa: PLC0415
    with place_of(ctx, device, ONNXRuntimeProfiler) as place:
        return profile_model(ctx, place, model, require_provider=require_provider, input_data=input_data)


def _pair_onnxruntime(
    ctx: HubContext,
    models: Sequence[ONNXRuntimeCompiledModel],
    *,
    device: str | None = None,
    samples: int = 200,
    require_provider: str | None = None,
    input_data: Mapping[str, np.ndarray] | None = None,
) -> PairedResult:
    """Measure in turns in one process."""
    with needed_packages(*_WHAT):
        from embedl_hub.onnxruntime.pairing import pair_models  # noqa: PLC0415 - vendor packages on use
        from embedl_hub.onnxruntime.place import place_of  # noqa: PLC0415
    with place_of(ctx, device, ONNXRuntimePairedProfiler) as place:
        return pair_models(
            ctx, place, models, samples=samples, require_provider=require_provider, input_data=input_data
        )


def _invoke_onnxruntime(
    ctx: HubContext,
    model: ONNXRuntimeCompiledModel,
    input_data: Mapping[str, np.ndarray],
    *,
    device: str | None = None,
    use_compiled_names: bool = False,
) -> ONNXRuntimeInvocationResult:
    """Run in a process of its own: a crash of the runtime is an error, not the end of this process."""
    with needed_packages(*_WHAT):
        from embedl_hub.onnxruntime.invoking import invoke_model  # noqa: PLC0415 - vendor packages on use
        from embedl_hub.onnxruntime.place import place_of  # noqa: PLC0415
    with place_of(ctx, device, ONNXRuntimeInvoker) as place:
        return invoke_model(ctx, place, model, input_data, use_compiled_names=use_compiled_names)
