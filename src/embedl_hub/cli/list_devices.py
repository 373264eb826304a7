"""``embedl-hub list-devices``: the devices of this home, and what installed providers offer."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import click

from embedl_hub.cli._health import chosen, health_as_value, where_option
from embedl_hub.cli._output import emit, home_option, json_option, table, working
from embedl_hub.cli._settings import read_settings
from embedl_hub.core.component import installed_providers
from embedl_hub.core.context import spec_as_value
from embedl_hub.core.device import DEVICES_FILE, load_devices, recall_spec
from embedl_hub.errors import HubError
from embedl_hub.health import device_health
from embedl_hub.tracking import Store, find_home

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from embedl_hub.core.device import Device

_SHOWN = ("type", "state", "reached_by", "device_name")


@click.command()
@click.option("--offered/--no-offered", default=True, help="Also ask providers what they offer, such as a cloud.")
@click.option("--match", default="", help="Only offered devices with this word in them.")
@where_option
@home_option
@json_option
def command(offered: bool, match: str, where: str | None, home: Path | None, as_json: bool) -> None:
    """List the devices of this home with their health, and what installed providers offer."""
    folder = find_home(home)
    own = _own(folder, load_devices(folder / DEVICES_FILE) if where is None else chosen(folder, (), where))
    # What a provider offers is no device of this home; a query speaks of those.
    catalogue, problems = _offered(match) if offered and where is None else ([], {})
    if as_json:
        emit({"devices": own, "offered": catalogue, "problems": problems})
        return
    if own:
        rows = [
            (f"{'* ' if row['is_in_use'] else ''}{row['name']}", *(str(row[key] or "-") for key in _SHOWN))
            for row in own
        ]
        table(("device", "type", "state", "reached by", "what it is"), rows)
    else:
        click.echo(f"No devices in {folder / DEVICES_FILE}; steps run on this machine. Add one: embedl-hub device add")
    if catalogue:
        table(("offered", "by", "os", "attributes"),
              [(row["device_name"], row["type"], row["os"], row["attributes"]) for row in catalogue])  # fmt: skip
    for provider_type, problem in problems.items():
        click.echo(f"{provider_type}: {problem}", err=True)


def _own(folder: Path, devices: Sequence[Device]) -> list[dict[str, Any]]:
    in_use = read_settings(folder).get("device")
    with _store(folder) as store:
        states = device_health(store, [device.name for device in devices])
    rows = []
    for device in devices:
        spec = recall_spec(folder, device)
        rows.append(
            {
                "name": device.name,
                "type": device.provider_type,
                **health_as_value(states[device.name]),
                "reached_by": "its provider" if device.runner is None else _place(device.runner),
                "device_name": spec.device_name,
                "spec": spec_as_value(spec),
                "is_in_use": device.name == in_use,
            }
        )
    return rows


def _store(folder: Path) -> contextlib.AbstractContextManager[Store | None]:
    return Store(folder) if (folder / "runs").is_dir() else contextlib.nullcontext()


def _place(runner: object) -> str:
    config = getattr(runner, "config", None)
    return f"ssh {config.place}" if config is not None else "this machine"


def _offered(match: str) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Return what providers offer; a provider with a catalogue has a function ``offered_devices``."""
    rows: list[dict[str, Any]] = []
    problems: dict[str, str] = {}
    for provider in installed_providers():
        ask = getattr(provider.package, "offered_devices", None)
        if ask is None:
            continue
        try:
            with working(f"asking {provider.type}"):
                specs = ask()
        except HubError as error:
            problems[provider.type] = " ".join(str(error).split())
            continue
        for spec in specs:
            row = {
                "type": provider.type,
                "device_name": spec.device_name or "",
                "os": spec.os or "",
                "attributes": ", ".join(f"{name} {value}" for name, value in spec.versions.items()),
            }
            if match.lower() in " ".join(row.values()).lower():
                rows.append(row)
    return rows, problems
