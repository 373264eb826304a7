"""Recording of runs: the client that writes, the store that keeps, the values that come back."""

from embedl_hub.tracking._blobs import hash_file, walk_files
from embedl_hub.tracking._client import ActiveRun, Client
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
from embedl_hub.tracking._values import check_name, plain_value

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
    "check_name",
    "find_home",
    "hash_file",
    "plain_value",
    "reindex",
    "walk_files",
]
