"""An aarch64 userland with Python, numpy and ONNX Runtime for QEMU's user mode: made once per user, without root."""

from __future__ import annotations

import fcntl
import importlib.metadata
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NoReturn

from support.debian import leave_off

_LIMIT_S = 300
_PYTHON = "3.11"
_RELEASE = "bookworm"  # the Debian release that has this Python
_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_DEBS = (
    "python3.11-minimal", "libpython3.11-minimal", "libpython3.11-stdlib", "libc6", "libstdc++6", "libgcc-s1", "zlib1g",
    "libexpat1", "libssl3", "libffi8", "libbz2-1.0", "liblzma5", "libsqlite3-0", "libuuid1",
)  # fmt: skip
_WHEELS = ("numpy", "onnxruntime")
_PLATFORMS = ("manylinux_2_28_aarch64", "manylinux_2_27_aarch64", "manylinux2014_aarch64")
# ONNX Runtime asks /proc and /sys, which are the x86 host's under user mode, and crashes on what they say: a folder
# for each processor holds what that one would say. The number is Arm's of the part; max is none, and says Neoverse V1.
_PARTS = {"cortex-a53": "0xd03", "cortex-a72": "0xd08", "max": "0xd40"}
_CPUS = range(2)
_RECIPE = 1  # one more when what is made below changes


def userland() -> Path:
    """Return the userland's folder, made when it is not there; ``seen-by/CPU`` in it is what ``qemu -L`` takes."""
    versions = {name: importlib.metadata.version(name) for name in _WHEELS}
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "edgeproof-tests"
    root = cache / "-".join(("aarch64", str(_RECIPE), _PYTHON, *(f"{name}{versions[name]}" for name in _WHEELS)))
    if root.exists():
        return root
    cache.mkdir(parents=True, exist_ok=True)
    # One lock per cache: parallel workers would all make it.
    with (cache / "aarch64.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not root.exists():
            with tempfile.TemporaryDirectory(dir=cache, prefix="making-") as making:
                made = Path(making, "root")
                _unpack_debs(made, Path(making, "apt"))
                _install_wheels(made / "site", versions)
                for cpu, part in _PARTS.items():
                    _describe(made, cpu, part)
                made.rename(root)
    return root


def _unpack_debs(root: Path, folder: Path) -> None:
    for program in ("apt-get", "dpkg-deb"):
        if shutil.which(program) is None:
            _refuse(f"{program} is missing: the userland is made of Debian's packages")
    if not _KEYRING.exists():
        _refuse(f"{_KEYRING} is missing; install it with: apt-get install debian-archive-keyring")
    for name in ("lists/partial", "cache/archives/partial", "debs"):
        (folder / name).mkdir(parents=True)
    (folder / "status").touch()
    (folder / "sources.list").write_text("".join(f"deb [signed-by={_KEYRING}] {line}\n" for line in _mirrors()))
    settings = {
        "APT::Architecture": "arm64", "APT::Architectures": "arm64", "Dir::State": folder,
        "Dir::State::status": folder / "status", "Dir::Cache": folder / "cache",
        "Dir::Etc::sourcelist": folder / "sources.list", "Dir::Etc::sourceparts": "/dev/null",
        "APT::Sandbox::User": "root", "Acquire::Languages": "none",
    }  # fmt: skip
    apt_get = ["apt-get", "-q", *(word for name, value in settings.items() for word in ("-o", f"{name}={value}"))]
    _do([*apt_get, "update"], folder)
    _do([*apt_get, "download", *_DEBS], folder / "debs")
    root.mkdir()
    for deb in sorted((folder / "debs").glob("*.deb")):
        _do(["dpkg-deb", "-x", str(deb), str(root)], folder)


def _mirrors() -> list[str]:
    """Return where this machine's own packages come from; it must be of that release."""
    asked = ["apt-get", "indextargets", "--format", "$(SITE) $(RELEASE) $(COMPONENT)", "Created-By: Packages"]
    said = subprocess.run(asked, capture_output=True, text=True, timeout=_LIMIT_S, check=False).stdout
    own = sorted({line for line in said.splitlines() if line.split()[1].startswith(_RELEASE) and "/debian" in line})
    if not own:
        _refuse(f"apt-get knows no packages of Debian {_RELEASE}; add that release to its sources and update them")
    return own


def _install_wheels(site: Path, versions: dict[str, str]) -> None:
    platforms = [word for name in _PLATFORMS for word in ("--platform", name)]
    wanted = [f"{name}=={version}" for name, version in versions.items()]
    _do(
        [
            sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps",
            "--only-binary=:all:", *platforms, "--python-version", _PYTHON, "--implementation", "cp",
            "--target", str(site), *wanted,
        ],
        site.parent,
    )  # fmt: skip


def _describe(root: Path, cpu: str, part: str) -> None:
    seen = root / "seen-by" / cpu
    seen.mkdir(parents=True)
    for name in ("lib", "usr", "etc"):
        (seen / name).symlink_to(Path("../..", name))
    everything = f"{_CPUS[0]}-{_CPUS[-1]}\n"
    cpus = seen / "sys/devices/system/cpu"
    files = {cpus / name: everything for name in ("possible", "present", "online")}
    for number in _CPUS:
        one = cpus / f"cpu{number}"
        files |= {
            one / "topology/physical_package_id": "0\n",
            one / "topology/core_id": f"{number}\n",
            one / "topology/thread_siblings_list": f"{number}\n",
            one / "topology/core_siblings_list": everything,
            one / "topology/package_cpus_list": everything,
            one / "topology/cluster_cpus_list": everything,
            one / "cache/index2/level": "2\n",
            one / "cache/index2/size": "1024K\n",
            one / "cache/index2/shared_cpu_list": everything,
        }
    files[seen / "proc/cpuinfo"] = "\n".join(
        f"processor\t: {number}\nFeatures\t: fp asimd\nCPU implementer\t: 0x41\nCPU architecture: 8\n"
        f"CPU variant\t: 0x0\nCPU part\t: {part}\nCPU revision\t: 0\n"
        for number in _CPUS
    )
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def _do(command: list[str], folder: Path) -> None:
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        _refuse(f"{command[0]} took more than {_LIMIT_S} s")
    if done.returncode:
        _refuse(f"{' '.join(command[:1] + command[-3:])} failed: {done.stderr[-1000:]}")


def _refuse(why: str) -> NoReturn:
    leave_off("ONNX Runtime for aarch64", why)
