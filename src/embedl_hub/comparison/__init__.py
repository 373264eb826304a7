"""What differs between runs, and whether a difference is real: side by side, and as a gate for builds."""

from embedl_hub.comparison._compare import (
    ComparedRun,
    Comparison,
    FactRow,
    MetricRow,
    compare,
    conclusion_of,
    unit_of,
)
from embedl_hub.comparison._gate import GateResult, Pair, Verdict, gate
from embedl_hub.comparison._junit import junit_xml
from embedl_hub.comparison._layers import LayerRow
from embedl_hub.comparison._modules import FloatChoice, ModuleRow

__all__ = [
    "ComparedRun",
    "Comparison",
    "FactRow",
    "FloatChoice",
    "GateResult",
    "LayerRow",
    "MetricRow",
    "ModuleRow",
    "Pair",
    "Verdict",
    "compare",
    "conclusion_of",
    "gate",
    "junit_xml",
    "unit_of",
]
