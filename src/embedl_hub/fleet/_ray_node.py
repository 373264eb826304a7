"""This host in a Ray cluster: started with the boards of its home, found again, stopped. No other Ray is touched."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from embedl_hub.core.device import DEVICES_FILE, read_devices
from embedl_hub.errors import ConfigError
from embedl_hub.fleet._ray_cluster import QUIET, need_ray, resources_of

if TYPE_CHECKING:
    from pathlib import Path

_PORT = 6379
_NODE_FILE = "fleet-node"
_ENVIRONMENT_VARIABLE = "EMBEDL_HUB_HOME"


@dataclass(frozen=True)
class NodePlan:
    """A node to start.

    Attributes:
        home: The home whose devices it offers, and in which its jobs record.
        devices: Those devices.
        address: Where the cluster is joined from this host.
        argv: The command.
        environment: What the command is told beside it.
    """

    home: Path
    devices: tuple[str, ...]
    address: str
    argv: tuple[str, ...]
    environment: dict[str, str]


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
        sys.executable,
        "-m",
        "ray.scripts.scripts",
        "start",
        *role,
        f"--resources={json.dumps(resources_of(devices))}",
        *(f"--{name}={value}" for name, value in chosen if value is not None),
        # Free ports: Ray's own range would clash with that of another Ray on this host, which ends a process at random.
        "--min-worker-port=0",
        "--max-worker-port=0",
        "--disable-usage-stats",
        "--block",
    )
    return NodePlan(home, devices, address, argv, {_ENVIRONMENT_VARIABLE: str(home), **QUIET})


def become_node(plan: NodePlan) -> None:
    """Turn this process into the node; it ends with Ctrl-C, SIGTERM or :func:`stop_node`."""
    plan.home.mkdir(parents=True, exist_ok=True)
    note = os.open(plan.home / _NODE_FILE, os.O_RDWR | os.O_CREAT, 0o600)
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


def _note(home: Path) -> str | None:
    """Return what this home's node wrote down, if it is alive."""
    try:
        note = os.open(home / _NODE_FILE, os.O_RDONLY)
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
