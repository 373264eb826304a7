"""``embedl-hub use``: choose the project and device that commands take when none is given."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from embedl_device.schema import TEXT, fields
from embedl_hub.cli._output import home_option, json_option, report
from embedl_hub.cli._settings import SETTINGS_FILE, change_toml, read_settings
from embedl_hub.core.device import DEVICES_FILE, read_devices
from embedl_hub.errors import ConfigError, UnknownDeviceError, quoted_list
from embedl_hub.tracking import check_name, find_home

if TYPE_CHECKING:
    import tomlkit


@click.command()
@click.option("--project", help="Record runs under this project.")
@click.option("--device", help="Run on this device; an empty name goes back to the first compatible one.")
@home_option
@json_option(fields({"home": TEXT}, {"project": TEXT, "device": TEXT}))
def command(project: str | None, device: str | None, home: Path | None, as_json: bool) -> None:
    """Choose the project and device that commands take when none is given."""
    folder = find_home(home, uses_devices=False)
    if project is not None:
        check_name("project name", project)
    if device:
        names = read_devices(folder / DEVICES_FILE)
        if device not in names:
            raise UnknownDeviceError(
                f"There is no device {device!r} in {folder / DEVICES_FILE}; there are: {quoted_list(names)}. "
                "Add it with: embedl-hub device add"
            )
    if project is None and device is None:
        raise ConfigError("Nothing was chosen; give --project or --device. embedl-hub show tells what is in use.")

    def change(document: tomlkit.TOMLDocument) -> None:
        for key, value in (("project", project), ("device", device)):
            if value:
                document[key] = value
            elif value is not None:
                document.pop(key, None)

    change_toml(folder / SETTINGS_FILE, change)
    settings = read_settings(folder)
    text = f"In {folder}: " + ", ".join(f"{key} {value!r}" for key, value in settings.items())
    report({"home": str(folder), **settings}, text, as_json=as_json)
