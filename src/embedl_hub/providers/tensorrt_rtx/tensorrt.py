"""TensorRT-RTX: compiles without a GPU. Measuring and running need one, and are refused here."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from embedl_hub.core.compile import TensorRTCompiler
from embedl_hub.core.device import TensorRTRTXConfig
from embedl_hub.core.invoke import InvokeError, TensorRTInvoker
from embedl_hub.core.profile import ProfileError, TensorRTProfiler
from embedl_hub.toolchain.refusal import needed_packages

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import numpy as np

    from embedl_hub.core.compile import TensorRTCompiledModel
    from embedl_hub.core.context import HubContext
    from embedl_hub.core.invoke import TensorRTInvocationResult
    from embedl_hub.core.profile import TensorRTProfilingResult

_TYPE = "tensorrt_rtx"
_TOOLS = ("onnx", "tensorrt-rtx")


@TensorRTCompiler.provider(_TYPE, tools=_TOOLS)
def _compile_tensorrt(
    ctx: HubContext, onnx_path: Path, *, device: str | None = None, input_shape: tuple[int, ...] | None = None
) -> TensorRTCompiledModel:
    """Build an engine for the device's generation of GPUs."""
    with needed_packages("TensorRT models", "tensorrt-rtx"):
        from embedl_hub.tensorrt.rtx_compiling import compile_model  # noqa: PLC0415 - vendor packages on use
    config = ctx.find_device(device or "").get_provider_config(TensorRTRTXConfig, TensorRTCompiler)
    return compile_model(ctx, config or TensorRTRTXConfig(), onnx_path, input_shape)


@TensorRTProfiler.provider(_TYPE, tools=_TOOLS)
def _profile_tensorrt(
    ctx: HubContext,  # noqa: ARG001 - a provider has the step's parameters
    model: TensorRTCompiledModel,
    *,
    device: str | None = None,
) -> TensorRTProfilingResult:
    """Refuse: it needs a GPU of that generation."""
    _refuse(ProfileError, model, device)


@TensorRTInvoker.provider(_TYPE, tools=_TOOLS)
def _invoke_tensorrt(
    ctx: HubContext,  # noqa: ARG001 - as above
    model: TensorRTCompiledModel,
    input_data: Mapping[str, np.ndarray],  # noqa: ARG001
    *,
    device: str | None = None,
    use_compiled_names: bool = False,  # noqa: ARG001
) -> TensorRTInvocationResult:
    """Refuse: it needs a GPU of that generation."""
    _refuse(InvokeError, model, device)


def _refuse(
    error_class: type[ProfileError | InvokeError], model: TensorRTCompiledModel, device: str | None
) -> NoReturn:
    targets = ", ".join(model.engine.get("compute_capabilities", ())) or "its generation"
    raise error_class(
        f"Device {device!r} stands for a generation of GPUs, and TensorRT-RTX is only a builder here: measuring and "
        f"running need a GPU of {targets} and TensorRT-RTX there. With a full TensorRT on that machine, use a device "
        "of type 'trtexec' and compile on it. The engine is kept with the run that compiled it."
    )
