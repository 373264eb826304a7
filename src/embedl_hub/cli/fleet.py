"""``embedl-hub fleet``: hosts that reach boards, joined by Ray for sweeps."""

from __future__ import annotations

import os
from pathlib import Path

import click

from embedl_device.schema import FLAG, NUMBER, TEXT, array, fields
from embedl_hub.cli._output import emit, home_option, json_option, report, table
from embedl_hub.errors import ConfigError
from embedl_hub.tracking import find_home

_STATUS = array(
    fields(
        {
            "host": TEXT, "address": TEXT, "alive": FLAG, "cpus": NUMBER,
            "devices": array(fields({"name": TEXT, "busy": FLAG})),
        }
    )
)  # fmt: skip


@click.group()
def command() -> None:
    """Join hosts that reach boards, so that one sweep uses them all; needs the extra ``ray``."""


@command.command("node")
@click.option("--head", is_flag=True, help="Make this host the head, which the others join.")
@click.option("--address", metavar="HOST:PORT", help="Join the cluster whose head is there.")
@click.option("--port", type=int, help="Where the head listens; 6379 if not given.")
@click.option("--ip", help="This host's address in the cluster's network, where it has several.")
@click.option("--cpus", type=click.IntRange(0), help="Processors for work without a board; all if not given.")
@click.option("--temp-dir", type=click.Path(path_type=Path), help="Where Ray keeps its logs and sockets.")
@click.option("--insecure", is_flag=True, help="Without a token: whoever reaches the ports runs programs on the hosts.")
@home_option
@json_option(fields({"devices": array(TEXT), "file": TEXT, "command": array(TEXT)}))
def node(
    head: bool, address: str | None, port: int | None, ip: str | None, cpus: int | None, temp_dir: Path | None,
    insecure: bool, home: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Offer the devices of this home to a cluster, until Ctrl-C or ``fleet stop``.

    Whoever has the cluster's token can run programs on its hosts. Make one with ``ray get-auth-token --generate`` and
    copy it to all hosts. What goes over the wire is not encrypted: keep the cluster in a network of your own.
    """
    from embedl_hub.fleet import become_node, plan_node  # noqa: PLC0415 - loads numpy

    if head == (address is not None):
        raise click.UsageError("Give either --head, or --address HOST:PORT of the head to join.")
    if address is not None and port is not None:
        raise click.UsageError("--port is the head's; a host that joins has none.")
    plan = plan_node(
        find_home(home), address=address, port=port, ip=ip, cpus=cpus, temporary=temp_dir, insecure=insecure
    )
    boards = ", ".join(plan.devices) or "no boards: only processors"
    file = str(plan.home / "devices.toml")
    report(
        {"devices": list(plan.devices), "file": file, "command": list(plan.argv)},
        f"Offering {boards}, as {file} says they are reached.",
        f"Starting: {' '.join(plan.argv)}",
        as_json=as_json,
    )
    become_node(plan, quiet=as_json)


@command.command("status")
@click.option("--address", metavar="HOST:PORT", help="The cluster; the one of this home's node if not given.")
@home_option
@json_option(_STATUS)
def status(address: str | None, home: Path | None, as_json: bool) -> None:
    """Show the hosts of the cluster, the boards that each of them reaches, and which are at work."""
    from embedl_hub.fleet import cluster_hosts, node_address  # noqa: PLC0415 - loads Ray

    folder = find_home(home, uses_devices=False)
    # Never what Ray finds by itself: every account of this machine can leave an address where it looks.
    known = address or os.environ.get("RAY_ADDRESS") or node_address(folder)
    if known is None:
        raise ConfigError(
            f"No node of {folder} is running here; start one (embedl-hub fleet node), or name the cluster: --address "
            "HOST:PORT or RAY_ADDRESS."
        )
    found = cluster_hosts(known)
    if as_json:
        emit(
            [
                {
                    "host": host.name, "address": host.address, "alive": host.is_alive, "cpus": host.cpus,
                    "devices": [{"name": name, "busy": name in host.busy} for name in host.devices],
                }
                for host in found
            ]
        )  # fmt: skip
        return
    rows = []
    for host in found:
        boards = ", ".join(f"{name} (at work)" if name in host.busy else name for name in host.devices) or "-"
        rows.append((host.name, host.address, "yes" if host.is_alive else "gone", f"{host.cpus:g}", boards))
    table(("host", "address", "alive", "processors", "boards"), rows)


@command.command("stop")
@home_option
@json_option(fields({"home": TEXT, "stopped": FLAG}))
def stop(home: Path | None, as_json: bool) -> None:
    """End this home's node, and no other Ray of this host."""
    from embedl_hub.fleet import stop_node  # noqa: PLC0415 - loads numpy

    folder = find_home(home, uses_devices=False)
    stopped = stop_node(folder)
    text = f"The node of {folder} has ended." if stopped else f"No node of {folder} is running."
    report({"home": str(folder), "stopped": stopped}, text, as_json=as_json)
