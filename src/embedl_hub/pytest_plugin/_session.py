"""What all tests of a process share: one context on one store, its devices, and who may measure."""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from embedl_hub.core import HubContext
from embedl_hub.core.device import (
    DEVICES_FILE,
    Clause,
    Device,
    DeviceQuery,
    DeviceSpec,
    load_devices,
    load_pools,
)
from embedl_hub.core.steps import HERE
from embedl_hub.errors import ConfigError, HubError, UnknownDeviceError, quoted_list
from embedl_hub.pytest_plugin._ends import NotMeasuredError

_WAIT_S = 600.0
_ASK_AGAIN_S = 0.1
# What a marker says, as a query of devices says it.
_CLAUSES = {
    "name": ("name", "="),
    "kind": ("type", "="),
    "arch": ("arch", "="),
    "os": ("os", "="),
    "cpu": ("cpu", "="),
    "accelerator": ("accelerator", "="),
    "memory_at_least": ("memory", ">="),
    "cores_at_least": ("cores", ">="),
}
_MADE_WITHIN_S = 5.0
_STORE_FILES = ("runs", "config.toml", DEVICES_FILE)


@dataclass(frozen=True)
class Settings:
    """What options and ini files say."""

    home: Path  # the store's folder
    project: str
    device: str  # the device of all tests; empty where each says its own
    skips_missing: bool  # whether a test whose device is not there is skipped
    record: str | None  # the TAG=VALUE that models are recorded as
    is_strict: bool  # whether what cannot be told is a failure
    root: Path  # the tests' root folder


class Session:
    """The context of a process, opened on first use."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._context: HubContext | None = None
        self._devices: list[Device] | None = None

    @property
    def context(self) -> HubContext:
        """The open context."""
        __tracebackhide__ = True
        if self._context is None:
            with measuring():
                context = HubContext(self.settings.project, self._load(), home=self.settings.home)
                self._context = context.__enter__()
        return self._context

    def close(self) -> None:
        """Close the store, and the connections to boards."""
        if self._context is not None:
            self._context.__exit__(None, None, None)
            self._context = None
        for device in self._devices or ():
            if callable(close := getattr(device.runner, "close", None)):
                close()

    def _load(self) -> list[Device]:
        home = self.settings.home
        # Another worker of pytest-xdist may be making the store at this moment.
        until = time.monotonic() + _MADE_WITHIN_S
        while home.is_dir() and any(home.iterdir()) and not any((home / name).exists() for name in _STORE_FILES):
            if time.monotonic() > until:
                raise ConfigError(
                    f"{home} is no store of Edgeproof: it holds other files. Name an empty or new folder."
                )
            time.sleep(0.05)
        devices = load_devices(home / DEVICES_FILE)
        if HERE not in {device.name for device in devices}:
            devices.append(Device(HERE, spec=_this_machine()))
        self._devices = devices
        return devices

    def choose(self, args: Sequence[object], wanted: Mapping[str, object]) -> tuple[str | None, str]:
        """Return the device that a marker, given by its arguments, or the options name.

        No device, and why, where the test is to be skipped.
        """
        __tracebackhide__ = True
        with measuring():
            query, asked = _query(args, wanted), self.settings.device
            devices = self.context.devices
            if query is None:
                own = [name for name in devices if name != HERE]
                if asked or len(own) < 2:
                    return self.context.find_device(asked or next(iter(own), HERE)).name, ""
                raise ConfigError(
                    f"There are the devices {quoted_list(own)}: say which one a test is for, by --hub-device NAME or "
                    'by @pytest.mark.board(name="...").'
                )
            if asked:
                self.context.find_device(asked)
                query = DeviceQuery((*query.clauses, Clause("name", "=", asked)))
            try:
                return self.context.find_devices(query)[0], ""
            except UnknownDeviceError as error:
                # A board that does not answer is a fault of the rig, whatever the marker wants.
                if not self.settings.skips_missing or self._silent(query):
                    raise
                return None, " ".join(str(error).split())

    def _silent(self, query: DeviceQuery) -> list[str]:
        """Return the boards that might be meant, had they ever said what they are."""
        named, ctx = query.without_spec, self.context
        return [
            name
            for name, device in ctx.devices.items()
            if device.runner is not None
            and named.matches(name, device.provider_type)
            and ctx.known_spec(name).architecture is None
        ]

    def each_of(self, args: Sequence[object], wanted: Mapping[str, object]) -> list[str]:
        """Return all devices of a pool, or that are like a marker; from what is known, no board is asked.

        Every worker of pytest-xdist must find the same tests, also while a board restarts.
        """
        conditions = {name: value for name, value in wanted.items() if name not in ("pool", "each")}
        asked, pool = self.settings.device, wanted.get("pool")
        ctx = self.context
        facts = {name: (device.provider_type, ctx.known_spec(name)) for name, device in ctx.devices.items()}
        if pool is None and asked.startswith("pool:"):
            pool = asked.removeprefix("pool:")
        if pool is not None:
            pools = load_pools(self.settings.home / DEVICES_FILE)
            if pool not in pools:
                raise ConfigError(f"There is no pool {pool!r}; pools are: {quoted_list(pools)}.")
            names = pools[str(pool)].members(facts)
        elif asked:
            names = [ctx.find_device(name.strip()).name for name in asked.split(",")]
        else:
            names = list(facts)
        query = _query(args, conditions)
        return names if query is None else query.select({name: facts[name] for name in names})

    def lease(self, name: str) -> contextlib.ExitStack:
        """Have a device until what is returned is closed."""
        __tracebackhide__ = True
        stack = contextlib.ExitStack()
        with measuring():
            stack.enter_context(self.context.claim(name))
        return stack

    def place_of(self, test_device: str | None, given: str | None) -> str | None:
        """Return the device that a check measures on: the one given, the test's, that of the options; None if none."""
        asked = self.settings.device
        name = given or test_device or (asked if "," not in asked and not asked.startswith("pool:") else None)
        return None if not name else self.context.find_device(name).name

    @contextlib.contextmanager
    def alone(self, device: str) -> Iterator[None]:
        """Keep this user's other test processes from measuring on this machine at the same time; boards have leases."""
        if device != HERE:
            yield
            return
        path = Path(tempfile.gettempdir()) / f"edgeproof-tests-{os.getuid()}.lock"
        try:
            lock = os.open(path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigError(f"The lock of this machine, {path}, cannot be opened: {error.strerror}.") from error
        try:
            _wait_for(lock)
            yield
        finally:
            os.close(lock)


def _wait_for(lock: int) -> None:
    deadline = time.monotonic() + _WAIT_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise NotMeasuredError(
                    f"Other tests measured on this machine for all of {_WAIT_S:g} s; try later, or with fewer workers."
                ) from None
            time.sleep(_ASK_AGAIN_S)
        else:
            return


class measuring:  # noqa: N801 - used as a function is
    """Turn every error of the hub into one that pytest reports as an error: nothing is known of the model.

    A class, so that no frame of ours stands between the test and the sentence.
    """

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        __tracebackhide__ = True
        if isinstance(error, HubError):
            # The run of the step keeps the whole traceback; here it would bury the sentence.
            raise NotMeasuredError(str(error)) from None


def _query(args: Sequence[object], wanted: Mapping[str, object]) -> DeviceQuery | None:
    """Return what a marker asks for; None where it asks for nothing."""
    known = (*_CLAUSES, "pool", "each")
    if unknown := set(wanted) - set(known):
        raise ConfigError(f"@pytest.mark.board has no {quoted_list(unknown)}; it has: {quoted_list(known)}.")
    if len(args) > 1 or not all(isinstance(each, str) for each in args):
        raise ConfigError(f"@pytest.mark.board takes one query as text, such as 'arch=aarch64', not {args!r}.")
    clauses = DeviceQuery.parse(str(args[0])).clauses if args else ()
    given = {name: value for name, value in wanted.items() if name in _CLAUSES and value is not None}
    clauses += tuple(Clause(*_CLAUSES[name], str(value)) for name, value in given.items())
    return DeviceQuery(clauses) if clauses else None


def _this_machine() -> DeviceSpec:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return DeviceSpec(os=platform.system(), architecture=platform.machine(), cores=os.cpu_count(), memory_bytes=memory)
