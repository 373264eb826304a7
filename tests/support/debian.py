"""Programs that tests need for real: found, installed by apt-get when we may, or the test is left off.

Who may not install packages or mount a disk gets one line for all the tests that were left off. Where everything is
asked for, by EDGEPROOF_REQUIRE_ALL or in CI, a part that is missing is a failure.
"""

import fcntl
import os
import shutil
import subprocess
from pathlib import Path
from typing import NoReturn

import pytest

REQUIRE_ALL = "EDGEPROOF_REQUIRE_ALL"
LEFT_OFF = "left off, it needs "
_INSTALL_LIMIT_S = 240
_EVERYWHERE = ("/usr/sbin", "/usr/local/sbin", "/sbin")
# Only root comes here, and /run is root's: what another user left in the temporary folder may be closed to root.
_APT_LOCK = Path("/run/edgeproof-tests-apt.lock")


def leave_off(part: str, remedy: str) -> NoReturn:
    """Leave the test off for want of a part of the machine; fail it where all are asked for."""
    if _is_all_asked_for():
        pytest.fail(f"This test needs {part}, and all tests were asked for ({REQUIRE_ALL} or CI is set): {remedy}")
    pytest.skip(f"{LEFT_OFF}{part}")


def left_off(reasons: list[str]) -> str:
    """Return the line about the tests that were left off, from the reasons that pytest noted for them."""
    parts = sorted({reason.partition(LEFT_OFF)[2] for reason in reasons})
    tests = f"{len(reasons)} test{'s' * (len(reasons) != 1)} left off"
    return f"{tests}: they need root or Debian packages ({', '.join(parts)}); CI runs them, and {REQUIRE_ALL}=1 does"


def require(program: str, package: str) -> str:
    """Return the path of a program, from its Debian package if it is missing and we may install it."""
    if found := _find(program):
        return found
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        leave_off(program, f"apt-get install {package}")
    # One lock per machine: parallel workers would trip over dpkg's own.
    with _APT_LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _find(program):
            _install(package)
    if found := _find(program):
        return found
    pytest.fail(f"This test needs {program}, and apt-get install {package} did not bring it.")


def require_mount(options: list[str], what: str) -> None:
    """Mount something, or leave the test off where we may not."""
    if os.geteuid() != 0:
        leave_off(what, "run ./test as root")
    done = subprocess.run(["mount", *options], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        # Root in a container may not mount unless the container was given that right.
        leave_off(what, f"we are root, and mount said: {done.stderr.strip()}")


def _is_all_asked_for() -> bool:
    return any(os.environ.get(name, "").lower() not in ("", "0", "false") for name in (REQUIRE_ALL, "CI"))


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
