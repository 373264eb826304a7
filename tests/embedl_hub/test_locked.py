"""What the hub installs by itself is known to the last byte, for every Python and processor that is supported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

from embedl_hub.core.toolchain import board_toolchain
from embedl_hub.errors import ConfigError
from embedl_hub.locked import (
    LOCKS,
    OFFLINE_VARIABLE,
    check_may_download,
    explain_hashes,
    find_lock,
    read_lock,
    size_words,
    version_pair,
)
from embedl_hub.toolchains.executorch import environment as executorch
from embedl_hub.toolchains.tflite.environment import CONVERTER, REQUIREMENTS

MACHINES = ("x86_64", "aarch64")
TFLITE = [(python, machine) for python in ((3, 11), (3, 12), (3, 13)) for machine in MACHINES]
BOARDS = [((3, minor), machine) for minor in range(8, 15) for machine in MACHINES]
PINS = {
    "tflite": (CONVERTER, *REQUIREMENTS),
    "executorch": (executorch.EXECUTORCH, *executorch.REQUIREMENTS),
    "board": board_toolchain().board_packages,
}
ALL = [("tflite", *target) for target in TFLITE] + [("executorch", (3, 11), "x86_64")]
ALL += [("board", *target) for target in BOARDS]


def test_there_is_a_lock_for_every_target_and_no_other() -> None:
    """Three Pythons of the converter, seven of boards, two processors each; one where torch has no CUDA."""
    assert len(list(LOCKS.iterdir())) == len(ALL)
    assert all(find_lock(*target) is not None for target in ALL)
    for purpose, python, machine in (
        ("tflite", (3, 10), "x86_64"),
        ("tflite", (3, 12), "riscv64"),
        ("nothing", (3, 12), "x86_64"),
    ):
        assert find_lock(purpose, python, machine) is None


def test_a_board_cannot_say_which_file_is_read() -> None:
    """Its processor is a word that it told us."""
    assert find_lock("board", (3, 9), "x86_64.lock/../board-cp39-x86_64") is None
    assert find_lock("board", (3, 9), "*") is None


@pytest.mark.parametrize(("purpose", "python", "machine"), ALL)
def test_a_lock_has_its_pins_and_only_files_that_fit(purpose: str, python: tuple[int, int], machine: str) -> None:
    """Each once, with its size, for that Python, processor and C library."""
    lock = find_lock(purpose, python, machine)
    assert lock is not None
    versions = {wheel.name: wheel.version for wheel in lock.wheels}
    assert len(versions) == len(lock.wheels)
    for pin in map(Requirement, PINS[purpose]):
        assert pin.specifier.contains(versions[canonicalize_name(pin.name)])
    for wheel in lock.wheels:
        name, version, _, tags = parse_wheel_filename(wheel.file_name)
        assert (name, str(version)) == (wheel.name, wheel.version)
        assert wheel.size_bytes > 1000
        assert any(_fits(tag.interpreter, tag.abi, tag.platform, python, machine, lock.glibc) for tag in tags), wheel


def _fits(
    interpreter: str, abi: str, platform: str, python: tuple[int, int], machine: str, glibc: tuple[int, int]
) -> bool:
    own = f"cp{python[0]}{python[1]}"
    is_python = interpreter in {own, "py3", "py2.py3"} or (
        abi == "abi3" and interpreter.startswith("cp3") and int(interpreter[3:]) <= python[1]
    )
    minor = {"manylinux2014": "2.17", "manylinux2010": "2.12", "manylinux1": "2.5"}.get(platform.partition("_")[0])
    minor = minor or ".".join(platform.split("_")[1:3])
    is_platform = platform == "any" or (platform.endswith(f"_{machine}") and version_pair(minor) <= glibc)
    return is_python and is_platform


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("purpose", "python", "machine"), ALL)
def test_nothing_is_left_for_pip_to_decide(purpose: str, python: tuple[int, int], machine: str, tmp_path: Path) -> None:
    """Told to follow dependencies, pip finds each of them in the lock: one without a hash is an error."""
    lock = find_lock(purpose, python, machine)
    assert lock is not None
    lines = [
        line for line in lock.path.read_text().splitlines() if not line.startswith((CONVERTER, executorch.EXECUTORCH))
    ]
    (tmp_path / "lock").write_text("\n".join(lines))
    platforms = [f"manylinux_2_{minor}_{machine}" for minor in range(lock.glibc[1], 16, -1)]
    argv = [
        sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--require-hashes",
        "--only-binary=:all:", "--implementation", "cp", "--python-version", f"{python[0]}.{python[1]}",
        *(word for name in (*platforms, f"manylinux2014_{machine}") for word in ("--platform", name)),
        "--target", str(tmp_path / "none"), "--requirement", str(tmp_path / "lock"),
    ]  # fmt: skip
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stderr[-2000:]


def test_a_lock_says_what_it_brings() -> None:
    """How many, how large, and each by name, version and size."""
    lock = find_lock("board", (3, 12), "aarch64")
    assert lock is not None
    total = sum(wheel.size_bytes for wheel in lock.wheels)
    assert lock.words.startswith(f"{len(lock.wheels)} packages, {size_words(total)}: ")
    assert "onnxruntime " in lock.words
    assert [size_words(size) for size in (7_862, 137_673, 33_062_057)] == ["8 kB", "0.1 MB", "33 MB"]


def test_a_line_without_a_hash_is_damage(tmp_path: Path) -> None:
    """A lock is all hashes, or it is none."""
    (tmp_path / "x.lock").write_text("# glibc 2.28\nnumpy==2.2.6\n")
    with pytest.raises(ConfigError, match=r"damaged at 'numpy==2.2.6'"):
        read_lock(tmp_path / "x.lock")


@pytest.mark.parametrize(
    ("value", "is_allowed"), [("1", False), ("yes", False), ("", True), ("0", True), ("off", True)]
)
def test_downloads_can_be_forbidden(value: str, is_allowed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the variable and what to do."""
    monkeypatch.setenv(OFFLINE_VARIABLE, value)
    if is_allowed:
        check_may_download("It", "Do that.")
    else:
        with pytest.raises(
            ConfigError, match=f"It would have to be downloaded, and {OFFLINE_VARIABLE}={value}.*Do that"
        ):
            check_may_download("It", "Do that.")


def test_only_a_wrong_hash_is_explained() -> None:
    """Every other complaint of pip speaks for itself."""
    assert explain_hashes("No matching distribution") == ""
    assert "has changed it" in explain_hashes(
        "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE."
    )


def test_the_locks_name_no_address() -> None:
    """Whoever installs has an index of their own."""
    assert not any("://" in path.read_text() or os.sep + "opt" in path.read_text() for path in LOCKS.iterdir())
