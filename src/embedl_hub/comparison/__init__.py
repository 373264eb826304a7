"""What differs between runs, and whether a difference is real: side by side, and as a gate for builds."""

from embedl_hub.comparison._compare import ComparedRun, Comparison, FactRow, MetricRow, compare, conclusion_of
from embedl_hub.comparison._gate import GateResult, Pair, Verdict, gate
from embedl_hub.comparison._junit import junit_xml
from embedl_hub.comparison._layers import LayerRow
from embedl_hub.comparison._paired import Ranked, paired_ratio, rank
from embedl_hub.comparison._statistics import Ratio

__all__ = [
    "ComparedRun",
    "Comparison",
    "FactRow",
    "GateResult",
    "LayerRow",
    "MetricRow",
    "Pair",
    "Ranked",
    "Ratio",
    "Verdict",
    "compare",
    "conclusion_of",
    "gate",
    "junit_xml",
    "paired_ratio",
    "rank",
]
