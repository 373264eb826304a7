"""Settings of this machine as a device."""

from __future__ import annotations

from dataclasses import dataclass

from embedl_hub.core.device._kind import DeviceKind
from embedl_hub.core.device._litert import LiteRTConfig
from embedl_hub.core.device._onnxruntime import ONNXRuntimeConfig


@dataclass(frozen=True)
class LocalConfig(ONNXRuntimeConfig, LiteRTConfig):
    """How models run on this machine, in whichever runtime."""


LOCAL_KIND = DeviceKind("local", "This machine.", LocalConfig, reached_by=("local", "none"))
