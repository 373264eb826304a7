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
from collections.abc import Iterator
from concurrent.futures import InvalidStateError
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from embedl_hub.core.device import DEVICES_FILE, read_devices
from embedl_hub.core.steps import HERE
from embedl_hub.errors import ConfigError, HubError, StoreUnusableError, WorkerLostError, quoted_list
from embedl_hub.fleet._engine import JobQueues
from embedl_hub.fleet._model import Job, Outcome, StepKind, Target
from embedl_hub.fleet._parcel import Packer, Parcel, import_runs
from embedl_hub.fleet._ray_cluster import (
    connected,
    device_resource,
    hosts,
    lost_workers,
    need_ray,
    node_address,
    reachable_devices,
)
from embedl_hub.fleet._ray_host import Begun, Ended, HostWorker, Terms, work_once
from embedl_hub.fleet._work import wait_for_store

if TYPE_CHECKING:
    from ray import ObjectRef, ObjectRefGenerator

    from embedl_hub.core import HubContext
    from embedl_hub.tracking import Store

_LOOK_EVERY_S = 1.0
_HOST_WAIT_S = 30.0
# On top of a job's own limits: the host stops it first, and says so; force is for a process that cannot.
_FORCE_AFTER_S = 30.0
_END_S = 10.0
_SHARE = 0.01


@dataclass(frozen=True)
class Ray:
    """Places jobs on the hosts of a Ray cluster."""

    # ``host:port`` of the cluster's head; None for what RAY_ADDRESS says, else for the cluster that this home's own
    # node belongs to, else for a Ray on this machine alone, with the devices of this home.
    address: str | None = None
    # Modules that hosts import first: toolchains and providers of one's own, installed on each host.
    imports: tuple[str, ...] = ()
    # How long a board may be without a host that reaches it, before its jobs are given up.
    host_wait_s: float = _HOST_WAIT_S
    # How long after its time limit a job's process is killed, if nothing was heard of it.
    force_after_s: float = _FORCE_AFTER_S

    @contextlib.contextmanager
    def open(self, ctx: HubContext, targets: tuple[Target, ...]) -> Iterator[_Workers]:
        """Join the cluster and check that every board is reached by one of its hosts; see :class:`Engine`."""
        store = ctx.client.store
        if store is None:
            raise ConfigError("Runs come back from the hosts into a store: open the context with tracking.")
        devices = list(dict.fromkeys(device for target in targets for device in target.devices))
        address = self.address or os.environ.get("RAY_ADDRESS") or node_address(store.home)
        path = store.home / DEVICES_FILE
        if address is None:
            ctx.check_home_devices()
        known = read_devices(path) if address is None else {}
        if address is None and (missing := set(devices) - {*known, HERE}):
            raise ConfigError(
                f"{path} has no device {quoted_list(missing)}; it has: {quoted_list(known)}. Processes of Ray read it "
                "to reach the boards: embedl-hub device add NAME ..."
            )
        with connected(address, devices):
            reached = reachable_devices()
            if missing := set(devices) - {*reached, HERE}:
                raise ConfigError(
                    f"No host of the cluster reaches {quoted_list(missing)}; its hosts reach: {quoted_list(reached)}. "
                    "On the host with the cable: embedl-hub device add NAME ..., then embedl-hub fleet node --address "
                    "HOST:PORT."
                )
            home = store.home if address is None else None
            terms = Terms(ctx.project_name, ctx.tags, home, ctx.lease_wait_s, self.imports)
            workers = _Workers(store, targets, self, terms)
            try:
                yield workers
            finally:
                workers.close()


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
                # The board works, not the host: a host with few processors may serve many boards at once.
                place: dict[str, object] = {"num_cpus": 0, "resources": {device_resource(self._device): _SHARE}}
                if self._device == HERE and HERE not in reachable_devices():
                    place = {"num_cpus": 0, "scheduling_strategy": _on_this_host(self._ray)}
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


class _Workers(JobQueues):
    """Takes a job for each board that is free and has Ray run it."""

    def __init__(self, store: Store, targets: tuple[Target, ...], settings: Ray, terms: Terms) -> None:
        super().__init__(targets)
        self._ray = need_ray()
        self._store = store
        self._settings = settings
        self._terms = terms
        self._packer: Packer[ObjectRef[bytes]] = Packer(store, self._ray.put)
        self._packing = threading.Lock()
        self._running: set[_Process] = set()
        devices = dict.fromkeys(device for target in targets for device in target.devices)
        cpus = max(1, int(self._ray.cluster_resources().get("CPU", 1)))
        here = 0 if all(target.devices for target in targets) else cpus
        self._threads = [
            threading.Thread(target=self._serve, args=(device,), name=f"edgeproof-ray-{device or 'any'}", daemon=True)
            for device in (*devices, *[None] * here)
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Stop what runs, end what waits, and leave no board leased."""
        self._cancel_queued()
        with self._condition:
            running = list(self._running)
        for process in running:
            process.kill()
        for thread in self._threads:
            thread.join()

    def _serve(self, device: str | None) -> None:
        process = _Process(self._terms, device)
        while (queued := self._take(device)) is not None:
            with contextlib.suppress(InvalidStateError):
                try:
                    queued.future.set_result(self._run_job(queued.job, device, process))
                except Exception as error:  # noqa: BLE001 - it goes on in the thread that waits
                    queued.future.set_exception(error)
        process.close()

    def _run_job(self, job: Job, device: str | None, process: _Process) -> Outcome:
        try:
            parcel = self._pack(job)
        except HubError as error:
            return Outcome(job.step.key, None, str(error), device=device)
        try:
            with lost_workers(device), self._known_to_run(process):
                ended = self._await(process, parcel, device)
        except WorkerLostError:
            process.kill()
            if self._closing.is_set():
                return Outcome(job.step.key, None, "The sweep was stopped.", is_stopped=True, device=device)
            raise
        if ended.is_hung:
            process.kill()
        if ended.runs is not None:
            self._import_runs(ended.runs)
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
            if self._closing.is_set():
                raise WorkerLostError("The sweep was stopped before the job began.")
            self._running.add(process)
        try:
            yield
        finally:
            with self._condition:
                self._running.discard(process)

    def _await(self, process: _Process, parcel: Parcel[ObjectRef[bytes]], device: str | None) -> Ended:
        job, stream = parcel.job, process.begin(parcel)
        begun = self._await_begin(stream, device)
        if isinstance(begun, Ended):
            return begun
        limit_s = None
        if job.timeout_s is not None:
            limit_s = job.timeout_s + self._terms.lease_wait_s + self._settings.force_after_s
        ended = self._receive(stream, limit_s)
        if ended is None:
            process.kill()
            error = (
                f"It was stopped at its time limit of {job.timeout_s:g} s; its process on host {begun.host} did not "
                "stop it itself and was killed."
            )
            return Ended(Outcome(job.step.key, None, error, is_boards_fault=True, device=device))
        assert isinstance(ended, Ended)  # noqa: S101 - what the host says second
        return ended

    def _await_begin(self, stream: ObjectRefGenerator[Begun | Ended], device: str | None) -> Begun | Ended:
        """Wait until Ray has placed a job, as long as there is a host to place it on."""
        seen_s = time.monotonic()
        while (message := self._receive(stream, _LOOK_EVERY_S)) is None:
            if device in (None, HERE) or device in reachable_devices():
                seen_s = time.monotonic()
            elif time.monotonic() - seen_s > self._settings.host_wait_s:
                raise WorkerLostError(
                    f"No host of the cluster has reached device {device!r} for {self._settings.host_wait_s:g} s; hosts "
                    f"there: {quoted_list(host.name for host in hosts() if host.is_alive)}. Is the device's host on, "
                    "and does embedl-hub fleet node run there?"
                )
        return message

    def _receive(self, stream: ObjectRefGenerator[Begun | Ended], wait_s: float | None) -> Begun | Ended | None:
        ready, _ = self._ray.wait([stream], timeout=wait_s)
        if not ready:
            return None
        if (item := next(stream, None)) is None:
            raise WorkerLostError("The process that ran a job ended without a message.")
        message: Begun | Ended = self._ray.get(item)
        return message

    def _import_runs(self, runs: bytes) -> None:
        while True:
            try:
                return import_runs(self._store, runs)
            except StoreUnusableError:
                if not wait_for_store(self._store):
                    raise


def _place(ray: Any, job: Job) -> dict[str, object]:  # noqa: ANN401 - Ray's module and options
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
