"""The providers of OpenVINO: the same on this machine and on a board. Vendor packages are imported on use."""

from embedl_hub.core.device import LOCAL
from embedl_hub.machine.steps import provide, provide_measurements
from embedl_hub.toolchains.openvino.components import (
    OpenVINOCompiler,
    OpenVINOInvoker,
    OpenVINOPairedProfiler,
    OpenVINOProfiler,
)
from embedl_hub.toolchains.openvino.config import TYPE, EmbedlOpenVINOConfig, OpenVINOConfig

provide(
    (LOCAL, TYPE),
    {
        OpenVINOCompiler: "embedl_hub.toolchains.openvino.compile:compile_model",
        OpenVINOProfiler: "embedl_hub.toolchains.openvino.profile:profile_model",
        OpenVINOPairedProfiler: "embedl_hub.toolchains.openvino.profile:pair_models",
        OpenVINOInvoker: "embedl_hub.toolchains.openvino.profile:invoke_model",
    },
    tools=("edgeproof-device", "onnx", "openvino", "numpy"),
    title="OpenVINO models",
    extra="openvino",
    configs=(OpenVINOConfig, EmbedlOpenVINOConfig),
)
provide_measurements((LOCAL, TYPE), title="OpenVINO models", extra="openvino")
