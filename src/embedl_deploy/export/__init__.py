"""Write models as ONNX files. Needs ``edgeproof-deploy[onnx]``, which is imported on first use."""

from typing import TYPE_CHECKING

from embedl_deploy._extras import lazy

if TYPE_CHECKING:
    from embedl_deploy.export._onnx import export_onnx as export_onnx
    from embedl_deploy.export._shapes import ShapeRow, ShapeVerification, verify_shapes
    from embedl_deploy.export._verification import BoundaryRow, FamilyRow, LayerRow, MetricRow, OutputRow, Verification
    from embedl_deploy.export._verify import verify

__getattr__ = lazy(
    __name__,
    _onnx="export_onnx",
    _shapes="ShapeRow ShapeVerification verify_shapes",
    _verification="BoundaryRow FamilyRow LayerRow MetricRow OutputRow Verification",
    _verify="verify",
)

__all__ = [
    "BoundaryRow",
    "FamilyRow",
    "LayerRow",
    "MetricRow",
    "OutputRow",
    "ShapeRow",
    "ShapeVerification",
    "Verification",
    "export_onnx",
    "verify",
    "verify_shapes",
]
