"""``embedl-hub show``: what is in use here: home, project, devices, server, versions."""

from __future__ import annotations

import importlib.metadata
import platform
from typing import TYPE_CHECKING

import click

from embedl_hub.cli._output import emit, home_option, json_option, table
from embedl_hub.cli._settings import DEFAULT_PROJECT, read_settings
from embedl_hub.core.device import DEVICES_FILE, read_devices
from embedl_hub.credentials import find_server
from embedl_hub.tracking import find_home

if TYPE_CHECKING:
    from pathlib import Path


@click.command()
@home_option
@json_option
def command(home: Path | None, as_json: bool) -> None:
    """Show what is in use here: home, project, devices, server, versions."""
    folder = find_home(home)
    settings = read_settings(folder)
    server = find_server()
    facts = {
        "home": str(folder),
        "home_exists": folder.is_dir(),
        "project": settings.get("project", DEFAULT_PROJECT),
        "device": settings.get("device"),
        "devices": list(read_devices(folder / DEVICES_FILE)),
        "server": None if server is None else server.url,
        "has_key": server is not None and server.key is not None,
        "versions": versions(),
    }
    if as_json:
        emit(facts)
        return
    there = "" if facts["home_exists"] else " (not there yet)"
    rows = [
        ("home", f"{folder}{there}"),
        ("project", str(facts["project"])),
        ("device", str(facts["device"] or "the first that serves a step")),
        ("devices", ", ".join(map(str, read_devices(folder / DEVICES_FILE))) or "none; this machine serves"),
        ("server", "none: runs stay here" if server is None else f"{server.url}{'' if server.key else ' (no key)'}"),
        *((f"{name}", version) for name, version in versions().items()),
    ]
    table(None, rows)


def versions() -> dict[str, str]:
    """Return the versions of Python and of our installed distributions."""
    ours = {
        str(each.name): each.version for each in importlib.metadata.distributions() if _is_ours(str(each.name or ""))
    }
    return {"python": platform.python_version(), **dict(sorted(ours.items()))}


def _is_ours(name: str) -> bool:
    return name.lower().replace("_", "-").startswith("edgeproof-")
