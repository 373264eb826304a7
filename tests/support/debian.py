"""Programs that tests need for real: found, installed by apt-get when we may, or a failed test that says how."""

import fcntl
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

_INSTALL_LIMIT_S = 240
_EVERYWHERE = ("/usr/sbin", "/usr/local/sbin", "/sbin")


def require(program: str, package: str) -> str:
    """Return the path of a program, from its Debian package if it is missing; fail the test when that cannot be."""
    if found := _find(program):
        return found
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        pytest.fail(f"This test needs {program}; install it with: apt-get install {package}")
    # One lock per machine: parallel workers would trip over dpkg's own.
    with Path(tempfile.gettempdir(), "edgeproof-tests-apt.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _find(program):
            _install(package)
    if found := _find(program):
        return found
    pytest.fail(f"This test needs {program}, and apt-get install {package} did not bring it.")


def _find(program: str) -> str | None:
    return shutil.which(program, path=os.pathsep.join((os.environ.get("PATH", os.defpath), *_EVERYWHERE)))


def _install(package: str) -> None:
    install = ["install", "-y", "--no-install-recommends", package]
    # The list of packages is missing or old in a fresh container: update only when the first try says so.
    for step in (install, ["update"], install):
        done = _apt_get(step)
        if done.returncode == 0 and step is install:
            return
    pytest.fail(f"apt-get install {package} failed:\n{done.stderr[-2000:]}")


def _apt_get(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    # A container has no init; a freshly installed sshd must not be started either.
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    return subprocess.run(
        ["apt-get", "-q", "-o", f"DPkg::Lock::Timeout={_INSTALL_LIMIT_S}", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=_INSTALL_LIMIT_S,
        check=False,
    )
