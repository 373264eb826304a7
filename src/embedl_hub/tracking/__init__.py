"""Recording of runs: the client that writes, the store that keeps, the values that come back."""

from embedl_hub.tracking._blobs import hash_file, walk_files
from embedl_hub.tracking._bundle import Imported, export_bundle, import_bundle
from embedl_hub.tracking._client import ActiveRun, Client
from embedl_hub.tracking._collect import Collected, collect
from embedl_hub.tracking._filter import check_filter, equal
from embedl_hub.tracking._find import Page
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
from embedl_hub.tracking._store import DeviceSummary, Lineage, ProjectSummary, Store, ValueNames, reindex
from embedl_hub.tracking._table import write_table
from embedl_hub.tracking._values import check_name, plain_value

__all__ = [
    "ActiveRun",
    "ArtifactCarrier",
    "Client",
    "Collected",
    "DeviceSummary",
    "Imported",
    "Lineage",
    "LoggedArtifact",
    "LoggedMetric",
    "LoggedParam",
    "Page",
    "ProjectSummary",
    "Redactor",
    "Run",
    "RunStatus",
    "RunType",
    "Store",
    "Value",
    "ValueNames",
    "check_filter",
    "check_name",
    "collect",
    "equal",
    "export_bundle",
    "find_home",
    "hash_file",
    "import_bundle",
    "plain_value",
    "reindex",
    "walk_files",
    "write_table",
]
