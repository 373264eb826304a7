"""The device program's runtime and settings, and what the integer kernels of a machine do to a model's answers."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embedl_hub.machine.driver import Driver
from embedl_hub.machine.machine import Machine, Runtime
from embedl_hub.machine.program import log_kernels
from embedl_hub.models.onnx_file import Tensor, inputs_of, read_graph, read_model
from embedl_hub.quantization.portable import requires_of, saturating_layers
from embedl_hub.toolchains.onnxruntime.config import EmbedlONNXRuntimeConfig, ONNXRuntimeConfig
from embedl_kernels import get_family

if TYPE_CHECKING:
    from embedl_hub.core.context import HubContext

RUNTIME = Runtime(
    "ONNX Runtime", "onnx", module="embedl_onnxruntime", packages="numpy and onnxruntime", extra="onnxruntime",
    extra_of_program="onnxruntime", board_config="EmbedlONNXRuntimeConfig",
    after_a_crash="Another execution provider, a lower optimization_level or another version of onnxruntime may do.",
)  # fmt: skip
_CPU = "CPUExecutionProvider"
_SENTENCE = (
    "{count} of the model can answer otherwise on {machine} than the file's integers say ({first!r} is the first): "
    "{cause}. Make the portable file of it: embedl-deploy relower FILE PORTABLE --dialect onnxruntime-x86"
)


def settings(config: ONNXRuntimeConfig) -> list[str]:
    """Return the arguments that every command with a model takes."""
    args = [arg for name in config.execution_providers for arg in ("--execution-provider", name)]
    if config.allow_fallback:
        args.append("--allow-fallback")
    if config.allow_saturation:
        args.append("--allow-saturation")
    if config.threads is not None:
        args += ["--threads", str(config.threads)]
    if config.optimization_level != "all":
        args += ["--optimization-level", config.optimization_level]
    return args


def _read_inputs(path: Path) -> list[Tensor]:
    return inputs_of(read_graph(path))


DRIVER = Driver(
    RUNTIME, (ONNXRuntimeConfig, EmbedlONNXRuntimeConfig), lambda machine: settings(machine.config), _read_inputs
)


def warn_of_kernels(
    ctx: HubContext, machine: Machine[ONNXRuntimeConfig], answer: Mapping[str, Any], model: Path
) -> None:
    """Record the family that a device program's answer names, and warn of a model that it breaks."""
    log_kernels(ctx, answer, _warnings(machine, answer, model))


def _warnings(machine: Machine[ONNXRuntimeConfig], answer: Mapping[str, Any], model: Path) -> list[str]:
    family = None
    # A program that is newer than this hub may know families that it does not.
    with contextlib.suppress(KeyError):
        family = get_family(str((answer.get("kernels") or {}).get("family")))
    if family is None or not family.saturates or machine.config.execution_providers[:1] not in ((), (_CPU,)):
        return []
    # What says that it needs exact kernels was refused there, or allowed and warned of.
    layers = [] if requires_of(read_graph(model)) else saturating_layers(read_model(model))
    if not layers:
        return []
    count = "1 layer" if len(layers) == 1 else f"{len(layers)} layers"
    return [_SENTENCE.format(count=count, machine=machine.title, first=layers[0], cause=family.cause)]
