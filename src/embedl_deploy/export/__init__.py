"""Write models as ONNX files. Needs ``edgeproof-deploy[onnx]``, which is imported on first use."""

from typing import TYPE_CHECKING

from embedl_deploy._extras import lazy

if TYPE_CHECKING:
    from embedl_deploy.export._onnx import export_onnx as export_onnx

__getattr__ = lazy(__name__, {"export_onnx": "_onnx"})

__all__ = ["export_onnx"]
