"""The commands ``device health`` and ``device pool``."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click

from embedl_device.schema import FLAG, TEXT, WHOLE, array, both, fields, maybe, one_of
from embedl_hub.cli._output import emit, home_option, json_option, plain, report, table, working
from embedl_hub.cli._settings import change_toml, put_table
from embedl_hub.core import HubContext
from embedl_hub.core.device import (
    DEVICES_FILE,
    Device,
    DeviceQuery,
    DeviceSpec,
    load_devices,
    load_pools,
    make_pool,
    recall_spec,
)
from embedl_hub.errors import ConfigError, DeviceError, UnknownDeviceError, quoted_list
from embedl_hub.health import Health, HealthChange, HealthLimits, HealthReport, HealthWatch, check_device
from embedl_hub.tracking import check_name, find_home

PROJECT = "health"
"""Checks are recorded under a project of their own: they would bury what people look for in theirs."""
_MOST_AT_ONCE = 32
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}

where_option = click.option("--where", metavar="QUERY", help="Only devices such as: arch=aarch64, memory>=4GB")

HEALTH = fields({"state": TEXT, "since_ms": maybe(WHOLE), "reason": maybe(TEXT), "run": maybe(TEXT)})
_CHECK = fields({"name": TEXT, "outcome": one_of("ok", "warning", "failed"), "message": TEXT, "next_step": TEXT})
_HEALTH = both(fields({"device": TEXT}), HEALTH, fields({"busy": maybe(TEXT), "checks": array(_CHECK)}))
_POOL = fields({"name": TEXT, "is": TEXT, "mixed": FLAG, "members": array(TEXT), "problem": maybe(TEXT)})
_ADDED = fields(
    {"name": TEXT, "file": TEXT, "members": array(TEXT)}, {"where": TEXT, "devices": array(TEXT), "mixed": FLAG}
)


def _as_seconds(_ctx: click.Context, _parameter: click.Parameter, value: str | None) -> float | None:
    if value is None:
        return None
    parts = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhd])", value.strip())
    if parts is None or float(parts[1]) <= 0:
        raise click.BadParameter(f"{value!r} must look like 30s, 10m, 2h or 1d.")
    return float(parts[1]) * _SECONDS[parts[2]]


@click.command("health")
@click.argument("names", nargs=-1)
@where_option
@click.option("--every", "every_s", callback=_as_seconds, help="Go on, and check this often: 10m. Ctrl-C ends it.")
@click.option("--wait", "wait_s", default=2.0, show_default=True, help="Wait so long for a device that is in use.")
@home_option
@json_option(fields({"devices": array(_HEALTH)}))
def health(
    names: tuple[str, ...], where: str | None, every_s: float | None, wait_s: float, home: Path | None, as_json: bool
) -> None:
    """Check devices: reachable, free, disk, clock, leftovers, heat, and what their providers need."""
    folder = find_home(home)
    devices = chosen(folder, names, where)
    limits = HealthLimits(lease_wait_s=wait_s)
    with HubContext(PROJECT, devices, home=folder) as ctx:
        with working(f"checking {len(devices)} devices"), ThreadPoolExecutor(_MOST_AT_ONCE) as threads:
            reports = list(threads.map(lambda device: check_device(ctx, device.name, limits), devices))
        _show(reports, as_json=as_json, whole=every_s is None)
        if every_s is not None:
            _watch(ctx, every_s, limits, as_json=as_json)
    if out := [report for report in reports if report.health.state == "out"]:
        reasons = "".join(f"\n  {report.device}: {report.health.reason}" for report in out)
        raise DeviceError(f"{len(out)} of {len(reports)} devices are unavailable:{reasons}")


def chosen(folder: Path, names: Sequence[str], where: str | None) -> list[Device]:
    """Return the devices of a home that are named, or that a query means; all of them when neither is given."""
    path = folder / DEVICES_FILE
    devices = {device.name: device for device in load_devices(path)}
    if not devices:
        raise ConfigError(f"There are no devices in {path}. Add one: embedl-hub device add")
    if unknown := set(names) - set(devices):
        raise UnknownDeviceError(
            f"There is no device {quoted_list(unknown)} in {path}; there are: {quoted_list(devices)}."
        )
    named = {name: device for name, device in devices.items() if not names or name in names}
    if where is None:
        return list(named.values())
    facts = {name: (device.provider_type, recall_spec(folder, device)) for name, device in named.items()}
    return [named[name] for name in DeviceQuery.parse(where).select(facts)]


def _watch(ctx: HubContext, every_s: float, limits: HealthLimits, *, as_json: bool) -> None:
    def tell(change: HealthChange) -> None:
        if as_json:
            click.echo(json.dumps({"device": change.device, **health_as_value(change.after)}, ensure_ascii=False))
        else:
            click.echo(plain(f"{change.device} is {change.after.state}: {change.after.reason or 'its check passed'}"))

    with HealthWatch(ctx, every_s=every_s, recheck_s=min(60.0, every_s), limits=limits, listener=tell) as watch:
        while True:
            watch.wait_for_change()


def health_as_value(found: Health) -> dict[str, object]:
    """Return a state for programs."""
    return {"state": found.state, "since_ms": found.since_ms, "reason": found.reason, "run": found.run_id}


def _show(reports: Sequence[HealthReport], *, as_json: bool, whole: bool) -> None:
    if as_json:
        found = [
            {
                "device": checked.device, **health_as_value(checked.health), "busy": checked.busy or None,
                "checks": [
                    {name: getattr(check, name) for name in ("name", "outcome", "message", "next_step")}
                    for check in checked.checks
                ],
            }
            for checked in reports
        ]  # fmt: skip
        if whole:
            emit({"devices": found})
        else:
            for each in found:
                click.echo(json.dumps(each, ensure_ascii=False))
        return
    rows = []
    for checked in reports:
        title = f"busy ({checked.health.state} before)" if checked.busy else checked.health.state
        rows.append((checked.device, title, "", f"in use by {checked.busy}" if checked.busy else ""))
        labels = {"ok": "ok", "warning": "warns", "failed": "FAILS"}
        rows += [("", labels[each.outcome], each.name, f"{each.message} {each.next_step}") for each in checked.checks]
    table(("device", "state", "check", "says"), rows, folds=True)


@click.group("pool")
def pool() -> None:
    """Name boards that serve one queue; they are kept in devices.toml beside the devices."""


@pool.command("add")
@click.argument("name")
@where_option
@click.option("--device", "devices", multiple=True, metavar="NAME", help="A board by its name; once for each.")
@click.option("--mixed", is_flag=True, help="Let them differ.")
@home_option
@json_option(_ADDED)
def add(name: str, where: str | None, devices: tuple[str, ...], mixed: bool, home: Path | None, as_json: bool) -> None:
    """Make a pool of the boards that a query means, or of named ones. They must be equal, unless it is --mixed."""
    check_name("pool name", name)
    folder = find_home(home)
    path = folder / DEVICES_FILE
    if name in load_pools(path):
        raise ConfigError(f"There is a pool {name!r} in {path} already; remove it first: embedl-hub device pool remove")
    given = {"where": where, "devices": list(devices) or None, "mixed": mixed or None}
    values = {key: value for key, value in given.items() if value is not None}
    made = make_pool(name, values, where=str(path))
    found, problem = [], ""
    try:
        found = made.members(_facts(folder))
    except UnknownDeviceError as error:
        # Boards that a query means may come later; one that is named ought to be there.
        if made.query is None:
            raise
        problem = str(error)

    put_table(path, "pools", name, values)
    text = f"{name!r} is in {path}. Its boards now: {', '.join(found) or 'none'}."
    report({"name": name, "file": str(path), **values, "members": found}, text, as_json=as_json)
    if problem and not as_json:
        click.echo(problem, err=True)


@pool.command("list")
@home_option
@json_option(fields({"pools": array(_POOL)}))
def show(home: Path | None, as_json: bool) -> None:
    """List the pools of this home with their boards."""
    folder = find_home(home)
    facts, rows = [], []
    for each in load_pools(folder / DEVICES_FILE).values():
        members, problem = [], None
        try:
            members = each.members(_facts(folder))
        except ConfigError as error:
            problem = str(error)
        text = f"where {each.query}" if each.query is not None else f"devices {', '.join(each.names)}"
        facts.append({"name": each.name, "is": text, "mixed": each.mixed, "members": members, "problem": problem})
        rows.append((each.name, ", ".join(members) or "-", text, problem or ""))
    if as_json:
        emit({"pools": facts})
    elif rows:
        table(("pool", "boards", "is", "problem"), rows, folds=True)
    else:
        click.echo(f"No pools in {folder / DEVICES_FILE}. Make one: embedl-hub device pool add")


@pool.command("remove")
@click.argument("name")
@home_option
@json_option(fields({"removed": TEXT}))
def remove(name: str, home: Path | None, as_json: bool) -> None:
    """Remove a pool; its devices stay."""
    path = find_home(home) / DEVICES_FILE
    if name not in (pools := load_pools(path)):
        raise ConfigError(f"There is no pool {name!r} in {path}; there are: {quoted_list(pools)}.")
    change_toml(path, lambda document: document["pools"].remove(name))
    report({"removed": name}, f"Removed the pool {name!r} from {path}.", as_json=as_json)


def _facts(folder: Path) -> dict[str, tuple[str, DeviceSpec]]:
    return {
        device.name: (device.provider_type, recall_spec(folder, device))
        for device in load_devices(folder / DEVICES_FILE)
    }
