"""The context: one project, its devices, its tracking client. All state of the hub lives here."""

from __future__ import annotations

import contextlib
import functools
import getpass
import logging
import os
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from embedl_hub import notebook
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
from embedl_hub.tracking import (
    SAME_AS,
    Client,
    LoggedArtifact,
    Redactor,
    Store,
    check_name,
    find_home,
    now_ms,
    open_uplink,
)

if TYPE_CHECKING:
    from embedl_hub.core.device import CommandRunner, Lease
    from embedl_hub.paths import RemotePath
    from embedl_hub.tracking import ActiveRun

_LOG = logging.getLogger("embedl_hub")

CLAIMED = "$claimed"
"""The parameter that says from when until when a run had its device."""
SPEC = "$device_spec"
"""The parameter that says what a device is."""


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
        self._named_home = home
        self.home: Path | None = find_home(home, uses_devices=False) if tracking else None
        self._durable = durable
        self._keep_remote = keep_remote
        self.lease_wait_s = lease_wait_s
        self.tags: Mapping[str, str] = dict(tags or {})
        for name in self.tags:
            check_name("tag name", name)
        self._client: Client | None = None
        self._boards: dict[str, Board] = {}
        self._runners: dict[str, CommandRunner] = {}
        self._claims: dict[str, _Claim] = {}
        self._uses: list[_Use] = []
        self._leases: dict[str, Lease] = {}
        self._spec_runs: dict[str, str] = {}
        self._notes: dict[str, dict[str, object]] = {}
        self.devices: Mapping[str, Device] = _Devices(self._take(devices))

    def __repr__(self) -> str:
        parts = (repr(self.project_name), f"devices={sorted(self.devices)}", f"home={str(self.home)!r}")
        return notebook.line("HubContext", parts)

    def _repr_html_(self) -> str:
        state = "open" if self.is_open else "not open"
        title = f"HubContext {self.project_name!r}, {state}, {self.home or 'tracking off'}"
        rows = [(name, device.provider_type, device.runner or "") for name, device in self.devices.items()]
        return notebook.table(title, rows or [("this machine", "local", "")], ("device", "type", "reached by"))

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

    def check_home_devices(self) -> None:
        """Raise UntrustedError if the home was found, not named, and its devices are not trusted; see ``trust``."""
        if self.home is not None:
            find_home(self._named_home)

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
                return replace(artifact, local_path=place).local()
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
        with self._claimed(device_name, threading.get_ident(), wait_s):
            yield self.find_device(device_name)

    @contextlib.contextmanager
    def run_on(self, device_name: str) -> Iterator[None]:
        """Have a device for the rest of a block from when the block first uses it; a component's run is such a block.

        A provider that never touches a board's runner runs while the board is off. A device without a runner is had
        from the start: that costs nothing.
        """
        use = _Use(self, device_name, self.client.run)
        self._uses.append(use)
        try:
            if device_name not in self._runners:
                use.begin()
            with use.stack:
                yield
        finally:
            self._uses.remove(use)

    def touch(self, device_name: str) -> None:
        """Say that a device is used now: the run on it, of this thread or of the one that started it, claims it."""
        self._check_lease(device_name)
        thread = threading.get_ident()
        uses = [use for use in self._uses if use.device_name == device_name]
        own = next((use for use in reversed(uses) if use.thread == thread), None)
        # Who has claimed the device, as a health check does, acts in nobody's name: the run of another thread may wait
        # for that very claim.
        if own is None and (not uses or self._claims[device_name].is_held_by(thread)):
            return
        (own or uses[-1]).begin()

    @contextlib.contextmanager
    def _claimed(self, device_name: str, owner: int, wait_s: float | None) -> Iterator[None]:
        device = self.find_device(device_name)
        runner = self._runners.get(device_name)
        with self._claims[device_name].held(owner, device_name, wait_s) as is_first:
            if not is_first or device.lease_dir is None or not isinstance(runner, LeasingRunner):
                yield
                return
            patience_s = self.lease_wait_s if wait_s is None else wait_s
            holder = f"{_user()}@{socket.gethostname()} ({self.project_name})"
            with runner.lease(device.lease_dir, holder, wait_s=patience_s) as lease:
                self._leases[device_name] = lease
                try:
                    yield
                    self._check_lease(device_name)
                finally:
                    del self._leases[device_name]

    def _check_lease(self, device_name: str) -> None:
        """Raise where a device that is in use is ours no longer: nothing more is run there."""
        lease = self._leases.get(device_name)
        if lease is not None and lease.is_lost:
            raise LeaseError(
                f"The lease on device {device_name!r} was lost while it was in use (no heartbeat arrived "
                "for a while); somebody else may have used the board meanwhile. Run it again."
            )

    def _record_spec(self, device_name: str, run: ActiveRun) -> None:
        """Record what a device is, once; later runs of this context name the one that has it."""
        first = self._spec_runs.setdefault(device_name, run.id)
        run.log_param(SPEC, {SAME_AS: first} if first != run.id else spec_as_value(self.device_spec(device_name)))

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
            self._claims[device.name] = _Claim()
            runner = device.runner
            if runner is not None:
                remember = functools.partial(remember_spec, self.home, device)
                self._boards[device.name] = Board(device, runner, remember)
                self._runners[device.name] = runner
                runner = _TouchingRunner(runner, functools.partial(self.touch, device.name))
            taken[device.name] = replace(
                device, runner=runner, _find_artifact_dir=_ArtifactDirFinder(self, device.name)
            )
        return taken

    def _board(self, name: str) -> Board:
        device = self.find_device(name)
        if name not in self._boards:
            raise DeviceError(
                f"Device {name!r} ({device.provider_type}) has no runner: files cannot be sent there and it has no "
                "folders. Give it one, for example Device(runner=SSHCommandRunner(...))."
            )
        self.touch(name)
        return self._boards[name]


class _Devices(dict[str, Device]):
    """The devices of a context by name; a name it does not know is answered with those it does."""

    def __missing__(self, name: str) -> Device:
        import difflib  # noqa: PLC0415 - importing the core must cost nothing

        close = difflib.get_close_matches(str(name), self, 1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        if not self:
            hint = " `embedl-hub device add` adds one for good, HubContext(devices=...) for a script."
        raise UnknownDeviceError(
            f"There is no device {name!r} on this context; its devices are: {quoted_list(self)}.{hint}"
        )


class _Claim:
    """Who of this context's threads uses a device, and how deep. A provider's own threads use it in its name."""

    def __init__(self) -> None:
        self._free = threading.Condition()
        self._owner: int | None = None
        self._depth = 0

    def is_held_by(self, owner: int) -> bool:
        """Say whether a thread has the device."""
        return self._owner == owner

    @contextlib.contextmanager
    def held(self, owner: int, device_name: str, wait_s: float | None) -> Iterator[bool]:
        """Keep other threads off for the length of a block; true for the outermost block of an owner."""
        with self._free:
            if not self._free.wait_for(lambda: self._owner in (None, owner), wait_s):
                raise BusyError(
                    f"Device {device_name!r} was in use by another thread of this program for all of {wait_s:g} s. "
                    "Try later.",
                    "another thread of this program",
                )
            self._owner = owner
            self._depth += 1
            is_first = self._depth == 1
        try:
            yield is_first
        finally:
            with self._free:
                self._depth -= 1
                if not self._depth:
                    self._owner = None
                    self._free.notify()


class _Use:
    """A run on a device: it begins to have the device when it first touches it, and has it to its end."""

    def __init__(self, ctx: HubContext, device_name: str, run: ActiveRun) -> None:
        self.device_name = device_name
        self.thread = threading.get_ident()
        self.stack = contextlib.ExitStack()
        self._ctx = ctx
        self._run = run
        self._lock = threading.RLock()
        self._has_begun = False

    def begin(self) -> None:
        """Claim the device, and record from when until when, and what it is."""
        with self._lock:
            if self._has_begun:
                return
            self._has_begun = True
            self._run.log_param(CLAIMED, {"waits_from_ms": now_ms()})
            try:
                self.stack.enter_context(self._ctx._claimed(self.device_name, self.thread, None))  # noqa: SLF001 - same module
            except BaseException:
                self._has_begun = False
                raise
            from_ms = now_ms()
            self._run.log_param(CLAIMED, {"from_ms": from_ms})
            self.stack.callback(lambda: self._run.log_param(CLAIMED, {"from_ms": from_ms, "until_ms": now_ms()}))
            self._ctx._record_spec(self.device_name, self._run)  # noqa: SLF001 - same module


class _TouchingRunner:
    """A device's runner on a context: the first use in a run claims the device. In all else it is the runner."""

    def __init__(self, runner: CommandRunner, touch: Callable[[], None]) -> None:
        self._runner = runner
        self._touch = touch

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """Answers isinstance like the runner."""
        return type(self._runner)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - the runner's own
        value = getattr(self._runner, name)
        if name.startswith("_") or name in ("close", "lease") or not callable(value):
            return value

        @functools.wraps(value)
        def touching(*args: object, **kwargs: object) -> object:
            self._touch()
            return value(*args, **kwargs)

        return touching

    def __repr__(self) -> str:
        return repr(self._runner)

    def __eq__(self, other: object) -> bool:
        return self._runner == getattr(other, "_runner", other)

    def __hash__(self) -> int:
        return hash(self._runner)


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
