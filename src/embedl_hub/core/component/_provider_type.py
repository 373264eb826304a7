"""Names of provider types. Any string is one; these are the well-known ones."""

from __future__ import annotations

from enum import StrEnum


class ProviderType(StrEnum):
    """Provider types that ship with the hub, or that the field knows."""

    LOCAL = "local"
    QAI_HUB = "qai_hub"
    AWS = "aws"
    EMBEDL_ONNXRUNTIME = "embedl_onnxruntime"
    TRTEXEC = "trtexec"


def normal_type(provider_type: str) -> str:
    """Return the one spelling used inside: ``qai-hub`` and ``qai_hub`` are the same."""
    return str(provider_type).replace("-", "_")
