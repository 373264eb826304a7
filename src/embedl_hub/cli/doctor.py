"""``embedl-hub doctor``: what is installed, what is missing and the line to install it."""

from __future__ import annotations

import contextlib
import importlib.metadata
import platform
import re
import shlex
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import click

from embedl_device.schema import array, of
from embedl_hub.cli._output import emit, home_option, json_option, table, working
from embedl_hub.cli.auth import ask
from embedl_hub.cli.device import run_test
from embedl_hub.core.component import load_provider, provider_types
from embedl_hub.core.device import DEVICES_FILE, CheckResult, device_kind_names, find_device_kind, load_devices
from embedl_hub.core.toolchain import toolchains
from embedl_hub.credentials import find_server
from embedl_hub.errors import ConfigError, HubError, UntrustedError, quoted_list
from embedl_hub.tracking import Store, find_home

_DISTRIBUTION = "edgeproof-hub"
_LOW_BYTES = 1 << 30


@click.command()
@click.option("--devices", is_flag=True, help="Also test every device of this home.")
@click.option("--install", metavar="NAME", help="Set up something that has its own installer, and check it.")
@home_option
@json_option(array(of(CheckResult)))
def command(devices: bool, install: str | None, home: Path | None, as_json: bool) -> None:
    """Say what is installed, what is missing and the line to install it.

    Exit code 1 when something that is needed fails; what is optional and missing is only said.
    """
    if install is not None:
        _install(install)
    folder = find_home(home, uses_devices=False)
    results = [
        CheckResult("python", is_ok=True, message=f"{platform.python_version()} ({sys.executable})"),
        CheckResult(_DISTRIBUTION, is_ok=True, message=importlib.metadata.version(_DISTRIBUTION)),
        *(_store(folder), *_privacy(folder), _ssh(), _server(), _device_file(home)),
        *_extras(),
        *_kinds(),
    ]
    if devices and not any(result.title == "devices" and not result.is_ok for result in results):
        results += _devices(folder)
    if as_json:
        emit([asdict(result) for result in results])
    else:
        states = {True: "ok", False: "FAILS", None: "missing"}
        rows = [(states[result.is_ok], result.title, result.message, result.advice) for result in results]
        table(("", "what", "says", "next"), rows, folds=True)
    failed = [result.title for result in results if result.is_ok is False]
    if failed:
        raise HubError(f"{len(failed)} of {len(results)} checks fail: {', '.join(failed)}.")


def _server() -> CheckResult:
    """Ask the server whether it is there and takes the key."""
    try:
        server = find_server()
        if server is None:
            return CheckResult("server", is_ok=True, message="none: runs stay here")
        with working(f"asking {server.url}"):
            ask(server)
    except HubError as error:
        return CheckResult("server", is_ok=False, message=str(error), advice="embedl-hub auth --check")
    return CheckResult("server", is_ok=True, message=f"{server.url} takes the key")


def _device_file(home: Path | None) -> CheckResult:
    """Read the devices, since every step does."""
    folder = find_home(home, uses_devices=False)
    try:
        find_home(home)
        devices = load_devices(folder / DEVICES_FILE)
    except UntrustedError as error:
        return CheckResult("devices", is_ok=False, message=str(error), advice=f"embedl-hub trust {folder}")
    except HubError as error:
        return CheckResult("devices", is_ok=False, message=str(error), advice=f"Mend {folder / DEVICES_FILE}.")
    return CheckResult("devices", is_ok=True, message=quoted_list(device.name for device in devices))


def _store(home: Path) -> CheckResult:
    if not home.is_dir():
        return CheckResult("store", is_ok=True, message=f"{home} is made by the first run")
    try:
        with Store(home) as store:
            count = store.counts()["run"]
    except HubError as error:
        return CheckResult("store", is_ok=False, message=" ".join(str(error).split()))
    free = shutil.disk_usage(home).free
    says = f"{home}: {count} runs, {free / 1e9:.1f} GB free"
    return CheckResult("store", free > _LOW_BYTES, says, "" if free > _LOW_BYTES else "Make room there.")


def _privacy(home: Path) -> Iterator[CheckResult]:
    """Look whether other accounts of this machine can look into the store; ours are made so that they cannot."""
    with contextlib.suppress(OSError):
        mode = stat.S_IMODE(home.stat().st_mode)
        if mode & 0o077:
            says = f"{home} is open to other accounts of this machine (mode {mode:o})"
            advice = f"chmod go= {shlex.quote(str(home))}, unless they are to see your runs and devices"
            yield CheckResult("private store", is_ok=None, message=says, advice=advice)


def _ssh() -> CheckResult:
    program = shutil.which("ssh")
    if program is None:
        return CheckResult("ssh", is_ok=None, message="no OpenSSH client", advice="apt-get install openssh-client")
    try:
        done = subprocess.run([program, "-V"], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return CheckResult("ssh", is_ok=False, message=str(error))
    return CheckResult("ssh", is_ok=done.returncode == 0, message=(done.stderr or done.stdout).strip())


def _extras() -> Iterator[CheckResult]:
    """Check what our distribution's extras bring; new extras need no line here."""
    needs: dict[str, list[str]] = {}
    for line in importlib.metadata.requires(_DISTRIBUTION) or ():
        if found := re.match(r"([\w.-]+).*;\s*.*extra\s*==\s*['\"]([\w.-]+)['\"]", line):
            needs.setdefault(found[2], []).append(found[1])
    for extra, names in sorted(needs.items()):
        versions = {name: _version(name) for name in names}
        lacking = [name for name, version in versions.items() if version is None]
        says = ", ".join(f"{name} {version or 'is missing'}" for name, version in versions.items())
        advice = f"pip install '{_DISTRIBUTION}[{extra}]'" if lacking else ""
        yield CheckResult(f"extra {extra}", None if lacking else True, says, advice)


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _kinds() -> Iterator[CheckResult]:
    """Check what each kind of device needs on this machine."""
    for name in sorted({*device_kind_names(), *provider_types()}):
        title = f"provider {name}"
        try:
            load_provider(name)
        except HubError as error:
            problem, _, advice = str(error).rpartition(" Install it with: ")
            yield CheckResult(title, is_ok=None, message=problem or str(error), advice=advice)
            continue
        yield CheckResult(title, is_ok=True, message="can be loaded")
        if name in device_kind_names():
            with working(f"checking {name}"):
                yield from find_device_kind(name).doctor()


def _devices(home: Path) -> Iterator[CheckResult]:
    for device in load_devices(home / DEVICES_FILE):
        steps = run_test(device, 10.0)
        failed = next((step for step in steps if not step.is_ok), None)
        says = f"{failed.title}: {failed.says}" if failed else f"{len(steps)} steps"
        advice = f"embedl-hub device test {device.name}" if failed else ""
        yield CheckResult(f"device {device.name}", failed is None, says, advice)


def _install(name: str) -> None:
    """Let a toolchain set up what pip cannot."""
    installers = {each.name: each.install for each in toolchains() if each.install is not None}
    if name not in installers:
        raise ConfigError(
            f"There is no installer {name!r}; there are: {quoted_list(installers)}. What has none is installed with "
            "pip; embedl-hub doctor shows the lines."
        )
    click.echo(f"Installing {name} ...", err=True)
    installers[name]()
