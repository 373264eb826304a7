"""What the fuzzer found is found no more, and some hundred further broken files of each format are read or refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.fuzz import CORPUS, READERS

TOOL = Path(__file__).parents[2] / "tools" / "fuzz.py"
# In a process each: the guard hears every file that is opened, and memory is measured by its peak.
CODE = """
import itertools, sys
from support.fuzz import CORPUS, READERS, Guard, mutations
name, count = sys.argv[1], int(sys.argv[2])
reader = READERS[name].make()
guard = Guard(reader)
kept = [path.read_bytes() for path in sorted((CORPUS / name).glob("*"))]
for data in itertools.chain(kept, itertools.islice(mutations(reader, 7, READERS[name].longest), count)):
    find = guard.feed(data)
    if find is not None:
        sys.exit(f"{find.kind} {find.place}: {find.text}")
guard.close()
sys.exit(f"{guard.grown_mb:.0f} MB" if guard.grown_mb > 256 else None)
"""
FEW = {"bundle": 20, "pt2": 20, "calibration": 60}
# Importing torch alone takes seconds.
MARKS = {"pt2": pytest.mark.slow, "calibration": pytest.mark.slow}


@pytest.mark.parametrize("name", [pytest.param(name, marks=MARKS.get(name, ())) for name in READERS])
def test_finds_and_some_mutations_are_read_or_refused(name: str) -> None:
    """Within seconds and megabytes, with the reader's own error, and without a write, a program or a connection."""
    path = [str(place) for place in (CORPUS.parent, CORPUS.parents[1] / "src")]
    done = subprocess.run(
        [sys.executable, "-P", "-W", "ignore", "-c", f"import sys; sys.path[:0] = {path}\n{CODE}", name,
         str(FEW.get(name, 200))],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]


def test_every_find_belongs_to_a_reader() -> None:
    """And all of them together are small."""
    files = [path for path in CORPUS.rglob("*") if path.is_file()]
    assert {path.parent.name for path in files} <= set(READERS)
    assert sum(path.stat().st_size for path in files) < 200_000


@pytest.mark.slow
def test_the_command_counts_and_ends() -> None:
    """With coverage where atheris is installed, by mutations alone where it is not."""
    for more in ([], ["--plain"]):
        argv = [sys.executable, str(TOOL), "plan", "--count=300", "--seed=3", *more]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        assert '"inputs": 300' in done.stdout.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_all_readers_for_a_while() -> None:
    """Every reader for half a minute."""
    argv = [sys.executable, str(TOOL), "--all", "--seconds=30"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
