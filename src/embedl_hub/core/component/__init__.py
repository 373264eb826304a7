"""Components, their providers and their outputs: the seam for toolchains and devices of your own."""

from embedl_hub.core.component._component import Component
from embedl_hub.core.component._output import CompiledModel, ComponentOutput
from embedl_hub.core.component._provider_type import ProviderType
from embedl_hub.errors import NoProviderError
from embedl_hub.tracking import LoggedArtifact, LoggedMetric, LoggedParam, RunType

__all__ = [
    "CompiledModel",
    "Component",
    "ComponentOutput",
    "LoggedArtifact",
    "LoggedMetric",
    "LoggedParam",
    "NoProviderError",
    "ProviderType",
    "RunType",
]
