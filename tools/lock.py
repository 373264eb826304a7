"""Write src/embedl_hub/locks: every package that the hub installs by itself, by version and hash, for each target.

    .venv/bin/python tools/lock.py [tflite | executorch | board] [--python 3.12] [--machine aarch64]

The pins are those of the TFLite converter and the packages of boards; pip, with whatever index it is set up for,
decides the rest and says the hashes. Whoever uses the hub does not need this program. Read the difference before you
commit it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import urllib.parse
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from embedl_hub.core.toolchain import board_toolchain
from embedl_hub.locked import LOCKS, LockedWheel
from embedl_hub.toolchains.executorch import environment as executorch
from embedl_hub.toolchains.tflite import environment as tflite

if TYPE_CHECKING:
    from embedl_hub.machine.environment import Recipe

MACHINES = ("x86_64", "aarch64")
OLDEST_GLIBC = 17
PIP_S = 900
ASK_S = 60


@dataclass(frozen=True)
class Purpose:
    """Something that the hub installs: its pins, those it takes without their needs, and the targets it is for."""

    name: str
    pins: tuple[str, ...]
    alone: tuple[str, ...]
    pythons: tuple[str, ...]
    glibc: int
    machines: tuple[str, ...] = MACHINES


@dataclass(frozen=True)
class Target:
    """A Python and a processor that run Linux."""

    python: str
    machine: str
    glibc: int

    @property
    def options(self) -> list[str]:
        """What pip is told to decide for it."""
        names = [f"manylinux_2_{minor}_{self.machine}" for minor in range(self.glibc, OLDEST_GLIBC - 1, -1)]
        platforms = [word for name in (*names, f"manylinux2014_{self.machine}") for word in ("--platform", name)]
        return ["--only-binary=:all:", "--implementation", "cp", "--python-version", self.python, *platforms]

    @property
    def markers(self) -> dict[str, str]:
        """What requirements may ask about it."""
        return {
            "python_version": self.python, "python_full_version": f"{self.python}.0", "os_name": "posix",
            "sys_platform": "linux", "platform_system": "Linux", "platform_machine": self.machine,
            "platform_python_implementation": "CPython", "implementation_name": "cpython", "extra": "",
        }  # fmt: skip


@dataclass(frozen=True)
class Found:
    """A file that pip chose, and what it asks for itself."""

    wheel: LockedWheel
    needs: tuple[Requirement, ...]


def purposes() -> dict[str, Purpose]:
    """Return what there is to lock, from where the product says it."""
    return {
        "tflite": _of(tflite.ENVIRONMENT, tflite.REQUIREMENTS, (tflite.CONVERTER,)),
        # pip's index must have PyTorch's CPU build; the others bring gigabytes of CUDA.
        "executorch": _of(
            executorch.ENVIRONMENT, executorch.REQUIREMENTS, (executorch.EXECUTORCH,), machines=("x86_64",)
        ),
        # glibc 2.27 is the oldest that today's onnxruntime runs on; the lock serves every newer one.
        "board": Purpose(
            "board", board_toolchain().board_packages, (), tuple(f"3.{minor}" for minor in range(8, 15)), glibc=27
        ),
    }


def _of(recipe: Recipe, pins: tuple[str, ...], alone: tuple[str, ...], machines: tuple[str, ...] = MACHINES) -> Purpose:
    pythons = tuple(f"{major}.{minor}" for major, minor in sorted(recipe.pythons))
    return Purpose(recipe.name, pins, alone, pythons, glibc=28, machines=machines)


def lock(purpose: Purpose, target: Target) -> str:
    """Return the lock of a purpose for a target."""
    wanted = list(purpose.pins)
    while True:
        found = ask_pip(wanted, target)
        reached, missing = closure(purpose.pins, found, target)
        if not missing:
            break
        # pip reads markers for the Python that runs it; what only the target needs is asked for by name.
        wanted += missing
    alone = ask_pip([*purpose.alone], target, "--no-deps", "--ignore-requires-python") if purpose.alone else {}
    wheels = sorted((each.wheel for each in (*reached.values(), *alone.values())), key=lambda wheel: wheel.name)
    head = (
        "# Written by tools/lock.py; pip install --require-hashes --no-deps --requirement THIS\n"
        f"# for Python {target.python} on {target.machine} with Linux\n# glibc 2.{target.glibc}\n"
    )
    return head + "".join(
        f"{wheel.name}=={wheel.version} --hash=sha256:{wheel.sha256}  # {wheel.size_bytes} {wheel.file_name}\n"
        for wheel in wheels
    )


def closure(pins: tuple[str, ...], found: dict[str, Found], target: Target) -> tuple[dict[str, Found], list[str]]:
    """Return what the pins bring on a target, and the requirements that pip left out."""
    reached: dict[str, Found] = {}
    missing: list[str] = []
    waiting = [Requirement(pin) for pin in pins]
    while waiting:
        need = waiting.pop()
        name = canonicalize_name(need.name)
        if name in reached or (need.marker is not None and not need.marker.evaluate(target.markers)):
            continue
        if name not in found:
            missing.append(f"{need.name}{need.specifier}")
            continue
        reached[name] = found[name]
        waiting += found[name].needs
    return reached, missing


def ask_pip(wanted: list[str], target: Target, *options: str) -> dict[str, Found]:
    """Let pip decide on files for requirements and return them by name."""
    with tempfile.TemporaryDirectory(prefix="edgeproof-lock-") as folder:
        report = Path(folder) / "report.json"
        argv = [
            sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input", "--dry-run",
            "--ignore-installed", "--target", folder, "--report", str(report), *target.options, *options, *wanted,
        ]  # fmt: skip
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=PIP_S)
        if done.returncode:
            sys.exit(f"pip finds no set for {target}:\n{done.stderr[-2000:]}")
        items = json.loads(report.read_text())["install"]
    found: dict[str, Found] = {}
    for item in items:
        said, file = item["metadata"], item["download_info"]
        name = canonicalize_name(said["name"])
        file_name = urllib.parse.unquote(urllib.parse.urlsplit(file["url"]).path.rpartition("/")[2])
        digest = file["archive_info"]["hashes"]["sha256"]
        wheel = LockedWheel(name, said["version"], digest, file_name, size_of(file["url"]))
        found[name] = Found(wheel, tuple(map(Requirement, said.get("requires_dist", ()))))
    return found


def size_of(url: str) -> int:
    """Return how much a file is to download."""
    request = urllib.request.Request(url, method="HEAD")  # noqa: S310 - an address that pip gave
    with urllib.request.urlopen(request, timeout=ASK_S) as answer:  # noqa: S310
        return int(answer.headers["Content-Length"])


def main() -> None:
    """Write the locks that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="tflite, executorch, board; all unless told")
    parser.add_argument("--python", help="this Python alone")
    parser.add_argument("--machine", choices=MACHINES, help="this processor alone")
    options = parser.parse_args()
    if wrong := [name for name in options.names if name not in purposes()]:
        sys.exit(f"There is nothing to lock called {', '.join(wrong)}; there are: {', '.join(purposes())}.")
    for name in options.names or purposes():
        purpose = purposes()[name]
        for python in [options.python] if options.python else purpose.pythons:
            for machine in [options.machine] if options.machine else purpose.machines:
                path = LOCKS / f"{name}-cp{python.replace('.', '')}-{machine}.lock"
                path.write_text(lock(purpose, Target(python, machine, purpose.glibc)), encoding="utf-8")
                print(f"{path.name}: {len(path.read_text().splitlines()) - 3} packages", flush=True)


if __name__ == "__main__":
    main()
