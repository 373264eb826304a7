"""Devices in Qualcomm's cloud, through the vendor's own client (extra ``qai-hub``)."""

import embedl_hub.providers.qai_hub.onnxruntime  # noqa: F401 - registers its providers
from embedl_hub.providers.qai_hub.catalogue import doctor, offered_devices

__all__ = ["doctor", "offered_devices"]
