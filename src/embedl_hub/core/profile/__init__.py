"""Profilers: how fast a compiled model is on a device. The toolchains' own names are found on use."""

from embedl_hub.core.faces import lazy_face
from embedl_hub.core.profile._cold_start import START_PARTS, ColdStartProfiler, ColdStartResult
from embedl_hub.core.profile._concurrent import ConcurrentModel, ConcurrentProfiler, ConcurrentResult, concurrent_model
from embedl_hub.core.profile._journal import read_journal
from embedl_hub.core.profile._meter import Metered, MeterRecord, metered, read_meter
from embedl_hub.core.profile._profiler import (
    ModuleTime,
    ModuleTimes,
    PairedModel,
    PairedProfiler,
    PairedResult,
    Profiler,
    ProfilingResult,
    log_document,
    module_times,
)
from embedl_hub.core.profile._sustained import Progress, SustainedProfiler, SustainedResult, told, watching
from embedl_hub.errors import ProfileError

__all__ = [
    "START_PARTS",
    "ColdStartProfiler",
    "ColdStartResult",
    "ConcurrentModel",
    "ConcurrentProfiler",
    "ConcurrentResult",
    "MeterRecord",
    "Metered",
    "ModuleTime",
    "ModuleTimes",
    "PairedModel",
    "PairedProfiler",
    "PairedResult",
    "ProfileError",
    "Profiler",
    "ProfilingResult",
    "Progress",
    "SustainedProfiler",
    "SustainedResult",
    "concurrent_model",
    "log_document",
    "metered",
    "module_times",
    "read_journal",
    "read_meter",
    "told",
    "watching",
]

__getattr__, __dir__ = lazy_face(__name__, __all__)
