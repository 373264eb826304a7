# Written by tools/stubs.py: the face's own names, and those of the toolchains and services that ship.
from enum import StrEnum
from typing import Any
from embedl_hub.core.component._component import Component as Component
from embedl_hub.core.component._dispatch import load_provider as load_provider
from embedl_hub.core.component._dispatch import provider_types as provider_types
from embedl_hub.core.component._output import CompiledModel as CompiledModel
from embedl_hub.core.component._output import ComponentOutput as ComponentOutput
from embedl_hub.core.component._signature import resolve as resolve
from embedl_hub.core.context import CLAIMED as CLAIMED
from embedl_hub.errors import NoProviderError as NoProviderError
from embedl_hub.tracking import LoggedArtifact as LoggedArtifact
from embedl_hub.tracking import LoggedMetric as LoggedMetric
from embedl_hub.tracking import LoggedParam as LoggedParam
from embedl_hub.tracking import RunType as RunType
class ProviderType(StrEnum):
    LOCAL = 'local'
    AWS = 'aws'
    EMBEDL_EXECUTORCH = 'embedl_executorch'
    EMBEDL_LITERT = 'embedl_litert'
    EMBEDL_ONNXRUNTIME = 'embedl_onnxruntime'
    EMBEDL_OPENVINO = 'embedl_openvino'
    QAI_HUB = 'qai_hub'
    TENSORRT_RTX = 'tensorrt_rtx'
    TRTEXEC = 'trtexec'
