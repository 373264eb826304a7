"""``embedl-hub trust``: trust the devices of a project folder, as they are now."""

from __future__ import annotations

from pathlib import Path

import click

from embedl_device.schema import FLAG, TEXT, array, by_name, either, fields
from embedl_hub import trust
from embedl_hub.cli._output import PATH, json_option, report, table
from embedl_hub.errors import ConfigError
from embedl_hub.tracking import search_home
from embedl_hub.trust import PROJECT_FOLDER

_SHAPE = either(
    fields({"home": TEXT, "acts": array(TEXT), "sha256": by_name(TEXT)}),
    fields({"home": TEXT, "was_trusted": FLAG}),
    array(fields({"home": TEXT, "state": TEXT})),
)


@click.command()
@click.argument("folder", type=PATH, required=False)
@click.option("--list", "listed", is_flag=True, help="Show what is trusted, and whether it has changed since.")
@click.option("--remove", is_flag=True, help="Trust the folder no longer.")
@json_option(_SHAPE)
def command(folder: Path | None, listed: bool, remove: bool, as_json: bool) -> None:
    """Trust the devices of a project folder, as they are now.

    FOLDER is a project or its .embedl; the one found from here if not given. A .embedl that came with a repository can
    name hosts and programs, so its devices are used after you have looked at them. When they change, they have to be
    trusted again; changes by embedl-hub device are yours. A folder named by --home or EMBEDL_HUB_HOME needs no trust.
    """
    if listed:
        _show(as_json=as_json)
        return
    home = _home_of(folder)
    if remove:
        was = trust.forget(home)
        text = f"{home} is trusted no longer." if was else f"{home} was not trusted."
        report({"home": str(home), "was_trusted": was}, text, as_json=as_json)
        return
    found = trust.trust(home)
    acts = list(found.lines.values())
    lines = [f"  {line}" for line in acts] or ["  nothing in it acts: no devices, no links"]
    facts = {"home": str(home), "acts": acts, "sha256": dict(found.digests)}
    report(facts, f"{home} is trusted as it is now:", *lines, as_json=as_json)


def _home_of(folder: Path | None) -> Path:
    if folder is None:
        found = search_home()
        if found is None:
            raise ConfigError(f"There is no {PROJECT_FOLDER} in this folder or above it; name one, or: embedl-hub init")
        return found
    folder = folder.absolute()
    home = folder if folder.name == PROJECT_FOLDER else folder / PROJECT_FOLDER
    if not home.is_dir():
        raise ConfigError(f"There is no folder {home}.")
    return home


def _show(*, as_json: bool) -> None:
    facts, rows = [], []
    for name, digests in sorted(trust.trusted_homes().items()):
        home = Path(name)
        state = "is gone"
        if home.is_dir():
            state = "as trusted" if trust.acting_parts(home).digests == digests else "changed since"
        facts.append({"home": name, "state": state})
        rows.append((name, state))
    if as_json or not rows:
        report(facts, "No folder is trusted.", as_json=as_json)
        return
    table(("folder", "state"), rows, folds=True)
