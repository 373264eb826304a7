"""What boards said they are, kept in the home."""

import dataclasses
import json
import os
import platform
from collections.abc import Callable
from pathlib import Path

import pytest
from support.sshd import SSHServer

from embedl_hub.core import HubContext
from embedl_hub.core.device import (
    Device,
    DeviceSpec,
    LocalCommandRunner,
    SSHCommandRunner,
    recall_spec,
    remember_spec,
)
from embedl_hub.errors import UnknownDeviceError

FOUND = DeviceSpec(
    architecture="aarch64",
    accelerators=("hailo0",),
    memory_bytes=4 << 30,
    versions={"python": "3.11"},
    features=("asimd", "asimddp"),
)


def test_a_board_is_known_by_name_and_way(tmp_path: Path, ssh_server: SSHServer) -> None:
    """Another host, another user or another name is another board; what the user says stays on top."""
    config = ssh_server.config()
    device = Device("pi", SSHCommandRunner(config))
    remember_spec(tmp_path, device, FOUND)
    assert recall_spec(tmp_path, device) == FOUND
    said = dataclasses.replace(device, spec=DeviceSpec(architecture="armv7l", versions={"l4t": "36"}))
    assert recall_spec(tmp_path, said) == dataclasses.replace(
        FOUND, architecture="armv7l", versions={"python": "3.11", "l4t": "36"}
    )
    for other in (
        Device("pi", SSHCommandRunner(dataclasses.replace(config, host="10.0.0.9"))),
        Device("pi", SSHCommandRunner(dataclasses.replace(config, username="anna"))),
        Device("pi-2", SSHCommandRunner(config)),
        Device("pi", LocalCommandRunner()),
        Device("pi"),
    ):
        assert recall_spec(tmp_path, other) == DeviceSpec()
    assert recall_spec(None, device) == DeviceSpec()


def test_a_memory_that_cannot_be_used_is_none(tmp_path: Path) -> None:
    """Damaged, of another shape, or in a home that cannot be written: the board is asked again."""
    device = Device("pi", LocalCommandRunner())
    remember_spec(tmp_path, device, FOUND)
    (file,) = (tmp_path / "boards").iterdir()
    assert json.loads(file.read_text())["device"] == "pi"
    for text in ("{", "[]", "{}", '{"spec": 3}', "\xff"):
        file.write_text(text, encoding="latin-1")
        assert recall_spec(tmp_path, device) == DeviceSpec()
    remember_spec(tmp_path, device, FOUND)
    assert recall_spec(tmp_path, device) == FOUND
    blocked = tmp_path / "file"
    blocked.touch()
    remember_spec(blocked, device, FOUND)
    assert recall_spec(blocked, device) == DeviceSpec()


def test_the_same_answer_is_not_written_again(tmp_path: Path) -> None:
    """A context per command must not wear out an SD card."""
    device = Device("pi", LocalCommandRunner())
    remember_spec(tmp_path, device, FOUND)
    (file,) = (tmp_path / "boards").iterdir()
    os.utime(file, (1, 1))
    remember_spec(tmp_path, device, FOUND)
    assert file.stat().st_mtime == 1


def test_a_context_finds_boards_that_are_off(
    tmp_path: Path, new_server: Callable[..., SSHServer], connect: Callable[..., SSHCommandRunner]
) -> None:
    """Asked once, known to every later context; one that never answered is said not to be known."""
    server = new_server()
    device = Device("pi", connect(server, connect_timeout_s=2))
    query = f"arch={platform.machine()}, cores>=1"
    with HubContext("first", [device], home=tmp_path / "home") as ctx:
        assert ctx.known_spec("pi").architecture is None
        assert ctx.find_devices("name=p*") == ["pi"]
        assert ctx.known_spec("pi").architecture is None, "a name needs no connection"
        assert ctx.find_devices(query) == ["pi"]
    server.stop()
    never = Device("never", connect(server, connect_timeout_s=2))
    with HubContext("second", [device, never], home=tmp_path / "home", keep_remote=True) as ctx:
        assert ctx.find_devices(query) == ["pi"]
        with pytest.raises(UnknownDeviceError) as caught:
            ctx.find_devices("cores>=100000")
    assert "pi: its cores is" in str(caught.value)
    assert "never: its cores is not known (ask it: embedl-hub device health never)" in str(caught.value)
