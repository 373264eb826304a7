"""The commands ``device pool add``, ``list`` and ``remove``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from embedl_hub.cli._health import where_option
from embedl_hub.cli._output import emit, home_option, json_option, table
from embedl_hub.cli._settings import change_toml
from embedl_hub.core.device import DEVICES_FILE, load_devices, load_pools, make_pool, recall_spec
from embedl_hub.errors import ConfigError, UnknownDeviceError, known
from embedl_hub.tracking import check_name, find_home

if TYPE_CHECKING:
    from pathlib import Path

    import tomlkit

    from embedl_hub.core.device import DeviceSpec


@click.group("pool")
def pool() -> None:
    """Name boards that serve one queue; they are kept in devices.toml beside the devices."""


@pool.command("add")
@click.argument("name")
@where_option
@click.option("--device", "devices", multiple=True, metavar="NAME", help="A board by its name; once for each.")
@click.option("--mixed", is_flag=True, help="Let them differ.")
@home_option
@json_option
def add(name: str, where: str | None, devices: tuple[str, ...], mixed: bool, home: Path | None, as_json: bool) -> None:
    """Make a pool of the boards that a query means, or of named ones. They must be equal, unless it is --mixed."""
    check_name("pool name", name)
    folder = find_home(home)
    path = folder / DEVICES_FILE
    if name in load_pools(path):
        raise ConfigError(f"There is a pool {name!r} in {path} already; remove it first: embedl-hub device pool remove")
    values: dict[str, Any] = {"where": where} if where is not None else {}
    values |= {"devices": list(devices)} if devices else {}
    values |= {"mixed": True} if mixed else {}
    made = make_pool(name, values, where=str(path))
    found, problem = [], ""
    try:
        found = made.members(_facts(folder))
    except UnknownDeviceError as error:
        # Boards that a query means may come later; one that is named ought to be there.
        if made.query is None:
            raise
        problem = str(error)

    def put(document: tomlkit.TOMLDocument) -> None:
        import tomlkit as kit  # noqa: PLC0415 - only for writing

        if "pools" not in document:
            document["pools"] = kit.table(is_super_table=True)
        written = kit.table()
        written.update(values)
        document["pools"][name] = written

    change_toml(path, put)
    if as_json:
        emit({"name": name, "file": str(path), **values, "members": found})
        return
    click.echo(f"{name!r} is in {path}. Its boards now: {', '.join(found) or 'none'}.")
    if problem:
        click.echo(problem, err=True)


@pool.command("list")
@home_option
@json_option
def show(home: Path | None, as_json: bool) -> None:
    """List the pools of this home with their boards."""
    folder = find_home(home)
    rows: list[dict[str, Any]] = []
    for each in load_pools(folder / DEVICES_FILE).values():
        found, problem = [], ""
        try:
            found = each.members(_facts(folder))
        except ConfigError as error:
            problem = str(error)
        says = f"where {each.query}" if each.query is not None else f"devices {', '.join(each.names)}"
        rows.append({"name": each.name, "is": says, "mixed": each.mixed, "members": found, "problem": problem or None})
    if as_json:
        emit({"pools": rows})
    elif rows:
        lines = [(row["name"], ", ".join(row["members"]) or "-", row["is"], row["problem"] or "") for row in rows]
        table(("pool", "boards", "is", "problem"), lines, folds=True)
    else:
        click.echo(f"No pools in {folder / DEVICES_FILE}. Make one: embedl-hub device pool add")


@pool.command("remove")
@click.argument("name")
@home_option
@json_option
def remove(name: str, home: Path | None, as_json: bool) -> None:
    """Remove a pool; its devices stay."""
    path = find_home(home) / DEVICES_FILE
    if name not in (pools := load_pools(path)):
        raise ConfigError(f"There is no pool {name!r} in {path}; there are: {known(pools)}.")
    change_toml(path, lambda document: document["pools"].remove(name))
    if as_json:
        emit({"removed": name})
    else:
        click.echo(f"Removed the pool {name!r} from {path}.")


def _facts(folder: Path) -> dict[str, tuple[str, DeviceSpec]]:
    return {
        device.name: (device.provider_type, recall_spec(folder, device))
        for device in load_devices(folder / DEVICES_FILE)
    }
