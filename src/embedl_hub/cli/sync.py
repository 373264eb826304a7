"""``embedl-hub sync``: send runs that a server has not got yet."""

from __future__ import annotations

import json
from pathlib import Path

import click

from embedl_hub.errors import ConfigError, TrackingError
from embedl_hub.tracking import Store, find_home, open_uplink


@click.command()
@click.option("--home", type=click.Path(path_type=Path), help="The store's folder; found as for a run if not given.")
@click.option("--all", "everything", is_flag=True, help="Every run of the store, also those recorded without a server.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
def command(home: Path | None, everything: bool, as_json: bool) -> None:
    """Send runs that a server has not got yet.

    The server is the one of EMBEDL_HUB_API_BASE_URL and EMBEDL_HUB_API_KEY, or the one kept by ``embedl-hub auth``.
    What it has already is not sent again.
    """
    folder = find_home(home)
    if not (folder / "runs").is_dir():
        raise ConfigError(f"There is no store at {folder} yet. Run something first, or name one with --home.")
    with Store(folder) as store:
        uplink = open_uplink(store)
        if uplink is None:
            raise ConfigError("No server is known. Set EMBEDL_HUB_API_BASE_URL and EMBEDL_HUB_API_KEY.")
        runs = [run_id for run_id, _ in store.manifests()] if everything else []
        sent = uplink.send_all(also=runs)
    if as_json:
        click.echo(json.dumps({"sent": sent.runs, "waiting": sent.waiting, "refused": sent.refused}))
    else:
        click.echo(f"Runs sent: {sent.runs}. Still to be sent: {sent.waiting}.")
    if sent.refused:
        reasons = "\n".join(f"{run_id}: {reason}" for run_id, reason in sent.refused.items())
        raise TrackingError(f"The server does not take {len(sent.refused)} runs:\n{reasons}")
