"""``embedl-hub collect``: free the space of contents that no run uses any more."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import click

from embedl_device.schema import of
from embedl_hub.cli._output import home_option, json_option, open_store, report, size
from embedl_hub.tracking import Collected, collect


@click.command()
@click.option("--dry-run", is_flag=True, help="List what would be deleted.")
@home_option
@json_option(of(Collected))
def command(dry_run: bool, home: Path | None, as_json: bool) -> None:
    """Free the space of contents that no run uses any more, such as those of deleted runs.

    What was stored within the last hour stays: its run may be being written.
    """
    with open_store(home) as store:
        found = collect(store, dry_run=dry_run)
    verb = "would be freed" if dry_run else "freed"
    young = f"; {found.kept_young} younger than an hour stay" if found.kept_young else ""
    text = f"{found.files} contents, {size(found.size_bytes)} {verb}{young}."
    report(dataclasses.asdict(found), text, as_json=as_json)
