"""``embedl-hub doctor``: what is installed, what is missing and the line to install it."""

from __future__ import annotations

import importlib.metadata
import platform
import re
import shutil
import subprocess
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from embedl_hub.cli._output import emit, home_option, json_option, table, working
from embedl_hub.cli.auth import ask
from embedl_hub.cli.device import run_test
from embedl_hub.core.component import CheckResult, installed_providers
from embedl_hub.core.device import DEVICES_FILE, load_devices
from embedl_hub.credentials import find_server
from embedl_hub.errors import ConfigError, HubError, known
from embedl_hub.tracking import Store, find_home

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

INSTALLERS = "embedl_hub.installers"
_DISTRIBUTION = "edgeproof-hub"
_LOW_BYTES = 1 << 30


@click.command()
@click.option("--devices", is_flag=True, help="Also test every device of this home.")
@click.option("--install", metavar="NAME", help="Set up something that has its own installer, and check it.")
@home_option
@json_option
def command(devices: bool, install: str | None, home: Path | None, as_json: bool) -> None:
    """Say what is installed, what is missing and the line to install it.

    Exit code 1 when something that is needed fails; what is optional and missing is only said.
    """
    if install is not None:
        _install(install)
    results = [*_basics(find_home(home)), *_extras(), *_providers()]
    if devices and not any(result.title == "devices" and not result.is_ok for result in results):
        results += _devices(find_home(home))
    if as_json:
        emit([asdict(result) for result in results])
    else:
        words = {True: "ok", False: "FAILS", None: "missing"}
        table(("", "what", "says", "next"), [(words[r.is_ok], r.title, r.says, r.advice) for r in results], folds=True)
    failed = [result.title for result in results if result.is_ok is False]
    if failed:
        raise HubError(f"{len(failed)} of {len(results)} checks fail: {', '.join(failed)}.")


def _basics(home: Path) -> Iterator[CheckResult]:
    yield CheckResult("python", is_ok=True, says=f"{platform.python_version()} ({sys.executable})")
    yield CheckResult(_DISTRIBUTION, is_ok=True, says=importlib.metadata.version(_DISTRIBUTION))
    yield _store(home)
    yield _ssh()
    yield _server()
    yield _device_file(home)


def _server() -> CheckResult:
    """Ask the server whether it is there and takes the key."""
    try:
        server = find_server()
        if server is None:
            return CheckResult("server", is_ok=True, says="none: runs stay here")
        with working(f"asking {server.url}"):
            ask(server)
    except HubError as error:
        return CheckResult("server", is_ok=False, says=str(error), advice="embedl-hub auth --check")
    return CheckResult("server", is_ok=True, says=f"{server.url} takes the key")


def _device_file(home: Path) -> CheckResult:
    """Read the devices, since every step does."""
    try:
        devices = load_devices(home / DEVICES_FILE)
    except HubError as error:
        return CheckResult("devices", is_ok=False, says=str(error), advice=f"Mend {home / DEVICES_FILE}.")
    return CheckResult("devices", is_ok=True, says=known(device.name for device in devices) if devices else "none")


def _store(home: Path) -> CheckResult:
    if not home.is_dir():
        return CheckResult("store", is_ok=True, says=f"{home} is made by the first run")
    try:
        with Store(home) as store:
            count = store.counts()["run"]
    except HubError as error:
        return CheckResult("store", is_ok=False, says=" ".join(str(error).split()))
    free = shutil.disk_usage(home).free
    says = f"{home}: {count} runs, {free / 1e9:.1f} GB free"
    return CheckResult("store", free > _LOW_BYTES, says, "" if free > _LOW_BYTES else "Make room there.")


def _ssh() -> CheckResult:
    program = shutil.which("ssh")
    if program is None:
        return CheckResult("ssh", is_ok=None, says="no OpenSSH client", advice="apt-get install openssh-client")
    try:
        done = subprocess.run([program, "-V"], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return CheckResult("ssh", is_ok=False, says=str(error))
    return CheckResult("ssh", is_ok=done.returncode == 0, says=(done.stderr or done.stdout).strip())


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


def _providers() -> Iterator[CheckResult]:
    """Import every provider; one with a function ``doctor`` is asked for its own checks."""
    for provider in installed_providers():
        title = f"provider {provider.type}"
        if provider.problem is not None:
            yield CheckResult(title, is_ok=None, says=provider.problem, advice=provider.install)
            continue
        yield CheckResult(title, is_ok=True, says=f"{provider.distribution} {provider.version}")
        if callable(check := getattr(provider.package, "doctor", None)):
            with working(f"asking {provider.type}"):
                yield from check()


def _devices(home: Path) -> Iterator[CheckResult]:
    for device in load_devices(home / DEVICES_FILE):
        steps = run_test(device, 10.0)
        failed = next((step for step in steps if not step.is_ok), None)
        says = f"{failed.title}: {failed.says}" if failed else f"{len(steps)} steps"
        advice = f"embedl-hub device test {device.name}" if failed else ""
        yield CheckResult(f"device {device.name}", failed is None, says, advice)


def _install(name: str) -> None:
    """Call the installer of that name; packages bring them as entry points."""
    installers = {entry.name: entry for entry in importlib.metadata.entry_points(group=INSTALLERS)}
    if name not in installers:
        raise ConfigError(
            f"There is no installer {name!r}; there are: {known(installers)}. What has none is installed with pip; "
            "embedl-hub doctor shows the lines."
        )
    try:
        installer = installers[name].load()
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"The installer {name!r} ({installers[name].value}) cannot be loaded: {error}.") from error
    click.echo(f"Installing {name} ...", err=True)
    installer()
