"""A Ray cluster as the hub uses it: which host reaches which board, how one joins and leaves, what its errors mean."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib
import json
import os
import secrets
import signal
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import platformdirs

from embedl_device.interpreter import python_argv
from embedl_hub.core.device import DEVICES_FILE, read_devices
from embedl_hub.errors import ConfigError, ConnectError, WorkerLostError
from embedl_hub.fleet._model import first_line

_PREFIX = "device:"
QUIET = {
    # Nothing of what is done here is anybody else's business.
    "RAY_USAGE_STATS_ENABLED": "0",
    # Ray's advice about its own future would be a warning on every start.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # Ray would install what it thinks a job needs.
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
}


_SILENT: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
_STARTS = 3
_MODE, _TOKEN, _TOKEN_PATH = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"


@dataclass(frozen=True)
class Host:
    """A host of the cluster."""

    name: str  # its host name
    address: str  # its address in the cluster
    is_alive: bool  # whether it is there
    cpus: float  # processors it offers to work without a board
    devices: tuple[str, ...]  # the boards that it reaches
    busy: tuple[str, ...] = ()  # those of them that have a job of the cluster


def need_ray() -> Any:  # noqa: ANN401 - a module
    """Import Ray, or say how to get it."""
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise ConfigError(f"Many hosts need Ray ({error}); pip install 'edgeproof-hub[ray]'.") from error


def device_resource(device: str) -> str:
    """Return what a board is called among the resources of its host."""
    return f"{_PREFIX}{device}"


def resources_of(devices: Iterable[str]) -> dict[str, float]:
    """Return what a host that reaches these boards offers."""
    return {device_resource(device): 1.0 for device in devices}


@contextlib.contextmanager
def connected(address: str | None, devices: Iterable[str] = ()) -> Iterator[None]:
    """Belong to a cluster for the length of a block; a process that does already stays in its own.

    Without an address a Ray is started on this machine alone, which reaches these boards. Whoever reaches a Ray runs
    programs in it: this one listens on the loopback interface and takes only those who know this process's token.
    """
    ray = need_ray()
    if ray.is_initialized():
        yield
        return
    os.environ.update(QUIET)
    with _set(_authentication(alone=address is None)):
        _reread_authentication()
        try:
            if address is None:
                _start_alone(ray, devices)
            else:
                ray.init(address=address, **_SILENT)
        except Exception as error:
            # Ray raises exceptions of its own, RuntimeErrors and plain Exceptions here.
            reason = first_line(str(error)) or type(error).__name__
            if address is None:
                raise ConnectError(f"Ray could not be started on this machine: {reason}") from error
            raise ConnectError(
                f"This process could not join the Ray cluster at {address}: {reason}. This host must belong to it, "
                "with boards or without (embedl-hub fleet node --address HOST:PORT), and have its token."
            ) from error
        try:
            yield
        finally:
            ray.shutdown()


def _start_alone(ray: Any, devices: Iterable[str]) -> None:  # noqa: ANN401 - a module
    constants: Any = importlib.import_module("ray._private.ray_constants")
    # Ray takes 127.0.0.1 for a slip and listens on all interfaces instead, except where it knows no clusters.
    knows_clusters = constants.ENABLE_RAY_CLUSTER
    constants.ENABLE_RAY_CLUSTER = False
    settings = {"include_dashboard": False, "resources": resources_of(devices), **_SILENT}
    try:
        for left in reversed(range(_STARTS)):
            try:
                ray.init(address="local", _node_ip_address="127.0.0.1", **settings)
            except Exception as error:
                # It gives its own processes 30 s, which a busy machine may take.
                if not left or "timed out during startup" not in str(error):
                    raise
                ray.shutdown()
            else:
                return
    finally:
        constants.ENABLE_RAY_CLUSTER = knows_clusters


def _reread_authentication() -> None:
    """Have Ray read the variables again: it did so when it was imported."""
    raylet: Any = importlib.import_module("ray._raylet")
    raylet.Config.initialize("")
    raylet.AuthenticationTokenLoader.instance().reset_cache()


@contextlib.contextmanager
def _set(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables of the environment for the length of a block."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _authentication(*, alone: bool) -> dict[str, str]:
    """Return what Ray is told of tokens: the user's own if there is one, for a Ray of ours one that we make."""
    if _MODE in os.environ:
        return {}
    if has_token():
        return {_MODE: "token"}
    return {_MODE: "token", _TOKEN: secrets.token_hex(32)} if alone else {}


def has_token() -> bool:
    """Whether there is a token for Ray where Ray looks for one."""
    named = os.environ.get(_TOKEN_PATH)
    path = Path(named) if named else Path.home() / ".ray" / "auth_token"
    return bool(os.environ.get(_TOKEN)) or path.is_file()


def cluster_hosts(address: str) -> list[Host]:
    """Return the hosts of a cluster."""
    with connected(address):
        return hosts()


def hosts() -> list[Host]:
    """Return the hosts of the cluster that this process has joined."""
    ray = need_ray()
    free = ray.available_resources()
    listed = []
    for node in ray.nodes():
        devices = tuple(sorted(_devices_of(node["Resources"])))
        busy = tuple(name for name in devices if free.get(device_resource(name), 0.0) < 1.0)
        cpus = node["Resources"].get("CPU", 0.0)
        listed.append(Host(node["NodeManagerHostname"], node["NodeManagerAddress"], node["Alive"], cpus, devices, busy))
    return listed


def reachable_devices() -> set[str]:
    """Return every board that a host of the cluster reaches."""
    return {device for node in need_ray().nodes() if node["Alive"] for device in _devices_of(node["Resources"])}


def _devices_of(resources: Mapping[str, float]) -> Iterator[str]:
    return (name.removeprefix(_PREFIX) for name in resources if name.startswith(_PREFIX))


@contextlib.contextmanager
def lost_workers(device: str | None) -> Iterator[None]:
    """Turn what Ray says of a process or a host that is gone into our word for it."""
    exceptions = importlib.import_module("ray.exceptions")
    gone = (
        exceptions.WorkerCrashedError, exceptions.RayActorError, exceptions.NodeDiedError,
        exceptions.LocalRayletDiedError, exceptions.ObjectLostError, exceptions.OutOfMemoryError,
        exceptions.TaskCancelledError, exceptions.TaskUnschedulableError, exceptions.RaySystemError,
    )  # fmt: skip
    place = "a job without a board" if device is None else f"a job on device {device!r}"
    try:
        yield
    except gone as error:
        reason = first_line(str(error)) or type(error).__name__
        raise WorkerLostError(f"The process that ran {place} is gone: {reason}") from error


_PORT = 6379
_ENVIRONMENT_VARIABLE = "EMBEDL_HUB_HOME"


@dataclass(frozen=True)
class NodePlan:
    """A node to start."""

    home: Path  # the home whose devices it offers, and in which its jobs record
    devices: tuple[str, ...]  # those devices
    address: str  # where the cluster is joined from this host
    argv: tuple[str, ...]  # the command
    environment: dict[str, str]  # what the command is told beside it


def plan_node(
    home: Path,
    *,
    address: str | None = None,
    port: int | None = None,
    ip: str | None = None,
    cpus: int | None = None,
    temporary: Path | None = None,
    insecure: bool = False,
) -> NodePlan:
    """Say how this host joins a cluster.

    Args:
        home: Whose devices it reaches.
        address: ``host:port`` of the cluster's head; None makes this host the head.
        port: Where the head listens; Ray's 6379 when not given.
        ip: This host's address in the cluster's network, where it has several.
        cpus: Processors to offer to work without a board; all of them when not given.
        temporary: Where Ray keeps its logs and sockets; its own choice when not given.
        insecure: Also without a token, so that whoever reaches the cluster's ports runs programs on its hosts.
    """
    need_ray()
    secured = _authentication(alone=False)
    if not insecure and {**os.environ, **secured}.get(_MODE) != "token":
        raise ConfigError(
            "A Ray cluster without a token runs the programs of everyone who reaches its ports. Make a token and copy "
            f"it to every host: ray get-auth-token --generate (or {_TOKEN}, {_TOKEN_PATH}). In a network where "
            "everyone may do that: --insecure."
        )
    devices = tuple(read_devices(home / DEVICES_FILE))
    role = [f"--address={address}"]
    if address is None:
        role = ["--head", f"--port={port or _PORT}", "--include-dashboard=false"]
        address = f"{ip or '127.0.0.1'}:{port or _PORT}"
    chosen = (("node-ip-address", ip), ("num-cpus", cpus), ("temp-dir", temporary))
    argv = (
        *python_argv(module="ray.scripts.scripts"), "start", *role,
        f"--resources={json.dumps(resources_of(devices))}",
        *(f"--{name}={value}" for name, value in chosen if value is not None),
        # Free ports: Ray's own range would clash with that of another Ray on this host, which ends a process at random.
        "--min-worker-port=0", "--max-worker-port=0", "--disable-usage-stats", "--block",
    )  # fmt: skip
    return NodePlan(home, devices, address, argv, {_ENVIRONMENT_VARIABLE: str(home), **QUIET, **secured})


def become_node(plan: NodePlan, *, quiet: bool = False) -> None:
    """Turn this process into the node; it ends with Ctrl-C, SIGTERM or :func:`stop_node`.

    With ``quiet`` Ray says what it has to say on standard error.
    """
    plan.home.mkdir(parents=True, exist_ok=True)
    path = _note_path(plan.home)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    note = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(note, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ConfigError(
            f"A node with the devices of {plan.home} runs already. End it with: embedl-hub fleet stop"
        ) from None
    os.ftruncate(note, 0)
    os.write(note, f"{os.getpid()} {plan.address}".encode())
    # The lock lives as long as this process, which is Ray's from here on: it tells that the number is still ours.
    os.set_inheritable(note, True)
    if quiet:
        os.dup2(2, 1)
    os.execve(plan.argv[0], plan.argv, {**os.environ, **plan.environment})  # noqa: S606 - an argv list, no shell


def stop_node(home: Path, *, wait_s: float = 30.0) -> bool:
    """End this home's node with everything it started, and tell whether there was one."""
    if (note := _note(home)) is None:
        return False
    pid = int(note.split()[0])
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + wait_s
    while _note(home) is not None:
        if time.monotonic() > deadline:
            raise ConfigError(f"The node of {home} (process {pid}) did not end within {wait_s:g} s.")
        time.sleep(0.1)
    return True


def node_address(home: Path) -> str | None:
    """Return the address of the cluster that this home's node belongs to; None when none is running."""
    note = _note(home)
    return None if note is None else note.split()[1]


def _note_path(home: Path) -> Path:
    """Return where the node of a home writes down what it is.

    In the user's own folder: a note in the home could come with a stranger's files, and it says which process to end
    and which cluster to join.
    """
    name = hashlib.sha256(os.fsencode(home.resolve())).hexdigest()[:16]
    return Path(platformdirs.user_state_dir("edgeproof")) / "nodes" / name


def _note(home: Path) -> str | None:
    """Return what this home's node wrote down, if it is alive."""
    try:
        note = os.open(_note_path(home), os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(note, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return os.read(note, 1000).decode() or None
    else:
        return None
    finally:
        os.close(note)
