"""Components, their providers and their outputs: the seam for toolchains and devices of your own."""

from embedl_hub.core.component._check import CheckResult
from embedl_hub.core.component._component import CLAIMED, Component
from embedl_hub.core.component._dispatch import InstalledProvider, installed_providers
from embedl_hub.core.component._output import CompiledModel, ComponentOutput
from embedl_hub.core.component._provider_type import ProviderType
from embedl_hub.errors import NoProviderError
from embedl_hub.tracking import LoggedArtifact, LoggedMetric, LoggedParam, RunType

__all__ = [
    "CLAIMED",
    "CheckResult",
    "CompiledModel",
    "Component",
    "ComponentOutput",
    "InstalledProvider",
    "LoggedArtifact",
    "LoggedMetric",
    "LoggedParam",
    "NoProviderError",
    "ProviderType",
    "RunType",
    "installed_providers",
]
