"""The profile document and the metrics: what was measured, in one type with one reader, one writer and one table."""

from embedl_hub.core.document._document import (
    LayerRow,
    LayerTable,
    ModuleNotes,
    ProfileDocument,
    Runtime,
    Sensitivity,
    document_of,
    read_document,
    write_document,
)
from embedl_hub.core.document._memory import Fit, LayerMemory, MemoryPart, MemoryProfile, fit_of
from embedl_hub.core.document._metrics import METRICS, Better, Metric, columns, find_metric, headlines, in_order

__all__ = [
    "METRICS",
    "Better",
    "Fit",
    "LayerMemory",
    "LayerRow",
    "LayerTable",
    "MemoryPart",
    "MemoryProfile",
    "Metric",
    "ModuleNotes",
    "ProfileDocument",
    "Runtime",
    "Sensitivity",
    "columns",
    "document_of",
    "find_metric",
    "fit_of",
    "headlines",
    "in_order",
    "read_document",
    "write_document",
]
