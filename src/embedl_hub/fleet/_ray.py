"""The engine for many hosts. Ray places every job on the host that reaches its board; the board's lease stays the lock.

Each board is a resource of the host that reaches it. A sweep has one process for each board, which Ray can place
nowhere else, and which keeps the connection to the board from job to job. It asks for a small share of the resource, so
that two sweeps can use one board in turns: who has it is the lease's business. Which board of a pool takes a job is
decided here, by whichever is free first.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from embedl_hub.core.device import DEVICES_FILE, read_devices
from embedl_hub.errors import ConfigError, HubError, StoreUnusableError, WorkerLostError, known
from embedl_hub.fleet._engine import Outcome
from embedl_hub.fleet._model import StepKind
from embedl_hub.fleet._parcel import Packer, Parcel, take_in
from embedl_hub.fleet._ray_cluster import (
    connected,
    device_resource,
    hosts,
    lost_workers,
    need_ray,
    reachable_devices,
)
from embedl_hub.fleet._ray_host import Begun, Ended, HostWorker, Terms, work_once
from embedl_hub.fleet._ray_node import node_address
from embedl_hub.fleet._targets import HERE
from embedl_hub.fleet._work import wait_for_store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ray import ObjectRef, ObjectRefGenerator

    from embedl_hub.core import HubContext
    from embedl_hub.fleet._engine import Job
    from embedl_hub.fleet._model import Target
    from embedl_hub.tracking import Store

_LOOK_EVERY_S = 1.0
_HOST_WAIT_S = 30.0
# On top of a job's own limits: the host stops it first, and says so; force is for a process that cannot.
_FORCE_AFTER_S = 30.0
_END_S = 10.0
_SHARE = 0.01


@dataclass(frozen=True)
class Ray:
    """Places jobs on the hosts of a Ray cluster.

    Attributes:
        address: ``host:port`` of the cluster's head; None for what RAY_ADDRESS says, else for the cluster that this
            home's own node belongs to, else for a Ray on this machine alone, with the devices of this home.
        imports: Modules that hosts import first: toolchains and providers of one's own, installed on each host.
        host_wait_s: How long a board may be without a host that reaches it, before its jobs are given up.
        force_after_s: How long after its time limit a job's process is killed, if nothing was heard of it.
    """

    address: str | None = None
    imports: tuple[str, ...] = ()
    host_wait_s: float = _HOST_WAIT_S
    force_after_s: float = _FORCE_AFTER_S

    @contextlib.contextmanager
    def open(self, ctx: HubContext, targets: tuple[Target, ...]) -> Iterator[_Workers]:
        """Join the cluster and check that every board is reached by one of its hosts; see :class:`Engine`."""
        store = ctx.client.store
        if store is None:
            raise ConfigError("Runs come back from the hosts into a store: open the context with tracking.")
        devices = list(dict.fromkeys(device for target in targets for device in target.devices))
        address = self.address or os.environ.get("RAY_ADDRESS") or node_address(store.home)
        if address is None:
            _check_written_down(store.home, devices)
        with connected(address, devices):
            _check_reach(devices)
            home = store.home if address is None else None
            terms = Terms(ctx.project_name, ctx.tags, home, ctx.lease_wait_s, self.imports)
            workers = _Workers(store, targets, self, terms)
            try:
                yield workers
            finally:
                workers.close()


def _check_written_down(home: Path, devices: list[str]) -> None:
    path = home / DEVICES_FILE
    written = read_devices(path)
    if missing := [name for name in devices if name not in (*written, HERE)]:
        raise ConfigError(
            f"{path} has no device {known(missing)}; it has: {known(written)}. Processes of Ray read it to reach the "
            "boards: embedl-hub device add NAME ..."
        )


def _check_reach(devices: list[str]) -> None:
    reached = reachable_devices()
    if missing := [name for name in devices if name not in (*reached, HERE)]:
        raise ConfigError(
            f"No host of the cluster reaches {known(missing)}; its hosts reach: {known(reached)}. On the host with the "
            "cable: embedl-hub device add NAME ..., then embedl-hub fleet node --address HOST:PORT."
        )


@dataclass
class _Waiting:
    """A job that has not been given to Ray."""

    job: Job
    future: Future[Outcome]


class _Process:
    """A process of Ray's, somewhere, that carries out jobs: a board's own from job to job, or any for one job."""

    def __init__(self, terms: Terms, device: str | None) -> None:
        self._ray = need_ray()
        self._terms = terms
        self._device = device
        self._actor: Any = None
        self._stream: ObjectRefGenerator[Begun | Ended] | None = None

    def begin(self, parcel: Parcel[ObjectRef[bytes]]) -> ObjectRefGenerator[Begun | Ended]:
        """Have a job carried out, where Ray finds a place for it."""
        if self._device is None:
            task = self._ray.remote(max_retries=0, num_returns="streaming", **_place(self._ray, parcel.job))(work_once)
            self._stream = task.remote(parcel, self._terms)
        else:
            if self._actor is None:
                place = _place_of_board(self._ray, self._device)
                self._actor = self._ray.remote(max_restarts=0, **place)(HostWorker).remote(self._terms, self._device)
            self._stream = self._actor.work.options(num_returns="streaming").remote(parcel)
        return self._stream

    def kill(self) -> None:
        """End the process, whatever it does."""
        if self._device is None and self._stream is not None:
            self._ray.cancel(self._stream, force=True)
        if self._actor is not None:
            self._ray.kill(self._actor)
        self._actor = self._stream = None

    def close(self) -> None:
        """Let the process come to its end, if it can."""
        if self._actor is not None:
            self._ray.wait([self._actor.close.remote()], timeout=_END_S)
        self.kill()


class _Workers:
    """Takes a job for each board that is free and has Ray carry it out. One condition guards what is shared."""

    def __init__(self, store: Store, targets: tuple[Target, ...], settings: Ray, terms: Terms) -> None:
        self._ray = need_ray()
        self._store = store
        self._targets = {target.name: target for target in targets}
        self._settings = settings
        self._terms = terms
        self._packer: Packer[ObjectRef[bytes]] = Packer(store, self._ray.put)
        self._packing = threading.Lock()
        self._condition = threading.Condition()
        self._queues: dict[str, deque[_Waiting]] = {target.name: deque() for target in targets}
        self._out: frozenset[str] = frozenset()
        self._is_closing = False
        self._running: set[_Process] = set()
        devices = dict.fromkeys(device for target in targets for device in target.devices)
        here = (
            0 if all(target.devices for target in targets) else max(1, int(self._ray.cluster_resources().get("CPU", 1)))
        )
        self._threads = [
            threading.Thread(target=self._serve, args=(device,), name=f"edgeproof-ray-{device or 'any'}", daemon=True)
            for device in (*devices, *[None] * here)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, job: Job) -> Future[Outcome]:
        """Queue a job for its target; see :class:`Workers`."""
        waiting = _Waiting(job, Future())
        with self._condition:
            self._queues[job.step.target.name].append(waiting)
            self._condition.notify_all()
        return waiting.future

    def set_devices_out(self, names: frozenset[str]) -> None:
        """Give no work to these devices; see :class:`Workers`."""
        with self._condition:
            self._out = names
            self._condition.notify_all()

    def close(self) -> None:
        """Stop what runs, end what waits, and leave no board leased."""
        with self._condition:
            self._is_closing = True
            waiting = [each for queue in self._queues.values() for each in queue]
            for queue in self._queues.values():
                queue.clear()
            running = list(self._running)
            self._condition.notify_all()
        for each in waiting:
            each.future.cancel()
        for process in running:
            process.kill()
        for thread in self._threads:
            thread.join()

    def _serve(self, device: str | None) -> None:
        process = _Process(self._terms, device)
        while (waiting := self._take(device)) is not None:
            with contextlib.suppress(InvalidStateError):
                try:
                    waiting.future.set_result(self._carry_out(waiting.job, device, process))
                except Exception as error:  # noqa: BLE001 - it goes on in the thread that waits
                    waiting.future.set_exception(error)
        process.close()

    def _take(self, device: str | None) -> _Waiting | None:
        """Return the next job for a device, waiting for one; None at the end."""
        with self._condition:
            while not self._is_closing:
                if (found := self._next(device)) is not None:
                    return found
                self._condition.wait()
            return None

    def _next(self, device: str | None) -> _Waiting | None:
        if device in self._out:
            return None
        for name, queue in self._queues.items():
            devices = self._targets[name].devices
            if device not in (devices or (None,)):
                continue
            for waiting in list(queue):
                others = set(devices) - waiting.job.avoid - self._out
                if device in waiting.job.avoid and others:
                    continue
                queue.remove(waiting)
                if waiting.future.set_running_or_notify_cancel():
                    return waiting
        return None

    def _carry_out(self, job: Job, device: str | None, process: _Process) -> Outcome:
        try:
            parcel = self._pack(job)
        except HubError as error:
            return Outcome(job.step.key, None, str(error), device=device)
        try:
            with lost_workers(device), self._known_to_run(process):
                ended = self._await(process, parcel, device)
        except WorkerLostError:
            process.kill()
            if self._is_closing:
                return Outcome(job.step.key, None, "The sweep was stopped.", is_stopped=True, device=device)
            raise
        if ended.is_hung:
            process.kill()
        if ended.runs is not None:
            self._take_in(ended.runs)
        return ended.outcome

    def _pack(self, job: Job) -> Parcel[ObjectRef[bytes]]:
        if self._terms.home is not None:
            # One machine, one store: everything is where the job says it is.
            return Parcel(job, {}, {}, None)
        with self._packing:
            return self._packer.pack(job)

    @contextlib.contextmanager
    def _known_to_run(self, process: _Process) -> Iterator[None]:
        """Let whoever closes the engine find a process that is at work."""
        with self._condition:
            if self._is_closing:
                raise WorkerLostError("The sweep was stopped before the job began.")
            self._running.add(process)
        try:
            yield
        finally:
            with self._condition:
                self._running.discard(process)

    def _await(self, process: _Process, parcel: Parcel[ObjectRef[bytes]], device: str | None) -> Ended:
        job, stream = parcel.job, process.begin(parcel)
        said = self._await_begin(stream, device)
        if isinstance(said, Ended):
            return said
        limit_s = None
        if job.timeout_s is not None:
            limit_s = job.timeout_s + self._terms.lease_wait_s + self._settings.force_after_s
        ended = self._receive(stream, limit_s)
        if ended is None:
            process.kill()
            error = (
                f"It was stopped at its time limit of {job.timeout_s:g} s; its process on host {said.host} did not "
                "stop it itself and was killed."
            )
            return Ended(Outcome(job.step.key, None, error, is_boards_fault=True, device=device))
        assert isinstance(ended, Ended)  # noqa: S101 - what the host says second
        return ended

    def _await_begin(self, stream: ObjectRefGenerator[Begun | Ended], device: str | None) -> Begun | Ended:
        """Wait until Ray has placed a job, as long as there is a host to place it on."""
        seen_s = time.monotonic()
        while (said := self._receive(stream, _LOOK_EVERY_S)) is None:
            if device in (None, HERE) or device in reachable_devices():
                seen_s = time.monotonic()
            elif time.monotonic() - seen_s > self._settings.host_wait_s:
                raise WorkerLostError(
                    f"No host of the cluster has reached device {device!r} for {self._settings.host_wait_s:g} s; hosts "
                    f"there: {known(host.name for host in hosts() if host.is_alive)}. Is the device's host on, and "
                    "does embedl-hub fleet node run there?"
                )
        return said

    def _receive(self, stream: ObjectRefGenerator[Begun | Ended], wait_s: float | None) -> Begun | Ended | None:
        ready, _ = self._ray.wait([stream], timeout=wait_s)
        if not ready:
            return None
        if (item := next(stream, None)) is None:
            raise WorkerLostError("The process that carried out a job ended without a word.")
        said: Begun | Ended = self._ray.get(item)
        return said

    def _take_in(self, runs: bytes) -> None:
        while True:
            try:
                take_in(self._store, runs)
            except StoreUnusableError:
                if not wait_for_store(self._store):
                    raise
            else:
                return


def _place_of_board(ray: Any, device: str) -> dict[str, Any]:  # noqa: ANN401 - Ray's module and options
    """Return what the process of a board asks of its host."""
    # The board works, not the host: a host with few processors may serve many boards at once.
    if device == HERE and device not in reachable_devices():
        return {"num_cpus": 0, "scheduling_strategy": _on_this_host(ray)}
    return {"num_cpus": 0, "resources": {device_resource(device): _SHARE}}


def _place(ray: Any, job: Job) -> dict[str, Any]:  # noqa: ANN401 - Ray's module and options
    """Return what a job without a board asks of the host that carries it out."""
    if job.step.kind is not StepKind.PROFILE:
        return {"num_cpus": 1}
    # A measurement of this machine is made on this machine, with nothing of ours beside it.
    here = ray.get_runtime_context().get_node_id()
    resources = next(node["Resources"] for node in ray.nodes() if node["NodeID"] == here)
    return {"num_cpus": resources.get("CPU", 1), "scheduling_strategy": _on_this_host(ray)}


def _on_this_host(ray: Any) -> Any:  # noqa: ANN401 - Ray's module and options
    here = ray.get_runtime_context().get_node_id()
    return ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(here, soft=False)
