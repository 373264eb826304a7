"""Devices in a file: every slip is answered with what is known, and secrets are refused."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from embedl_hub import plugins
from embedl_hub.core.device import (
    DeviceKind,
    EmbedlONNXRuntimeConfig,
    LocalCommandRunner,
    ProviderConfig,
    QAIHubConfig,
    RunnerKind,
    SSHCommandRunner,
    device_kind_names,
    find_device_kind,
    load_devices,
    register_device_kind,
    register_runner,
)
from embedl_hub.errors import ConfigError


def _file(folder: Path, text: str) -> Path:
    path = folder / "devices.toml"
    path.write_text(text)
    return path


def test_devices_are_read_in_their_order(tmp_path: Path) -> None:
    """A board, this machine and a cloud."""
    path = _file(
        tmp_path,
        """
        [devices.kitchen]
        type = "embedl-onnxruntime"
        ssh = { host = "192.168.1.20", username = "pi", port = 2222 }
        config = { threads = 4, cli_args = ["--quiet"] }
        spec = { device_name = "Raspberry Pi 5", accelerators = ["hailo0"] }
        lease_dir = ""
        artifact_root = "/data/hub"

        [devices.here]
        type = "local"

        [devices.phone]
        type = "qai_hub"
        spec = { device_name = "Samsung Galaxy S24" }
        config = { timeout_s = 60.0 }
        """,
    )
    kitchen, here, phone = load_devices(path)
    assert isinstance(kitchen.runner, SSHCommandRunner)
    assert kitchen.runner.config.place == "pi@192.168.1.20:2222"
    assert kitchen.provider_type == "embedl_onnxruntime"
    assert kitchen.provider_config == EmbedlONNXRuntimeConfig(threads=4, cli_args=("--quiet",))
    assert kitchen.lease_dir is None
    assert kitchen.spec.accelerators == ("hailo0",)
    assert isinstance(here.runner, LocalCommandRunner)
    assert here.provider_config is None
    assert phone.runner is None
    assert phone.provider_config == QAIHubConfig(timeout_s=60.0)


def test_a_file_that_is_not_there_has_no_devices(tmp_path: Path) -> None:
    """Nothing is created."""
    assert load_devices(tmp_path / "none.toml") == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "[devices.a]\ntype = 'toaster'",
            "no kind of device 'toaster'; known: 'aws', 'embedl_executorch', 'embedl_litert', ",
        ),
        ("[devices.a]\nname = 'x'", "has 'name'; known: "),
        ("[devices.a]\nssh = {host='h'}", "needs a type"),
        ("[devices.a]\ntype = 'embedl_onnxruntime'", "needs its settings: ssh = { host"),
        ("[devices.a]\ntype = 'embedl_onnxruntime'\nssh = {}", "host"),
        ("[devices.a]\ntype = 'embedl_onnxruntime'\nssh = {host='h', prot=1}", "has 'prot'; known: "),
        ("[devices.a]\ntype = 'local'\nconfig = {threads = 0}", "device 'a': threads must be at least 1"),
        ("[devices.a]\ntype = 'local'\nconfig = {until = 'p98'}", "device 'a': until is one of 'mlperf', 'p90'"),
        ("[devices.a]\ntype = 'local'\nconfig = 3", "must be a table"),
        ("[devices.a]\ntype = 'local'\nrunner = 'ssh'", "is reached by 'local', 'none', not 'ssh'"),
        ("[devices.a]\ntype = 'qai_hub'\nconfig = {api_token = 'x'}", "secrets have no place"),
        ("[devices.a]\ntype = 'embedl_onnxruntime'\nssh = {host='h', password='x'}", "secrets have no place"),
        ("[device.a]\ntype = 'local'", "holds 'device'"),
        ("devices = 3", "a table of its own"),
        ("[devices.a", "cannot be read"),
    ],
)
def test_slips_are_answered(tmp_path: Path, text: str, words: str) -> None:
    """With the place and the names that are known; a secret's value is never repeated."""
    with pytest.raises(ConfigError) as caught:
        load_devices(_file(tmp_path, text))
    assert words in str(caught.value)


@dataclass(frozen=True)
class _ToasterConfig(ProviderConfig):
    slots: int = 2


def test_a_new_kind_needs_no_change_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever owns it registers it; installed packages by entry point."""
    monkeypatch.setattr(plugins, "_REGISTERED", {})
    register_device_kind(DeviceKind("my-toaster", "A toaster.", _ToasterConfig, reached_by=("none",)))
    assert "my_toaster" in device_kind_names()
    (device,) = load_devices(_file(tmp_path, "[devices.t]\ntype = 'my-toaster'\nconfig = {slots = 4}"))
    assert device.provider_config == _ToasterConfig(4)


def test_kinds_come_from_entry_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that cannot be loaded, or is none, is said by name."""
    package = tmp_path / "toaster-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: toaster\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text(
        "[embedl_hub.device_kinds]\ntoaster = toaster_kind:KIND\nbroken = nothing_here:KIND\nodd = toaster_kind:ODD\n"
    )
    (tmp_path / "toaster_kind.py").write_text(
        "from embedl_hub.core.device import DeviceKind\nKIND = DeviceKind('toaster', 'A toaster.')\nODD = 3\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert find_device_kind("toaster").summary == "A toaster."
    with pytest.raises(ConfigError, match=r"'broken' .* cannot be loaded"):
        find_device_kind("broken")
    with pytest.raises(ConfigError, match="not a DeviceKind"):
        find_device_kind("odd")
    with pytest.raises(ConfigError, match="reached_by"):
        DeviceKind("x", "y", reached_by=())


class _Pigeon:
    """A way to reach a board that nobody here knows."""

    def __init__(self, config: _PigeonConfig) -> None:
        self.address = f"pigeon {config.loft}"

    def run(self, argv: object, cwd: object = None, *, hide: bool = False, timeout_s: float | None = None) -> object:
        raise NotImplementedError

    def put(self, local: object, remote: object) -> None:
        raise NotImplementedError

    def get(self, remote: object, local: object) -> None:
        raise NotImplementedError


@dataclass(frozen=True)
class _PigeonConfig:
    loft: str


def test_a_new_way_to_reach_devices_needs_no_change_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its settings stand in the device's table under its name; kinds that go with any runner take it."""
    monkeypatch.setattr(plugins, "_REGISTERED", {})
    make: Any = _Pigeon
    register_runner(RunnerKind("pigeon", "By air.", make, _PigeonConfig, "{ loft = '' }"))
    text = "[devices.t]\ntype = 'embedl_onnxruntime'\npigeon = {loft = 'north'}"
    (device,) = load_devices(_file(tmp_path, text))
    assert getattr(device.runner, "address", None) == "pigeon north"
    with pytest.raises(ConfigError, match="needs its settings: pigeon = "):
        load_devices(_file(tmp_path, "[devices.t]\ntype = 'embedl_onnxruntime'\nrunner = 'pigeon'"))
    with pytest.raises(ConfigError, match="is reached by 'local', 'none', not 'pigeon'"):
        load_devices(_file(tmp_path, "[devices.t]\ntype = 'local'\nrunner = 'pigeon'\npigeon = {loft = 'x'}"))
