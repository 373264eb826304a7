"""The documentation says what there is: links resolve, every command, error and public name is mentioned."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from embedl_hub import errors
from embedl_hub.cli import main as cli

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md"), *ROOT.glob("benchmarks/*.md")]
)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_resolve(page: Path) -> None:
    """Every link to a file of ours leads somewhere."""
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text()):
        if "://" not in target and not target.startswith("mailto:"):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_command_is_documented() -> None:
    """The reference of the command line knows each one."""
    text = (ROOT / "docs/reference/cli.md").read_text()
    for command in cli.own_commands():
        assert f"## `{command}`" in text, command


def test_every_error_is_documented() -> None:
    """The reference of errors says what to do about each one."""
    text = (ROOT / "docs/reference/errors.md").read_text()
    for name in errors.__all__:
        if name.endswith("Error"):
            assert f"`{name}`" in text, name


def test_every_decision_is_short_and_whole() -> None:
    """Context, decision, what was given up, how we would notice it was wrong; at most 40 lines."""
    decisions = sorted((ROOT / "docs/decisions").glob("[0-9]*.md"))
    assert decisions
    for page in decisions:
        text = page.read_text()
        assert len(text.splitlines()) <= 40, page.name
        for heading in ("## Context", "## Decision", "## Given up", "## Wrong if"):
            assert heading in text, f"{page.name} lacks {heading}"
