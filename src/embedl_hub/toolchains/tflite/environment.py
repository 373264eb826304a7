"""The converter's own environment: made once, remembered, never the user's.

onnx2tf pins its dependencies to versions that clash with everything else, and ai-edge-quantizer pins another LiteRT
than onnx2tf does. So onnx2tf is installed without its dependencies beside those that both can live with. All of them
are locked: pip installs the files whose hashes we know and decides nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import platform
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from embedl_device.interpreter import python_argv
from embedl_hub.core.device import LocalCommandRunner
from embedl_hub.errors import CommandError, ConfigError
from embedl_hub.locked import LOCKS, OFFLINE_VARIABLE, Lock, check_may_download, explain_hashes, find_lock, version_pair

CACHE_VARIABLE = "EMBEDL_HUB_CACHE"
# Declares Python 3.12 and newer; 3.11 runs it too. In the order they are taken.
PYTHONS = ((3, 12), (3, 13), (3, 11))
# tools/lock.py makes the locks from these.
CONVERTER = "onnx2tf==2.6.9"
REQUIREMENTS = (
    "ai-edge-litert==2.3.0", "ai-edge-quantizer==0.10.0", "flatbuffers==25.12.19", "ml-dtypes==0.5.4", "numpy==2.2.6",
    "onnx==1.20.1", "onnxruntime==1.26.0", "onnxsim==0.6.5", "protobuf==7.35.1", "psutil==7.2.2", "sng4onnx==2.0.1",
    "tqdm==4.67.1",
)  # fmt: skip
_PURPOSE = "tflite"
_INSTALL = "embedl-hub doctor --install tflite"
_MARK = "ready.json"
# This Python's pip installs for the other, which need not have one.
_PIP = tuple(python_argv(module="pip"))
_QUICK_S = 30.0
_INSTALL_S = 1800.0
_LOG = logging.getLogger("embedl_hub")


@dataclass(frozen=True)
class Environment:
    """A converter that is ready; another set of requirements has another key."""

    python: Path
    version: str
    key: str


def cache_dir() -> Path:
    """Return where the hub keeps what it can make again."""
    chosen = os.environ.get(CACHE_VARIABLE)
    return Path(chosen) if chosen else Path(platformdirs.user_cache_dir("edgeproof"))


def key() -> str:
    """Return a short name for what the environment is made from: every lock, so that it is the same everywhere."""
    locks = b"".join(path.read_bytes() for path in sorted(LOCKS.glob(f"{_PURPOSE}-*.lock")))
    return hashlib.sha256(locks).hexdigest()[:12]


def find_environment() -> Environment | None:
    """Return the environment if it was made before."""
    folder = _folder()
    try:
        facts = json.loads((folder / _MARK).read_text(encoding="utf-8"))
        found = Environment(folder / "bin" / "python", str(facts["python"]), key())
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found if found.python.exists() else None


def need_environment(report: Callable[[str], None] = _LOG.warning) -> Environment:
    """Return the environment; the first time it is made, which takes a minute or two."""
    found = find_environment()
    if found is not None:
        return found
    with _lock(_folder().with_suffix(".lock"), report):
        # Somebody else may have made it while we waited.
        return find_environment() or _make(report)


def _folder() -> Path:
    return cache_dir() / "converters" / f"tflite-{key()}"


@contextlib.contextmanager
def _lock(path: Path, report: Callable[[str], None]) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            report("Another process sets up the TFLite converter; waiting for it ...")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _make(report: Callable[[str], None]) -> Environment:
    folder = _folder()
    check_may_download("The TFLite converter", f"Unset it, and run where pip reaches an index: {_INSTALL}")
    python, version = choose_python()
    lock = _lock_for(version)
    started = time.monotonic()
    report(f"Setting up the TFLite converter (once, a minute or two) in {folder}")
    report(
        f"To do it at another time: {_INSTALL}. To forbid it: {OFFLINE_VARIABLE}=1. pip downloads, each checked by its "
        f"hash, {lock.words}"
    )
    report(f"[1/2] a Python environment, from {python} ({version})")
    shutil.rmtree(folder, ignore_errors=True)
    venv = [*python_argv(str(python), module="venv"), "--without-pip", str(folder)]
    _run(venv, "a Python environment cannot be made")
    own = folder / "bin" / "python"
    report(f"[2/2] {CONVERTER} and what it needs")
    pip = [*_PIP, "--python", str(own), "install", "--quiet", "--disable-pip-version-check", "--no-input"]
    # The converter declares a Python that is newer than it needs.
    _run([*pip, *lock.options, "--ignore-requires-python"], "its packages cannot be installed", _INSTALL_S)
    check = "from onnx2tf import convert; import ai_edge_quantizer, onnxsim"
    argv = python_argv(str(own), code=check, isolated=True)
    _run(argv, "the converter was installed and cannot be imported", _INSTALL_S)
    facts = {"python": version, "requirements": [f"{wheel.name}=={wheel.version}" for wheel in lock.wheels]}
    (folder / _MARK).write_text(json.dumps(facts, indent=1), encoding="utf-8")
    report(f"ready after {time.monotonic() - started:.0f} s")
    return Environment(own, version, key())


def _lock_for(version: str) -> Lock:
    machine = platform.machine()
    lock = find_lock(_PURPOSE, version_pair(version), machine) if sys.platform == "linux" else None
    if lock is None:
        raise ConfigError(
            f"The TFLite converter is not published for {platform.system()} on {machine} with Python {version}: there "
            "are no packages whose hashes we know. Compile on Linux with an x86_64 or aarch64 processor."
        )
    return lock


def choose_python(candidates: Sequence[str] | None = None) -> tuple[Path, str]:
    """Return the best Python of this machine for the converter, and its version."""
    found: dict[tuple[int, int], tuple[Path, str]] = {}
    looked = _candidates() if candidates is None else candidates
    for candidate in looked:
        version = _version_of(candidate)
        if version is not None:
            found.setdefault((version[0], version[1]), (Path(candidate), ".".join(map(str, version))))
    for wanted in PYTHONS:
        if wanted in found:
            return found[wanted]
    wanted_words = ", ".join(f"{major}.{minor}" for major, minor in sorted(PYTHONS))
    raise ConfigError(
        f"The TFLite converter needs Python {wanted_words}; this machine has "
        f"{', '.join(text for _, text in found.values()) or 'none that runs'} (looked at {', '.join(looked)}). "
        "Install one of them and put it on PATH."
    )


def _candidates() -> list[str]:
    """Return where Pythons may be: on PATH, in pyenv, and the one that runs this."""
    names = [f"python{major}.{minor}" for major, minor in PYTHONS]
    found = [path for name in names if (path := shutil.which(name)) is not None]
    versions = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    for major, minor in PYTHONS:
        # A folder that may not be read, another account's for one, has nothing for us.
        with contextlib.suppress(OSError):
            found += [str(path) for path in sorted(versions.glob(f"{major}.{minor}.*/bin/python"), reverse=True)]
    base = Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    return [*found, str(base) if os.access(base, os.X_OK) else sys.executable]


def _version_of(python: str) -> tuple[int, int, int] | None:
    """Ask a Python for its version; a name on PATH may be a shim for nothing."""
    code = "import ensurepip, sys, venv; print(*sys.version_info[:3])"
    try:
        argv = python_argv(python, code=code, isolated=True)
        answer = LocalCommandRunner().run(argv, hide=True, timeout_s=_QUICK_S).stdout.split()
        return int(answer[0]), int(answer[1]), int(answer[2])
    except (CommandError, ValueError, IndexError):
        return None


def _run(argv: Sequence[str], what: str, timeout_s: float = 120.0) -> None:
    try:
        LocalCommandRunner().run(argv, hide=True, timeout_s=timeout_s)
    except CommandError as error:
        raise ConfigError(
            f"The TFLite converter cannot be set up: {what}. {error}\n"
            f"{explain_hashes(error.stderr)}Try again with: {_INSTALL}"
        ) from error
