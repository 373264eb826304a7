"""``embedl-hub device``: add, edit, remove, test and check devices, and make pools of them."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from embedl_device.schema import ANY, FLAG, NUMBER, TEXT, Shape, array, by_name, fields
from embedl_hub.cli._device_commands import health, pool
from embedl_hub.cli._output import as_value, emit, home_option, in_home, json_option, pairs, report, table, working
from embedl_hub.cli._settings import SETTINGS_FILE, change_toml, put_table, read_settings
from embedl_hub.core import HubContext
from embedl_hub.core.device import DEVICES_FILE, base_of, find_device_kind, make_device, read_devices, runner_names
from embedl_hub.errors import ConfigError, DeviceError, HubError, UnknownDeviceError, quoted_list
from embedl_hub.health import CheckOutcome, HealthLimits, reach_device
from embedl_hub.tracking import check_name, find_home

if TYPE_CHECKING:
    from embedl_hub.core.device import CommandRunner, Device

_SSH_OPTIONS = {
    "host": "Host name, address or alias of your ssh configuration.",
    "username": "Login name.",
    "port": "Port.",
    "identity_file": "Private key; a path, never the key itself.",
    "jump_host": "[user@]host[:port] to go through.",
    "host_key": "strict, accept_new or off.",
    "known_hosts": "Another known_hosts file.",
    "config_file": "Another ssh configuration.",
}
_STEP_LIMIT_S = 30.0
_MOST_SAID = 500


_KEPT: Shape = {
    **fields(
        {"name": TEXT, "file": TEXT, "type": TEXT},
        {
            "runner": TEXT, "artifact_root": TEXT, "lease_dir": TEXT, "config": by_name(ANY), "spec": by_name(ANY),
        },
    ),
    # A runner's own table has its name.
    "additionalProperties": by_name(ANY),
}  # fmt: skip


_TESTED = fields(
    {
        "device": TEXT,
        "is_ok": FLAG,
        "steps": array(fields({"title": TEXT, "is_ok": FLAG, "says": TEXT, "seconds": NUMBER})),
    }
)


class _Devices(click.Group):
    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command of the first word; what many would type for a list is told."""
        if args and args[0] in ("list", "ls"):
            raise click.UsageError("Devices are listed by: embedl-hub list-devices", ctx)
        return super().resolve_command(ctx, args)


@click.group(cls=_Devices)
def command() -> None:
    """Add, edit, remove, test and check devices; they are kept in devices.toml in the home, without secrets.

    `embedl-hub list-devices` lists them.
    """


command.add_command(health)
command.add_command(pool)


def _table_options(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that make up a device's table."""
    for name, text in reversed(_SSH_OPTIONS.items()):
        function = click.option(f"--{name.replace('_', '-')}", name, help=f"ssh: {text}")(function)
    pair = functools.partial(click.option, multiple=True, metavar="KEY=VALUE")
    for option in (
        pair("--runner-set", "runner_set_", help="A setting of the runner: KEY=VALUE."),
        pair("--set", "set_", help="A setting of the provider: KEY=VALUE."),
        pair("--spec", "spec_", help="A fact about the device: KEY=VALUE."),
        click.option("--artifact-root", help="Folder on the device for our files."),
        click.option("--lease-dir", help="Folder whose lock is the lease; empty for no lease."),
        click.option("--runner", help="How to reach it: ssh, local, another runner that is installed, or none."),
    ):
        function = option(function)
    return function


@command.command("add")
@click.argument("name")
@click.option("--type", "kind", required=True, help="The provider type: local, embedl_onnxruntime, qai_hub ...")
@_table_options
@home_option
@json_option(_KEPT)
def add(name: str, kind: str, home: Path | None, as_json: bool, **given: Any) -> None:  # noqa: ANN401 - table options
    """Add a device. Try it with: embedl-hub device test NAME."""
    check_name("device name", name)
    path = find_home(home) / DEVICES_FILE
    if name in read_devices(path):
        raise ConfigError(f"There is a device {name!r} in {path} already; change it with: embedl-hub device edit")
    _write(path, name, _changed({"type": find_device_kind(kind).type}, given), home, as_json=as_json)


@command.command("edit")
@click.argument("name")
@click.option("--type", "kind", help="Another provider type.")
@click.option("--unset", multiple=True, metavar="KEY", help="Forget a key, such as port, threads or artifact_root.")
@_table_options
@home_option
@json_option(_KEPT)
def edit(name: str, kind: str | None, unset: tuple[str, ...], home: Path | None, as_json: bool, **given: Any) -> None:  # noqa: ANN401 - table options
    """Change what is given and leave the rest."""
    path = find_home(home) / DEVICES_FILE
    kept = {key: dict(value) if isinstance(value, dict) else value for key, value in _find(path, name).items()}
    for key in unset:
        _forget(kept, key)
    if kind is not None:
        kept["type"] = find_device_kind(kind).type
    _write(path, name, _changed(kept, given), home, as_json=as_json)


@command.command("remove")
@click.argument("name")
@home_option
@json_option(fields({"removed": TEXT}))
def remove(name: str, home: Path | None, as_json: bool) -> None:
    """Remove a device; its runs stay."""
    folder = find_home(home)
    path = folder / DEVICES_FILE
    _find(path, name)

    change_toml(path, lambda document: document["devices"].remove(name))
    if read_settings(folder).get("device") == name:
        change_toml(folder / SETTINGS_FILE, lambda document: document.remove("device"))
    report({"removed": name}, f"Removed {name!r} from {path}.", as_json=as_json)


@dataclass(frozen=True)
class Step:
    """One step of a test: what was tried, what came of it."""

    title: str
    is_ok: bool
    says: str
    seconds: float


@command.command("test")
@click.argument("name")
@click.option("--wait", "wait_s", default=10.0, show_default=True, help="Wait so long for a device that is in use.")
@home_option
@json_option(_TESTED)
def test(name: str, wait_s: float, home: Path | None, as_json: bool) -> None:
    """Connect to a device, say what it is, lease it, run a command there and look for what its provider needs."""
    path = find_home(home) / DEVICES_FILE
    device = make_device(name, _find(path, name), where=str(path), base=base_of(path))
    steps = run_test(device, wait_s)
    failed = next((step for step in steps if not step.is_ok), None)
    if as_json:
        emit({"device": name, "is_ok": failed is None, "steps": [vars(step) for step in steps]})
    else:
        rows = [("ok" if step.is_ok else "FAILS", step.title, f"{step.seconds:.2f} s", step.says) for step in steps]
        table(("", "step", "took", "says"), rows, folds=True)
    if failed is not None:
        raise DeviceError(f"Device {name!r} is not ready: {failed.title}: {failed.says}")


def run_test(device: Device, wait_s: float) -> list[Step]:
    """Try a device step by step; what cannot work after a failure is not tried."""
    kind = find_device_kind(device.provider_type)
    if device.runner is None:
        # Only the provider's own client reaches it.
        start = time.perf_counter()
        check = reach_device(device, HealthLimits())
        says = " ".join(f"{check.message} {check.next_step}".split())
        return [Step(check.name, check.outcome is CheckOutcome.OK, says, round(time.perf_counter() - start, 3))]
    runner, steps = device.runner, []

    def step(title: str, work: Callable[[], str]) -> bool:
        with working(f"{device.name}: {title}"):
            steps.append(_tried(title, work))
        return steps[-1].is_ok

    def lease(ctx: HubContext) -> str:
        with ctx.claim(device.name):
            return "free" if device.lease_dir else "no lease"

    try:
        with HubContext("device test", [device], tracking=False, lease_wait_s=wait_s) as ctx:
            if not step("connect", lambda: _said(runner, ["echo", "a shell answers"])):
                return steps
            step("spec", lambda: _spec_words(ctx, device.name))
            step("lease", lambda: lease(ctx))
            for title, argv in kind.checks(device).items():
                step(title, functools.partial(_said, runner, list(argv)))
    finally:
        if callable(close := getattr(runner, "close", None)):
            close()
    return steps


def _tried(title: str, work: Callable[[], str]) -> Step:
    start = time.perf_counter()
    try:
        says, is_ok = work(), True
    except HubError as error:
        says, is_ok = " ".join(str(error).split()), False
    return Step(title, is_ok, says, round(time.perf_counter() - start, 3))


def _spec_words(ctx: HubContext, name: str) -> str:
    spec = ctx.device_spec(name)
    words = [spec.device_name, spec.architecture, spec.os, spec.cpu, f"{spec.cores} cores" if spec.cores else None]
    if family := spec.kernel_family("onnxruntime"):
        words.append(f"integer kernels {family}")
    return ", ".join(word for word in (*words, *spec.accelerators) if word)[:_MOST_SAID] or "it does not say"


def _said(runner: CommandRunner, argv: list[str]) -> str:
    """Run a command and return the first line it says, as much of it as fits a table."""
    return runner.run(argv, hide=True, timeout_s=_STEP_LIMIT_S).stdout.strip().partition("\n")[0][:_MOST_SAID]


def _find(path: Path, name: str) -> Mapping[str, Any]:
    tables = read_devices(path)
    if name not in tables:
        names = quoted_list(tables)
        raise UnknownDeviceError(
            f"There is no device {name!r} in {path}; there are: {names}. Add it with: embedl-hub device add"
        )
    return tables[name]


def _changed(kept: dict[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a device's table with what was given on the command line."""
    ssh = {key: given[key] for key in _SSH_OPTIONS if given[key] is not None}
    if "port" in ssh:
        ssh["port"] = as_value(ssh["port"])
    for key in ("identity_file", "known_hosts", "config_file"):
        if key in ssh and ssh[key] != "none":
            ssh[key] = str(Path(ssh[key]).expanduser().absolute())
    runner = given["runner"] or kept.get("runner") or next((name for name in runner_names() if name in kept), "ssh")
    parts = {"ssh": ssh, "config": _values(given["set_"]), "spec": _values(given["spec_"])}
    if values := _values(given["runner_set_"]):
        parts[runner] = {**parts.get(runner, {}), **values}
    for key, values in parts.items():
        if values:
            kept[key] = {**kept.get(key, {}), **values}
    for key in ("runner", "artifact_root", "lease_dir"):
        if given[key] is not None:
            kept[key] = given[key]
    return kept


def _values(words: tuple[str, ...]) -> dict[str, object]:
    return {key: as_value(value) for key, value in pairs(words).items()}


def _forget(table: dict[str, Any], key: str) -> None:
    inner = (*runner_names(), "config", "spec")
    places = [part for part in (table, *(table.get(name, {}) for name in inner)) if key in part]
    if not places or key == "type":
        keys = [name for key, value in table.items() for name in (value if isinstance(value, dict) else (key,))]
        raise ConfigError(f"The device has no {key!r} to forget; it has: {quoted_list(keys)}.")
    for place in places:
        del place[key]
    for name in inner:
        if table.get(name) == {}:
            del table[name]


def write_device(path: Path, name: str, values: Mapping[str, Any]) -> None:
    """Check a table by making the device of it, then write it down."""
    make_device(name, values, where=str(path), base=base_of(path))
    put_table(path, "devices", name, values)


def _write(path: Path, name: str, values: Mapping[str, Any], home: Path | None, *, as_json: bool) -> None:
    write_device(path, name, values)
    text = f"{name!r} is in {path}. Try it with: {in_home(f'embedl-hub device test {name}', home)}"
    report({"name": name, "file": str(path), **values}, text, as_json=as_json)
