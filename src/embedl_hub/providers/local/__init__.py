"""This machine as the target."""

import embedl_hub.providers.local.onnxruntime  # noqa: F401 - registers its providers
