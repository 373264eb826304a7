"""``embedl-hub sync``: send runs that a server has not got yet."""

from __future__ import annotations

from pathlib import Path

import click

from embedl_device.schema import TEXT, WHOLE, by_name, fields
from embedl_hub.cli._output import home_option, json_option, open_store, report
from embedl_hub.errors import ConfigError, TrackingError
from embedl_hub.tracking import open_uplink


@click.command()
@home_option
@click.option("--all", "everything", is_flag=True, help="Every run of the store, also those recorded without a server.")
@json_option(fields({"sent": WHOLE, "waiting": WHOLE, "refused": by_name(TEXT), "elsewhere": WHOLE}))
def command(home: Path | None, everything: bool, as_json: bool) -> None:
    """Send runs that a server has not got yet.

    The server is the one of EMBEDL_HUB_API_BASE_URL and EMBEDL_HUB_API_KEY, or the one kept by ``embedl-hub auth``.
    What it has already is not sent again.
    """
    with open_store(home) as store:
        uplink = open_uplink(store)
        if uplink is None:
            raise ConfigError("No server is known. Name one: embedl-hub auth URL, or set EMBEDL_HUB_API_BASE_URL.")
        runs = [run_id for run_id, _ in store.manifests()] if everything else []
        sent = uplink.send_all(also=runs)
    facts = {"sent": sent.runs, "waiting": sent.waiting, "refused": sent.refused, "elsewhere": sent.elsewhere}
    report(facts, f"Runs sent: {sent.runs}. Still to be sent: {sent.waiting}.", as_json=as_json)
    if sent.elsewhere and not everything and not as_json:
        click.echo(
            f"{sent.elsewhere} more wait for another server, or were marked by another account; if they are yours: "
            "embedl-hub sync --all",
            err=True,
        )
    if sent.refused:
        reasons = "\n".join(f"{run_id}: {reason}" for run_id, reason in sent.refused.items())
        raise TrackingError(f"The server does not take {len(sent.refused)} runs:\n{reasons}")
