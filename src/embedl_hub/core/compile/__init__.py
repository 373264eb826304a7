"""Compilers: from an ONNX model to what a runtime on a device takes. The toolchains' own names are found on use."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeAlias

from embedl_hub.core.faces import lazy_face
from embedl_hub.errors import CompileError

if TYPE_CHECKING:
    import numpy as np

__all__ = ["CalibrationData", "CompileError"]

CalibrationData: TypeAlias = str | os.PathLike[str] | Mapping[str, "np.ndarray"]

__getattr__, __dir__ = lazy_face(__name__, __all__)
