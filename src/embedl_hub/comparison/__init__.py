"""What differs between runs, and whether a difference is real: side by side, and as a gate for builds."""

from embedl_hub.comparison._again import Again, find_baseline, without_layers
from embedl_hub.comparison._compare import ComparedRun, Comparison, FactRow, MetricRow, compare, conclusion_of
from embedl_hub.comparison._gate import Decision, GateResult, Pair, gate, junit_error, junit_xml
from embedl_hub.comparison._overlay import ComparedLayer, FloatChoice, ModuleRow

__all__ = [
    "Again",
    "ComparedLayer",
    "ComparedRun",
    "Comparison",
    "Decision",
    "FactRow",
    "FloatChoice",
    "GateResult",
    "MetricRow",
    "ModuleRow",
    "Pair",
    "compare",
    "conclusion_of",
    "find_baseline",
    "gate",
    "junit_error",
    "junit_xml",
    "without_layers",
]
