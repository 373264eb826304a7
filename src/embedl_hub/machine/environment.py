"""An environment of its own for a vendor's tools: made once, remembered, never the user's.

Some tools pin their dependencies to versions that clash with everything else, or are too large to ask of everybody.
They get a Python environment in the hub's cache. All that is in it is locked: pip installs the files whose hashes we
know and decides nothing.
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
from embedl_hub.core.device import CheckResult, LocalCommandRunner
from embedl_hub.errors import CommandError, ConfigError
from embedl_hub.locked import LOCKS, OFFLINE_VARIABLE, Lock, check_may_download, explain_hashes, find_lock, version_pair

CACHE_VARIABLE = "EMBEDL_HUB_CACHE"
_MARK = "ready.json"
# This Python's pip installs for the other, which need not have one.
_PIP = tuple(python_argv(module="pip"))
_QUICK_S = 30.0
_INSTALL_S = 1800.0
_LOG = logging.getLogger("embedl_hub")

Report = Callable[[str], None]


@dataclass(frozen=True)
class Environment:
    """An environment that is ready; another set of requirements has another key."""

    python: Path
    version: str
    key: str


def cache_dir() -> Path:
    """Return where the hub keeps what it can make again."""
    chosen = os.environ.get(CACHE_VARIABLE)
    return Path(chosen) if chosen else Path(platformdirs.user_cache_dir("edgeproof"))


@dataclass(frozen=True)
class Recipe:
    """What an environment is made from; ``name`` is its toolchain's, and the purpose of its locks."""

    name: str
    title: str  # what messages call it: ``TFLite converter``
    contents: str  # what is in it for its own sake, with the version
    pythons: tuple[tuple[int, int], ...]  # those it runs on, in the order they are taken
    check: str  # a program that ends well when all that is needed can be imported
    pip_options: tuple[str, ...] = ()
    duration: str = "a minute or two"
    # What else to do where it cannot be made, as a sentence
    otherwise: str = "Compile on Linux with an x86_64 or aarch64 processor."

    @property
    def install(self) -> str:
        """The line that makes it."""
        return f"embedl-hub doctor --install {self.name}"

    @property
    def key(self) -> str:
        """A short name for what the environment is made from: every lock, so that it is the same everywhere."""
        locks = b"".join(path.read_bytes() for path in sorted(LOCKS.glob(f"{self.name}-*.lock")))
        return hashlib.sha256(locks).hexdigest()[:12]

    def find(self) -> Environment | None:
        """Return the environment if it was made before."""
        folder = self._folder()
        try:
            facts = json.loads((folder / _MARK).read_text(encoding="utf-8"))
            found = Environment(folder / "bin" / "python", str(facts["python"]), self.key)
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return found if found.python.exists() else None

    def need(self, report: Report = _LOG.warning) -> Environment:
        """Return the environment; the first time it is made, which takes minutes."""
        found = self.find()
        if found is not None:
            return found
        with _lock(self._folder().with_suffix(".lock"), self.title, report):
            # Somebody else may have made it while we waited.
            return self.find() or self._make(report)

    def checks(self) -> list[CheckResult]:
        """Tell ``embedl-hub doctor`` whether it is there."""
        found, name = self.find(), f"{self.name} converter"
        if found is None:
            return [CheckResult(name, is_ok=None, message="made by the first compilation", advice=self.install)]
        return [CheckResult(name, is_ok=True, message=self._words(found))]

    def install_aloud(self) -> None:
        """Make it and tell how it goes; ``embedl-hub doctor --install`` calls it."""

        def report(text: str) -> None:
            sys.stderr.write(f"{text}\n")

        report(f"The {self.title} is ready: {self._words(self.need(report))}")

    def choose_python(self, candidates: Sequence[str] | None = None) -> tuple[Path, str]:
        """Return the best Python of this machine for it, and its version."""
        found: dict[tuple[int, int], tuple[Path, str]] = {}
        looked = _candidates(self.pythons) if candidates is None else candidates
        for candidate in looked:
            version = _version_of(candidate)
            if version is not None:
                found.setdefault((version[0], version[1]), (Path(candidate), ".".join(map(str, version))))
        for wanted in self.pythons:
            if wanted in found:
                return found[wanted]
        wanted_words = ", ".join(f"{major}.{minor}" for major, minor in sorted(self.pythons))
        raise ConfigError(
            f"The {self.title} needs Python {wanted_words}; this machine has "
            f"{', '.join(text for _, text in found.values()) or 'none that runs'} (looked at {', '.join(looked)}). "
            "Install one of them and put it on PATH."
        )

    def _words(self, made: Environment) -> str:
        return f"{self.contents} on Python {made.version} in {made.python.parent.parent}"

    def _folder(self) -> Path:
        return cache_dir() / "converters" / f"{self.name}-{self.key}"

    def _make(self, report: Report) -> Environment:
        folder = self._folder()
        check_may_download(f"The {self.title}", f"Unset it, and run where pip reaches an index: {self.install}")
        python, version = self.choose_python()
        lock = self._lock_for(version)
        started = time.monotonic()
        report(f"Setting up the {self.title} (once, {self.duration}) in {folder}")
        report(
            f"To do it at another time: {self.install}. To forbid it: {OFFLINE_VARIABLE}=1. pip downloads, each "
            f"checked by its hash, {lock.words}"
        )
        report(f"[1/2] a Python environment, from {python} ({version})")
        shutil.rmtree(folder, ignore_errors=True)
        venv = [*python_argv(str(python), module="venv"), "--without-pip", str(folder)]
        self._run(venv, "a Python environment cannot be made")
        own = folder / "bin" / "python"
        report(f"[2/2] {self.contents} and what it needs")
        pip = [*_PIP, "--python", str(own), "install", "--quiet", "--disable-pip-version-check", "--no-input"]
        self._run([*pip, *lock.options, *self.pip_options], "its packages cannot be installed", _INSTALL_S)
        argv = python_argv(str(own), code=self.check, isolated=True)
        self._run(argv, "it was installed and cannot be imported", _INSTALL_S)
        facts = {"python": version, "requirements": [f"{wheel.name}=={wheel.version}" for wheel in lock.wheels]}
        (folder / _MARK).write_text(json.dumps(facts, indent=1), encoding="utf-8")
        report(f"ready after {time.monotonic() - started:.0f} s")
        return Environment(own, version, self.key)

    def _lock_for(self, version: str) -> Lock:
        machine = platform.machine()
        lock = find_lock(self.name, version_pair(version), machine) if sys.platform == "linux" else None
        if lock is None:
            raise ConfigError(
                f"The {self.title} is not published for {platform.system()} on {machine} with Python {version}: there "
                f"are no packages whose hashes we know. {self.otherwise}"
            )
        return lock

    def _run(self, argv: Sequence[str], what: str, timeout_s: float = 120.0) -> None:
        try:
            LocalCommandRunner().run(argv, hide=True, timeout_s=timeout_s)
        except CommandError as error:
            raise ConfigError(
                f"The {self.title} cannot be set up: {what}. {error}\n"
                f"{explain_hashes(error.stderr)}Try again with: {self.install}"
            ) from error


@contextlib.contextmanager
def _lock(path: Path, title: str, report: Report) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            report(f"Another process sets up the {title}; waiting for it ...")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _candidates(pythons: Sequence[tuple[int, int]]) -> list[str]:
    """Return where Pythons may be: on PATH, in pyenv, and the one that runs this."""
    names = [f"python{major}.{minor}" for major, minor in pythons]
    found = [path for name in names if (path := shutil.which(name)) is not None]
    versions = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    for major, minor in pythons:
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
