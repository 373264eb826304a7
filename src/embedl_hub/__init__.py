"""Edgeproof hub: compile, profile and invoke models on real devices, with every run recorded."""

import embedl_device  # noqa: F401 - switches ONNX Runtime's telemetry off
from embedl_hub._version import __version__

__all__ = ["__version__"]
