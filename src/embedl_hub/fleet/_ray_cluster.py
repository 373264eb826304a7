"""A Ray cluster as the hub uses it: which host reaches which board, how one joins, and what its errors mean here."""

from __future__ import annotations

import contextlib
import importlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from embedl_hub.errors import ConfigError, ConnectError, WorkerLostError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

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
    """A host of the cluster.

    Attributes:
        name: Its host name.
        address: Its address in the cluster.
        is_alive: Whether it is there.
        cpus: Processors it offers to work without a board.
        devices: The boards that it reaches.
        busy: Those of them that have a job of the cluster.
    """

    name: str
    address: str
    is_alive: bool
    cpus: float
    devices: tuple[str, ...]
    busy: tuple[str, ...] = ()


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

    Args:
        address: Of its head; None starts a Ray on this machine alone.
        devices: The boards that this machine reaches, for a Ray of its own.
    """
    ray = need_ray()
    if ray.is_initialized():
        yield
        return
    os.environ.update(QUIET)
    settings: dict[str, Any] = {"address": address, "log_to_driver": False, "logging_level": "error"}
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
    found = []
    for node in ray.nodes():
        devices = tuple(sorted(_devices_of(node["Resources"])))
        busy = tuple(name for name in devices if free.get(device_resource(name), 0.0) < 1.0)
        cpus = node["Resources"].get("CPU", 0.0)
        found.append(Host(node["NodeManagerHostname"], node["NodeManagerAddress"], node["Alive"], cpus, devices, busy))
    return found


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
        exceptions.WorkerCrashedError,
        exceptions.RayActorError,
        exceptions.NodeDiedError,
        exceptions.LocalRayletDiedError,
        exceptions.ObjectLostError,
        exceptions.OutOfMemoryError,
        exceptions.TaskCancelledError,
        exceptions.TaskUnschedulableError,
        exceptions.RaySystemError,
    )
    place = "a job without a board" if device is None else f"a job on device {device!r}"
    try:
        yield
    except gone as error:
        raise WorkerLostError(f"The process that carried out {place} is gone: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
