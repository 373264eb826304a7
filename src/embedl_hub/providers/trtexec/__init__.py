"""Boards with TensorRT: ``trtexec --onnx=M --saveEngine=E …``, then ``--loadEngine=E …``, over the device's runner."""

from __future__ import annotations

import shutil

from embedl_hub.core.component import CheckResult, ProviderType
from embedl_hub.tensorrt import provider

__all__ = ["doctor"]

provider.register(ProviderType.TRTEXEC)


def doctor() -> list[CheckResult]:
    """Tell whether this machine has trtexec; boards are asked by ``embedl-hub device test``."""
    found = shutil.which("trtexec")
    if found is None:
        says = "not on this machine's PATH; boards have their own"
        return [
            CheckResult("trtexec", is_ok=None, says=says, advice="apt-get install libnvinfer-bin (NVIDIA's packages)")
        ]
    return [CheckResult("trtexec", is_ok=True, says=found)]
