"""Edgeproof deploy: turn a PyTorch model into the network its target will really run, with every decision on view.

The names are imported on first use: whoever works on ONNX files alone does not wait for torch.
"""

from typing import TYPE_CHECKING

import embedl_device  # noqa: F401 - switches ONNX Runtime's telemetry off
from embedl_deploy._extras import lazy
from embedl_deploy._version import __version__

if TYPE_CHECKING:
    from embedl_deploy._transform.pipeline import TransformResult, apply_plan, make_plan, transform
    from embedl_deploy._transform.plan import Plan

__getattr__ = lazy(
    __name__, _transform__pipeline="TransformResult apply_plan make_plan transform", _transform__plan="Plan"
)

__all__ = ["Plan", "TransformResult", "__version__", "apply_plan", "make_plan", "transform"]
