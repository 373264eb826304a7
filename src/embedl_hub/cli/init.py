"""``embedl-hub init``: make this folder a project with a store of its own."""

from __future__ import annotations

from pathlib import Path

import click

from embedl_device.schema import FLAG, TEXT, fields
from embedl_hub.cli._output import PATH, json_option, report
from embedl_hub.cli._settings import SETTINGS_FILE, change_toml, read_settings
from embedl_hub.errors import ConfigError
from embedl_hub.paths import make_private
from embedl_hub.tracking import check_name
from embedl_hub.trust import PROJECT_FOLDER

# Devices and settings are worth sharing; runs are data.
_IGNORED = "blobs/\nboards/\nkernel_costs/\noutbox/\nruns/\nhub.db*\nlock\ndamaged-*\n"


@click.command()
@click.argument("project", required=False)
@click.option("--folder", type=PATH, default=Path(), help="The folder; this one if not given.")
@json_option(fields({"home": TEXT, "project": TEXT, "is_new": FLAG}))
def command(project: str | None, folder: Path, as_json: bool) -> None:
    """Make this folder a project: its runs, devices and settings go into .embedl here.

    PROJECT is what its runs are grouped under; the folder's name if not given.
    """
    folder = folder.absolute()
    if not folder.is_dir():
        raise ConfigError(f"There is no folder {folder}.")
    home = folder / PROJECT_FOLDER
    name = project or read_settings(home).get("project") or folder.name or "default"
    check_name("project name", name)
    is_new = not home.is_dir()
    try:
        make_private(home)
        if not (home / ".gitignore").exists():
            (home / ".gitignore").write_text(_IGNORED, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{home} cannot be made: {error}.") from error
    change_toml(home / SETTINGS_FILE, lambda document: document.update({"project": name}))
    text = f"{'Made' if is_new else 'Found'} {home}; runs are recorded under project {name!r}."
    hint = "Next: embedl-hub device add, or embedl-hub compile onnxruntime MODEL.onnx"
    report({"home": str(home), "project": name, "is_new": is_new}, text, hint, as_json=as_json)
