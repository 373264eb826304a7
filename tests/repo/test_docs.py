"""The documentation says what there is: links resolve, every page is found, every command and error is mentioned."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.pages import PAGES, ROOT, anchors, links

from embedl_hub import errors
from embedl_hub.cli import main as cli


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_resolve(page: Path) -> None:
    """Every link to a file of ours leads to it, and to the heading it names."""
    for link in links(page):
        if "://" in link or link.startswith("mailto:"):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), f"{page.name} links to {link}"
        if anchor:
            assert anchor in anchors(target), f"{page.name} links to {link}; {target.name} has no such heading"


def test_every_page_is_found_from_the_index() -> None:
    """Whoever starts at docs/index.md and follows links sees every page of docs, and every example."""
    seen: set[Path] = set()
    waiting = [ROOT / "docs/index.md"]
    while waiting:
        page = waiting.pop().resolve()
        if page in seen or page.suffix != ".md":
            continue
        seen.add(page)
        waiting += [page.parent / link.partition("#")[0] for link in links(page) if "://" not in link]
    wanted = {page.resolve() for page in PAGES if page.is_relative_to(ROOT / "docs")}
    wanted |= {page.resolve() for page in PAGES if page.is_relative_to(ROOT / "examples")}
    assert sorted(str(page.relative_to(ROOT)) for page in wanted - seen) == []


def test_the_generated_reference_is_fresh() -> None:
    """The pages say what the code says; the message has the command that writes them anew."""
    done = subprocess.run(
        [sys.executable, ROOT / "tools/reference.py", "--check"],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


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


def test_every_decision_is_short_and_complete() -> None:
    """Numbered without gaps, dated, in order; with the alternative that was rejected; at most 40 lines."""
    decisions = sorted((ROOT / "docs/decisions").glob("[0-9]*.md"))
    assert [page.name[:4] for page in decisions] == [f"{number:04}" for number in range(1, len(decisions) + 1)]
    dates = []
    for page in decisions:
        text = page.read_text()
        assert len(text.splitlines()) <= 40, page.name
        assert re.search(r"^Status: (accepted|replaced by \[)", text, re.MULTILINE), f"{page.name} lacks a status"
        dates += [match[1] for match in re.finditer(r"^Date: (\d{4}-\d\d-\d\d)$", text, re.MULTILINE)]
        for heading in ("## Context", "## Decision", "## Rejected alternative", "## Wrong if"):
            assert heading in text, f"{page.name} lacks {heading}"
    assert len(dates) == len(decisions)
    assert dates == sorted(dates)


def test_a_package_is_tested_in_the_folder_of_its_name() -> None:
    """CONTRIBUTING's rule: whoever looks for the tests of a package opens the same folder under tests."""
    tests = {path.parent.relative_to(ROOT / "tests") for path in (ROOT / "tests").rglob("test_*.py")}
    packages = {path.parent.relative_to(ROOT / "src") for path in (ROOT / "src").rglob("__init__.py")}
    assert sorted(map(str, tests - packages)) == ["repo"]
