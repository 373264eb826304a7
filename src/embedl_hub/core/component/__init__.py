"""Components, their providers and their outputs: the seam for toolchains and devices of your own."""

from typing import Any

from embedl_hub.core.component._component import Component
from embedl_hub.core.component._dispatch import load_provider, make_provider_type, provider_types
from embedl_hub.core.component._output import CompiledModel, ComponentOutput
from embedl_hub.core.component._signature import resolve
from embedl_hub.core.context import CLAIMED
from embedl_hub.errors import NoProviderError
from embedl_hub.tracking import LoggedArtifact, LoggedMetric, LoggedParam, RunType

__all__ = [
    "CLAIMED",
    "CompiledModel",
    "Component",
    "ComponentOutput",
    "LoggedArtifact",
    "LoggedMetric",
    "LoggedParam",
    "NoProviderError",
    "ProviderType",
    "RunType",
    "load_provider",
    "provider_types",
    "resolve",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - the enum
    # Made of what is installed, so it is made when somebody asks for it.
    if name == "ProviderType":
        return make_provider_type()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
