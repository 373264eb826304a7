"""``embedl-hub reindex``: the database is only an index; this rebuilds it."""

from __future__ import annotations

from pathlib import Path

import click

from embedl_hub.cli._output import home_option
from embedl_hub.errors import ConfigError, TrackingError
from embedl_hub.tracking import Store, find_home, reindex


@click.command()
@home_option
def command(home: Path | None) -> None:
    """Rebuild the index of runs from the run folders.

    Use it after copying run folders in from elsewhere, or when the database is damaged (the damaged file is
    kept beside the new one). Runs whose process died are marked.
    """
    folder = find_home(home, uses_devices=False)
    if not folder.is_dir():
        raise ConfigError(f"There is no store at {folder}. Name one with --home or EMBEDL_HUB_HOME.")
    click.echo(f"Runs indexed in {folder}: {reindex(folder)}")
    with Store(folder) as store:
        unread = store.folders_without_a_run()
    if unread:
        paths = ", ".join(map(str, unread))
        raise TrackingError(f"The manifests of {len(unread)} folders could not be read; they are left alone: {paths}")
