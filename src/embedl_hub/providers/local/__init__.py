"""This machine as the target."""

import embedl_hub.providers.local.onnxruntime
import embedl_hub.providers.local.tensorrt  # noqa: F401 - both register their providers
