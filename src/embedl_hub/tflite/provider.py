"""The provider functions of TFLite: the same on this machine and on a board."""

from __future__ import annotations

from typing import TYPE_CHECKING

from embedl_hub.core.compile import TFLiteCompiler
from embedl_hub.core.invoke import InvokeError, TFLiteInvoker
from embedl_hub.core.profile import ProfileError, TFLitePairedProfiler, TFLiteProfiler
from embedl_hub.toolchain.refusal import needed_packages

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import numpy as np

    from embedl_hub.core.compile import CalibrationData, TFLiteCompiledModel
    from embedl_hub.core.context import HubContext
    from embedl_hub.core.invoke import TFLiteInvocationResult
    from embedl_hub.core.profile import PairedResult, TFLiteProfilingResult

_TOOLS = ("edgeproof-device", "ai-edge-litert", "onnx", "numpy")
_WHAT = ("TFLite models", "tflite")


def register(provider_type: str) -> None:
    """Register all of them for a provider type."""
    TFLiteCompiler.provider(provider_type, tools=_TOOLS)(_compile_tflite)
    TFLiteProfiler.provider(provider_type, tools=_TOOLS)(_profile_tflite)
    TFLitePairedProfiler.provider(provider_type, tools=_TOOLS)(_pair_tflite)
    TFLiteInvoker.provider(provider_type, tools=_TOOLS)(_invoke_tflite)


def _compile_tflite(
    ctx: HubContext,
    onnx_path: Path,
    *,
    device: str | None = None,  # noqa: ARG001 - the result is the same for every device
    input_shape: tuple[int, ...] | None = None,
    calibration_data: CalibrationData | None = None,
    quantize_io: bool = False,
) -> TFLiteCompiledModel:
    """Convert here, in the converter's own environment."""
    with needed_packages(*_WHAT):
        from embedl_hub.tflite.compiling import Wishes, compile_model  # noqa: PLC0415 - vendor packages on use
    return compile_model(ctx, onnx_path, Wishes(input_shape, calibration_data, quantize_io))


def _profile_tflite(ctx: HubContext, model: TFLiteCompiledModel, *, device: str | None = None) -> TFLiteProfilingResult:
    """Measure; the device program does it, or the board's benchmark."""
    with needed_packages(*_WHAT):
        from embedl_hub.tflite.benchmarking import profile_with_benchmark  # noqa: PLC0415 - vendor packages on use
        from embedl_hub.tflite.place import has_benchmark, place_of  # noqa: PLC0415
        from embedl_hub.tflite.profiling import profile_model  # noqa: PLC0415
    with place_of(ctx, device, TFLiteProfiler) as place:
        if has_benchmark(place):
            return profile_with_benchmark(ctx, place, model)
        return profile_model(ctx, place, model)


def _pair_tflite(
    ctx: HubContext, models: Sequence[TFLiteCompiledModel], *, device: str | None = None, samples: int = 200
) -> PairedResult:
    """Measure in turns in one process."""
    with needed_packages(*_WHAT):
        from embedl_hub.tflite.pairing import pair_models  # noqa: PLC0415 - vendor packages on use
        from embedl_hub.tflite.place import has_benchmark, place_of  # noqa: PLC0415
    with place_of(ctx, device, TFLitePairedProfiler) as place:
        if has_benchmark(place):
            raise ProfileError(
                f"{place.title.capitalize()} is configured with benchmark_model, which measures one model in a process "
                "and cannot take turns. Use a device with ai-edge-litert, or hold profiles against each other with "
                "embedl-hub gate."
            )
        return pair_models(ctx, place, models, samples=samples)


def _invoke_tflite(
    ctx: HubContext,
    model: TFLiteCompiledModel,
    input_data: Mapping[str, np.ndarray],
    *,
    device: str | None = None,
    use_compiled_names: bool = False,
) -> TFLiteInvocationResult:
    """Run in a process of its own."""
    with needed_packages(*_WHAT):
        from embedl_hub.tflite.invoking import invoke_model  # noqa: PLC0415 - vendor packages on use
        from embedl_hub.tflite.place import has_benchmark, place_of  # noqa: PLC0415
    with place_of(ctx, device, TFLiteInvoker) as place:
        if has_benchmark(place):
            raise InvokeError(
                f"{place.title.capitalize()} is configured with benchmark_model, which measures and does not give "
                "outputs back. Invoke on a device with ai-edge-litert, or on this machine."
            )
        return invoke_model(ctx, place, model, input_data, use_compiled_names=use_compiled_names)
