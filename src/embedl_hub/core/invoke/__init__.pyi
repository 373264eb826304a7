# Written by tools/stubs.py: the face's own names, and those of the toolchains and services that ship.
from embedl_hub.core.invoke._invoker import InvocationResult as InvocationResult
from embedl_hub.core.invoke._invoker import Invoker as Invoker
from embedl_hub.core.invoke._invoker import OutputDifference as OutputDifference
from embedl_hub.core.invoke._invoker import Parity as Parity
from embedl_hub.core.invoke._invoker import compare_outputs as compare_outputs
from embedl_hub.core.invoke._invoker import is_ruined as is_ruined
from embedl_hub.errors import InvokeError as InvokeError
from embedl_hub.toolchains.executorch.components import ExecuTorchInvocationResult as ExecuTorchInvocationResult
from embedl_hub.toolchains.executorch.components import ExecuTorchInvoker as ExecuTorchInvoker
from embedl_hub.toolchains.onnxruntime.components import ONNXRuntimeInvocationResult as ONNXRuntimeInvocationResult
from embedl_hub.toolchains.onnxruntime.components import ONNXRuntimeInvoker as ONNXRuntimeInvoker
from embedl_hub.toolchains.openvino.components import OpenVINOInvocationResult as OpenVINOInvocationResult
from embedl_hub.toolchains.openvino.components import OpenVINOInvoker as OpenVINOInvoker
from embedl_hub.toolchains.tflite.components import TFLiteInvocationResult as TFLiteInvocationResult
from embedl_hub.toolchains.tflite.components import TFLiteInvoker as TFLiteInvoker
from embedl_hub.toolchains.tensorrt.components import TensorRTInvocationResult as TensorRTInvocationResult
from embedl_hub.toolchains.tensorrt.components import TensorRTInvoker as TensorRTInvoker
