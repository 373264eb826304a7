"""Boards that cannot be given packages are told so, with the next step; what a board takes is read from itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.wheels import planted_index

from embedl_hub.core.device import Device, LocalCommandRunner
from embedl_hub.errors import DeviceError
from embedl_hub.locked import OFFLINE_VARIABLE, find_lock
from embedl_hub.machine.install import BoardPython, lock_for, need_packages, platforms
from embedl_hub.testing import temporary_context

PI: dict[str, Any] = {
    "version": [3, 9], "machine": "aarch64", "libc": ["glibc", "2.31"], "bits": 64,
    "packages": {"numpy": "1.19.5", "onnxruntime": None},
}  # fmt: skip


@pytest.fixture
def board(tmp_path: Path) -> Device:
    return Device(
        "board", LocalCommandRunner(), provider_type="embedl_onnxruntime", artifact_root=tmp_path / "root",
        lease_dir=None,
    )  # fmt: skip


def python_that_says(folder: Path, text: str) -> str:
    """Write a program that answers as a board's Python would, whatever it is asked."""
    path = folder / "python"
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{text}\nEND\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        ({"libc": ["", ""]}, "C library unknown.*Install them there yourself"),
        ({"libc": ["musl", "1.2"]}, "C library musl 1.2"),
        ({"machine": "armv7l", "bits": 32}, "armv7l, 32 bits.*published for as wheels"),
        ({"libc": ["glibc", "2.12"]}, "C library glibc 2.12"),
        ({"version": [3, 6]}, "is version 3.6; 3.8 or newer"),
    ],
    ids=["no library", "musl", "32 bits", "old glibc", "old python"],
)
def test_a_board_without_wheels_is_refused(facts: dict[str, Any], says: str, board: Device, tmp_path: Path) -> None:
    """It names what the board is and what to do by hand."""
    python = python_that_says(tmp_path, json.dumps({**PI, **facts}))
    with temporary_context([board]) as ctx, pytest.raises(DeviceError, match=says):
        need_packages(ctx, "board", ("numpy", "onnxruntime"), python=python)


def test_no_index_is_said_in_pips_words(board: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine is offline too: what cannot be got is named, and both ways out."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    python = python_that_says(tmp_path, json.dumps(PI))
    with temporary_context([board]) as ctx, pytest.raises(DeviceError) as caught:
        need_packages(ctx, "board", ("numpy", "onnxruntime"), python=python)
    for words in ("cannot get numpy, onnxruntime", "Python 3.9, aarch64", "where pip reaches an index"):
        assert words in str(caught.value)


def test_a_tampered_wheel_never_reaches_the_board(
    board: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An index that serves its own code: what is downloaded was said, and is refused for its hash."""
    lock = find_lock("board", (3, 9), "aarch64")
    known = [(wheel.name, wheel.version) for wheel in lock.wheels] if lock else [("numpy", "9"), ("onnxruntime", "9")]
    planted_index(tmp_path / "index", dict(known), monkeypatch)
    python = python_that_says(tmp_path, json.dumps(PI))
    with temporary_context([board]) as ctx, pytest.raises(DeviceError, match=r"(?s)Expected sha256.*has changed it"):
        need_packages(ctx, "board", ("numpy", "onnxruntime"), python=python)
    assert not list((tmp_path / "root").rglob("*.whl"))
    assert "For device 'board' pip downloads, each checked by its hash, 9 packages, " in caplog.text


def test_what_has_no_hashes_is_said(
    board: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A board with an older C library than the locked files take gets what pip decides on, and its user knows."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    python = python_that_says(tmp_path, json.dumps({**PI, "libc": ["glibc", "2.19"]}))
    with temporary_context([board]) as ctx, pytest.raises(DeviceError, match="cannot get numpy, onnxruntime"):
        need_packages(ctx, "board", ("numpy", "onnxruntime"), python=python)
    assert "there are no hashes to check them by. To forbid it: EMBEDL_HUB_OFFLINE=1" in caplog.text


def test_offline_nothing_is_downloaded_for_a_board(
    board: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What to do by hand is in the error."""
    monkeypatch.setenv(OFFLINE_VARIABLE, "1")
    python = python_that_says(tmp_path, json.dumps(PI))
    message = (
        r"numpy, onnxruntime for device 'board' would have to be downloaded.*OFFLINE=1.*Install them there yourself"
    )
    with temporary_context([board]) as ctx, pytest.raises(DeviceError, match=message):
        need_packages(ctx, "board", ("numpy", "onnxruntime"), python=python)


@pytest.mark.parametrize(
    ("change", "is_locked"),
    [({}, True), ({"version": (3, 14)}, True), ({"version": (3, 20)}, False), ({"machine": "riscv64"}, False),
     ({"libc": ("glibc", "2.26")}, False), ({"libc": ("glibc", "2.100")}, True)],
)  # fmt: skip
def test_which_boards_have_a_lock(change: dict[str, Any], is_locked: bool) -> None:
    """By Python, processor and C library; another package has none."""
    facts = {"version": (3, 11), "machine": "aarch64", "libc": ("glibc", "2.31"), **change}
    python = BoardPython("python3", bits=64, packages={}, **facts)
    assert (lock_for(python, ("numpy", "onnxruntime")) is not None) == is_locked
    assert lock_for(python, ("numpy", "torch")) is None


def test_what_is_no_python_is_said(board: Device, tmp_path: Path) -> None:
    """Another program of that name does not become a KeyError."""
    python = python_that_says(tmp_path, "hello")
    with temporary_context([board]) as ctx, pytest.raises(DeviceError, match="no Python that we understand"):
        need_packages(ctx, "board", ("numpy",), python=python)


@pytest.mark.parametrize(
    "facts",
    [
        {"libc": ["glibc", "2.2000000"]}, {"libc": ["glibc", "2." + "9" * 5000]}, {"libc": "glibc"}, {"libc": [1, 2]},
        {"machine": "aarch64 --index-url http://evil"}, {"machine": "x" * 10**6}, {"machine": "\x1b]0;x\x07"},
        {"version": ["3", []]}, {"version": [3]}, {"version": 3}, {"bits": None}, {"bits": {}}, {"packages": []},
        {"packages": {"numpy": {"a": 1}, "onnxruntime": None}},
    ],
    ids=lambda facts: f"{facts}"[:40],
)  # fmt: skip
def test_a_board_that_lies_about_its_python_is_refused(facts: dict[str, Any], board: Device, tmp_path: Path) -> None:
    """Nothing of it becomes two million arguments of pip, an option of it, or an error of ours."""
    python = python_that_says(tmp_path, json.dumps({**PI, **facts}))
    with temporary_context([board]) as ctx, pytest.raises(DeviceError) as caught:
        need_packages(ctx, "board", ("numpy", "onnxruntime"), python=python)
    assert len(str(caught.value)) < 1000
    assert "\x1b" not in str(caught.value)


def test_a_device_without_a_runner_is_refused() -> None:
    """A cloud has no folder of ours."""
    with (
        temporary_context([Device("cloud", provider_type="qai_hub")]) as ctx,
        pytest.raises(DeviceError, match="on a board only"),
    ):
        need_packages(ctx, "cloud", ("numpy",))


def test_the_newest_platform_comes_first() -> None:
    """Wheels for an older glibc run on a newer one, never the other way round."""
    python = BoardPython("python3", (3, 11), "aarch64", ("glibc", "2.19"), 64, {})
    assert platforms(python) == [
        "manylinux_2_19_aarch64", "manylinux_2_18_aarch64", "manylinux_2_17_aarch64", "manylinux2014_aarch64",
    ]  # fmt: skip
