# Written by tools/stubs.py: the face's own names, and those of the toolchains and services that ship.
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeAlias
from embedl_hub.errors import CompileError as CompileError
import numpy as np
CalibrationData: TypeAlias = str | os.PathLike[str] | Mapping[str, 'np.ndarray']
from embedl_hub.toolchains.executorch.components import ExecuTorchCompiledModel as ExecuTorchCompiledModel
from embedl_hub.toolchains.executorch.components import ExecuTorchCompiler as ExecuTorchCompiler
from embedl_hub.toolchains.onnxruntime.components import ONNXRuntimeCompiledModel as ONNXRuntimeCompiledModel
from embedl_hub.toolchains.onnxruntime.components import ONNXRuntimeCompiler as ONNXRuntimeCompiler
from embedl_hub.toolchains.openvino.components import OpenVINOCompiledModel as OpenVINOCompiledModel
from embedl_hub.toolchains.openvino.components import OpenVINOCompiler as OpenVINOCompiler
from embedl_hub.toolchains.tflite.components import TFLiteCompiledModel as TFLiteCompiledModel
from embedl_hub.toolchains.tflite.components import TFLiteCompiler as TFLiteCompiler
from embedl_hub.toolchains.tensorrt.components import TensorRTCompiledModel as TensorRTCompiledModel
from embedl_hub.toolchains.tensorrt.components import TensorRTCompiler as TensorRTCompiler
