"""TFLite on this machine, in processes of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from embedl_hub.core.compile import TFLiteCompiler
from embedl_hub.core.component import ProviderType
from embedl_hub.core.invoke import TFLiteInvoker
from embedl_hub.core.profile import TFLitePairedProfiler, TFLiteProfiler
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


@TFLiteCompiler.provider(ProviderType.LOCAL, tools=_TOOLS)
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


@TFLiteProfiler.provider(ProviderType.LOCAL, tools=_TOOLS)
def _profile_tflite(ctx: HubContext, model: TFLiteCompiledModel, *, device: str | None = None) -> TFLiteProfilingResult:
    """Measure here; a process of its own does it."""
    with needed_packages(*_WHAT):
        from embedl_hub.tflite.places import this_machine  # noqa: PLC0415 - vendor packages on use
        from embedl_hub.tflite.profiling import profile_model  # noqa: PLC0415
    with this_machine(ctx, device, TFLiteProfiler) as place:
        return profile_model(ctx, place, model)


@TFLitePairedProfiler.provider(ProviderType.LOCAL, tools=_TOOLS)
def _pair_tflite(
    ctx: HubContext, models: Sequence[TFLiteCompiledModel], *, device: str | None = None, samples: int = 200
) -> PairedResult:
    """Measure here, in turns in one process."""
    with needed_packages(*_WHAT):
        from embedl_hub.tflite.pairing import pair_models  # noqa: PLC0415 - vendor packages on use
        from embedl_hub.tflite.places import this_machine  # noqa: PLC0415
    with this_machine(ctx, device, TFLitePairedProfiler) as place:
        return pair_models(ctx, place, models, samples=samples)


@TFLiteInvoker.provider(ProviderType.LOCAL, tools=_TOOLS)
def _invoke_tflite(
    ctx: HubContext,
    model: TFLiteCompiledModel,
    input_data: Mapping[str, np.ndarray],
    *,
    device: str | None = None,
    use_compiled_names: bool = False,
) -> TFLiteInvocationResult:
    """Run here; a process of its own does it."""
    with needed_packages(*_WHAT):
        from embedl_hub.tflite.invoking import invoke_model  # noqa: PLC0415 - vendor packages on use
        from embedl_hub.tflite.places import this_machine  # noqa: PLC0415
    with this_machine(ctx, device, TFLiteInvoker) as place:
        return invoke_model(ctx, place, model, input_data, use_compiled_names=use_compiled_names)
