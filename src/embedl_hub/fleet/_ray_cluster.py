"""A Ray cluster as the hub uses it: which host reaches which board, how one joins and leaves, what its errors mean."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import platformdirs

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

    Without an address a Ray is started on this machine alone, which reaches these boards.
    """
    ray = need_ray()
    if ray.is_initialized():
        yield
        return
    os.environ.update(QUIET)
    settings: dict[str, object] = {"address": address, "log_to_driver": False, "logging_level": "error"}
    if address is None:
        settings |= {"address": "local", "include_dashboard": False, "resources": resources_of(devices)}
    try:
        ray.init(**settings)
    except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
        if address is None:
            raise ConnectError(f"Ray could not be started on this machine: {error}") from error
        raise ConnectError(
            f"This process could not join the Ray cluster at {address}: {error}. This host must belong to it, with "
            "boards or without: embedl-hub fleet node --address HOST:PORT."
        ) from error
    try:
        yield
    finally:
        ray.shutdown()


def cluster_hosts(address: str = "auto") -> list[Host]:
    """Return the hosts of a cluster; by default of the one that this host belongs to."""
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
) -> NodePlan:
    """Say how this host joins a cluster.

    Args:
        home: Whose devices it reaches.
        address: ``host:port`` of the cluster's head; None makes this host the head.
        port: Where the head listens; Ray's 6379 when not given.
        ip: This host's address in the cluster's network, where it has several.
        cpus: Processors to offer to work without a board; all of them when not given.
        temporary: Where Ray keeps its logs and sockets; its own choice when not given.
    """
    need_ray()
    devices = tuple(read_devices(home / DEVICES_FILE))
    role = [f"--address={address}"]
    if address is None:
        role = ["--head", f"--port={port or _PORT}", "--include-dashboard=false"]
        address = f"{ip or '127.0.0.1'}:{port or _PORT}"
    chosen = (("node-ip-address", ip), ("num-cpus", cpus), ("temp-dir", temporary))
    argv = (
        sys.executable, "-m", "ray.scripts.scripts", "start", *role,
        f"--resources={json.dumps(resources_of(devices))}",
        *(f"--{name}={value}" for name, value in chosen if value is not None),
        # Free ports: Ray's own range would clash with that of another Ray on this host, which ends a process at random.
        "--min-worker-port=0", "--max-worker-port=0", "--disable-usage-stats", "--block",
    )  # fmt: skip
    return NodePlan(home, devices, address, argv, {_ENVIRONMENT_VARIABLE: str(home), **QUIET})


def become_node(plan: NodePlan) -> None:
    """Turn this process into the node; it ends with Ctrl-C, SIGTERM or :func:`stop_node`."""
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
