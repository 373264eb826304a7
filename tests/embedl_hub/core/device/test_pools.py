"""Pools of equal boards in the file of the devices."""

import dataclasses
import logging
from pathlib import Path

import pytest

from embedl_hub.core.device import DeviceQuery, DeviceSpec, Pool, load_devices, load_pools
from embedl_hub.errors import ConfigError, UnknownDeviceError

PI = DeviceSpec(architecture="aarch64", cpu="Cortex-A72", cores=4, memory_bytes=3_884_360 << 10)
DEVICES = {
    "pi-1": ("local", PI),
    "pi-2": ("local", dataclasses.replace(PI, memory_bytes=3_884_100 << 10, os="Debian 12")),
    "small": ("local", dataclasses.replace(PI, memory_bytes=1_900_000 << 10, accelerators=("hailo0",))),
    "new": ("local", DeviceSpec()),
}


def write(folder: Path, text: str) -> Path:
    file = folder / "devices.toml"
    file.write_text(text)
    return file


def test_pools_stand_beside_devices(tmp_path: Path) -> None:
    """A query or names; neither table disturbs the other."""
    file = write(
        tmp_path,
        """
        [devices.pi-1]
        type = "local"
        [pools.pis]
        where = "arch=aarch64, name=pi-*"
        [pools.lab]
        devices = ["pi-1", "small"]
        mixed = true
        """,
    )
    pools = load_pools(file)
    assert pools == {
        "pis": Pool("pis", DeviceQuery.parse("arch=aarch64, name=pi-*")),
        "lab": Pool("lab", names=("pi-1", "small"), mixed=True),
    }
    assert [device.name for device in load_devices(file)] == ["pi-1"]
    assert load_pools(tmp_path / "no file") == {}
    assert pools["pis"].members(DEVICES) == ["pi-1", "pi-2"]
    assert pools["lab"].members(DEVICES) == ["pi-1", "small"]


def test_boards_that_differ_are_refused_with_what_differs() -> None:
    """Unless the pool says that it is mixed; what the kernel keeps of the memory is no difference."""
    with pytest.raises(ConfigError) as caught:
        Pool("lab", names=("pi-1", "pi-2", "small")).members(DEVICES)
    assert "small's memory_bytes is 1945600000, pi-1's is 3977584640" in str(caught.value)
    assert "small's accelerators is ('hailo0',), pi-1's is none" in str(caught.value)
    assert "pi-2" not in str(caught.value)
    assert "mixed = true" in str(caught.value)
    with pytest.raises(ConfigError, match="other's type is qai_hub, pi-1's is local"):
        Pool("lab", names=("pi-1", "other")).members({**DEVICES, "other": ("qai_hub", PI)})


def test_a_board_that_nobody_asked_is_said(caplog: pytest.LogCaptureFixture) -> None:
    """It may be off now; it is in, with a warning."""
    with caplog.at_level(logging.WARNING, "embedl_hub"):
        assert Pool("lab", names=("pi-1", "new")).members(DEVICES) == ["pi-1", "new"]
    assert "nobody asked 'new' yet" in caplog.text


def test_a_name_that_is_no_device_is_said() -> None:
    """With those there are."""
    with pytest.raises(UnknownDeviceError, match="Pool 'lab' names 'attic', which is no device; there are: 'new'"):
        Pool("lab", names=("attic",)).members(DEVICES)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ("where = 'arch=aarch64'\ndevices = ['pi-1']", "either a query"),
        ("mixed = true", "either a query"),
        ("where = 3", "where is a query"),
        ("where = 'color=red'", "'color'"),
        ("devices = 'pi-1'", "devices is a list of names"),
        ("devices = ['pi-1', 'pi-1']", "twice"),
        ("devices = ['pi-1']\nmixed = 'yes'", "mixed is true or false"),
        ("device = ['pi-1']", "known: 'devices', 'mixed', 'where'"),
    ],
)
def test_a_wrong_table_is_said(tmp_path: Path, table: str, words: str) -> None:
    """With the file, the pool and what is known."""
    with pytest.raises(ConfigError) as caught:
        load_pools(write(tmp_path, f"[pools.lab]\n{table}\n"))
    assert words in str(caught.value)
    assert "pool 'lab'" in str(caught.value)


def test_other_tables_are_refused(tmp_path: Path) -> None:
    """A slip in a table's name must not hide a pool."""
    with pytest.raises(ConfigError, match=r"holds 'pool'; .*\[pools.NAME\]"):
        load_pools(write(tmp_path, "[pool.lab]\nwhere = 'name=*'\n"))
