"""Engines for a generation of GPUs by TensorRT-RTX, built on this machine (extra ``tensorrt-rtx``)."""

from __future__ import annotations

import embedl_hub.providers.tensorrt_rtx.tensorrt  # noqa: F401 - registers its providers
from embedl_hub.core.component import CheckResult

__all__ = ["doctor"]


def doctor() -> list[CheckResult]:
    """Tell whether the builder is here; it is not woken."""
    from embedl_hub.tensorrt.rtx import is_installed, version  # noqa: PLC0415 - on use

    if not is_installed():
        advice = "pip install 'edgeproof-hub[tensorrt-rtx]'"
        return [CheckResult("tensorrt-rtx", is_ok=None, says="not installed", advice=advice)]
    return [CheckResult("tensorrt-rtx", is_ok=True, says=f"{version()}: compiles; profile and invoke are trtexec's")]
