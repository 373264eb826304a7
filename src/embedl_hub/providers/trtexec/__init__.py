"""Boards with TensorRT: ``trtexec --onnx=M --saveEngine=E …``, then ``--loadEngine=E …``, over the device's runner."""

from __future__ import annotations

import shutil

import embedl_hub.providers.trtexec.tensorrt  # noqa: F401 - registers its providers
from embedl_hub.core.component import CheckResult

__all__ = ["doctor"]


def doctor() -> list[CheckResult]:
    """Tell whether this machine has trtexec; boards are asked by ``embedl-hub device test``."""
    found = shutil.which("trtexec")
    if found is None:
        says = "not on this machine's PATH; boards have their own"
        return [
            CheckResult("trtexec", is_ok=None, says=says, advice="apt-get install libnvinfer-bin (NVIDIA's packages)")
        ]
    return [CheckResult("trtexec", is_ok=True, says=found)]
