"""``embedl-hub reindex``: the database is only an index; this rebuilds it."""

from __future__ import annotations

from pathlib import Path

import click

from embedl_device.schema import TEXT, WHOLE, array, fields
from embedl_hub.cli._output import home_option, json_option, report
from embedl_hub.errors import ConfigError, TrackingError
from embedl_hub.tracking import Store, find_home, reindex


@click.command()
@home_option
@json_option(fields({"home": TEXT, "runs": WHOLE, "unread": array(TEXT)}))
def command(home: Path | None, as_json: bool) -> None:
    """Rebuild the index of runs from the run folders.

    Use it after copying run folders in from elsewhere, or when the database is damaged (the damaged file is
    kept beside the new one). Runs whose process died are marked.
    """
    folder = find_home(home, uses_devices=False)
    if not folder.is_dir():
        raise ConfigError(f"There is no store at {folder}. Name one with --home or EMBEDL_HUB_HOME.")
    runs = reindex(folder)
    with Store(folder) as store:
        unread = store.folders_without_a_run()
    facts = {"home": str(folder), "runs": runs, "unread": list(map(str, unread))}
    report(facts, f"Runs indexed in {folder}: {runs}", as_json=as_json)
    if unread:
        paths = ", ".join(map(str, unread))
        raise TrackingError(f"The manifests of {len(unread)} folders could not be read; they are left alone: {paths}")
