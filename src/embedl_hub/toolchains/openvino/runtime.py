"""The device program's runtime and settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from embedl_hub.machine.driver import Driver
from embedl_hub.machine.machine import Machine, Runtime
from embedl_hub.toolchains.openvino.config import EmbedlOpenVINOConfig, OpenVINOConfig
from embedl_hub.toolchains.openvino.ir import read_graph

if TYPE_CHECKING:
    from pathlib import Path

    from embedl_hub.models.onnx_file import Tensor

RUNTIME = Runtime(
    "OpenVINO", "openvino", module="embedl_openvino", packages="numpy and openvino", extra="openvino",
    extra_of_program="openvino", board_config="EmbedlOpenVINOConfig", model_suffix=".xml",
    after_a_crash="Another openvino_device or another version of openvino may do.",
)  # fmt: skip
_CACHE = "openvino"


def settings(machine: Machine[OpenVINOConfig]) -> list[str]:
    """Return the arguments that every command with a model takes."""
    config = machine.config
    args = ["--device", config.openvino_device]
    if config.threads is not None:
        args += ["--threads", str(config.threads)]
    if config.inference_precision is not None:
        args += ["--precision", config.inference_precision]
    if config.model_cache:
        args += ["--cache-dir", str(machine.cache(_CACHE)), "--cache-cap-bytes", str(machine.cache_cap_bytes)]
    return args


def _read_inputs(path: Path) -> tuple[Tensor, ...]:
    return read_graph(path).inputs


DRIVER = Driver(RUNTIME, (OpenVINOConfig, EmbedlOpenVINOConfig), settings, _read_inputs)
