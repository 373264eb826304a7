"""``embedl-hub show``: what is in use here: home, project, devices, server, versions."""

from __future__ import annotations

import importlib.metadata
import platform
import re
from pathlib import Path

import click

from embedl_device.schema import FLAG, TEXT, array, by_name, fields, maybe
from embedl_hub.cli._output import emit, home_option, json_option, table
from embedl_hub.cli._settings import DEFAULT_PROJECT, read_settings
from embedl_hub.core.device import DEVICES_FILE, read_devices
from embedl_hub.credentials import find_server
from embedl_hub.tracking import find_home

_SHAPE = fields(
    {
        "home": TEXT, "home_exists": FLAG, "project": TEXT, "device": maybe(TEXT), "devices": array(TEXT),
        "server": maybe(TEXT), "has_key": FLAG, "versions": by_name(TEXT),
    }
)  # fmt: skip


@click.command()
@home_option
@json_option(_SHAPE)
def command(home: Path | None, as_json: bool) -> None:
    """Show what is in use here: home, project, devices, server, versions."""
    folder = find_home(home, uses_devices=False)
    settings = read_settings(folder)
    server = find_server()
    project, device = settings.get("project", DEFAULT_PROJECT), settings.get("device")
    devices = list(read_devices(folder / DEVICES_FILE))
    if as_json:
        emit(
            {
                "home": str(folder), "home_exists": folder.is_dir(), "project": project, "device": device,
                "devices": devices, "server": None if server is None else server.url,
                "has_key": server is not None and server.key is not None, "versions": versions(),
            }
        )  # fmt: skip
        return
    rows = [
        ("home", f"{folder}{'' if folder.is_dir() else ' (not there yet)'}"),
        ("project", project),
        ("device", device or "the first compatible one"),
        ("devices", ", ".join(devices) or "none; this machine serves"),
        ("server", "none: runs stay here" if server is None else f"{server.url}{'' if server.key else ' (no key)'}"),
        *((f"{name}", version) for name, version in versions().items()),
    ]
    table(None, rows)


def versions() -> dict[str, str]:
    """Return the versions of Python and of our installed distributions."""
    installed = {str(each.name or ""): each.version for each in importlib.metadata.distributions()}
    ours = {name: installed[name] for name in sorted(installed) if re.match("edgeproof[-_]", name.lower())}
    return {"python": platform.python_version(), **ours}
