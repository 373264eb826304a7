"""The provider functions of TensorRT through trtexec: the same on this machine and on a board."""

from __future__ import annotations

from typing import TYPE_CHECKING

from embedl_hub.core.compile import TensorRTCompiler
from embedl_hub.core.invoke import TensorRTInvoker
from embedl_hub.core.profile import TensorRTProfiler
from embedl_hub.toolchain.refusal import needed_packages

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import numpy as np

    from embedl_hub.core.compile import TensorRTCompiledModel
    from embedl_hub.core.context import HubContext
    from embedl_hub.core.invoke import TensorRTInvocationResult
    from embedl_hub.core.profile import TensorRTProfilingResult

_TOOLS = ("onnx", "numpy")
_WHAT = ("TensorRT models", "trtexec")


def register(provider_type: str) -> None:
    """Register all of them for a provider type."""
    TensorRTCompiler.provider(provider_type, tools=_TOOLS)(_compile_tensorrt)
    TensorRTProfiler.provider(provider_type, tools=_TOOLS)(_profile_tensorrt)
    TensorRTInvoker.provider(provider_type, tools=_TOOLS)(_invoke_tensorrt)


def _compile_tensorrt(
    ctx: HubContext, onnx_path: Path, *, device: str | None = None, input_shape: tuple[int, ...] | None = None
) -> TensorRTCompiledModel:
    """Build the engine where it is to run, or take the one that is kept there."""
    with needed_packages(*_WHAT):
        from embedl_hub.tensorrt.compiling import compile_model  # noqa: PLC0415 - vendor packages on use
        from embedl_hub.tensorrt.place import place_of  # noqa: PLC0415
    with place_of(ctx, device, TensorRTCompiler) as place:
        return compile_model(ctx, place, onnx_path, input_shape)


def _profile_tensorrt(
    ctx: HubContext, model: TensorRTCompiledModel, *, device: str | None = None
) -> TensorRTProfilingResult:
    """Measure."""
    with needed_packages(*_WHAT):
        from embedl_hub.tensorrt.place import place_of  # noqa: PLC0415 - vendor packages on use
        from embedl_hub.tensorrt.profiling import profile_model  # noqa: PLC0415
    with place_of(ctx, device, TensorRTProfiler) as place:
        return profile_model(ctx, place, model)


def _invoke_tensorrt(
    ctx: HubContext,
    model: TensorRTCompiledModel,
    input_data: Mapping[str, np.ndarray],
    *,
    device: str | None = None,
    use_compiled_names: bool = False,  # noqa: ARG001 - TensorRT keeps the names; there are no others
) -> TensorRTInvocationResult:
    """Run."""
    with needed_packages(*_WHAT):
        from embedl_hub.tensorrt.invoking import invoke_model  # noqa: PLC0415 - vendor packages on use
        from embedl_hub.tensorrt.place import place_of  # noqa: PLC0415
    with place_of(ctx, device, TensorRTInvoker) as place:
        return invoke_model(ctx, place, model, input_data)
