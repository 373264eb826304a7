"""``embedl-hub list-devices``: the devices of this home, and what installed providers offer."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

import click

from embedl_device.schema import ANY, FLAG, TEXT, array, both, by_name, fields, maybe
from embedl_hub.cli._device_commands import HEALTH, chosen, health_as_value, where_option
from embedl_hub.cli._output import emit, home_option, json_option, table, working
from embedl_hub.cli._settings import read_settings
from embedl_hub.core.context import spec_as_value
from embedl_hub.core.device import DEVICES_FILE, Device, LocalCommandRunner, device_kinds, load_devices, recall_spec
from embedl_hub.errors import HubError, NoProviderError
from embedl_hub.health import device_health
from embedl_hub.tracking import Store, find_home

_SHOWN = ("type", "state", "reached_by", "device_name")


_DEVICE = both(
    fields({"name": TEXT, "type": TEXT}),
    HEALTH,
    fields({"reached_by": TEXT, "device_name": maybe(TEXT), "spec": by_name(ANY), "is_in_use": FLAG}),
)
_OFFERED = fields({"type": TEXT, "device_name": TEXT, "os": TEXT, "attributes": TEXT})


@click.command()
@click.option("--offered/--no-offered", default=True, help="Also ask providers what they offer, such as a cloud.")
@click.option("--match", default="", help="Only offered devices with this word in them.")
@where_option
@home_option
@json_option(fields({"devices": array(_DEVICE), "offered": array(_OFFERED), "problems": by_name(TEXT)}))
def command(offered: bool, match: str, where: str | None, home: Path | None, as_json: bool) -> None:
    """List the devices of this home with their health, and what installed providers offer."""
    folder = find_home(home)
    own = _own(folder, load_devices(folder / DEVICES_FILE) if where is None else chosen(folder, (), where))
    # What a provider offers is no device of this home; a query speaks of those.
    catalog, problems = _offered(match) if offered and where is None else ([], {})
    if as_json:
        emit({"devices": own, "offered": catalog, "problems": problems})
        return
    if own:
        rows = [
            (f"{'* ' if row['is_in_use'] else ''}{row['name']}", *(str(row[key] or "-") for key in _SHOWN))
            for row in own
        ]
        table(("device", "type", "state", "reached by", "what it is"), rows)
    else:
        click.echo(f"No devices in {folder / DEVICES_FILE}; steps run on this machine. Add one: embedl-hub device add")
    columns = ("device_name", "type", "os", "attributes")
    table(("offered", "by", "os", "attributes"), [tuple(row[column] for column in columns) for row in catalog])
    for provider_type, problem in problems.items():
        click.echo(f"{provider_type}: {problem}", err=True)


def _own(folder: Path, devices: Sequence[Device]) -> list[dict[str, object]]:
    in_use = read_settings(folder).get("device")
    with Store(folder) if (folder / "runs").is_dir() else contextlib.nullcontext() as store:
        states = device_health(store, [device.name for device in devices])
    rows = []
    for device in devices:
        spec, address = recall_spec(folder, device), "its provider"
        if type(device.runner) is LocalCommandRunner:
            address = "this machine"
        elif device.runner is not None:
            address = getattr(device.runner, "address", None) or repr(device.runner)
        health = health_as_value(states[device.name])
        facts = {"name": device.name, "type": device.provider_type, **health, "reached_by": address}
        facts |= {"device_name": spec.device_name, "spec": spec_as_value(spec), "is_in_use": device.name == in_use}
        rows.append(facts)
    return rows


def _offered(match: str) -> tuple[list[dict[str, str]], dict[str, str]]:
    """Return what services offer."""
    rows: list[dict[str, str]] = []
    problems: dict[str, str] = {}
    for kind in device_kinds():
        if kind.catalog is None:
            continue
        try:
            with working(f"asking {kind.type}"):
                specs = kind.catalog()
        except NoProviderError:
            # Whoever does not use a service has not installed its client; doctor tells what is missing.
            continue
        except HubError as error:
            problems[kind.type] = " ".join(str(error).split())
            continue
        for spec in specs:
            row = {"type": kind.type, "device_name": spec.device_name or "", "os": spec.os or ""}
            row["attributes"] = ", ".join(f"{name} {value}" for name, value in spec.versions.items())
            if match.lower() in " ".join(row.values()).lower():
                rows.append(row)
    return rows, problems
