"""What ONNX Runtime's integer kernels compute, to the bit, in plain arithmetic. Needs ``edgeproof-deploy[onnx]``."""

from typing import TYPE_CHECKING

from embedl_deploy._extras import lazy

if TYPE_CHECKING:
    from embedl_deploy.integer._model import IntegerModel, IntegerRun

__getattr__ = lazy(__name__, _model="IntegerModel IntegerRun")

__all__ = ["IntegerModel", "IntegerRun"]
