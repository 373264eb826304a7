"""Who has neither root nor Debian's packages gets one line about it; in CI the same is a failure."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.debian import REQUIRE_ALL, require, require_mount

ROOT = Path(__file__).resolve().parents[2]
TESTS = """
import pytest
from support.debian import leave_off

@pytest.mark.parametrize("part", ["sshd", "sshd", "chromium"])
def test_needs(part):
    leave_off(part, "apt-get install it")

def test_other():
    pass

def test_skipped():
    pytest.skip("for a reason of its own")
"""


def run_tests(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a few tests under the suite's own conftest, in workers as ./test does."""
    shutil.copyfile(ROOT / "tests/conftest.py", folder / "conftest.py")
    (folder / "test_some.py").write_text(TESTS)
    (folder / "pytest.ini").write_text(f"[pytest]\npythonpath = {ROOT / 'tests'}\naddopts = -ra -n 2\n")
    inherited = {name: value for name, value in os.environ.items() if name not in ("CI", REQUIRE_ALL)}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "xdist", str(folder)],
        cwd=folder, env={**inherited, **environment, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}, capture_output=True,
        text=True, check=False, timeout=200,
    )  # fmt: skip


@pytest.mark.slow
def test_what_cannot_run_here_is_one_line(tmp_path: Path) -> None:
    """It has the count and the parts, and no reason of another kind is counted in."""
    done = run_tests(tmp_path, CI="false")
    assert done.returncode == 0, done.stdout + done.stderr
    said = [line for line in done.stdout.splitlines() if "sshd" in line or "chromium" in line]
    assert len(said) == 1
    assert said[0].startswith("3 tests left off: they need root or Debian packages (chromium, sshd); CI runs them")
    assert "1 passed, 1 skipped, 3 left off in " in done.stdout
    assert "for a reason of its own" in done.stdout


@pytest.mark.parametrize("asked", [{"CI": "true"}, {REQUIRE_ALL: "1"}])
def test_where_all_is_asked_for_a_missing_part_is_a_failure(tmp_path: Path, asked: dict[str, str]) -> None:
    """With what would bring it."""
    done = run_tests(tmp_path, **asked)
    assert done.returncode == 1
    assert "3 failed, 1 passed, 1 skipped in " in done.stdout
    assert "This test needs chromium, and all tests were asked for" in done.stdout
    assert "apt-get install it" in done.stdout


def test_ci_asks_for_all() -> None:
    """Else a worn-out machine there would go unseen."""
    assert f"export {REQUIRE_ALL}=1\nexec ./test\n" in (ROOT / ".ci/run").read_text()


def test_only_root_installs_and_mounts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Anybody else's test is left off before anything is tried."""
    monkeypatch.setattr("support.debian.os.geteuid", lambda: 1000)
    monkeypatch.setattr("support.debian.subprocess.run", lambda *_, **__: pytest.fail("something was tried"))
    for name in ("CI", REQUIRE_ALL):
        monkeypatch.delenv(name, raising=False)
    assert require("sh", "dash").endswith("/sh")
    with pytest.raises(pytest.skip.Exception, match="left off, it needs no-such-program"):
        require("no-such-program", "no-such-package")
    with pytest.raises(pytest.skip.Exception, match="left off, it needs a disk"):
        require_mount(["-t", "tmpfs", "tmpfs", "/nowhere"], "a disk")
    monkeypatch.setenv(REQUIRE_ALL, "1")
    with pytest.raises(pytest.fail.Exception, match="apt-get install no-such-package"):
        require("no-such-program", "no-such-package")
