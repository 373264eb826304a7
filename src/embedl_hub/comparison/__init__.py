"""What differs between runs, and whether a difference is real: side by side, and as a gate for builds."""

from embedl_hub.comparison._changes import ALPHA, FEWEST, Change, Measured, find_changes
from embedl_hub.comparison._compare import ComparedRun, Comparison, FactRow, MetricRow, compare, conclusion_of
from embedl_hub.comparison._gate import Decision, GateResult, Pair, gate, junit_error, junit_xml
from embedl_hub.comparison._overlay import ComparedLayer, FloatChoice, ModuleRow

__all__ = [
    "ALPHA",
    "FEWEST",
    "Change",
    "ComparedLayer",
    "ComparedRun",
    "Comparison",
    "Decision",
    "FactRow",
    "FloatChoice",
    "GateResult",
    "Measured",
    "MetricRow",
    "ModuleRow",
    "Pair",
    "compare",
    "conclusion_of",
    "find_changes",
    "gate",
    "junit_error",
    "junit_xml",
]
