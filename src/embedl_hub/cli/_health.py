"""The command ``device health``: check boards now, or over and over."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import click

from embedl_hub.cli._output import emit, home_option, json_option, plain, table, working
from embedl_hub.core import HubContext
from embedl_hub.core.device import DEVICES_FILE, Device, DeviceQuery, load_devices, recall_spec
from embedl_hub.errors import ConfigError, DeviceError, UnknownDeviceError, known
from embedl_hub.health import HealthLimits, HealthWatch, check_device
from embedl_hub.tracking import find_home

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from embedl_hub.health import Health, HealthChange, HealthReport

PROJECT = "health"
"""Checks are recorded under a project of their own: they would bury what people look for in theirs."""
_MOST_AT_ONCE = 32
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}

where_option = click.option("--where", metavar="QUERY", help="Only devices such as: arch=aarch64, memory>=4GB")


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
@json_option
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
        raise DeviceError(f"{len(out)} of {len(reports)} devices are out:{reasons}")


def chosen(folder: Path, names: Sequence[str], where: str | None) -> list[Device]:
    """Return the devices of a home that are named, or that a query means; all of them when neither is given."""
    path = folder / DEVICES_FILE
    devices = {device.name: device for device in load_devices(path)}
    if not devices:
        raise ConfigError(f"There are no devices in {path}. Add one: embedl-hub device add")
    if unknown := set(names) - set(devices):
        raise UnknownDeviceError(f"There is no device {known(unknown)} in {path}; there are: {known(devices)}.")
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


def health_as_value(found: Health) -> dict[str, Any]:
    """Return a state for programs."""
    return {"state": found.state, "since_ms": found.since_ms, "reason": found.reason, "run": found.run_id}


def _show(reports: Sequence[HealthReport], *, as_json: bool, whole: bool) -> None:
    if as_json:
        found = [
            {
                "device": report.device,
                **health_as_value(report.health),
                "busy": report.busy or None,
                "checks": [
                    {"name": check.name, "verdict": check.verdict, "says": check.says, "next_step": check.next_step}
                    for check in report.checks
                ],
            }
            for report in reports
        ]
        if whole:
            emit({"devices": found})
        else:
            for each in found:
                click.echo(json.dumps(each, ensure_ascii=False))
        return
    rows = []
    for report in reports:
        title = f"busy ({report.health.state} before)" if report.busy else report.health.state
        rows.append((report.device, title, "", f"in use by {report.busy}" if report.busy else ""))
        words = {"ok": "ok", "warning": "warns", "failed": "FAILS"}
        rows += [("", words[each.verdict], each.name, f"{each.says} {each.next_step}") for each in report.checks]
    table(("device", "state", "check", "says"), rows, folds=True)
