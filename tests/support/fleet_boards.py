"""Boards that are sshds on loopback, written into a host's devices.toml, for steps of the plain toolchain."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import tomlkit

from embedl_hub.core import HubContext
from embedl_hub.core.device import DEVICES_FILE, load_devices
from support import fleet
from support.sshd import SSHServer

BOARD_TYPE = "embedl_onnxruntime"

fleet.PlainCompiler.provider(BOARD_TYPE, replace=True)(fleet._compile)


@fleet.PlainProfiler.provider(BOARD_TYPE, replace=True)
def _profile(
    ctx: HubContext,
    model: fleet.PlainModel,
    *,
    device: str | None,
    wait_s: float,
    command: tuple[str, ...],
    fail: str | None,
    hang: bool,
    note: str | None,
    value: float,
) -> fleet.PlainProfile:
    ctx.client.log_artifact(model.path, name="input", ctx=ctx)
    return fleet._profile(
        ctx, model, device=device, wait_s=wait_s, command=command, fail=fail, hang=hang, note=note, value=value
    )


def write_devices(home: Path, servers: dict[str, SSHServer]) -> None:
    """Write how a host reaches its boards."""
    home.mkdir(parents=True, exist_ok=True)
    tables = {name: _table(server) for name, server in servers.items()}
    (home / DEVICES_FILE).write_text(tomlkit.dumps({"devices": tables}))


def _table(server: SSHServer) -> dict[str, object]:
    config = server.config()
    return {
        "type": BOARD_TYPE,
        "ssh": {
            "host": config.host,
            "username": config.username,
            "port": config.port,
            "identity_file": str(config.identity_file),
            "known_hosts": str(config.known_hosts),
            "config_file": str(config.config_file),
        },
        "artifact_root": str(server.folder / "board"),
        # All boards of this machine share one /tmp, and each has a lease of its own.
        "lease_dir": str(server.folder / "lease"),
    }


@contextlib.contextmanager
def take_lease(home: Path, name: str, *, wait_s: float) -> Iterator[None]:
    """Have a board for oneself, as somebody else would."""
    device = next(device for device in load_devices(home / DEVICES_FILE) if device.name == name)
    runner = device.runner
    try:
        with runner.lease(device.lease_dir, "somebody else", wait_s=wait_s):  # type: ignore[union-attr]
            yield
    finally:
        runner.close()  # type: ignore[union-attr]
