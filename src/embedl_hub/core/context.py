"""The context: one project, its devices, its tracking client. All state of the hub lives here."""

from __future__ import annotations

import contextlib
import functools
import getpass
import logging
import os
import socket
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

from embedl_hub.core.device import Board, Device, DeviceQuery, DeviceSpec, LeasingRunner, recall_spec, remember_spec
from embedl_hub.errors import (
    BusyError,
    CommandError,
    ConfigError,
    DeviceError,
    LeaseError,
    TrackingError,
    UnknownDeviceError,
    quoted_list,
)
from embedl_hub.tracking import Client, LoggedArtifact, Redactor, Store, check_name, find_home, open_uplink

if TYPE_CHECKING:
    from embedl_hub.paths import RemotePath

_LOG = logging.getLogger("embedl_hub")


class HubContext:
    """Where components run: ``with HubContext("my project", devices=[board]) as ctx: ...``.

    Safe to share between threads; each thread sees its own run and artifact folder.
    """

    def __init__(
        self,
        project_name: str,
        devices: Iterable[Device] = (),
        tracking: bool = True,
        home: str | os.PathLike[str] | None = None,
        *,
        durable: bool = False,
        keep_remote: bool = False,
        lease_wait_s: float = 600.0,
        tags: Mapping[str, str] | None = None,
    ) -> None:
        """Describe a context; nothing is opened before ``with``.

        Args:
            project_name: Runs are grouped under it.
            devices: The targets that components may run on, by their names.
            tracking: False keeps runs in memory and writes nothing to any store.
            home: The store's folder; found through EMBEDL_HUB_HOME, ``.embedl`` or the user's data folder if not given.
            durable: Also survive a power cut, not only a killed process; every run then waits for the disk.
            keep_remote: Leave the runs' folders on the boards when the context closes.
            lease_wait_s: How long to wait for a board that somebody else is using.
            tags: Labels that every component's run here gets, to find them by.
        """
        check_name("project name", project_name)
        wait_s: object = lease_wait_s
        if not isinstance(wait_s, int | float) or wait_s < 0:
            raise ConfigError(f"lease_wait_s is {wait_s!r}; it must be a number of seconds.")
        self.project_name = project_name
        self.home: Path | None = find_home(home) if tracking else None
        self._durable = durable
        self._keep_remote = keep_remote
        self.lease_wait_s = lease_wait_s
        self.tags: Mapping[str, str] = dict(tags or {})
        for name in self.tags:
            check_name("tag name", name)
        self._client: Client | None = None
        self._boards: dict[str, Board] = {}
        self._claims: dict[str, _Claim] = {}
        self._notes: dict[str, dict[str, object]] = {}
        self.devices: Mapping[str, Device] = _Devices(self._take(devices))

    def __repr__(self) -> str:
        return f"HubContext({self.project_name!r}, devices={sorted(self.devices)}, home={str(self.home)!r})"

    def __enter__(self) -> Self:
        if self._client is not None:
            raise ConfigError(f"The context {self.project_name!r} is already open; make another one.")
        store = uplink = None
        if self.home is not None:
            store = Store(self.home, durable=self._durable)
            uplink = open_uplink(store)
            store.open()
        redactor = Redactor()
        for device in self.devices.values():
            for config in (device.provider_config, *device.provider_config_overrides.values()):
                if config is not None:
                    redactor.learn({name: getattr(config, name) for name in config.__dataclass_fields__})
        self._client = Client(self.project_name, store, redactor, uplink)
        return self

    def __exit__(self, *_: object) -> None:
        client = self.client
        try:
            for name, board in self._boards.items() if not self._keep_remote else ():
                try:
                    board.clean()
                except DeviceError as error:
                    _LOG.warning("The run folders on device %r could not be removed: %s", name, error)
        finally:
            self._client = None
            client.close()
            if client.store is not None:
                client.store.close()

    @property
    def is_open(self) -> bool:
        """Whether runs can be recorded here now."""
        return self._client is not None

    @property
    def client(self) -> Client:
        """The tracking client; never None, also with tracking off."""
        if self._client is None:
            raise TrackingError(f"The context {self.project_name!r} is not open; use: with HubContext(...) as ctx:")
        return self._client

    @property
    def artifact_dir(self) -> Path:
        """This thread's run's own folder on this machine, for whatever it writes."""
        return self.client.run.artifact_dir

    def bring_here(self, artifact: LoggedArtifact) -> Path:
        """Return a path on this machine that holds an artifact; ``artifact.to_local(ctx)`` uses it."""
        places, store = [artifact.local_path], self.client.store
        if store is not None:
            if artifact.run_id:
                places.append(store.artifact_path(artifact.run_id, artifact.name, artifact.file_name))
            if not artifact.is_folder:
                places.append(store.blobs.path_of(artifact.sha256))
        known = [place for place in places if place is not None]
        for place in known:
            if place.exists():
                return place
        looked = ", ".join(map(str, known)) or "nowhere: it was never here"
        raise TrackingError(
            f"Artifact {artifact.name!r} ({artifact.file_name}) of run {artifact.run_id or 'unknown'} is not on this "
            f"machine; looked at {looked}. If its run folder is elsewhere, copy it into the store and run: "
            "embedl-hub reindex"
        )

    def send_to(self, artifact: LoggedArtifact, device_name: str) -> RemotePath:
        """Return a path on a device that holds an artifact; ``artifact.to_remote(ctx, ...)`` uses it."""
        return self._board(device_name).send(self.bring_here(artifact), artifact.sha256, artifact.file_name)

    def find_device(self, name: str) -> Device:
        """Return a device by name, or say which there are."""
        return self.devices[name]

    def device_spec(self, name: str) -> DeviceSpec:
        """Return what a device is; a board is asked once."""
        device = self.find_device(name)
        if device.runner is None:
            return device.spec
        try:
            return self._board(name).spec()
        except CommandError as error:
            # Not every runner leads to a POSIX shell; what the user said about the device still holds.
            _LOG.info("Device %r could not be asked what it is: %s", name, error)
            return device.spec

    def known_spec(self, name: str) -> DeviceSpec:
        """Return what is known of a device without asking it: what it said to this context or to an earlier one."""
        board = self._boards.get(self.find_device(name).name)
        if board is not None and board.is_asked:
            return board.spec()
        return recall_spec(self.home, self.devices[name])

    def find_devices(self, query: DeviceQuery | str) -> list[str]:
        """Return the names of the devices that meet a query such as ``arch=aarch64, memory>=4GB``.

        Boards that never said what they are get asked now, all at once; one that does not answer is not meant. Where
        none is, an ``UnknownDeviceError`` says for each one why.
        """
        wanted = DeviceQuery.parse(query) if isinstance(query, str) else query
        named = wanted.without_spec
        if named != wanted:
            self._ask([name for name, device in self.devices.items() if named.matches(name, device.provider_type)])
        facts = {name: (device.provider_type, self.known_spec(name)) for name, device in self.devices.items()}
        return wanted.select(facts)

    def notes(self, device_name: str) -> dict[str, object]:
        """Return what providers keep in mind about a device while the context lives, so that it is asked once."""
        return self._notes.setdefault(self.find_device(device_name).name, {})

    @contextlib.contextmanager
    def claim(self, device_name: str, *, wait_s: float | None = None) -> Iterator[Device]:
        """Have a device for oneself: among this context's threads, and among all users of the board.

        Args:
            device_name: The device.
            wait_s: How long to wait for others; without end for threads of this context, and as the context says for
                everyone else, when not given.
        """
        device = self.find_device(device_name)
        claim = self._claims[device_name]
        with claim.held(device_name, wait_s):
            if claim.depth > 1 or device.lease_dir is None or not isinstance(device.runner, LeasingRunner):
                yield device
                return
            patience_s = self.lease_wait_s if wait_s is None else wait_s
            holder = f"{_user()}@{socket.gethostname()} ({self.project_name})"
            with device.runner.lease(device.lease_dir, holder, wait_s=patience_s) as lease:
                yield device
                if lease.is_lost:
                    raise LeaseError(
                        f"The lease on device {device_name!r} was lost while it was in use (no heartbeat arrived "
                        "for a while); somebody else may have used the board meanwhile. Run it again."
                    )

    def _ask(self, names: Iterable[str]) -> None:
        """Have boards say what they are that never did; those that do not answer stay unknown."""
        from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - importing the core must cost nothing

        def ask(name: str) -> None:
            try:
                self.device_spec(name)
            except DeviceError as error:
                _LOG.info("Device %r could not be asked what it is: %s", name, error)

        unknown = [name for name in names if name in self._boards and self.known_spec(name).architecture is None]
        if unknown:
            with ThreadPoolExecutor(len(unknown), thread_name_prefix="edgeproof-ask") as threads:
                list(threads.map(ask, unknown))

    def _take(self, devices: Iterable[Device]) -> dict[str, Device]:
        taken: dict[str, Device] = {}
        if isinstance(devices, Device):
            raise ConfigError(f"devices is a list: HubContext(..., devices=[{devices.name!r} ...]), not one device.")
        given: Iterable[object] = devices
        for device in given:
            if not isinstance(device, Device):
                raise ConfigError(f"devices must hold Device objects, not {device!r}.")
            if device.name in taken:
                raise ConfigError(f"Two devices are called {device.name!r}; names on a context must differ.")
            taken[device.name] = replace(device, _find_artifact_dir=_ArtifactDirFinder(self, device.name))
            self._claims[device.name] = _Claim()
            if device.runner is not None:
                remember = functools.partial(remember_spec, self.home, device)
                self._boards[device.name] = Board(device, device.runner, remember)
        return taken

    def _board(self, name: str) -> Board:
        device = self.find_device(name)
        if name not in self._boards:
            raise DeviceError(
                f"Device {name!r} ({device.provider_type}) has no runner: files cannot be sent there and it has no "
                "folders. Give it one, for example Device(runner=SSHCommandRunner(...))."
            )
        return self._boards[name]


class _Devices(dict[str, Device]):
    """The devices of a context by name; a name it does not know is answered with those it does."""

    def __missing__(self, name: str) -> Device:
        import difflib  # noqa: PLC0415 - importing the core must cost nothing

        close = difflib.get_close_matches(str(name), self, 1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise UnknownDeviceError(
            f"There is no device {name!r} on this context; its devices are: {quoted_list(self)}.{hint}"
        )


class _Claim:
    """Which of this context's threads uses a device, and how deep."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self.depth = 0

    @contextlib.contextmanager
    def held(self, device_name: str, wait_s: float | None) -> Iterator[None]:
        """Keep other threads off for the length of a block."""
        if not self._lock.acquire(timeout=-1 if wait_s is None else wait_s):
            holder = "another thread of this program"
            raise BusyError(
                f"Device {device_name!r} was in use by {holder} for all of {wait_s:g} s. Try later.", holder
            )
        self.depth += 1
        try:
            yield
        finally:
            self.depth -= 1
            self._lock.release()


class _ArtifactDirFinder:
    """Finds the current run's folder on a device. A class: a device with it can still be compared and shown."""

    def __init__(self, ctx: HubContext, name: str) -> None:
        self._ctx = ctx
        self._name = name

    def __call__(self) -> RemotePath:
        return self._ctx._board(self._name).run_dir(self._ctx.client.run.id)  # noqa: SLF001 - same module


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        # A container may run under a number without a name.
        return str(os.getuid())


def spec_as_value(spec: DeviceSpec) -> dict[str, object]:
    """Return a spec for recording, without what is unknown."""
    return {key: value for key, value in asdict(spec).items() if value not in (None, (), {})}
