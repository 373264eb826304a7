"""Recording of runs: the client that writes, the store that keeps, the values that come back."""

from embedl_hub.tracking._blobs import describe, folder_content, hash_file, walk_files
from embedl_hub.tracking._client import ActiveRun, Client, LabeledRuns
from embedl_hub.tracking._export import Imported, export_bundle, import_bundle
from embedl_hub.tracking._filter import check_filter, equal
from embedl_hub.tracking._journal import now_ms
from embedl_hub.tracking._models import (
    SAME_AS,
    ArtifactCarrier,
    LoggedArtifact,
    LoggedMetric,
    LoggedParam,
    Run,
    RunStatus,
    RunType,
    Value,
)
from embedl_hub.tracking._receive import Arrived, Receiver
from embedl_hub.tracking._records import RECORD_LIMITS, RecordLimits, check_record
from embedl_hub.tracking._redact import Redactor
from embedl_hub.tracking._sql.find import Page
from embedl_hub.tracking._staging import Staging
from embedl_hub.tracking._store import (
    Collected,
    DeviceSummary,
    Lineage,
    ProjectSummary,
    Store,
    ValueNames,
    collect,
    find_home,
    reindex,
    search_home,
)
from embedl_hub.tracking._table import import_table, series_columns, write_columns, write_table
from embedl_hub.tracking._uplink import Sent, Uplink, open_uplink
from embedl_hub.tracking._values import check_file_name, check_name, plain_value, project_id

__all__ = [
    "RECORD_LIMITS",
    "SAME_AS",
    "ActiveRun",
    "Arrived",
    "ArtifactCarrier",
    "Client",
    "Collected",
    "DeviceSummary",
    "Imported",
    "LabeledRuns",
    "Lineage",
    "LoggedArtifact",
    "LoggedMetric",
    "LoggedParam",
    "Page",
    "ProjectSummary",
    "Receiver",
    "RecordLimits",
    "Redactor",
    "Run",
    "RunStatus",
    "RunType",
    "Sent",
    "Staging",
    "Store",
    "Uplink",
    "Value",
    "ValueNames",
    "check_file_name",
    "check_filter",
    "check_name",
    "check_record",
    "collect",
    "describe",
    "equal",
    "export_bundle",
    "find_home",
    "folder_content",
    "hash_file",
    "import_bundle",
    "import_table",
    "now_ms",
    "open_uplink",
    "plain_value",
    "project_id",
    "reindex",
    "search_home",
    "series_columns",
    "walk_files",
    "write_columns",
    "write_table",
]
