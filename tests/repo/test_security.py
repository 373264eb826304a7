"""SECURITY.md promises nothing that no test holds."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "SECURITY.md").read_text()
PROMISED = TEXT[TEXT.index("## What is promised") : TEXT.index("## What is not protected")]
ROWS = [line for line in PROMISED.splitlines() if line.startswith("| ") and not line.startswith(("| threat", "|---"))]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[2:40])
def test_each_promise_names_the_test_that_holds_it(row: str) -> None:
    """A file of tests, or a folder with some; a bare name stands beside the one before it."""
    named = re.findall(r"`([\w/.]+)`", row.split("|")[3])
    assert named
    folder = ROOT / "tests"
    for name in named:
        path = ROOT / "tests" / name if "/" in name else folder / name
        folder = path.parent
        files = sorted(path.rglob("test_*.py")) if path.is_dir() else [path]
        assert files, f"{name} has no tests"
        assert all("def test_" in file.read_text() for file in files)


def test_there_are_promises() -> None:
    """The tables were found."""
    assert len(ROWS) > 20
