"""TOML files within bounds: each is refused in one line, by every file of ours that is TOML."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from embedl_device.readers import UnreadableError
from embedl_hub.cli._output import as_value
from embedl_hub.cli._settings import change_toml, read_settings
from embedl_hub.core.device import load_devices
from embedl_hub.errors import ConfigError
from embedl_hub.fleet import read_sweep
from embedl_hub.toml import parse_toml

HOSTILE = {
    "deep list": "a = " + "[" * 100_000,
    "deep table": "a = " + "{a = " * 50_000,
    "long key": "a." * 200_000 + "a = 1",
    "long number": "a = " + "9" * 5000,
    "large": "#" * (5 << 20),
    "no text": "\udcff",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused(name: str, tmp_path: Path) -> None:
    """Within a second, in one line."""
    content = HOSTILE[name].encode("utf-8", "surrogateescape")
    readers: dict[str, Callable[[Path], object]] = {
        "sweep.toml": read_sweep, "devices.toml": load_devices, "config.toml": lambda path: read_settings(path.parent),
        "other.toml": lambda path: change_toml(path, lambda _: None),
    }  # fmt: skip
    start = time.perf_counter()
    for file, read in readers.items():
        (tmp_path / file).write_bytes(content)
        with pytest.raises(ConfigError, match="cannot be") as caught:
            read(tmp_path / file)
        assert "\n" not in str(caught.value)
    assert time.perf_counter() - start < 10


def test_a_pipe_is_no_file(tmp_path: Path) -> None:
    """It would make us wait for ever."""
    os.mkfifo(tmp_path / "sweep.toml")
    with pytest.raises(ConfigError, match="no plain file"):
        read_sweep(tmp_path / "sweep.toml")


def test_ordinary_dots_are_fine() -> None:
    """In lists of numbers, in texts and in addresses."""
    text = f"a = [{', '.join(['0.5'] * 500)}]\nb.c.d = '10.0.0.1'\ne = '{'One, two. ' * 200}'\n"
    assert len(parse_toml(text)["a"]) == 500
    with pytest.raises(UnreadableError):
        parse_toml("a" + ".a" * 100 + " = 1")
    assert as_value("[" * 100_000) == "[" * 100_000
