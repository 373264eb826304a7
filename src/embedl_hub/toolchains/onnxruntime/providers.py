"""The providers of ONNX Runtime: the same on this machine and on a board. Vendor packages are imported on use."""

from embedl_hub.core.device import LOCAL
from embedl_hub.machine.steps import provide, provide_measurements
from embedl_hub.toolchains.onnxruntime.components import (
    ONNXRuntimeCompiler,
    ONNXRuntimeInvoker,
    ONNXRuntimePairedProfiler,
    ONNXRuntimeProfiler,
)
from embedl_hub.toolchains.onnxruntime.config import TYPE, EmbedlONNXRuntimeConfig, ONNXRuntimeConfig

provide(
    (LOCAL, TYPE),
    {
        ONNXRuntimeCompiler: "embedl_hub.toolchains.onnxruntime.compile:compile_model",
        ONNXRuntimeProfiler: "embedl_hub.toolchains.onnxruntime.profile:profile_model",
        ONNXRuntimePairedProfiler: "embedl_hub.toolchains.onnxruntime.profile:pair_models",
        ONNXRuntimeInvoker: "embedl_hub.toolchains.onnxruntime.profile:invoke_model",
    },
    tools=("edgeproof-device", "onnx", "onnxruntime", "numpy"),
    title="ONNX Runtime models",
    extra="onnxruntime",
    configs=(ONNXRuntimeConfig, EmbedlONNXRuntimeConfig),
)
provide_measurements((LOCAL, TYPE), title="ONNX Runtime models", extra="onnxruntime")
