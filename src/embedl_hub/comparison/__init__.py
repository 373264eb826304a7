"""What differs between runs, and whether a difference is real: side by side, and as a gate for builds."""

from embedl_hub.comparison._again import Again, find_baseline, without_layers
from embedl_hub.comparison._changes import ALPHA, FEWEST, Change, Measured, find_changes
from embedl_hub.comparison._compare import ComparedRun, Comparison, FactRow, MetricRow, compare, conclusion_of
from embedl_hub.comparison._gate import (
    Decision,
    GateResult,
    Pair,
    decide,
    gate,
    junit_error,
    junit_recorded,
    junit_xml,
    metric_value,
)
from embedl_hub.comparison._overlay import ComparedLayer, FloatChoice, ModuleRow
from embedl_hub.comparison._summary import (
    Finding,
    Outcome,
    Reach,
    append_summary,
    finding_picture,
    summary_markdown,
)

__all__ = [
    "ALPHA",
    "FEWEST",
    "Again",
    "Change",
    "ComparedLayer",
    "ComparedRun",
    "Comparison",
    "Decision",
    "FactRow",
    "Finding",
    "FloatChoice",
    "GateResult",
    "Measured",
    "MetricRow",
    "ModuleRow",
    "Outcome",
    "Pair",
    "Reach",
    "append_summary",
    "compare",
    "conclusion_of",
    "decide",
    "find_baseline",
    "find_changes",
    "finding_picture",
    "gate",
    "junit_error",
    "junit_recorded",
    "junit_xml",
    "metric_value",
    "summary_markdown",
    "without_layers",
]
