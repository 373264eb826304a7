"""Packages for a board that has Python and nothing else: got here by pip, sent there, unpacked there.

The board needs no pip, no compiler and no internet. What it has already is used as it is; what we put there is an
environment of its own beside our other files, and never touches the system's Python.

For the Pythons and processors that there is a lock for, the files are those we know by their hashes. For others pip
decides, which is said, and recorded with the run.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embedl_device.interpreter import python_argv
from embedl_hub.core.answer import parse_answer
from embedl_hub.core.device import LocalCommandRunner
from embedl_hub.errors import CommandError, ConfigError, DeviceError
from embedl_hub.locked import OFFLINE_VARIABLE, Lock, check_may_download, explain_hashes, find_lock, version_pair
from embedl_hub.machine.machine import scratch_folder
from embedl_hub.paths import RemotePath
from embedl_hub.tracking import RunType

if TYPE_CHECKING:
    from embedl_hub.core.context import HubContext
    from embedl_hub.core.device import CommandRunner

_OLDEST_PYTHON = (3, 8)
_OLDEST_GLIBC = 17
# Two versions a year: far off, and not so far that a board can have us ask pip for millions.
_NEWEST_GLIBC = 150
_ASK_LIMIT_S = 120.0
_GET_LIMIT_S = 900.0
_UNPACK_LIMIT_S = 600.0
_NOT_FOUND = 127
_PURPOSE = "board"
_LOG = logging.getLogger("embedl_hub")

# Old Pythons must be able to say that they are old.
_ASK = """\
import json, platform, struct, sys
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = __import__(name).__version__
    except Exception:
        found[name] = None
print(json.dumps({"version": list(sys.version_info[:2]), "machine": platform.machine(),
                  "libc": list(platform.libc_ver()), "bits": 8 * struct.calcsize("P"), "packages": found}))
"""

# A wheel is an archive; purelib and platlib inside .data belong where the rest goes, scripts are not needed.
_UNPACK = """\
import glob, os, re, shutil, sys, venv, zipfile
wheels, target = sys.argv[1:]
part = target + ".part"
for old in (part, target):
    shutil.rmtree(old, ignore_errors=True)
venv.EnvBuilder(symlinks=True, with_pip=False).create(part)
(site,) = glob.glob(os.path.join(part, "lib", "python*", "site-packages"))
for path in sorted(glob.glob(os.path.join(wheels, "*.whl"))):
    with zipfile.ZipFile(path) as archive:
        for entry in archive.infolist():
            inside = re.match(r"[^/]+[.]data/(purelib|platlib)/(.+)", entry.filename)
            if inside:
                entry.filename = inside.group(2)
            elif re.match(r"[^/]+[.]data/", entry.filename):
                continue
            archive.extract(entry, site)
os.rename(part, target)
"""


@dataclass(frozen=True)
class BoardPython:
    """A Python on a board: how to start it, and what it and its C library are.

    ``packages`` are the versions of those that were asked for; None for one that cannot be imported.
    """

    path: str
    version: tuple[int, int]
    machine: str
    libc: tuple[str, str]
    bits: int
    packages: dict[str, str | None]

    @property
    def is_complete(self) -> bool:
        """Whether every package is there."""
        return all(self.packages.values())


def need_packages(
    ctx: HubContext, device_name: str, packages: Sequence[str], *, python: str = "python3"
) -> BoardPython:
    """Return a Python on a board that has the packages: its own, or ours there, made when it is not there yet.

    ``packages`` are names that are both what pip installs and what Python imports; what is installed is recorded as a
    run.

    Raises:
        DeviceError: There is no Python that serves, or the packages cannot be got here or unpacked there.
    """
    with ctx.claim(device_name) as device:
        runner = device.runner
        if runner is None:
            raise DeviceError(f"Device {device_name!r} has no runner; packages can be put on a board only.")
        own = _ask(runner, python, packages, device_name)
        if own.is_complete:
            return own
        with ctx.client.start_run(RunType.CUSTOM, "prepare board", device=device_name) as run:
            # Beside the folders of runs and contents: see Board.
            root = RemotePath(device.artifact_dir).parent.parent
            target = root / f"python{own.version[0]}.{own.version[1]}"
            kept = _kept(runner, str(target / "bin" / "python"), packages)
            if kept is not None:
                run.log_param("packages", kept.packages)
                return kept
            with scratch_folder() as scratch:
                lock = lock_for(own, packages)
                wheels = _wheels(own, packages, lock, scratch / "wheels", device_name)
                run.log_batch({"wheels": wheels, "wheels_checked_by_hash": lock is not None})
                there = RemotePath(device.artifact_dir) / "wheels"
                runner.put(scratch / "wheels", there)
            _unpack(runner, python, there, target, device_name)
            made = _ask(runner, str(target / "bin" / "python"), packages, device_name)
            run.log_param("packages", made.packages)
            if not made.is_complete:
                lacking = ", ".join(name for name, version in made.packages.items() if version is None)
                raise DeviceError(
                    f"{lacking} was unpacked on device {device_name!r} and cannot be imported there. Look at it with: "
                    f"{made.path} -c 'import {lacking.split(', ')[0]}'"
                )
            return made


def platforms(python: BoardPython) -> list[str]:
    """Return the platforms of wheels that a board takes, the newest first; none where there are no such wheels."""
    name, version = python.libc
    numbers = re.match(r"2\.([0-9]{1,3})(\.|$)", version)
    if name != "glibc" or numbers is None or not _OLDEST_GLIBC <= int(numbers[1]) <= _NEWEST_GLIBC:
        return []
    newest = int(numbers[1])
    found = [f"manylinux_2_{minor}_{python.machine}" for minor in range(newest, _OLDEST_GLIBC - 1, -1)]
    return [*found, f"manylinux2014_{python.machine}"]


def lock_for(python: BoardPython, packages: Sequence[str]) -> Lock | None:
    """Return the files for a board that we know by their hashes; None where pip has to decide."""
    lock = find_lock(_PURPOSE, python.version, python.machine)
    if lock is None or version_pair(python.libc[1]) < lock.glibc:
        return None
    return lock if set(packages) <= {wheel.name for wheel in lock.wheels} else None


def _ask(runner: CommandRunner, python: str, packages: Sequence[str], device_name: str) -> BoardPython:
    try:
        said = runner.run([*python_argv(python, code=_ASK), *packages], hide=True, timeout_s=_ASK_LIMIT_S).stdout
        found = _understood(python, parse_answer(next(iter(said.splitlines()[-1:]), "")), packages)
    except CommandError as error:
        if error.exit_code == _NOT_FOUND:
            raise DeviceError(
                f"Device {device_name!r} has no {python!r}. Install Python 3.8 or newer there (on Debian: sudo apt "
                "install python3), or say where it is: --python PATH."
            ) from error
        raise DeviceError(f"{python} on device {device_name!r} does not answer: {error}") from error
    except (ValueError, TypeError, KeyError) as error:
        raise DeviceError(
            f"{python} on device {device_name!r} is no Python that we understand: {error!s:.200}. "
            "Say where another one is: --python PATH."
        ) from error
    if found.version < _OLDEST_PYTHON:
        raise DeviceError(
            f"{python} on device {device_name!r} is version {found.version[0]}.{found.version[1]}; 3.8 or newer is "
            "needed. Say where a newer one is: --python PATH."
        )
    return found


def _understood(python: str, facts: Any, packages: Sequence[str]) -> BoardPython:  # noqa: ANN401 - whatever it said
    """Return what a Python said of itself; what goes on into commands and names is checked for what it may be."""
    major, minor = (int(number) for number in facts["version"])
    name, version = (_word(text, r"[\w.+ -]{0,40}") for text in facts["libc"])
    found = {each: facts["packages"][each] for each in packages}
    return BoardPython(
        python, (major, minor), _word(facts["machine"], r"\w{1,40}"), (name, version), int(facts["bits"]),
        {each: None if said is None else _word(said, r"[\w.+!-]{1,60}") for each, said in found.items()},
    )  # fmt: skip


def _word(text: object, form: str) -> str:
    if not isinstance(text, str) or not re.fullmatch(form, text, re.ASCII):
        raise ValueError(f"it says {text!r:.100}")
    return text


def _kept(runner: CommandRunner, python: str, packages: Sequence[str]) -> BoardPython | None:
    """Return the environment that was put there before, if it is whole."""
    try:
        found = _ask(runner, python, packages, "")
    except DeviceError:
        return None
    return found if found.is_complete else None


def _wheels(
    python: BoardPython, packages: Sequence[str], lock: Lock | None, folder: Path, device_name: str
) -> list[str]:
    """Get the wheels for a board with this machine's pip and return their names."""
    by_hand = f"Install them there yourself ({python.path} -m pip install {' '.join(packages)})"
    wanted = platforms(python)
    if not wanted or python.bits != 64:
        library = " ".join(python.libc).strip() or "unknown"
        raise DeviceError(
            f"Device {device_name!r} ({python.machine}, {python.bits} bits, C library {library}) is none that "
            f"{', '.join(packages)} are published for as wheels. {by_hand}, then give --python PATH."
        )
    names, version = ", ".join(packages), ".".join(map(str, python.version))
    try:
        check_may_download(f"{names} for device {device_name!r}", f"{by_hand}, or unset it.")
    except ConfigError as error:
        raise DeviceError(str(error)) from error
    if lock is not None:
        _LOG.warning("For device %r pip downloads, each checked by its hash, %s", device_name, lock.words)
    else:
        _LOG.warning(
            "For device %r (Python %s, %r) pip downloads %s and what they need, in the newest versions that fit: there "
            "are no hashes to check them by. To forbid it: %s=1. %s.",
            device_name, version, python.machine, names, OFFLINE_VARIABLE, by_hand,
        )  # fmt: skip
    command = [
        *python_argv(module="pip"), "download", "--quiet", "--disable-pip-version-check", "--no-input",
        "--implementation", "cp", "--python-version", version,
        *(word for platform in wanted for word in ("--platform", platform)), "--dest", str(folder),
        *(lock.options if lock is not None else ("--only-binary=:all:", *packages)),
    ]  # fmt: skip
    try:
        LocalCommandRunner().run(command, hide=True, timeout_s=_GET_LIMIT_S)
    except CommandError as error:
        raise DeviceError(
            f"pip on this machine cannot get {names} for device {device_name!r} (Python {version}, {python.machine}): "
            f"{error.stderr.strip()[-400:] or error}\n{explain_hashes(error.stderr)}"
            f"{by_hand}, or run this again where pip reaches an index."
        ) from error
    return sorted(path.name for path in folder.glob("*.whl"))


def _unpack(runner: CommandRunner, python: str, wheels: RemotePath, target: RemotePath, device_name: str) -> None:
    try:
        runner.run([*python_argv(python, code=_UNPACK), str(wheels), str(target)], hide=True, timeout_s=_UNPACK_LIMIT_S)
    except CommandError as error:
        raise DeviceError(
            f"The packages cannot be unpacked on device {device_name!r}: {error.stderr.strip()[-400:] or error}"
        ) from error
