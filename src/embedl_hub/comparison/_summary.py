"""What was checked, for whoever reads a build: Markdown for a job's summary, and a picture of the interval.

GitHub takes SVG and ``data:`` images out of a job's summary, so the Markdown draws the interval with characters; the
picture is a file of its own, for the build's artifacts. Names and reasons come from records and boards: nothing in them
becomes markup.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

from embedl_device.terminal import printable
from embedl_hub.comparison._gate import Decision, GateResult
from embedl_hub.core.document import find_metric
from embedl_hub.errors import ConfigError

_MOST_TEXT = 300
_MOST_DIFFERENCES = 20
_MOST_FINDINGS = 200
_BAR = 56
_MARKUP = re.compile(r"([\\`*_{}\[\]()#|~$!+])")


class Outcome(StrEnum):
    """How a check ended."""

    OK = "ok"
    WORSE = "worse"
    CANNOT_TELL = "cannot tell"
    NOT_MEASURED = "not measured"  # the rig, or what it was asked: nothing is known of the model
    RECORDED = "recorded"  # a baseline for later; nothing was compared


@dataclass(frozen=True)
class Reach:
    """A figure with its interval, and the limit it is held against."""

    value: float
    limit: float
    low: float | None = None
    high: float | None = None
    reference: float | None = None  # what the baseline has, where that is another number than the limit
    unit: str = ""  # stands before a figure: ``×``
    is_more_better: bool = False

    def show(self, number: float) -> str:
        """Return a number of its kind for people."""
        return f"{self.unit} {number:.3f}".strip()

    def __str__(self) -> str:
        interval = "" if self.low is None or self.high is None else f" ({self.low:.3f} to {self.high:.3f})"
        return f"{self.show(self.value)}{interval}"


@dataclass(frozen=True)
class Finding:
    """One check and everything that its report says."""

    title: str  # what was checked
    outcome: Outcome
    reason: str
    figures: tuple[tuple[str, str], ...] = ()  # what was measured, by name
    place: str = ""  # where
    runs: tuple[tuple[str, str], ...] = ()  # ids of runs, by what they are
    differences: tuple[str, ...] = ()  # what else differs between the runs, in words
    reach: Reach | None = None  # what can be drawn
    meaning: str = ""  # what follows for the build

    @classmethod
    def not_measured(cls, title: str, error: str, *, meaning: str = "") -> Self:
        """Return that nothing was measured: an error of the rig, or of what it was asked."""
        return cls(title, Outcome.NOT_MEASURED, error, meaning=meaning)

    @classmethod
    def of_gate(cls, result: GateResult, *, place: str = "", fails_when_unsure: bool = False) -> Self:
        """Return what the gate found."""
        metric, pairs, ratio = find_metric(result.metric), result.pairs, result.worsening
        reach = Reach(ratio.value, 1 + result.tolerance, ratio.low, ratio.high, 1.0, "×")
        level = "" if ratio.low is None else f", {'99' if pairs else '95'} % interval"
        figures = [(f"worsening of {result.metric}", f"{reach}{level}"), ("tolerated", reach.show(reach.limit))]
        if pairs:
            for name in ("candidate", "baseline"):
                values = sorted(getattr(pair, name) for pair in pairs)
                text = f"{values[len(values) // 2]:.4g} {metric.unit}".strip()
                figures.append((f"{name}, median of {len(pairs)} turns", text))
        figures.append(("on record", reach.show(result.first_look.value)))
        runs = (("candidate", result.candidate_id), ("baseline", result.baseline_id))
        outcome = Outcome(result.decision.value)
        return cls(
            f"{result.metric} against the baseline", outcome, result.reason, tuple(figures), place, runs,
            result.differences, reach, _meaning(result.decision, fails_when_unsure=fails_when_unsure),
        )  # fmt: skip

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain JSON values."""
        return {**asdict(self), "outcome": self.outcome.value}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return what ``as_dict`` gave, also after a way through JSON."""
        reach = values["reach"]

        def named(key: str) -> tuple[tuple[str, str], ...]:
            return tuple((name, text) for name, text in values[key])

        return cls(
            values["title"], Outcome(values["outcome"]), values["reason"], named("figures"), values["place"],
            named("runs"), tuple(values["differences"]), None if reach is None else Reach(**reach), values["meaning"],
        )  # fmt: skip

    def lines(self) -> list[str]:
        """Return it in a few lines of plain text."""
        where = f", on {self.place}" if self.place else ""
        found = [f"{self.outcome}: {self.title}{where}: {' '.join(self.reason.split())}"]
        found += [f"{name}: {text}" for name, text in self.figures]
        found += [f"differs in {text}" for text in self.differences[:_MOST_DIFFERENCES]]
        if self.runs:
            found.append(f"runs: {', '.join(f'{name} {run}' for name, run in self.runs)}")
        return [printable(line) for line in found]


def _meaning(decision: Decision, *, fails_when_unsure: bool) -> str:
    if decision is Decision.WORSE:
        return "exit code 1: the build fails"
    if decision is Decision.CANNOT_TELL:
        return "exit code 3: the build fails, as asked" if fails_when_unsure else "exit code 0: the build goes on"
    return "exit code 0: the build goes on"


def summary_markdown(findings: Sequence[Finding], *, title: str, open_with: str = "") -> str:
    """Return findings for a job's summary.

    Args:
        findings: What was checked.
        title: The heading.
        open_with: The command that shows the runs.
    """
    counts = {outcome: sum(each.outcome is outcome for each in findings) for outcome in Outcome}
    verdict = ", ".join(
        str(outcome) if len(findings) == 1 else f"{count} {outcome}" for outcome, count in counts.items() if count
    )
    lines = [f"### {_text(title)}: {verdict or 'nothing was checked'}", ""]
    if len(findings) > 1:
        lines += ["| verdict | what | figure | where | run |", "|---|---|---|---|---|"]
        for each in findings[:_MOST_FINDINGS]:
            figure = ": ".join(each.figures[0]) if each.figures else each.reason
            run = _code(each.runs[0][1]) if each.runs else ""
            cells = (f"**{each.outcome}**", _text(each.title), _text(figure), _text(each.place), run)
            lines.append(f"| {' | '.join(cells)} |")
        if len(findings) > _MOST_FINDINGS:
            lines.append(f"\n{len(findings) - _MOST_FINDINGS} more are in the build's log.")
        lines.append("")
    bad = [each for each in findings if each.outcome not in (Outcome.OK, Outcome.RECORDED)]
    for each in (bad if len(findings) > 1 else findings)[:_MOST_FINDINGS]:
        lines += _details(each)
    if open_with:
        lines += [f"To look at the runs: {_code(open_with)}", ""]
    return "\n".join(lines) + "\n"


def _details(finding: Finding) -> list[str]:
    rows = [("verdict", f"**{finding.outcome}**{f' ({_text(finding.meaning)})' if finding.meaning else ''}")]
    rows.append(("reason", _text(finding.reason)))
    rows += [(_text(name), _text(text)) for name, text in finding.figures]
    if finding.place:
        rows.append(("measured on", _text(finding.place)))
    rows += [("differs in", _text(each)) for each in finding.differences[:_MOST_DIFFERENCES]]
    if len(finding.differences) > _MOST_DIFFERENCES:
        rows.append(("differs in", f"{len(finding.differences) - _MOST_DIFFERENCES} things more"))
    rows += [(f"run: {_text(name)}", _code(run)) for name, run in finding.runs]
    table = [f"| {name} | {text} |" for name, text in rows]
    lines = [f"**{_text(finding.title)}**", "", "| | |", "|---|---|", *table, ""]
    if finding.reach is not None:
        lines += ["```text", *_drawn(finding.reach), "```", ""]
    return lines


def _text(value: str) -> str:
    """Return foreign text for a cell of a Markdown table: one line, no markup, no links."""
    flat = " ".join(printable(value).split())
    cut = flat if len(flat) <= _MOST_TEXT else f"{flat[: _MOST_TEXT - 1]}…"
    escaped = _MARKUP.sub(r"\\\1", html.escape(cut, quote=False))
    return escaped.replace("@", "&#64;").replace("://", "&#58;//").replace("www.", "www&#46;")


def _code(value: str) -> str:
    """Return foreign text as code in a cell: what would end the code is left out."""
    return f"`{' '.join(printable(value).split()).replace('`', '').replace('|', '')[:_MOST_TEXT]}`"


class _Scale:
    """Places numbers along a line; logarithmic would hide what a reader looks for, how far past the limit it is."""

    def __init__(self, reach: Reach, width: float) -> None:
        known = [reach.value, reach.limit, reach.low, reach.high, reach.reference]
        finite = [number for number in known if number is not None and math.isfinite(number)] or [0.0]
        low, high = min(finite), max(finite)
        room = (high - low) * 0.08 or abs(high) * 0.08 or 1.0
        self._low, self._span, self._width = low - room, high - low + 2 * room, width

    def at(self, number: float) -> float:
        """Return where a number lies, within the line."""
        share = (number - self._low) / self._span if math.isfinite(number) else float(number > 0)
        return min(max(share, 0.0), 1.0) * self._width


def _drawn(reach: Reach) -> list[str]:
    """Draw the interval against the limit with characters."""
    scale = _Scale(reach, _BAR - 1)
    limit = round(scale.at(reach.limit))

    def row(name: str, number: float, marks: Mapping[int, str]) -> str:
        cells = {limit: "│", **marks}
        line = "".join(cells.get(place, " ") for place in range(_BAR)).rstrip()
        return f"{name:<9} {reach.show(number):>9}  {line}"

    value = round(scale.at(reach.value))
    marks: dict[int, str] = {}
    if reach.low is not None and reach.high is not None:
        first, last = round(scale.at(reach.low)), round(scale.at(reach.high))
        marks = {**dict.fromkeys(range(first, last + 1), "━"), first: "┣", last: "┫"}
    rows = [row("limit", reach.limit, {}), row("measured", reach.value, {**marks, value: "●"})]
    if reach.reference is not None:
        rows.insert(0, row("baseline", reach.reference, {round(scale.at(reach.reference)): "○"}))
    return rows


_WIDTH, _HEIGHT, _LEFT, _RIGHT = 640, 150, 24, 24
_STYLE = """\
.ground{fill:#ffffff}.bad{fill:#cf222e;fill-opacity:.10}.text{fill:#1f2328}.muted{fill:#59636e}
.axis{stroke:#d1d9e0}.limit{stroke:#cf222e}.limit-text{fill:#cf222e}
.ok{fill:#1a7f37;stroke:#1a7f37}.worse{fill:#cf222e;stroke:#cf222e}.unsure{fill:#9a6700;stroke:#9a6700}
@media (prefers-color-scheme: dark){
.ground{fill:#0d1117}.bad{fill:#f85149;fill-opacity:.15}.text{fill:#f0f6fc}.muted{fill:#9198a1}
.axis{stroke:#3d444d}.limit{stroke:#f85149}.limit-text{fill:#f85149}
.ok{fill:#3fb950;stroke:#3fb950}.worse{fill:#f85149;stroke:#f85149}.unsure{fill:#d29922;stroke:#d29922}}"""
_COLORS = {Outcome.OK: "ok", Outcome.RECORDED: "ok", Outcome.WORSE: "worse"}


def finding_picture(finding: Finding) -> str:
    """Return the interval against the limit as SVG, for light and dark pages; nothing where there is no figure."""
    reach = finding.reach
    if reach is None:
        return ""
    scale = _Scale(reach, _WIDTH - _LEFT - _RIGHT)
    limit, value = _LEFT + scale.at(reach.limit), _LEFT + scale.at(reach.value)
    color = _COLORS.get(finding.outcome, "unsure")
    bad_from, bad_to = (0.0, limit) if reach.is_more_better else (limit, float(_WIDTH))
    parts = [
        f'<rect class="bad" x="{bad_from:.1f}" y="44" width="{bad_to - bad_from:.1f}" height="72"/>',
        f'<line class="axis" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="80" y2="80"/>',
        f'<line class="limit" x1="{limit:.1f}" x2="{limit:.1f}" y1="44" y2="116" stroke-width="2"/>',
        _label(limit, 132, "limit-text", f"limit {reach.show(reach.limit)}"),
    ]
    if reach.reference is not None:
        at = _LEFT + scale.at(reach.reference)
        parts.append(f'<circle class="ground" cx="{at:.1f}" cy="80" r="5" style="stroke:#59636e"/>')
        parts.append(_label(at, 146, "muted", f"baseline {reach.show(reach.reference)}"))
    if reach.low is not None and reach.high is not None:
        low, high = _LEFT + scale.at(reach.low), _LEFT + scale.at(reach.high)
        parts.append(f'<line class="{color}" x1="{low:.1f}" x2="{high:.1f}" y1="80" y2="80" stroke-width="5"/>')
        parts += [
            f'<line class="{color}" x1="{end:.1f}" x2="{end:.1f}" y1="70" y2="90" stroke-width="2"/>'
            for end in (low, high)
        ]
    parts.append(f'<circle class="{color}" cx="{value:.1f}" cy="80" r="6"/>')
    parts.append(_label(value, 62, "text", str(reach)))
    where = f", on {finding.place}" if finding.place else ""
    words = " ".join(printable(f"{finding.outcome}: {finding.title}{where}").split())
    title = html.escape(words if len(words) <= 90 else f"{words[:89]}…")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT + 4}" role="img" '
        f'font-family="system-ui, sans-serif" font-size="13"><title>{title}</title><style>{_STYLE}</style>'
        f'<rect class="ground" width="{_WIDTH}" height="{_HEIGHT + 4}"/>'
        f'<text class="text" x="{_LEFT}" y="26" font-weight="600">{title}</text>{"".join(parts)}</svg>\n'
    )


def _label(x: float, y: int, style: str, text: str) -> str:
    # Near an edge the text stands beside its mark, so that none of it is cut off.
    anchor = "start" if x < 110 else "end" if x > _WIDTH - 110 else "middle"
    return f'<text class="{style}" x="{x:.1f}" y="{y}" text-anchor="{anchor}">{html.escape(text)}</text>'


def append_summary(path: Path, text: str) -> None:
    """Add a text to the end of a summary; a file that is not there is made."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise ConfigError(f"The summary cannot be written to {path}: {error.strerror or error}.") from error
