"""What the checks found, at the end of a test session: for the terminal, and as a summary of a build."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from embedl_hub.comparison import Finding, append_summary, summary_markdown
from embedl_hub.errors import ConfigError

Found = Sequence[tuple[str, Mapping[str, Any]]]


def shown(found: Found, home: Path) -> Iterator[str]:
    """Yield the lines of the terminal's section."""
    last = ""
    for nodeid, values in found:
        finding = Finding.from_dict(values)
        first, *more = finding.lines()
        yield first if finding.title == nodeid else f"{nodeid}: {first}"
        yield from (f"    {line}" for line in more)
        last = next((run for _, run in finding.runs), last)
    folder = shlex.quote(str(home))
    if last:
        yield f"To look at a run: embedl-hub run show {last} --home {folder}; at all in a browser: {_command(home)}"


def write_summary(found: Found, home: Path, path: Path) -> str:
    """Append the summary to a file, and return a line that says so or why not."""
    findings = []
    for nodeid, values in found:
        finding = Finding.from_dict(values)
        findings.append(finding if finding.title == nodeid else replace(finding, title=f"{nodeid}: {finding.title}"))
    try:
        append_summary(path, summary_markdown(findings, title="Edgeproof tests", open_with=_command(home)))
    except ConfigError as error:
        return str(error)
    return f"The summary is in {path}."


def _command(home: Path) -> str:
    return f"embedl-hub ui --home {shlex.quote(str(home))}"
