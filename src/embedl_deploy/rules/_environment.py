"""An environment with one version of a runtime, made on first use in the user's cache and kept.

A runtime is installed alone, with the numpy that it was built for: the worker imports nothing else.
"""

import fcntl
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from embedl_deploy.errors import DialectError, quoted_list
from embedl_device.interpreter import python_argv

CACHE_VARIABLE = "EMBEDL_DEPLOY_CACHE"
OFFLINE_VARIABLE = "EMBEDL_DEPLOY_OFFLINE"
_PACKAGES = {"onnxruntime": "onnxruntime"}
_VERSION = re.compile(r"\d+(\.\d+){1,3}([a-z]+\d*)?")
_QUICK_S, _INSTALL_S = 120, 1200
_DONE = "ready"
# Built before numpy 2, whose arrays look otherwise in memory.
_FIRST_WITH_NUMPY_2 = (1, 19)

Say = Callable[[str], None]


def cache_folder() -> Path:
    """Return where environments and journals are kept when nobody says where."""
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen:
        return Path(chosen)
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "edgeproof"


def python_with(runtime: str, version: str, *, say: Say | None = None) -> Path:
    """Return the interpreter of an environment that has one version of a runtime; the first time it is made.

    Raises:
        DialectError: The runtime is not installed so, or the version is not to be had.
    """
    if runtime not in _PACKAGES:
        raise DialectError(
            f"{runtime!r} is asked in the environment that runs this; --version is for {quoted_list(_PACKAGES)}."
        )
    if not _VERSION.fullmatch(version):
        raise DialectError(f"{version!r} is no version of {runtime}; write it in whole, as in 1.18.1.")
    name = f"{runtime}-{version}-py{sys.version_info.major}.{sys.version_info.minor}"
    folder = cache_folder() / "runtimes" / name
    python = folder / "bin" / "python"
    if (folder / _DONE).exists() and python.exists():
        return python
    if os.environ.get(OFFLINE_VARIABLE, "") not in ("", "0"):
        raise DialectError(
            f"{runtime} {version} would have to be downloaded, and {OFFLINE_VARIABLE} forbids it. Give --python the "
            "interpreter of an environment that has it."
        )
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with folder.with_name(f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (folder / _DONE).exists():  # somebody else may have made it while we waited
                _make(folder, runtime, version, say)
    except OSError as exc:
        raise DialectError(f"An environment for {runtime} {version} cannot be made in {folder}: {exc}.") from exc
    return python


def _make(folder: Path, runtime: str, version: str, say: Say | None) -> None:
    if say is not None:
        say(f"{runtime} {version}: installing it in {folder}, once")
    shutil.rmtree(folder, ignore_errors=True)
    python = folder / "bin" / "python"
    _run([*python_argv(module="venv"), "--without-pip", str(folder)], runtime, version, _QUICK_S)
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    numpy = "numpy" if numbers >= _FIRST_WITH_NUMPY_2 else "numpy<2"
    pip = [*python_argv(module="pip"), "--python", str(python), "install", "--quiet", "--disable-pip-version-check"]
    packages = [f"{_PACKAGES[runtime]}=={version}", numpy]
    _run([*pip, "--no-input", "--no-deps", "--only-binary=:all:", *packages], runtime, version, _INSTALL_S)
    (folder / _DONE).touch()


def _run(argv: list[str], runtime: str, version: str, limit_s: int) -> None:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=limit_s)
    except subprocess.TimeoutExpired as exc:
        raise DialectError(f"{runtime} {version} was not installed within {limit_s} s; try again.") from exc
    if done.returncode:
        said = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
        wrong = [line for line in said if line.startswith("ERROR")] or said[-1:] or [f"exit code {done.returncode}"]
        raise DialectError(
            f"{runtime} {version} cannot be installed for Python {sys.version_info.major}.{sys.version_info.minor}: "
            f"{wrong[-1][:300]} Give --python the interpreter of an environment that has it."
        )
