"""What boards said they are, kept in the home: a board is known without connecting to it again.

One small file per board, named after its name and the way it is reached: a board that is reached another way is
another board. Whoever asks a board writes what it said, so a wrong memory lasts until the next use.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import secrets
import socket
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from embedl_hub.core.device._local import LocalCommandRunner
from embedl_hub.core.device._spec import DeviceSpec
from embedl_hub.core.device._ssh import SSHCommandRunner

if TYPE_CHECKING:
    from pathlib import Path

    from embedl_hub.core.device._device import Device

BOARDS_FOLDER = "boards"
_LOG = logging.getLogger("embedl_hub")


def recall_spec(home: Path | None, device: Device) -> DeviceSpec:
    """Return what is known of a device without asking it: what the user says, over what it said before."""
    path = _path(home, device)
    if path is None:
        return device.spec
    try:
        remembered = _as_spec(json.loads(path.read_bytes())["spec"])
    except FileNotFoundError:
        return device.spec
    except (OSError, ValueError, TypeError, KeyError) as error:
        # A memory that cannot be read is no memory; the next answer of the board replaces it.
        _LOG.info("What device %r said before cannot be read from %s: %s", device.name, path, error)
        return device.spec
    return device.spec.over(remembered)


def remember_spec(home: Path | None, device: Device, found: DeviceSpec) -> None:
    """Keep what a board said of itself; a home that cannot be written is no reason to stop."""
    path = _path(home, device)
    if path is None:
        return
    content = {"device": device.name, "reached_by": _way(device), "spec": asdict(found)}
    text = json.dumps(content, indent=1).encode()
    try:
        if path.exists() and path.read_bytes() == text:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
        part.write_bytes(text)
        part.replace(path)
    except OSError as error:
        _LOG.info("What device %r is cannot be kept in %s: %s", device.name, path, error)


def _path(home: Path | None, device: Device) -> Path | None:
    way = _way(device)
    if home is None or way is None:
        return None
    # Hashed: a device may be called what no file can.
    key = hashlib.sha256(f"{device.name}\0{way}".encode()).hexdigest()[:32]
    return home / BOARDS_FOLDER / f"{key}.json"


def _way(device: Device) -> str | None:
    """Return how a board is reached; None for runners of which we do not know what makes them the same."""
    runner = device.runner
    if isinstance(runner, SSHCommandRunner):
        config = runner.config
        parts = (config.place, config.jump_host and f"via {config.jump_host}", config.config_file)
        return " ".join(("ssh", *(os.fspath(part) for part in parts if part)))
    # A home may be shared by machines that all call themselves local.
    return f"local {socket.gethostname()}" if isinstance(runner, LocalCommandRunner) else None


def _as_spec(values: dict[str, Any]) -> DeviceSpec:
    kept = {each.name: values[each.name] for each in fields(DeviceSpec) if each.name in values}
    lists = {name: tuple(kept.get(name, ())) for name in ("accelerators", "features")}
    return DeviceSpec(**{**kept, **lists})
