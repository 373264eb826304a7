"""The gate's answers as JUnit XML, which every build server shows."""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from embedl_hub.comparison._gate import GateResult, Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence


def junit_xml(results: Sequence[GateResult], *, seconds: float = 0.0) -> str:
    """Return a report with one test case per answer; what the gate cannot tell is a skipped test."""
    count = {verdict: sum(result.verdict is verdict for result in results) for verdict in Verdict}
    suite = ET.Element(
        "testsuite",
        name="embedl-hub gate",
        tests=str(len(results)),
        failures=str(count[Verdict.WORSE]),
        skipped=str(count[Verdict.CANNOT_TELL]),
        errors="0",
        time=f"{seconds:.3f}",
    )
    for result in results:
        case = ET.SubElement(
            suite,
            "testcase",
            classname=f"gate.{_clean(result.metric)}",
            name=f"{result.candidate_id} against {result.baseline_id}",
            time=f"{seconds / len(results):.3f}",
        )
        if result.verdict is Verdict.WORSE:
            ET.SubElement(case, "failure", type="worse", message=_clean(result.reason)).text = _clean(describe(result))
        elif result.verdict is Verdict.CANNOT_TELL:
            ET.SubElement(case, "skipped", message=_clean(result.reason))
        ET.SubElement(case, "system-out").text = _clean(describe(result))
    ET.indent(suite)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(suite, encoding="unicode") + "\n"


def describe(result: GateResult) -> str:
    """Return the answer in a few lines."""
    ratio = result.worsening
    interval = "" if ratio.low is None or ratio.high is None else f" ({ratio.low:.3f} to {ratio.high:.3f})"
    numbers = f"worsening × {ratio.value:.3f}{interval}, tolerated × {1 + result.tolerance:.3f}"
    lines = [f"{result.metric}: {result.verdict} - {result.reason}", numbers]
    lines.append(f"on record × {result.first_look.value:.3f}")
    return "\n".join([*lines, *(f"differs in {line}" for line in result.differences)])


def _clean(text: str) -> str:
    """Leave out what XML cannot hold."""
    return "".join(c for c in text if c.isprintable() or c == "\n")
