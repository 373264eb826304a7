"""Recording of runs: the client that writes, the store that keeps, the values that come back."""

from embedl_hub.tracking._client import ActiveRun, Client, plain_value
from embedl_hub.tracking._home import find_home
from embedl_hub.tracking._models import (
    ArtifactCarrier,
    LoggedArtifact,
    LoggedMetric,
    LoggedParam,
    Run,
    RunStatus,
    RunType,
    Value,
)
from embedl_hub.tracking._redact import Redactor
from embedl_hub.tracking._store import Store, reindex

__all__ = [
    "ActiveRun",
    "ArtifactCarrier",
    "Client",
    "LoggedArtifact",
    "LoggedMetric",
    "LoggedParam",
    "Redactor",
    "Run",
    "RunStatus",
    "RunType",
    "Store",
    "Value",
    "find_home",
    "plain_value",
    "reindex",
]
