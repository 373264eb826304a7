"""A job's summary: the figures, the interval and the runs are there, and nothing from a record becomes markup."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from markdown_it import MarkdownIt

from embedl_device.statistics import Ratio
from embedl_hub.comparison import (
    Decision,
    Finding,
    GateResult,
    Outcome,
    Pair,
    Reach,
    append_summary,
    finding_picture,
    summary_markdown,
)
from embedl_hub.errors import ConfigError

HOSTILE = "</td><script>alert(1)</script> | **x** [a](javascript:b) `c` ![d](https://e.f/g) @team www.h.i\n# j \x1b[2J"
RESULT = GateResult(
    Decision.WORSE, "worse by more than the tolerance, confirmed by 3 turns", "latency_median", 0.05, "abc", "def",
    Ratio(3.9, 3.1, 5.0), Ratio(3.8), (Pair(3.9, 1.0, "g", "h"),) * 3, ("model: a | b",),
)  # fmt: skip


def _html(text: str) -> str:
    return str(MarkdownIt("gfm-like", {"html": True, "linkify": False}).render(text))


def test_the_gate_in_a_table() -> None:
    """Verdict, exit code, interval, tolerance, place, differences and runs; a bar that GitHub shows."""
    found = Finding.of_gate(RESULT, place="device pi")
    shown = _html(summary_markdown([found], title="Edgeproof gate", open_with="embedl-hub compare def abc"))
    cells = [
        "<strong>worse</strong> (exit code 1: the build fails)", "× 3.900 (3.100 to 5.000), 99 % interval", "× 1.050",
        "device pi", "model: a | b", "<code>abc</code>", "<code>def</code>", "3.9 ms",
    ]  # fmt: skip
    for cell in cells:
        assert f"<td>{cell}</td>" in shown
    assert "<code>embedl-hub compare def abc</code>" in shown
    (measured,) = [line for line in shown.splitlines() if line.startswith("measured")]
    (limit,) = [line for line in shown.splitlines() if line.startswith("limit")]
    assert measured.index("│") == limit.index("│") < measured.index("┣") < measured.index("●") < measured.index("┫")


@pytest.mark.parametrize(
    ("decision", "strict", "meaning"),
    [(Decision.OK, False, "code 0"), (Decision.CANNOT_TELL, False, "code 0"), (Decision.CANNOT_TELL, True, "code 3")],
)
def test_what_follows_for_the_build(decision: Decision, strict: bool, meaning: str) -> None:
    """The exit code is said with the verdict."""
    assert meaning in Finding.of_gate(replace(RESULT, decision=decision), fails_when_unsure=strict).meaning


def test_nothing_from_a_record_is_markup() -> None:
    """Names, reasons, places and figures are text, whatever they hold; one cell stays one cell."""
    found = Finding(
        HOSTILE, Outcome.WORSE, HOSTILE, ((HOSTILE, HOSTILE),), HOSTILE, ((HOSTILE, HOSTILE),), (HOSTILE,),
        Reach(1.0, 2.0), HOSTILE,
    )  # fmt: skip
    for findings in ([found], [found, found]):
        shown = _html(summary_markdown(findings, title=HOSTILE, open_with=HOSTILE))
        for markup in ("<script", "<a ", "<img", "<h1", "\x1b"):
            assert markup not in shown
        assert "&lt;script&gt;" in shown
        rows = [row for row in shown.split("<tr>")[1:] if "<td>" in row]
        assert {row.count("<td>") for row in rows} <= {2, 5}
    picture = ET.fromstring(finding_picture(found))  # noqa: S314 - our own
    assert not [each for each in picture.iter() if each.tag.endswith("script")]


def test_long_reports_are_cut() -> None:
    """GitHub takes one MiB: thousands of findings and differences stay far below it."""
    found = replace(Finding.of_gate(RESULT), differences=("d" * 10_000,) * 1000, reason="r" * 100_000)
    text = summary_markdown([found] * 3000, title="many")
    assert len(text.encode()) < 2_000_000
    assert "2800 more are in the build's log" in text


def test_a_finding_survives_json() -> None:
    """As it does between the processes of a test run."""
    found = Finding.of_gate(RESULT, place="device pi")
    assert Finding.from_dict(json.loads(json.dumps(found.as_dict()))) == found


def test_the_picture_shows_the_interval_and_the_limit() -> None:
    """Light and dark; the limit lies left of the interval, all of it inside the picture."""
    picture = ET.fromstring(finding_picture(Finding.of_gate(RESULT)))  # noqa: S314 - our own
    style = next(each.text or "" for each in picture.iter() if each.tag.endswith("style"))
    assert "prefers-color-scheme: dark" in style
    lines = {each.get("class"): float(each.get("x1", "")) for each in picture.iter() if each.tag.endswith("line")}
    assert 0 < lines["limit"] < lines["worse"] < 640
    texts = [each.text for each in picture.iter() if each.tag.endswith("}text")]
    assert "limit × 1.050" in texts
    assert finding_picture(Finding.not_measured("x", "off")) == ""


@pytest.mark.parametrize("bad", [float("inf"), float("nan"), 0.0, 1e300])
def test_figures_that_are_none_are_drawn_all_the_same(bad: float) -> None:
    """A ratio that nobody can know ends at the edge."""
    found = replace(Finding.of_gate(RESULT), reach=Reach(1.0, 1.05, 0.0, bad, 1.0, "×"))
    ET.fromstring(finding_picture(found))  # noqa: S314 - our own
    assert "measured" in summary_markdown([found], title="x")


def test_a_summary_is_appended_to(tmp_path: Path) -> None:
    """Other steps of a build write into the same file; a folder is refused in a sentence."""
    path = tmp_path / "new" / "summary.md"
    append_summary(path, "one\n")
    append_summary(path, "two\n")
    assert path.read_text() == "one\ntwo\n"
    with pytest.raises(ConfigError, match=r"cannot be written to .*: Is a directory"):
        append_summary(tmp_path, "three")
